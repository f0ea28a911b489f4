"""Method by runner: what the probe says of vLLM's own configurations is what its own code does with another k."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.capabilities import FIXED_K_METHODS
from paceline_engine.protocol import Feature
from paceline_operator.api.conditions import Reason
from paceline_operator.api.engine import CudagraphMode, Device
from paceline_operator.api.runner import Runner
from paceline_operator.api.speculation import Method
from paceline_operator.effective.declared import of_arguments
from paceline_operator.effective.fleet import Pod, look
from paceline_operator.preflight import matrix
from paceline_operator.preflight.matrix import Combination, Effect, Rule
from tests.engine.engines import MODEL, VLLM, models_folder, plugin_folder
from tests.unit.engine_answers import SAMPLES, STATE

pytestmark = pytest.mark.engine

TIMEOUT_SECONDS = 240
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says."""
    script = Path(__file__).with_name("drive_matrix.py")
    plugin = plugin_folder(tmp_path_factory.mktemp("injected") / "plugin")
    done = subprocess.run(
        [VLLM.with_name("python"), script, models_folder() / MODEL, tmp_path_factory.mktemp("draft")],
        env={**os.environ, "PYTHONPATH": str(plugin), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def of_cpu(method: Method) -> Combination:
    """A CPU engine, which has the V1 runner and no graphs: that is how the script boots them."""
    return Combination("0.32", method, Runner.V1, Device.CPU, CudagraphMode.NONE)


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "eagle3"])
def test_k_can_change_where_the_matrix_says_so(told: dict[str, Any], method: str) -> None:
    found = told["matrix"][method]["V1"]
    assert "impossible" not in found, found
    able = matrix.abilities(of_cpu(Method(method)))
    assert (found["runner"], found["live"]) == ("V1", able.live_k is None)
    assert ("asserts that k" in found["reason"]) is (able.live_k is not None)
    assert "V1 model runner" in found["verification"]
    assert able.adaptive_verification is not None
    if found["live"]:
        assert found["ladder"] == [5, 3, 1, 0]


def test_adaptive_verification_is_refused_where_vllm_refuses_it(told: dict[str, Any]) -> None:
    assert len(told["refusals"]["verification"]) == len(CudagraphMode) * 4
    for row in told["refusals"]["verification"]:
        given = Combination(
            "0.32",
            Method.EAGLE3,
            graphs=CudagraphMode[row["graphs"]],
            lora=row["lora"],
            pipeline_parallel=row["stages"] > 1,
        )
        assert (matrix.abilities(given).adaptive_verification is not None) is bool(row["refused"]), row


def test_methods_are_refused_on_the_runners_that_lack_them(told: dict[str, Any]) -> None:
    rows = [row for row in told["refusals"]["runners"] if row["method"] in set(Method)]
    assert {row["method"] for row in rows} == set(Method)
    for row in rows:
        rules = matrix.holding(Combination("0.32", Method(row["method"]), Runner(row["runner"])))
        refused = [rule.id for rule in rules if rule.effect is Effect.REFUSED]
        assert bool(refused) is bool(row["refused"]), (row, refused)


@pytest.mark.parametrize("rule", matrix.load().rules, ids=lambda rule: rule.id)
def test_the_source_of_each_rule_is_there(rule: Rule) -> None:
    """In the installed version, of rules that hold for it; threads are not looked up."""
    version = metadata_version()
    if rule.source.issue or version not in (rule.versions or (version,)):
        return
    (package,) = (VLLM.parents[1] / "lib").glob("python3*/site-packages/vllm")
    tree = ast.parse((package / rule.source.file).read_text())
    for name in rule.source.function.split("."):
        (tree,) = (node for node in tree.body if isinstance(node, DEFINITIONS) and node.name == name)


def metadata_version() -> str:
    """major.minor of the engine's environment."""
    (found,) = (VLLM.parents[1] / "lib").glob("python3*/site-packages/vllm-*.dist-info")
    return ".".join(found.name.removeprefix("vllm-").split(".")[:2])


def test_methods_said_to_assert_k_do_and_ngram_does_not(told: dict[str, Any]) -> None:
    assert told["asserts_k"] == {"suffix": True, "extract_hidden_states": True, "ngram": False}
    assert {name for name, asserts in told["asserts_k"].items() if asserts} <= FIXED_K_METHODS


def test_a_schedule_that_is_not_there_or_that_vllm_dropped_is_told(told: dict[str, Any]) -> None:
    assert "without num_speculative_tokens_per_batch_size" in told["others"]["no schedule"]["reason"]
    assert "data_parallel_size is 2" in told["others"]["data parallel"]["reason"]


def test_a_schedule_that_vllm_dropped_is_no_effective_speculation(told: dict[str, Any]) -> None:
    """A command line with a schedule, and the capabilities of what vLLM made of it for two data parallel ranks."""
    found = told["others"]["data parallel"]
    able = STATE.capabilities.model_copy(
        update={"ladder": tuple(found["ladder"]), "live_k": Feature(supported=found["live"], reason=found["reason"])}
    )
    declared = of_arguments(["--speculative-config", json.dumps(told["declared"])])
    pod = Pod("a", declared, STATE.model_copy(update={"capabilities": able}), SAMPLES)
    verdict = look({}, [pod])
    assert (verdict.status, verdict.reason) == (False, Reason.SCHEDULE_DROPPED)
    assert f"k {able.max_k} at every load" in verdict.message
    assert "data_parallel_size is 2" in verdict.message


def test_graph_coverage_is_what_vllms_own_tables_answer(told: dict[str, Any]) -> None:
    """Seeded ks up to the largest size that was captured; without a schedule only the one k; with AV every k."""
    found = {name: {int(k): n for k, n in by_k.items()} for name, by_k in told["graphs"].items()}
    assert found["seeded"] == {5: 16, 3: 16, 1: 16, 0: 16}
    assert found["one k"] == {5: 16}
    assert found["adaptive"] == dict.fromkeys((5, 4, 3, 2, 1, 0), 16)
    assert found["V1"] == {5: 16}
    assert found["V1 with a schedule"] == {}


def test_vllms_own_plugins_load_beside_ours(told: dict[str, Any]) -> None:
    """VLLM_PLUGINS unset loads all; set, with our name appended, what it named and ours; without, not ours."""
    resolvers = {"lora_filesystem_resolver", "lora_hf_hub_resolver"}
    assert set(told["plugins"]["unset"]) >= resolvers | {"paceline"}
    assert set(told["plugins"]["lora_filesystem_resolver,paceline"]) == {"lora_filesystem_resolver", "paceline"}
    assert set(told["plugins"]["lora_filesystem_resolver"]) == {"lora_filesystem_resolver"}
