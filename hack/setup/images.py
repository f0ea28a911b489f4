"""Make what the images are built from in tests, once, in the cache: a base with Debian's Python, one with busybox, and
wheels of the pinned versions for that Python. Registries of images are not asked, and the builds need no network.

Only for the tests: releases build from the bases that the Dockerfile names.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from hack.setup.common import COMPLETE, ROOT, cache_folder, lock, run, say
from hack.setup.environment import CONSTRAINTS, VENV

SUITE = "bookworm"
INCLUDED = "python3,python3-venv,libstdc++6,busybox-static"
LEFT_OUT = ("doc", "man", "info", "locale")
"""Of /usr/share: no base image of a registry has them either."""
PYTHON, BUSYBOX = "paceline.test/python:1", "paceline.test/busybox:1"
APPLETS = ("sh", "cp")
"""What the plugin's init container runs, and a shell to look around."""
RECIPE = 1
"""Raised when the steps below change what they make from the same inputs."""
PROGRAMS = ("mmdebstrap", "buildah", "runc")
STORAGE = """[storage]
driver = "overlay"
graphroot = "{own}/store"
runroot = "{own}/run"

[storage.options]
additionalimagestores = [{shared}]
"""


def unavailable() -> str | None:
    """Why this machine cannot build images; None where it can."""
    if os.geteuid() != 0:
        return "images are built by root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (hack/setup/packages.sh installs them)"
    # Root in a container may mount nothing, or no overlay over its own.
    with tempfile.TemporaryDirectory(prefix=".image-probe-", dir=cache_folder()) as name:
        for each in ("lower", "upper", "work", "merged"):
            Path(name, each).mkdir()
        layers = ",".join(f"{each}dir={name}/{each}" for each in ("lower", "upper", "work"))
        mount = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", layers, f"{name}/merged"]
        probe = subprocess.run(mount, capture_output=True, text=True)
    return f"no overlay can be mounted here: {probe.stderr.strip()}" if probe.returncode else None


def bases() -> Path:
    """The folder of the base images: `store/`, and `python` with the version of their Python."""
    parts = (SUITE, INCLUDED, *LEFT_OUT, *APPLETS, STORAGE, str(RECIPE), platform.machine())
    return cache_folder() / f"image-bases-{_digest(*parts)}"


def wheels() -> Path:
    """The folder of the wheels."""
    parts = (*_wanted(), CONSTRAINTS.read_text(), str(RECIPE), bases().name)
    return cache_folder() / f"image-wheels-{_digest(*parts)}"


def environment(own: Path, *shared: Path) -> dict[str, str]:
    """Environment of buildah: images are kept below `own`; those of the stores `shared` are there to read."""
    own.mkdir(parents=True, exist_ok=True)
    configuration = own / "storage.conf"
    configuration.write_text(STORAGE.format(own=own, shared=", ".join(f'"{store}"' for store in shared)))
    return {"CONTAINERS_STORAGE_CONF": str(configuration)}


def _digest(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def _wanted() -> list[str]:
    """Requirements of the operator, and what builds the wheel."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = document["project"]
    return [
        *project["dependencies"],
        *project["optional-dependencies"]["operator"],
        *document["build-system"]["requires"],
    ]


def _make_bases(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".image-bases-", dir=target.parent) as name:
        folder = Path(name)
        archive, empty = folder / "root.tar", folder / "busybox"
        excluded = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in LEFT_OUT]
        # `essential`: no apt in it. SOURCE_DATE_EPOCH makes two archives of the same packages equal.
        command: list[str | Path] = [
            "mmdebstrap",
            "--quiet",
            "--variant=essential",
            f"--include={INCLUDED}",
            *excluded,
            SUITE,
            archive,
        ]
        run("images: Debian base", command, env={"SOURCE_DATE_EPOCH": "0"})
        (empty / "bin").mkdir(parents=True)
        # The package brings one static program.
        member: list[str | Path] = [
            "tar",
            "--extract",
            "--file",
            archive,
            "--directory",
            empty / "bin",
            "--strip-components=3",
        ]
        run("images: busybox", [*member, "./usr/bin/busybox"])
        for applet in APPLETS:
            (empty / "bin" / applet).symlink_to("busybox")
        made = folder / "made"
        env = environment(made)
        _import(PYTHON, archive, env)
        _import(BUSYBOX, empty, env)
        listing = subprocess.run(["tar", "--list", "--file", archive, "./usr/bin/"], stdout=subprocess.PIPE, text=True)
        version = next(line for line in listing.stdout.split() if line.startswith("./usr/bin/python3."))
        (made / "python").write_text(version.removeprefix("./usr/bin/python"))
        shutil.rmtree(made / "run")
        (made / "storage.conf").unlink()
        (made / COMPLETE).touch()
        made.rename(target)


def _import(reference: str, content: Path, env: Mapping[str, str]) -> None:
    """Commit an image of one layer; its times are those of the content, its own is 1970."""
    command = ["buildah", "from", "scratch"]
    started = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    if started.returncode:
        sys.exit(f"images: {' '.join(command)} failed: {started.stderr.strip()}")
    container = started.stdout.strip()
    run(f"images: {reference}", ["buildah", "add", "--quiet", container, content, "/"], env=env)
    run(f"images: {reference} kept", ["buildah", "commit", "--quiet", "--rm", container, reference], env=env)


def _make_wheels(target: Path) -> None:
    version = (bases() / "python").read_text()
    with tempfile.TemporaryDirectory(prefix=".image-wheels-", dir=target.parent) as name:
        made = Path(name) / "made"
        pip: list[str | Path] = [
            VENV / "bin" / "python",
            "-m",
            "pip",
            "download",
            "--disable-pip-version-check",
            "--no-input",
        ]
        kind = ["--only-binary", ":all:", "--python-version", version]
        named: list[str | Path] = ["--constraint", CONSTRAINTS, "--dest", made, *_wanted()]
        run("images: wheels", [*pip, *kind, *named], count="^Collecting ")
        (made / COMPLETE).touch()
        made.rename(target)


def main() -> None:
    """Make what is absent."""
    if reason := unavailable():
        say(f"images: not built in tests here: {reason}")
        return
    for target, make in ((bases(), _make_bases), (wheels(), _make_wheels)):
        if not (target / COMPLETE).exists():
            with lock(target.with_suffix(".lock")):
                if not (target / COMPLETE).exists():
                    make(target)
        say(f"images: {target}")


if __name__ == "__main__":
    main()
