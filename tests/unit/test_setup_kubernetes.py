"""The build of the test cluster's programs: all of them, whole, once, and only what is missing. `go` is a stand-in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hack.kubernetes import build

GO = """#!/bin/sh
echo "$*" >> "$LOG"
if [ "$1" = mod ]; then echo "{\\"GoMod\\": \\"$MODULE\\"}"; exit 0; fi
cp "$3/go.mod" "$LOG.$(basename "$3").mod"
case "$3" in */$BROKEN) echo "no such package"; exit 1;; esac
while [ "$1" != -o ]; do shift; done
echo built > "$2"
"""
MODULE = """module k8s.io/kubernetes
require k8s.io/api v0.0.0
replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/client-go => ./staging/src/k8s.io/client-go
)
"""
NAMES = [program.name for program in (*build.CONTROL_PLANE, *build.NODE)]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stand-in was asked for, a line each; the cache is empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "go").write_text(GO)
    (folder / "go").chmod(0o755)
    (tmp_path / "kubernetes.mod").write_text(MODULE)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    asked = tmp_path / "log"
    for variable, value in {"LOG": str(asked), "MODULE": str(tmp_path / "kubernetes.mod"), "BROKEN": "none"}.items():
        monkeypatch.setenv(variable, value)
    return asked


def built() -> list[str]:
    return sorted(name for name in NAMES if build.find(name).exists())


def test_all_programs_are_built_and_nothing_is_built_twice(log: Path) -> None:
    build.build(node=True)
    assert built() == sorted(NAMES)
    asked = log.read_text()
    build.build(node=True)
    assert log.read_text() == asked
    assert [path for path in build.cluster_folder().iterdir() if path.name.startswith(".")] == []


def test_a_control_plane_needs_no_program_of_a_node(log: Path) -> None:
    build.build(node=False)
    assert built() == sorted(program.name for program in build.CONTROL_PLANE)


def test_what_was_built_before_a_failure_stays(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "kubectl")
    with pytest.raises(SystemExit, match=r"(?s)no such package.*kubectl: FAILED"):
        build.build(node=False)
    assert built() == ["etcd", "kube-apiserver", "kube-controller-manager"]
    monkeypatch.setenv("BROKEN", "none")
    log.write_text("")
    build.build(node=False)
    assert len(re.findall("^build ", log.read_text(), flags=re.MULTILINE)) == 2


def test_the_rest_of_a_killed_build_is_removed(log: Path) -> None:
    rest = build.cluster_folder() / ".building-killed" / "etcd"
    rest.mkdir(parents=True)
    build.build(node=False)
    assert not rest.parent.exists()


def test_kubernetes_takes_the_published_versions_of_its_staging_modules(log: Path) -> None:
    build.build(node=False)
    module = Path(f"{log}.kube-apiserver.mod").read_text()
    assert f"require k8s.io/kubernetes {build.KUBERNETES}\n" in module
    for name in ("k8s.io/api", "k8s.io/client-go"):
        assert f"replace {name} => {name} {build.STAGING}\n" in module
    assert f"version.gitVersion={build.KUBERNETES} " in log.read_text()
    assert build.KUBERNETES.replace("v1.", "v0.") == build.STAGING


def test_without_go_the_message_says_what_to_install(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match="install Go"):
        build.build(node=False)


def test_programs_of_kubebuilder_assets_are_taken(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in build.ENVTEST:
        (assets / name).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert {build.find(name).parent for name in build.ENVTEST} == {assets}
    build.build(node=False)
    assert sorted(path.name for path in build.cluster_folder().iterdir()) == ["helm", "kube-controller-manager"]


def test_it_runs_as_a_script() -> None:
    script = Path(build.__file__)
    done = subprocess.run([sys.executable, str(script), "--help"], cwd="/", capture_output=True, text=True, check=True)
    assert "--control-plane-only" in done.stdout
