"""The images: built from the Dockerfile without a network, small, nobody's, and run as a restricted pod runs them.

The operator works on a real API server and goes at a signal to process 1; vLLM finds the copied plugin.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.setup import images
from paceline_operator import naming
from tests.cluster.operators import KEY, Operator, Place, account, wait_for_leader
from tests.harness.builds import USER, Builder, Container, building
from tests.harness.controlplane import ControlPlane
from tests.harness.ports import free_ports

ROOT = Path(__file__).parents[2]
MAX_OPERATOR_BYTES = 250_000_000
MAX_PLUGIN_BYTES = 5_000_000
LABELS = {"VERSION": "1.2.3", "REVISION": "0123abc"}
END_SECONDS = 20
LOADED = """
import sys
from vllm.plugins import load_plugins_by_group
register = load_plugins_by_group("vllm.general_plugins")["paceline"]
print(register.__module__, sys.modules["paceline_engine"].__file__)
"""
"""What vLLM does with plugins: find their entry points, load them."""
ENTRY_POINTS = "import importlib.metadata as m; print([p.value for p in m.entry_points(group='vllm.general_plugins')])"


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    if reason := images.unavailable():
        pytest.skip(reason)
    with building(tmp_path_factory.mktemp("images")) as made:
        yield made


@pytest.fixture(scope="module")
def built(builder: Builder) -> dict[str, str]:
    """Digest by target; what they share is built once."""
    return {target: builder.build(target, "--layers", **LABELS) for target in ("operator", "plugin", "engine")}


@pytest.fixture(scope="module")
def operator_root(builder: Builder, built: dict[str, str]) -> Iterator[Path]:
    with builder.root(built["operator"]) as root:
        yield root


def test_the_operator_is_small_labelled_and_nobodys(builder: Builder, built: dict[str, str]) -> None:
    assert builder.size(built["operator"]) <= MAX_OPERATOR_BYTES
    config = builder.configuration(built["operator"])
    assert config["User"] == f"{USER}:{USER}"
    labels = config["Labels"]
    named = {key.removeprefix("org.opencontainers.image."): value for key, value in labels.items()}
    assert {key: named[key] for key in ("version", "revision", "licenses")} == {
        "version": LABELS["VERSION"],
        "revision": LABELS["REVISION"],
        "licenses": "Apache-2.0",
    }


def test_the_operator_has_no_torch_no_pip_and_no_command_but_python(operator_root: Path) -> None:
    (packages,) = (operator_root / "opt/paceline/lib").glob("python3.*/site-packages")
    names = {path.name for path in packages.iterdir()}
    assert {"paceline_operator", "kopf"} <= names
    assert not {"torch", "vllm", "matplotlib", "pip", "setuptools"} & names
    assert all(path.name.startswith("python") for path in (operator_root / "opt/paceline/bin").iterdir())


def test_an_operator_without_configuration_says_what_is_missing(
    builder: Builder, built: dict[str, str], operator_root: Path, tmp_path: Path
) -> None:
    config = builder.configuration(built["operator"])
    container = Container("unconfigured", operator_root, tmp_path / "unconfigured")
    code, said = container.run(config["Entrypoint"], config["Env"], {})
    assert code == 1
    assert said.startswith("paceline-operator: PACELINE_MASTER_KEY_FILE is not set: the path of a file"), said


def test_the_operator_works_on_a_read_only_root_and_goes_at_sigterm(
    builder: Builder, built: dict[str, str], operator_root: Path, crds: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    config = builder.configuration(built["operator"])
    given = tmp_path / "given"
    given.mkdir(mode=0o755)
    shutil.copy(account(crds, namespace), given / "kubeconfig")
    (given / "key").write_text(KEY)
    for file in given.iterdir():
        file.chmod(0o644)
    (port,) = free_ports(1)
    environment = [
        *config["Env"],
        "KUBECONFIG=/given/kubeconfig",
        "PACELINE_MASTER_KEY_FILE=/given/key",
        f"PACELINE_NAMESPACE={namespace}",
        "PACELINE_HTTP_HOST=127.0.0.1",
        f"PACELINE_HTTP_PORT={port}",
    ]
    container = Container("operator", operator_root, tmp_path / "container")
    daemon = container.start(config["Entrypoint"], environment, {"/given": (given, False)})
    operator, place = Operator(daemon, port), Place(crds, namespace)
    try:
        wait_for_leader(operator)
        place.serve("served")
        place.child("Deployment", "served")
        container.signal(daemon, "TERM")
        assert daemon.process.wait(END_SECONDS) == 0, daemon.tail()
    finally:
        daemon.stop(grace_seconds=0)
    assert not place.lease().get("holderIdentity")
    assert "Traceback" not in operator.log(), operator.log()


@pytest.mark.engine
def test_vllm_finds_the_plugin_that_the_init_container_copies(
    builder: Builder, built: dict[str, str], tmp_path: Path
) -> None:
    assert builder.size(built["plugin"]) <= MAX_PLUGIN_BYTES
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)  # an emptyDir is
    with builder.root(built["plugin"]) as root:
        container = Container("plugin", root, tmp_path / "container")
        copying = ["cp", "-r", "/plugin/.", f"{naming.PLUGIN_DIRECTORY}/"]
        mounts = {naming.PLUGIN_DIRECTORY: (volume, True)}
        assert container.run(copying, ["PATH=/bin"], mounts) == (0, "")
    python = ROOT / ".venv" / "engine" / "bin" / "python"
    environment = {"PYTHONPATH": str(volume), "VLLM_LOGGING_LEVEL": "ERROR", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([python, "-c", LOADED], env=environment, cwd=tmp_path, capture_output=True, text=True)
    said = f"paceline_engine.plugin {volume}/paceline_engine/__init__.py"
    assert done.stdout.strip().splitlines()[-1:] == [said], done.stderr


def test_the_engine_image_finds_its_plugin_whatever_pythonpath_says(
    builder: Builder, built: dict[str, str], tmp_path: Path
) -> None:
    with builder.root(built["engine"]) as root:
        container = Container("engine", root, tmp_path / "container")
        environment = ["PATH=/usr/bin:/bin", "PYTHONPATH=/elsewhere"]
        code, said = container.run(["python3", "-c", ENTRY_POINTS], environment, {})
    assert (code, said) == (0, "['paceline_engine.plugin:register']\n")


@pytest.mark.long
@pytest.mark.parametrize("target", ["operator", "plugin"])
def test_two_builds_are_one_image(builder: Builder, target: str) -> None:
    assert builder.build(target, "--no-cache") == builder.build(target, "--no-cache")
