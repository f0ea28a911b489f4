"""Images really built from the Dockerfile, without a network, and containers of them as a restricted pod has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.setup import images
from tests.harness.processes import Daemon

ROOT = Path(__file__).resolve().parents[2]
USER = 65_532
"""Of the Dockerfile."""
ARGUMENTS = {
    "PYTHON_IMAGE": images.PYTHON,
    "BUSYBOX_IMAGE": images.BUSYBOX,
    "VLLM_IMAGE": images.PYTHON,
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "/find-links",
}
"""Nothing but a Python stands for vLLM: of its image the Dockerfile asks no more."""

ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""What runc starts is not its child: so it dies with whoever started this, however that ends."""

COPIED = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "hack/setup/constraints.txt")
PACKAGES = ("operator/paceline_operator", "engine/paceline_engine")


@contextmanager
def building(folder: Path) -> Iterator[Builder]:
    """A Builder of this repository as it is now; what it needs is made where it is absent, its images go at the end."""
    images.main()
    context = folder / "context"
    for name in COPIED:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, context / name)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, context / name)
    made = Builder(folder / "storage", context)
    try:
        yield made
    finally:
        made.buildah("rmi", "--all", "--force")


@dataclass
class Builder:
    """Images below `folder`, on the bases in the cache. `context` is what is built: another's edits do not reach it."""

    folder: Path
    context: Path
    env: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.env = {**os.environ, **images.environment(self.folder, images.bases() / "store")}

    def buildah(self, *arguments: str | Path) -> str:
        """Its answer; its errors are shown where it fails."""
        command = ["buildah", *map(str, arguments)]
        done = subprocess.run(command, env=self.env, cwd=self.context, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def build(self, target: str, *options: str, **arguments: str) -> str:
        """The image's digest. Every file has the same time, as a release's has."""
        given = [f"--build-arg={name}={value}" for name, value in {**ARGUMENTS, **arguments}.items()]
        mount = f"--volume={images.wheels()}:{ARGUMENTS['PIP_FIND_LINKS']}:ro"
        alone = ["--network=none", "--isolation=oci", "--pull-never", "--timestamp=0"]
        return self.buildah("build", "--quiet", *alone, mount, *given, *options, f"--target={target}", ".")

    def configuration(self, image: str) -> dict[str, Any]:
        """What the image says of its process: Env, Entrypoint, User, Labels."""
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type=image", image))
        return dict(found["OCIv1"]["config"])

    def size(self, image: str) -> int:
        """Bytes of its layers as a registry keeps them."""
        layout = self.folder / f"pushed-{image[:12]}"
        self.buildah("push", "--quiet", "--format=oci", image, f"oci:{layout}")
        (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
        manifest = json.loads((layout / "blobs" / entry["digest"].replace(":", "/")).read_text())
        return sum(layer["size"] for layer in manifest["layers"])

    def archive(self, image: str, reference: str) -> Path:
        """A file for `ctr images import`, which then knows the image by `reference`."""
        path = self.folder / f"{image[:12]}.tar"
        self.buildah("push", "--quiet", image, f"docker-archive:{path}:{reference}")
        return path

    @contextmanager
    def root(self, image: str) -> Iterator[Path]:
        """The image's files, as a folder."""
        container = self.buildah("from", "--pull-never", image)
        try:
            yield Path(self.buildah("mount", container))
        finally:
            self.buildah("rm", container)


@dataclass
class Container:
    """A process 1 in the files of an image, with runc: no user of the machine, no capability, a root that is read-only.

    The network is the machine's own, for a server on loopback.
    """

    name: str
    root: Path
    folder: Path
    """For the container's configuration, state and log."""

    def start(self, arguments: Sequence[str], env: Sequence[str], mounts: dict[str, tuple[Path, bool]]) -> Daemon:
        """`mounts`: place in the container -> (folder of the machine, writable)."""
        self.folder.mkdir()
        for place in mounts:
            # The runtime would make it; the root is mounted, not shared, and goes with the test.
            (self.root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
        specification = self._specification(arguments, env, mounts)
        (self.folder / "config.json").write_text(json.dumps(specification))
        running: list[str | Path] = [*ALONE, *self._runc, "run", "--bundle", self.folder, self.name]
        return Daemon(self.name, running, self.folder)

    def run(
        self, arguments: Sequence[str], env: Sequence[str], mounts: dict[str, tuple[Path, bool]]
    ) -> tuple[int, str]:
        """Exit status and output of a process that ends by itself."""
        daemon = self.start(arguments, env, mounts)
        code = daemon.process.wait(60)
        return code, daemon.log.read_text()

    def signal(self, daemon: Daemon, name: str) -> None:
        """To process 1 of what `start` answered, as a kubelet's runtime sends it."""
        of = f"/proc/{daemon.process.pid}/ns"
        inside = ["nsenter", f"--mount={of}/mnt", f"--pid={of}/pid_for_children"]
        subprocess.run([*inside, *self._runc, "kill", self.name, name], check=True)

    @property
    def _runc(self) -> list[str]:
        return ["runc", "--root", str(self.folder / "state")]

    def _specification(
        self, arguments: Sequence[str], env: Sequence[str], mounts: dict[str, tuple[Path, bool]]
    ) -> dict[str, Any]:
        own = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]},
        ]
        bound = [
            {
                "destination": place,
                "type": "bind",
                "source": str(source),
                "options": ["bind", "rw" if writable else "ro"],
            }
            for place, (source, writable) in mounts.items()
        ]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": USER, "gid": USER},
                "args": list(arguments),
                "env": list(env),
                "cwd": "/",
                "noNewPrivileges": True,
                "capabilities": {each: [] for each in ("bounding", "effective", "inheritable", "permitted")},
            },
            "root": {"path": str(self.root), "readonly": True},
            "mounts": [*own, *bound],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
        }
