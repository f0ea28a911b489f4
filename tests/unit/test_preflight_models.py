"""Preflight of models: every seeded mistake is found before a byte of weights is read, public models raise no alarm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from paceline_engine.preflight import config, family, layout, limits, tokens
from paceline_engine.preflight.asked import Asked, Source
from paceline_engine.preflight.check import Check
from paceline_engine.preflight.headers import Tensor
from paceline_engine.preflight.model import Model
from paceline_engine.preflight.vocabulary import Vocabulary
from paceline_operator.cli.app import app
from tests.fakehub import Hub, Repository
from tests.harness.model_files import DATA, facts, lay
from tests.harness.objects import EXPERIMENT, thing

RUNNER = CliRunner()
GOOD, BAD = (sorted((DATA / kind).glob("*.yaml")) for kind in ("good", "bad"))
ALWAYS = {"requests", "logprobs"}
"""Warnings of every engine that speculates."""


def looked_at(case: dict[str, Any], tmp_path: Path) -> tuple[int, list[dict[str, Any]]]:
    serving = {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "SpeculativeServing",
        "metadata": {"name": "case"},
        "spec": case["spec"],
    }
    (tmp_path / "serving.yaml").write_text(yaml.safe_dump(serving))
    root = lay(tmp_path / "models", case["models"]) if case["models"] else tmp_path
    gpu = ["--gpu-memory", str(case["gpuMemory"])] if "gpuMemory" in case else []
    arguments = ["preflight", "-f", str(tmp_path / "serving.yaml"), "--models", str(root), "-o", "json", *gpu]
    result = RUNNER.invoke(app, arguments)
    (found,) = json.loads(result.output)
    assert found["accepted"], found["remarks"]
    return result.exit_code, found["checks"]


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_a_public_pair_of_models_raises_no_alarm(file: Path, tmp_path: Path) -> None:
    code, checks = looked_at(yaml.safe_load(file.read_text()), tmp_path)
    alarms = [check for check in checks if check["level"] in ("warn", "fail") and check["name"] not in ALWAYS]
    assert not alarms
    assert code == 0
    assert {"target-config", "memory"} <= {check["name"] for check in checks if check["level"] == "pass"}


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_a_seeded_mistake_is_found_by_the_check_it_is_for(file: Path, tmp_path: Path) -> None:
    case = yaml.safe_load(file.read_text())
    code, checks = looked_at(case, tmp_path)
    wanted = case["expect"]
    (found,) = [check for check in checks if check["name"] == wanted["check"]]
    assert found["level"] == wanted["level"]
    assert wanted["says"] in found["reason"] + found["remedy"]
    assert found["remedy"]
    assert code == (1 if wanted["level"] == "fail" else 0), [one for one in checks if one["level"] == "fail"]


def test_the_numbers_of_fixtures_are_those_that_were_promised() -> None:
    assert len(GOOD) >= 10
    assert len(BAD) >= 20


PARAMETERS = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.6,
    "qwen3-0.6b": 0.6,
    "qwen3-1.7b": 1.7,
    "qwen3-32b": 32.8,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.0,
    "mixtral-8x7b": 46.7,
    "deepseek-v3": 671.0,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
}
"""Thousand millions, as their publishers say: model cards of Qwen3 and Llama 3.1, arXiv:2401.04088 (Mixtral),
arXiv:2412.19437 (DeepSeek V3), arXiv:2508.10925 (gpt-oss)."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_counted_from_a_configuration_are_those_of_the_publisher(name: str) -> None:
    counted = sum(one.elements for one in layout.tensors(config.of(facts(name))) if not one.name.endswith("_scale"))
    assert counted / 1e9 == pytest.approx(PARAMETERS[name], rel=0.015)


def test_four_bits_and_their_scales_are_as_large_as_the_published_checkpoint() -> None:
    """gpt-oss-120b is 60.8 GiB, gpt-oss-20b 12.8 GiB (arXiv:2508.10925, table 1)."""
    for name, published in (("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)):
        stored = sum(one.bytes for one in layout.tensors(config.of(facts(name))))
        assert stored / 2**30 == pytest.approx(published, rel=0.02)


def test_a_draft_that_is_smaller_at_all_is_no_failure() -> None:
    def sized(rows: int) -> Check:
        models = (
            Model(name, name, config.of(facts("qwen3-0.6b") | {"vocab_size": vocabulary}))
            for name, vocabulary in (("target", 151936), ("draft", rows))
        )
        target, draft = models
        asked = Asked(target=Source(source="t"), draft=Source(source="d"), method="draft_model")
        (found,) = [one for one in family.checks(asked, target, draft) if one.name == "size-ratio"]
        return found

    assert [sized(rows).level for rows in (151937, 151936, 151000)] == ["fail", "fail", "warn"]
    assert "596.0 and 596.0 million parameters" in sized(151936).reason
    assert "times smaller" not in sized(151936).reason


@pytest.mark.parametrize(
    ("draft", "change", "remedy"),
    [
        ("llama-3.1-8b", {"hidden_size": 2048, "num_hidden_layers": 16}, "draft_model"),
        ("llama-3.1-8b", {"hidden_size": 2048, "num_hidden_layers": 1}, "draft_model"),
        ("llama-3.1-8b", {"num_hidden_layers": 1}, "eagle"),
        ("llama3-8b-eagle3", {}, "eagle3"),
    ],
)
def test_a_model_where_a_head_of_blocks_is_wanted_is_sent_where_it_fits(
    draft: str, change: dict[str, Any], remedy: str
) -> None:
    target, head = (
        Model(name, name, config.of(found))
        for name, found in (("target", facts("llama-3.1-8b")), ("draft", facts(draft, change)))
    )
    asked = Asked(target=Source(source="t"), draft=Source(source="d"), method="dflash", vllm="0.33")
    (found,) = [one for one in family.checks(asked, target, head) if one.name == "family"]
    assert (found.level, found.remedy) == ("fail", f"set spec.speculation.method to {remedy}")


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@pytest.mark.parametrize(
    ("layers", "names", "level"),
    [
        (16, (), "warn"),
        (1, ("model.layers.0.mlp.up_proj.weight",), "warn"),
        (1, ("model.layers.0.mlp.up_proj.weight", "fc.weight"), "pass"),
        (1, ("layers.0.mlp.up_proj.weight", "model.fc.qweight"), "pass"),
        (1, (), "pass"),
    ],
)
def test_a_whole_model_as_a_head_is_doubted_and_no_failure(
    method: str, layers: int, names: tuple[str, ...], level: str
) -> None:
    target = Model("target", "t", config.of(facts("llama-3.1-8b")))
    found = tuple(Tensor(name, "F16", (4, 4)) for name in names)
    draft = Model("draft", "d", config.of(facts("llama-3.1-8b", {"num_hidden_layers": layers})), tensors=found)
    asked = Asked(target=Source(source="t"), draft=Source(source="d"), method=method, vllm="0.33")
    (check,) = [one for one in family.checks(asked, target, draft) if one.name == "family"]
    assert check.level == level


def test_a_draft_that_cannot_be_divided_gets_a_remedy_that_its_runner_has() -> None:
    models = (Model(name, name, config.of(facts("qwen3-0.6b"))) for name in ("target", "draft"))
    target, draft = models
    for two, words in ((False, "draft.tensorParallelSize to 1"), (True, "engine.tensorParallelSize to one of 1, 2, 4")):
        asked = Asked(
            target=Source(source="t"),
            draft=Source(source="d"),
            method="draft_model",
            tensor_parallel=3,
            two_vocabularies=two,
        )
        (found,) = [one for one in limits.checks(asked, target, draft) if one.name == "draft-parallel"]
        assert (found.level, words in found.remedy) == ("fail", True)


def test_a_token_that_differs_is_told_as_it_is_written() -> None:
    said = [
        Model(name, name, config.of(facts("qwen3-0.6b")), Vocabulary("tokenizer.json", name, {token: 0}))
        for name, token in (("target", "x there y"), ("draft", "x here"))
    ]
    asked = Asked(target=Source(source="t"), draft=Source(source="d"), method="draft_model")
    (found,) = [one for one in tokens.checks(asked, *said) if one.name == "tokenizer"]
    assert found.reason.endswith("0 is 'x there y' in the target and 'x here' in the draft")


def test_the_table_has_level_reason_remedy_and_seconds_of_each_check(tmp_path: Path) -> None:
    case = yaml.safe_load((DATA / "bad" / "vocabulary-padded.yaml").read_text())
    looked_at(case, tmp_path)
    given = ["preflight", "-f", str(tmp_path / "serving.yaml"), "--models", str(tmp_path / "models")]
    result = RUNNER.invoke(app, given)
    assert result.exit_code == 1
    (line,) = [one for one in result.output.splitlines() if "vocabulary:" in one]
    assert line.startswith("  fail     vocabulary: the target has 152064 tokens and the draft 151936")
    assert line.endswith(" s]")
    assert "needs" in next(one for one in result.output.splitlines() if "memory:" in one), "no GPU's size was told"


def test_the_last_line_counts_and_programs_are_told_of_failures(tmp_path: Path) -> None:
    case = yaml.safe_load((DATA / "bad" / "vocabulary-padded.yaml").read_text())
    _, checks = looked_at(case, tmp_path)
    levels = [one["level"] for one in checks]
    given = ["preflight", "-f", str(tmp_path / "serving.yaml"), "--models"]
    result = RUNNER.invoke(app, [*given, str(tmp_path / "models")])
    failed, warned, skipped = (levels.count(level) for level in ("fail", "warn", "skip"))
    told = f"{len(checks)} checks: {failed} failed, {warned} warned, {skipped} skipped"
    assert failed
    assert result.output.splitlines()[-1] == told
    result = RUNNER.invoke(app, [*given, str(tmp_path / "models"), "-o", "json"])
    assert json.loads(result.output)[0]["failed"] == failed
    at_the_desk(tmp_path, {"source": "/no/such/model"})
    result = RUNNER.invoke(app, ["preflight", "-f", str(tmp_path / "desk.yaml"), "--models", "hub"])
    assert result.output.splitlines()[-1].endswith(" skipped (target not read)")


def test_a_folder_that_is_none_is_a_mistake_and_not_a_failed_check(tmp_path: Path) -> None:
    case = yaml.safe_load((DATA / "good" / "mixtral-ngram.yaml").read_text())
    looked_at(case, tmp_path)
    result = RUNNER.invoke(app, ["preflight", "-f", str(tmp_path / "serving.yaml"), "--models", str(tmp_path / "no")])
    assert result.exit_code == 2
    assert "is no folder" in result.output


def test_without_the_wish_no_model_is_looked_at(tmp_path: Path) -> None:
    case = yaml.safe_load((DATA / "bad" / "weights-cut-off.yaml").read_text())
    looked_at(case, tmp_path)
    result = RUNNER.invoke(app, ["preflight", "-f", str(tmp_path / "serving.yaml"), "-o", "json"])
    assert result.exit_code == 0
    assert json.loads(result.output)[0]["checks"] == []


def at_the_desk(tmp_path: Path, model: dict[str, str], where: str = "hub") -> tuple[int, dict[str, str]]:
    spec = {"model": model, "speculation": {"method": "ngram", "maxTokens": 3}}
    about = {"apiVersion": "paceline.dev/v1alpha1", "kind": "SpeculativeServing", "metadata": {"name": "desk"}}
    (tmp_path / "desk.yaml").write_text(yaml.safe_dump({**about, "spec": spec}))
    result = RUNNER.invoke(app, ["preflight", "-f", str(tmp_path / "desk.yaml"), "--models", where, "-o", "json"])
    (told,) = json.loads(result.output)
    (found,) = [one for one in told["checks"] if one["name"] == "target-config"]
    return result.exit_code, found


@pytest.mark.parametrize("source", ["pvc://claim/no/such", "oci://registry.example/a:1", "/no/such/model"])
def test_what_a_desk_does_not_have_is_skipped(source: str, tmp_path: Path) -> None:
    code, found = at_the_desk(tmp_path, {"source": source})
    assert (code, found["level"]) == (0, "skip")
    assert "give --models FOLDER" in found["reason"]


def test_variants_of_an_experiment_are_skipped_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(thing(EXPERIMENT, {})))
    given = ["preflight", "-f", str(tmp_path / "experiment.yaml")]
    result = RUNNER.invoke(app, [*given, "--models", "hub"])
    assert result.exit_code == 0
    assert "  skip     variants: " in result.output
    assert result.output.splitlines()[-1] == "1 check: 0 failed, 0 warned, 1 skipped"
    assert "variants:" not in RUNNER.invoke(app, given).output


def test_a_path_of_this_machine_is_read_at_the_desk(tmp_path: Path) -> None:
    lay(tmp_path, {"model": {"of": "qwen3-0.6b"}})
    assert at_the_desk(tmp_path, {"source": str(tmp_path / "model")})[1]["level"] == "pass"


def test_a_folder_without_the_model_says_how_it_is_laid_out(tmp_path: Path) -> None:
    code, found = at_the_desk(tmp_path, {"source": "hf://owner/name"}, str(tmp_path))
    assert (code, found["level"]) == (1, "fail")
    assert "owner/name" in found["remedy"]
    assert "tokenSecretName" not in found["reason"] + found["remedy"]


def test_at_the_desk_the_shells_token_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub({"owner/name": Repository({"config.json": json.dumps(facts("qwen3-0.6b")).encode()}, gated="s")}).start()
    try:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for variable in ("HF_TOKEN", "HF_HUB_OFFLINE", "VLLM_USE_MODELSCOPE"):
            monkeypatch.delenv(variable, raising=False)
        gated = {"source": "hf://owner/name"}
        code, found = at_the_desk(tmp_path, gated)
        assert (code, found["level"]) == (1, "fail")
        assert "only $HF_TOKEN of this shell counts" in found["reason"]
        assert " :" not in found["reason"]
        code, found = at_the_desk(tmp_path, {**gated, "tokenSecretName": "hub"})
        assert (code, found["level"], "$HF_TOKEN" in found["reason"]) == (0, "skip", True)
        monkeypatch.setenv("HF_TOKEN", "other")
        assert at_the_desk(tmp_path, {**gated, "tokenSecretName": "hub"})[0] == 1
        monkeypatch.setenv("HF_TOKEN", "s")
        assert at_the_desk(tmp_path, gated)[1]["level"] == "pass"
    finally:
        hub.stop()
