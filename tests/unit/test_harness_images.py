"""Image archives: what a container runtime reads in them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

from tests.harness import images


def test_an_archive_holds_one_layer_named_by_its_content(tmp_path: Path) -> None:
    path = images.archive(
        tmp_path / "a.tar",
        "paceline.test/a:1",
        {"bin/a": b"program"},
        ["/bin/a"],
        links=("lib",),
        folders=("usr", "tmp"),
    )
    with tarfile.open(path) as tar:
        parts = {member.name: tar.extractfile(member) for member in tar}
        contents = {name: part.read() for name, part in parts.items() if part}
    (manifest,) = json.loads(contents["manifest.json"])
    assert manifest["RepoTags"] == ["paceline.test/a:1"]
    config = json.loads(contents[manifest["Config"]])
    assert config["config"]["Entrypoint"] == ["/bin/a"]
    (layer,) = (contents[name] for name in manifest["Layers"])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        members = {member.name: member for member in tar}
        assert (members["bin/a"].mode, members["tmp"].mode) == (0o755, 0o1777)
        assert members["lib"].linkname == "usr/lib"
        program = tar.extractfile("bin/a")
        assert program is not None
        assert program.read() == b"program"


def test_the_plugin_folder_is_what_vllm_looks_for() -> None:
    files = images.plugin_files()
    (points,) = (content for name, content in files.items() if name.endswith(".dist-info/entry_points.txt"))
    parsed = ConfigParser()
    parsed.read_string(points.decode())
    module, _, function = parsed["vllm.general_plugins"]["paceline"].partition(":")
    assert callable(getattr(import_module(module), function))
    assert f"plugin/{module.replace('.', '/')}.py" in files
    assert any(name.endswith(".dist-info/METADATA") for name in files)
