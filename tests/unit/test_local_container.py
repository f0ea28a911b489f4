"""A rendered pod's container as a local command: the same arguments and environment, at addresses of this machine."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.local import container
from paceline_operator.local.mistake import UserError
from paceline_operator.resources import Defaults, Tokens, render
from paceline_operator.tuning.decide import settings_of

DEFAULTS = Defaults(engine_image="gpu", cpu_engine_image="cpu", plugin_image="plugin")
TOKEN = "a-token-of-this-test"


def manifests(**spec: Any) -> dict[str, Any]:
    serving = SpeculativeServing.model_validate(
        {
            "apiVersion": naming.API_VERSION,
            "kind": naming.KIND_SERVING,
            "metadata": {"name": "one", "uid": "u1"},
            "spec": {
                "model": {"source": "/models/m"},
                "engine": {"device": "CPU", "maxNumSeqs": 8},
                "speculation": {"method": "ngram"},
            }
            | spec,
        }
    )
    rendered = render(serving, settings_of(serving.spec).boot_table, DEFAULTS, Tokens("v1", TOKEN))
    return {manifest["kind"]: manifest for manifest in rendered}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine command and a cache folder of this test's own."""
    engine = tmp_path / "vllm"
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PACELINE_ENGINE", str(engine))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path


def built(machine: Path, **spec: Any) -> tuple[container.Command, dict[str, Path]]:
    children = manifests(**spec)
    private = machine / "private"
    private.mkdir()
    folders = container.folders(private, children.get("Secret"))
    return container.command(children["Deployment"], 0, folders, 8100, 8200), folders


def test_the_command_is_the_pods_but_for_addresses_and_paths(machine: Path) -> None:
    command, _ = built(machine)
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert command.argv[0] == str(machine / "vllm")
    changed = {a: b for a, b in zip(pod["args"], command.argv[1:], strict=True) if a != b}
    assert changed == {"/models/m": f"{machine}/cache/models/m", "0.0.0.0": "127.0.0.1", "8000": "8100"}
    assert (command.serving_url, command.control_url) == ("http://127.0.0.1:8100", "http://127.0.0.1:8200")


def test_the_environment_is_the_pods_with_folders_of_this_machine(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    command, folders = built(machine, engine={"device": "CPU", "env": [{"name": "A", "value": "$(B) $ /models/x"}]})
    environment = command.environment
    assert environment["PYTHONPATH"] == str(folders[naming.PLUGIN_DIRECTORY])
    assert environment["PACELINE_TOKEN_DIR"] == str(folders[naming.TOKEN_DIRECTORY])
    assert environment["HF_HOME"] == f"{machine}/cache/engine-home/huggingface"
    assert (environment["PACELINE_CONTROL_HOST"], environment["PACELINE_CONTROL_PORT"]) == ("127.0.0.1", "8200")
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"
    assert "VLLM_PLUGINS" not in environment
    # Literal, as the kubelet would hand it on; only the path is this machine's.
    assert environment["A"] == f"$(B) $ {machine}/cache/models/x"


def test_the_token_is_for_the_owner_alone(machine: Path) -> None:
    _, folders = built(machine)
    file = folders[naming.TOKEN_DIRECTORY] / "current"
    assert file.read_text() == TOKEN
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_plugin_folder_is_what_vllm_looks_for(machine: Path) -> None:
    _, folders = built(machine)
    plugin = folders[naming.PLUGIN_DIRECTORY]
    assert (plugin / "paceline_engine" / "plugin.py").exists()
    (info,) = plugin.glob("paceline-*.dist-info")
    assert "vllm.general_plugins" in (info / "entry_points.txt").read_text()
    assert "Name: paceline" in (info / "METADATA").read_text()


def test_paths_inside_json_are_mapped_and_others_are_not(machine: Path) -> None:
    spec = {"method": "draft_model", "draft": {"source": "/models/draft"}}
    command, _ = built(machine, speculation=spec)
    config = json.loads(command.argv[command.argv.index("--speculative-config") + 1])
    assert config["model"] == f"{machine}/cache/models/draft"
    folders = {"/models": Path("/here")}
    for text in ("/models2/x", "/a/models/x", "x/models", "/models.old", "./models"):
        assert container.located(text, folders) == text
    assert container.located("/models:/models/a,/models", folders) == "/here:/here/a,/here"


def test_a_secret_of_the_cluster_is_taken_from_the_environment_or_asked_for(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"source": "hf://owner/name", "tokenSecretName": "hub"}
    with pytest.raises(UserError, match="set \\$HF_TOKEN here"):
        built(machine, model=model)
    monkeypatch.setenv("HF_TOKEN", "hub-token")
    children = manifests(model=model)
    folders = {"/models": machine}
    command = container.command(children["Deployment"], 0, folders, 1, 2)
    assert command.environment["HF_TOKEN"] == "hub-token"


def test_without_an_engine_the_way_to_one_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PACELINE_ENGINE")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(UserError, match="make setup"):
        container.find_engine()
    monkeypatch.setenv("PACELINE_ENGINE", "/no/such/vllm")
    with pytest.raises(UserError, match="PACELINE_ENGINE is /no/such/vllm"):
        container.find_engine()


def test_the_engine_of_this_environment_comes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PACELINE_ENGINE")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    assert container.find_engine() == str(tmp_path / "vllm")
    ours = tmp_path / "venv" / "engine" / "bin" / "vllm"
    ours.parent.mkdir(parents=True)
    ours.write_text("#!/bin/sh\n")
    ours.chmod(0o755)
    assert container.find_engine() == str(ours)


def test_a_cache_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    (tmp_path / "private").mkdir()
    with pytest.raises(UserError, match="engine-home: cannot be made"):
        container.folders(tmp_path / "private", None)


@pytest.mark.parametrize("variable", ["PACELINE_CACHE", "XDG_CACHE_HOME"])
def test_a_cache_folder_of_a_user_who_does_not_exist_is_told(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.setenv(variable, "~nosuchuser/x")
    with pytest.raises(UserError, match=r"~nosuchuser/x.*PACELINE_CACHE"):
        container.cache_folder()


@given(st.text(alphabet="/models._-:x\"', ", max_size=30))
def test_mapping_back_gives_what_was_written(text: str) -> None:
    there = container.located(text, {"/models": Path("/elsewhere/kept")})
    assert there.replace("/elsewhere/kept", "/models") == text
