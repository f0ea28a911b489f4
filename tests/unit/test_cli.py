"""The command line: a mistake is one message and status 2, never a traceback."""

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from paceline_operator.cli import cluster
from paceline_operator.cli.app import app
from paceline_operator.cli.cluster import Form
from paceline_operator.cli.verbs import PACKAGE, VERBS, said
from paceline_operator.experiment import templates
from paceline_operator.local import container
from paceline_operator.preflight.installation import Grade
from tests.servings import MINIMAL

RUNNER = CliRunner()


def test_version() -> None:
    for asked in ("version", "--version"):
        result = RUNNER.invoke(app, [asked])
        assert (result.exit_code, result.output.strip()) == (0, version("paceline"))


HEAVY = {"kopf", "numpy", "torch", "scipy", "matplotlib", "prometheus_client", "kubernetes", "aiohttp", "httpx"}
"""What arithmetic, clients and pictures need; a second of CPU together."""


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["--help"], {"pydantic", "yaml"}),
        (["--version"], {"pydantic", "yaml"}),
        (["status", "--help"], set[str]()),
        (["top", "--help"], set()),
        (["pin", "--help"], set()),
        (["doctor", "--help"], set()),
    ],
)
def test_what_is_not_used_is_not_imported(arguments: list[str], more: set[str]) -> None:
    code = (
        "import sys; from paceline_operator.cli.app import app; app(sys.argv[1:], standalone_mode=False);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], timeout=60, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.splitlines()[-1].split())
    assert "typer" in loaded
    assert not loaded & (HEAVY | more)


@pytest.mark.parametrize("name", VERBS)
def test_what_is_said_of_a_verb_is_what_it_says_itself(name: str) -> None:
    module = f"{PACKAGE}.{VERBS[name]}"
    verb = getattr(import_module(module), name)
    assert said(module, name) == (verb.info.help if isinstance(verb, typer.Typer) else inspect.getdoc(verb))
    said_of_all = RUNNER.invoke(app, ["--help"], env={"TERM": "dumb", "COLUMNS": "200"}).output
    assert said(module, name).split("\n\n")[0] in said_of_all


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["local"], "--file"),
        (["local", "-f", "absent.yaml"], "No such file"),
        (["local", "-f", "absent.yaml", "--duration", "0"], "--duration"),
        (["local", "-f", "absent.yaml", "--duration", "soon"], "duration"),
        (["local", "-f", "absent.yaml", "--port", "99999"], "--port"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_mistake_has_status_2_and_a_message(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setenv("TERM", "dumb")
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["experiment", "template"], ["pin", "--help"]])
def test_a_full_disk_is_told_in_one_line(arguments: list[str]) -> None:
    code = "from paceline_operator.cli.app import main; main()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], timeout=60, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "paceline: No space left on device\n")


def test_a_terminal_without_arrows_gets_something_else() -> None:
    code = "from paceline_operator.cli import app; app.app = lambda: print('k 5 → 1'); app.main()"
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "k 5 ? 1\n"), done.stderr


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"exec": {"command": "no-such-login"}}, "No such file or directory: 'no-such-login'"),
        ({"exec": {"command": "false"}}, "process returned 1"),
        ({}, "is the cluster up, and is this its address in KUBECONFIG?"),
    ],
)
def test_who_cannot_log_in_or_reach_it_is_told_what_to_do(
    user: dict[str, dict[str, str]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in user.values():
        one |= {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    config = {"contexts": [context], "current-context": "a", "users": [{"name": "a", "user": user}]}
    config["clusters"] = [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}]
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    result = RUNNER.invoke(app, ["status"])
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    assert said in result.output


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (401, "Unauthorized", "log in again"),
        (403, 'User "system:anonymous" cannot list', "log in again"),
        (403, 'User "jane" cannot list', "ask for a role"),
        (500, "etcd is not there", ""),
    ],
)
def test_a_refusal_is_told_with_what_to_do(status: int, message: str, said: str) -> None:
    assert said in cluster._hint(status, message)
    assert bool(cluster._hint(status, message)) == bool(said)


def test_what_is_printed_for_programs_can_be_read_again() -> None:
    body = [{"grade": Grade.FAIL, "what": "k 5 → 1"}]
    assert json.loads(cluster.structured(body, Form.JSON) or "") == [{"grade": "fail", "what": "k 5 → 1"}]
    assert yaml.safe_load(cluster.structured(body, Form.YAML) or "") == [{"grade": "fail", "what": "k 5 → 1"}]
    assert cluster.structured(body, Form.TABLE) is None


CONTEXTS = "contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\ncurrent-context: a\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "garbage: [",
        "- a",
        "[" * 500,
        "clusters: 5\ncontexts: []\nusers: []\ncurrent-context: a\n",
        f"clusters: [5]\n{CONTEXTS}",
        "clusters: []\nusers: []\ncontexts: [5]\ncurrent-context: a\n",
        "clusters: []\nusers: []\ncontexts: [{name: a, context: 5}]\ncurrent-context: a\n",
        "clusters: []\nusers: []\ncontexts: [{name: a}]\ncurrent-context: [a]\n",
        "clusters: [{name: a, cluster: {server: 'https://h', certificate-authority-data: a}}]\n" + CONTEXTS,
    ],
)
def test_a_kubeconfig_of_no_use_is_told_in_one_line(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(text)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    for context in ([], ["--context", "a"]):
        result = RUNNER.invoke(app, ["top", "chat", *context])
        assert (result.exit_code, result.output.count("\n")) == (2, 1), result.exception
        assert f"KUBECONFIG is of no use: {tmp_path / 'config'}: " in result.output


@pytest.mark.parametrize("context", [[], ["--context", "a"]])
def test_a_kubeconfig_that_is_not_there_is_told_as_that(
    context: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = os.pathsep.join(str(tmp_path / name) for name in "ab")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", absent)
    result = RUNNER.invoke(app, ["status", "chat", *context])
    assert result.exit_code == 2
    assert f"KUBECONFIG is of no use: {absent}: no such file; name a file with which kubectl works" in result.output


def test_what_can_be_no_experiment_of_a_cluster_is_a_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    for verb in ("watch", "report", "apply"):
        for path in (str(tmp_path / "x" / "y"), "a/b/c", "./x", "Results", "x_y"):
            result = RUNNER.invoke(app, ["experiment", verb, path])
            assert (result.exit_code, result.output) == (2, f"paceline experiment {verb}: no folder {path}\n")
        for name in ("chat", "team-a/chat", "chat.v2"):
            result = RUNNER.invoke(app, ["experiment", verb, name])
            assert result.exit_code == 2
            assert f"experiment {verb}: no folder {name} here: no cluster: " in result.output


@pytest.mark.parametrize("name", list(templates.titles()))
def test_capitals_are_spoken_of_and_refused_where_they_are(name: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    told = RUNNER.invoke(app, ["experiment", "template", name, "-o", str(file)]).output
    checked = RUNNER.invoke(app, ["preflight", "-f", str(file)])
    unfilled = name == "four-variants"
    assert ("what is in capitals" in told) == unfilled
    assert checked.exit_code == int(unfilled), checked.output
    assert ("draft.source: replace what is in capitals in hf://ORGANISATION/DRAFT" in checked.output) == unfilled
    file.write_text(file.read_text().replace("ORGANISATION/DRAFT", "BAAI/EAGLE"))
    assert RUNNER.invoke(app, ["preflight", "-f", str(file)]).exit_code == 0


def test_an_engine_for_gpus_is_refused_where_there_is_none_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    devices = tmp_path / "dev"
    devices.mkdir()
    monkeypatch.setattr(container, "DEVICES", devices)
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "reports" / "report.json"
    result = RUNNER.invoke(app, ["local", "-f", str(file), "--report", str(report)])
    assert result.exit_code == 2
    assert f"{file}: no GPU is here: set spec.engine.device: CPU" in result.output
    assert not report.parent.exists()
    folder = Path(__file__).parents[2] / "examples"
    examples = [word for name in ("experiment", "minimal") for word in ("-f", str(folder / f"{name}.yaml"))]
    tried = RUNNER.invoke(app, ["experiment", "run", *examples, "--local", "-o", str(report.parent)])
    assert tried.exit_code == 2
    assert "serving minimal: no GPU is here: set spec.engine.device: CPU" in tried.output
    assert not report.parent.exists()
    assert not container.has_gpu()
    (devices / "nvidia0").touch()
    assert container.has_gpu()
    (devices / "nvidia0").unlink()
    (tmp_path / "nvidia-smi").touch(0o755)
    assert container.has_gpu()


def test_a_report_that_cannot_be_written_is_told_before_anything_starts(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "local.yaml"
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "report.json", tmp_path, Path("."), Path("/")):
        result = RUNNER.invoke(app, ["local", "-f", str(example), "--report", str(target)])
        assert result.exit_code == 2
        assert f"--report {target}: cannot be written" in result.output


def test_a_cache_folder_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "~nosuchuser/x")
    example = Path(__file__).parents[2] / "examples" / "local.yaml"
    result = RUNNER.invoke(app, ["local", "-f", str(example)])
    assert result.exit_code == 2
    assert "~nosuchuser/x" in result.output


def test_the_shell_completes_verbs() -> None:
    asked = {"_PACELINE_COMPLETE": "complete_bash", "COMP_WORDS": "paceline ro", "COMP_CWORD": "1"}
    result = RUNNER.invoke(app, [], env=asked, prog_name="paceline")
    assert (result.exit_code, result.output.split()) == (0, ["rollback"])


@pytest.mark.parametrize("group", [[], ["experiment"], ["profile"]])
def test_every_verb_says_what_it_does_and_what_it_takes(group: list[str]) -> None:
    said = RUNNER.invoke(app, [*group, "--help"], env={"TERM": "dumb", "COLUMNS": "200"}).output
    verbs = [line.split()[1] for line in said.partition("Commands")[2].splitlines() if line.startswith("\u2502 ")]
    assert verbs
    for verb in verbs:
        result = RUNNER.invoke(app, [*group, verb, "--help"], env={"TERM": "dumb", "COLUMNS": "200"})
        assert result.exit_code == 0
        first = result.output.split("\n\n")[0] + result.output
        assert "Usage" in first
        options = [line for line in result.output.splitlines() if " --" in line and line.startswith("\u2502 ")]
        for line in options:
            words = line.strip("\u2502 ").split("  ")
            assert len([word for word in words if word.strip()]) > 1, f"{verb}: {line} says nothing"
