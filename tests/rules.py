"""Rules of the compatibility matrix as servings: the smallest one for which a rule holds."""

from __future__ import annotations

from typing import Any

from paceline_operator.api.engine import Device
from paceline_operator.api.runner import RUNNER_VARIABLE, Runner
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.speculation import DRAFT_METHODS, Method
from paceline_operator.preflight import matrix
from paceline_operator.preflight.matrix import DraftParallel, Effect, Rule
from tests.servings import serving

REFUSALS = [rule for rule in matrix.load().rules if rule.effect is Effect.REFUSED and not rule.when.data_parallel]
"""Data parallelism has no field that could ask for it."""


def made(
    method: Method, *, engine: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **speculation: Any
) -> SpeculativeServing:
    draft = {"source": "/draft"} if method in DRAFT_METHODS else None
    given = {"method": method.value, "draft": draft, "extraConfig": config or {}, **speculation}
    return serving(engine=engine or {}, speculation=given)


def spec_of(rule: Rule) -> SpeculativeServing:
    """The smallest serving for which a rule holds."""
    when, engine, speculation = rule.when, {}, {}
    version = (rule.versions or matrix.load().versions)[0]
    method = when.method[-1] if when.method else Method.EAGLE3
    config = {key.partition("=")[0]: key.partition("=")[2] or True for key in when.config[:1]}
    if Device.CPU in when.device or (Runner.V1 in when.runner and rule.cel):
        engine["device"] = "CPU"
    elif when.runner:
        engine["env"] = [{"name": RUNNER_VARIABLE, "value": str(int(when.runner[0] is Runner.V2))}]
    if when.graphs:
        engine["cudagraphMode"] = when.graphs[0].value
    if when.lora:
        engine["lora"] = {}
    if when.pipeline_parallel:
        engine["pipelineParallelSize"] = 2
    if when.adaptive_verification:
        speculation["adaptiveVerification"] = "Enabled"
    if when.draft_tensor_parallel:
        engine["tensorParallelSize"] = 4
        gpus = 1 if DraftParallel.ONE in when.draft_tensor_parallel else 2
        speculation["draft"] = {"source": "/draft", "tensorParallelSize": gpus}
    engine |= {"vllmVersion": f"{version}.0", "extraArgs": list(when.arguments[:1])}
    return made(method, engine=engine, config=config, **speculation)
