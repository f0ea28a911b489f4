"""The compatibility matrix: what it says is what the operator does, and no version text breaks it."""

from __future__ import annotations

import dataclasses
import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline_operator import settings
from paceline_operator.acceptance import accept
from paceline_operator.api.conditions import Reason
from paceline_operator.api.engine import CudagraphMode, Device, Engine
from paceline_operator.api.runner import RUNNER_VARIABLE, Runner, keeps_k, runner_of, without_schedule
from paceline_operator.api.speculation import Method
from paceline_operator.preflight import matrix
from paceline_operator.preflight.arguments import owner_of
from paceline_operator.preflight.legality import check
from paceline_operator.preflight.matrix import Combination, DraftParallel, Effect, Rule, When, version_of
from tests.rules import REFUSALS, made, spec_of
from tests.servings import DEFAULTS, MINIMAL

RULES = matrix.load().rules
CONFIGS: list[dict[str, Any]] = [{}, {"parallel_drafting": True}, {"use_heterogeneous_vocab": True}]
MODES = [None, *CudagraphMode]


@pytest.mark.parametrize("rule", REFUSALS, ids=lambda rule: rule.id)
def test_a_combination_that_vllm_refuses_is_refused_with_rule_field_and_source(rule: Rule) -> None:
    finding = next(finding for finding in check(spec_of(rule).spec) if finding.rule == rule.id)
    assert finding.reason is Reason.INCOMPATIBLE
    assert finding.message.startswith(f"spec.{rule.field}: ")
    assert rule.remedy in finding.message
    assert finding.source in finding.message


@pytest.mark.parametrize("rule", [rule for rule in REFUSALS if rule.versions], ids=lambda rule: rule.id)
def test_a_rule_of_one_version_holds_for_that_version_alone(rule: Rule) -> None:
    given = spec_of(rule)
    for version in matrix.load().versions:
        engine = given.spec.engine.model_copy(update={"vllm_version": version})
        found = check(given.spec.model_copy(update={"engine": engine}))
        assert (rule.id in {finding.rule for finding in found}) is (version in rule.versions)


def test_every_refusal_is_one_of_a_field_of_the_spec() -> None:
    for rule in RULES:
        if rule.effect is Effect.REFUSED:
            assert re.fullmatch(r"(engine|speculation)(\.\w+)+", rule.field)


def test_the_runner_is_chosen_as_the_matrix_says() -> None:
    for method, device, config, arguments in product(Method, Device, CONFIGS, ([], ["--enable-dbo"])):
        given = made(method, engine={"device": device.value, "extraArgs": arguments}, config=config)
        rules = matrix.holding(matrix.combination(given.spec, matrix.load().default))
        v1 = any(rule.effect is Effect.RUNNER_V1 for rule in rules)
        assert runner_of(given.spec) is (Runner.V1 if v1 else Runner.V2), (method, device, config, arguments)


def test_a_schedule_is_given_where_the_matrix_says_that_it_costs_nothing() -> None:
    for method, device, mode, value in product(Method, Device, MODES, ("", "0", "1")):
        env = [{"name": RUNNER_VARIABLE, "value": value}] if value else []
        given = made(method, engine={"device": device.value, "cudagraphMode": mode, "env": env}).spec
        live_k = matrix.abilities(matrix.combination(given, "0.33")).live_k
        assert bool(without_schedule(given)) is (live_k is not None)
        assert keeps_k(given) is (live_k is not None and live_k.effect is Effect.FIXED_K)


def test_adaptive_verification_is_possible_where_nothing_refuses_it() -> None:
    able = {
        (version, method, runner)
        for version, method, runner in product(matrix.load().versions, Method, Runner)
        if matrix.abilities(Combination(version, method, runner)).adaptive_verification is None
    }
    drafts = {method for method in Method if method not in ("ngram", "ngram_gpu", "suffix")}
    assert able == {(version, method, Runner.V2) for version in matrix.load().versions for method in drafts}


@pytest.mark.parametrize(
    ("engine", "image", "version"),
    [
        ({}, "", "0.32"),
        ({}, "vllm/vllm-openai:v0.33.0", "0.33"),
        ({"vllmVersion": "0.33"}, "", "0.33"),
        ({"vllmVersion": "0.33.2", "image": "a/b:v0.32.0"}, "", "0.33"),
        ({"image": "registry.example:5000/vllm/vllm-openai:v0.33.0"}, "", "0.33"),
        ({"image": "registry.example:5000/vllm"}, "vllm/vllm-openai:v0.33.0", "0.32"),
        ({"image": "a/b:0.33.0-cu130@sha256:" + "0" * 64}, "", "0.33"),
        ({"image": "a/b:latest"}, "", "0.32"),
        ({"vllmVersion": "0.26.0"}, "", "0.32"),
        ({"vllmVersion": "0.40.1"}, "", "0.33"),
        ({"vllmVersion": "1.0"}, "", "0.32"),
    ],
)
def test_the_version_is_said_or_read_from_the_tag_or_the_nearest(
    engine: dict[str, Any], image: str, version: str
) -> None:
    assert version_of(Engine.model_validate(engine), image) == version


@given(st.text(max_size=40), st.text(max_size=12))
def test_no_image_breaks_the_version(image: str, version: str) -> None:
    assert version_of(Engine.model_construct(image=image, vllm_version=version), image) in matrix.load().versions


def test_the_default_version_is_that_of_the_default_images() -> None:
    for image in (settings.DEFAULT_ENGINE_IMAGE, settings.DEFAULT_CPU_ENGINE_IMAGE):
        assert version_of(Engine(image=image)) == matrix.load().default


def test_what_combines_ranks_is_an_argument_of_the_operator() -> None:
    """The rule about data parallelism has no field that could ask for it."""
    assert owner_of("--data-parallel-size")
    found = Combination("0.33", Method.EAGLE3, data_parallel=True)
    assert "schedule-data-parallel" in {rule.id for rule in matrix.holding(found)}


@pytest.mark.parametrize(
    ("draft", "target", "is_"),
    [(None, 4, DraftParallel.TARGET), (4, 4, DraftParallel.TARGET), (1, 4, DraftParallel.ONE), (1, 1, "target")],
)
def test_the_drafts_gpus(draft: int | None, target: int, is_: str) -> None:
    given = made(
        Method.EAGLE3,
        engine={"tensorParallelSize": target},
        draft={"source": "/draft", "tensorParallelSize": draft},
    )
    assert matrix.combination(given.spec, "0.33").draft_tensor_parallel == is_


@pytest.mark.parametrize(("config", "gpus"), [({"use_heterogeneous_vocab": True}, 8), ({}, 1)])
def test_a_draft_model_has_its_targets_gpus_on_the_v1_runner(config: dict[str, Any], gpus: int) -> None:
    """vLLM's DraftModelProposer asserts it (vllm/v1/spec_decode/draft_model.py); on V2 one GPU is enough."""
    for draft in (1, 8, None):
        given = made(
            Method.DRAFT_MODEL,
            engine={"tensorParallelSize": 8},
            draft={"source": "/draft", "tensorParallelSize": draft},
            config=config,
        )
        refused = {finding.rule for finding in check(given.spec)}
        assert ("draft-tensor-parallel-v1" in refused) is ((draft or 8) < gpus)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda one: st.lists(one, max_size=2)
)


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(["parallel_drafting"]), JSON, max_size=4))
def test_any_extra_config_is_a_combination(config: dict[str, Any]) -> None:
    found = matrix.combination(made(Method.EAGLE3, config=config).spec, "0.33")
    assert {key for key in config if config[key] not in (None, False)} <= found.config
    assert matrix.holding(found) == tuple(rule for rule in RULES if rule in matrix.holding(found))


@given(st.sampled_from(sorted(When.model_fields)), st.data())
def test_a_rule_holds_only_for_values_it_names(key: str, data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from([rule for rule in RULES if getattr(rule.when, key)] or list(RULES)))
    for method, runner, mode in product(Method, Runner, CudagraphMode):
        found = Combination("0.33", method, runner, graphs=mode)
        if rule in matrix.holding(found):
            assert method in (rule.when.method or tuple(Method))
            assert runner in (rule.when.runner or tuple(Runner))
            assert mode in (rule.when.graphs or tuple(CudagraphMode))


@pytest.mark.parametrize(
    "change",
    [
        {"source": {}},
        {"source": {"file": "a.py"}},
        {"source": {"issue": "not an issue"}},
        {"when": {"methods": ["ngram"]}},
        {"when": {"method": ["medusa"]}},
        {"effect": "refused"},
    ],
)
def test_a_rule_without_source_or_with_unknown_keys_is_refused(change: dict[str, Any]) -> None:
    good = {"id": "a", "effect": "note", "when": {}, "reason": "r", "source": {"issue": "a/b#1"}}
    Rule.model_validate(good)
    with pytest.raises(ValidationError):
        Rule.model_validate({**good, **change})


def test_the_operators_own_image_tells_the_version_of_servings_that_name_none() -> None:
    raw = {**MINIMAL, "spec": {**MINIMAL["spec"], "engine": {"kvCacheDtype": "octave_k3v4"}}}
    newer = dataclasses.replace(DEFAULTS, engine_image="registry.example/vllm:v0.33.0")
    assert accept(raw, newer)[0] is not None
    refused, verdict = accept(raw, DEFAULTS)
    assert (refused, verdict.reason) == (None, Reason.INCOMPATIBLE)
    assert "0.33" not in verdict.message.partition("does not know")[0]
