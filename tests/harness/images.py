"""Container images without a registry: archives in Docker's format, as `ctr images import` reads them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.kubernetes.build import find

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "paceline.test"
"""Of no registry: with a fixed tag the kubelet takes what is there."""
PAUSE, COREDNS, HOST, PLUGIN = (f"{REPOSITORY}/{name}:1" for name in ("pause", "coredns", "host", "plugin"))
HOST_LINKS = ("bin", "sbin", "lib", "lib64")
HOST_FOLDERS = ("usr", "etc", "proc", "sys", "dev", "root", "var", "var/tmp", "tmp")
ACCOUNTS = b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"


def write_all(folder: Path) -> list[Path]:
    """Archives of every image that the node knows."""
    programs = {name: find(name).read_bytes() for name in ("pause", "coredns", "cp")}
    return [
        archive(folder / "pause.tar", PAUSE, {"pause": programs["pause"]}, ["/pause"]),
        archive(folder / "coredns.tar", COREDNS, {"coredns": programs["coredns"]}, ["/coredns"]),
        archive(folder / "plugin.tar", PLUGIN, {"bin/cp": programs["cp"], **plugin_files()}, []),
        # The host's own /usr is mounted into it: its Python and its vLLM run in a pod, and no image has to be built.
        archive(folder / "host.tar", HOST, {"etc/passwd": ACCOUNTS}, [], links=HOST_LINKS, folders=HOST_FOLDERS),
    ]


def plugin_files() -> dict[str, bytes]:
    """/plugin as the plugin image has it: the engine package, and the metadata by which vLLM finds its entry point."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {target}\n" for key, target in targets.items())
        for group, targets in project["entry-points"].items()
    )
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    package = ROOT / "engine" / "paceline_engine"
    return {
        **{f"plugin/{path.relative_to(package.parent)}": path.read_bytes() for path in sorted(package.rglob("*.py"))},
        f"plugin/{name}-{version}.dist-info/METADATA": metadata.encode(),
        f"plugin/{name}-{version}.dist-info/entry_points.txt": points.encode(),
    }


def archive(
    path: Path,
    reference: str,
    files: Mapping[str, bytes],
    entrypoint: Sequence[str],
    *,
    links: Sequence[str] = (),
    folders: Sequence[str] = ("tmp", "etc", "proc", "sys", "dev"),
) -> Path:
    """Write an image of one layer to `path`: files (executable) by path, folders, and links NAME -> usr/NAME."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in folders:
            entry = _entry(name, tarfile.DIRTYPE)
            entry.mode = 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(entry)
        for name in links:
            entry = _entry(name, tarfile.SYMTYPE)
            entry.linkname = f"usr/{name}"
            tar.addfile(entry)
        _add(tar, files)
    content = layer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/usr/bin:/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    document = json.dumps(config).encode()
    config_name, layer_name = f"{hashlib.sha256(document).hexdigest()}.json", f"{digest}.tar"
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": [layer_name]}]
    with tarfile.open(path, "w") as tar:
        _add(tar, {config_name: document, layer_name: content, "manifest.json": json.dumps(manifest).encode()})
    return path


def _entry(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, 0o755
    return entry


def _add(tar: tarfile.TarFile, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        entry = _entry(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
