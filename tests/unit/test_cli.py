"""The command line: a mistake is one message and status 2, never a traceback."""

from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline_operator.cli.app import app

RUNNER = CliRunner()


def test_version() -> None:
    result = RUNNER.invoke(app, ["version"])
    assert (result.exit_code, result.output.strip()) == (0, version("paceline"))


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
