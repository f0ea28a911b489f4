"""What `paceline experiment run --local` takes, and what it says of mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.experiment import Prompts
from paceline_operator.clock import FakeClock
from paceline_operator.local.mistake import UserError
from paceline_operator.local.trial import files
from paceline_operator.local.trial.run import Options, Run
from tests.engine.test_trial_process import FILE

TEXTS = Prompts.model_validate({"configMap": {"name": "a", "key": "b"}})
EXAMPLES = Path(__file__).parents[2] / "examples" / "experiments"


class Silent:
    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def made(text: str, folder: Path) -> Run:
    file = folder / "experiment.yaml"
    file.write_text(text)
    return Run(Options(folder / "out"), files.read([file]), Silent(), FakeClock())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: small}\n  variants", "name: big}\n  variants", "no SpeculativeServing big"),
        ("name: texts, key: prompts.jsonl", "name: other, key: prompts.jsonl", "no ConfigMap other"),
        ("key: prompts.jsonl}", "key: others}", "has no text under data.others"),
        ('{"prompt"', '{"question"', "line 1 is no JSON object"),
        ("configMap: {name: texts, key: prompts.jsonl}", "persistentVolumeClaim: {claimName: a, path: b}", "--dataset"),
        ("change: {maxTokens: 2}", "change: {image: 'vllm:1'}", "engines of this machine have no image"),
        ("outputTokens: 8", "outputTokens: 8, multiTurnPercent: 101", "spec.load.multiTurnPercent"),
        ("prompts: {configMap", "prompts: {lengths", "data.prompts.jsonl: the length profile: line 1 is not"),
        ("prompts: {configMap", "prompts: {random: {}, configMap", "name exactly one source"),
        ("budgetGpuMinutes: 60", "budgetGpuMinutes: 5", "raise it to"),
        ("change: {maxTokens: 2}", "change: {adaptiveVerification: Enabled}", "variant k2: "),
        ("{name: k2, change", "{name: k2, parent: nobody, change", "does not lead back"),
        ("kind: ConfigMap", "kind: Secret", "kind 'Secret' is none of"),
        ("kind: SpeculativeServing", "kind: SpeculationExperiment", "2 documents of kind SpeculationExperiment"),
        ("repetitions: 2", "repetition: 2", "unknown field spec.repetition"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert FILE.count(old) == 1
    with pytest.raises(UserError) as raised:
        made(FILE.replace(old, new), tmp_path)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{name: k2, change", "{name: k2, parent: k2, change", "does not lead back"),
        ("kind: SpeculationExperiment", "kind: [SpeculationExperiment]", "no document of kind SpeculationExperiment"),
    ],
)
def test_a_mistake_in_what_was_kept_is_told_too(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / files.KEPT).write_text(FILE.replace(old, new))
    with pytest.raises(UserError, match=said):
        files.kept(tmp_path)


def test_the_example_can_be_run(tmp_path: Path) -> None:
    run = made((EXAMPLES / "four-variants.yaml").read_text(), tmp_path)
    assert [(one.variant, one.k) for one in run.results] == [
        ("baseline", 0), ("serving", 6), ("wide-ngram", 4), ("draft-model", 3),
    ]  # fmt: skip


def test_what_does_not_change_the_measurement_does_not_change_the_digest(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    digests = []
    for old, new in (("", ""), ("Minutes: 60", "Minutes: 90"), ("nobody", "somebody"), ("seconds: 10", "seconds: 11")):
        file.write_text(FILE.replace(old, new))
        digests.append(files.read([file]).digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_dataset_of_the_command_line_takes_the_claims_place(tmp_path: Path) -> None:
    claim = "persistentVolumeClaim: {claimName: a, path: b}"
    file, dataset = tmp_path / "experiment.yaml", tmp_path / "some.jsonl"
    file.write_text(FILE.replace("configMap: {name: texts, key: prompts.jsonl}", claim))
    dataset.write_text('{"prompt": "one"}\n\n{"prompt": "two", "output_tokens": 3}\n')
    found = files.read([file], dataset)
    assert found.prompts == b'{"prompt": "one"}\n{"prompt": "two", "output_tokens": 3}\n'
    file.write_text(FILE.replace("configMap: {name: texts, key: prompts.jsonl}", "random: {}"))
    with pytest.raises(UserError, match="are random"):
        files.read([file], dataset)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_dataset_or_a_mistake(content: bytes) -> None:
    try:
        found = files._read(TEXTS, content, 0, "file")
    except UserError:
        return
    assert all(isinstance(json.loads(line)["prompt"], str) for line in found.splitlines())


def test_lengths_are_held_to_the_engines_context(tmp_path: Path) -> None:
    file, lengths = tmp_path / "experiment.yaml", tmp_path / "lengths.csv"
    file.write_text(
        FILE.replace("configMap: {name: texts", "lengths: {name: texts").replace("maxNumSeqs: 8", "maxModelLen: 512")
    )
    lengths.write_text("input_tokens,output_tokens,count\n500,12,7\n")
    found = files.read([file], lengths)
    assert (found.prompts, found.prompts_name) == (lengths.read_bytes(), "lengths.csv")
    lengths.write_text("input_tokens,output_tokens,count\n500,13,7\n")
    with pytest.raises(UserError, match=r"line 2: 500 \+ 13 tokens are more than maxModelLen 512"):
        files.read([file], lengths)


def test_the_example_of_recorded_lengths_can_be_run(tmp_path: Path) -> None:
    served = FILE.split("---")[1].replace("name: small", "name: chat")
    run = made(f"{(EXAMPLES / 'recorded-talks.yaml').read_text()}---{served}", tmp_path)
    assert [one.variant for one in run.results] == ["baseline", "serving", "uncached"]
    assert run.results[0].methods.load["outputTokens"] == "exactly as recorded"
    assert run.results[0].methods.load["multiTurnPercent"].startswith("40")
