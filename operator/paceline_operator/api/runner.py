"""Which of vLLM's model runners a spec boots, and whether vLLM is given a schedule of k at boot.

preflight/matrix.yaml holds the sources of what is decided here; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum

from paceline_operator.api.engine import CudagraphMode, Device, PluginInjection
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.speculation import V1_FIXED_K_METHODS, V1_METHODS

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
MICROBATCHES = "--enable-dbo"
PARALLEL_METHODS = ("dflash", "dspark")
"""The V2 runner drafts in parallel for these alone."""


class Runner(StrEnum):
    """vLLM's model runners."""

    V1 = "V1"
    V2 = "V2"


def runner_of(spec: ServingSpec) -> Runner:
    """As vLLM chooses it: by its variable, else V2 wherever it can do what is asked."""
    chosen = {variable.name: variable.value for variable in spec.engine.env}.get(RUNNER_VARIABLE)
    if chosen in ("0", "1"):
        return Runner.V2 if chosen == "1" else Runner.V1
    speculation = spec.speculation
    config = speculation.extra_config or {}
    parallel = speculation.method not in PARALLEL_METHODS and config.get("parallel_drafting")
    v1 = spec.engine.device is Device.CPU or speculation.method in V1_METHODS or parallel
    v1 = v1 or config.get("use_heterogeneous_vocab") or MICROBATCHES in spec.engine.extra_args
    return Runner.V1 if v1 else Runner.V2


def graphs_of(spec: ServingSpec) -> CudagraphMode:
    """The CUDA graphs that are asked for; vLLM's own choice is FULL_AND_PIECEWISE."""
    if spec.engine.enforce_eager or spec.engine.device is not Device.GPU:
        return CudagraphMode.NONE
    return spec.engine.cudagraph_mode or CudagraphMode.FULL_AND_PIECEWISE


def keeps_k(spec: ServingSpec) -> bool:
    """The method's proposer asserts k == num_speculative_tokens: another k would end the engine."""
    return runner_of(spec) is Runner.V1 and spec.speculation.method in V1_FIXED_K_METHODS


def within_reach(spec: ServingSpec) -> bool:
    """Whether a step finds the next larger graph, whatever other graphs lie between: the plugin sees to that for the
    full ones of the V2 runner, and a piecewise one is for every k."""
    if graphs_of(spec) is CudagraphMode.PIECEWISE:
        return True
    return runner_of(spec) is Runner.V2 and spec.engine.plugin.injection is not PluginInjection.NONE


def without_schedule(spec: ServingSpec) -> str:
    """Why vLLM is given no schedule, so that it drafts maxTokens always; empty where it is given one.

    A ladder or table of the user's asks for one, whatever it costs.
    """
    if keeps_k(spec):
        return f"the method {spec.speculation.method.value} of the V1 model runner cannot change k"
    full = graphs_of(spec) not in (CudagraphMode.NONE, CudagraphMode.PIECEWISE)
    asked = spec.tuning.ladder is not None or spec.tuning.table is not None
    if runner_of(spec) is Runner.V1 and full and not asked:
        return (
            "on the V1 model runner vLLM gives up full CUDA graphs for a schedule of k: set engine.cudagraphMode "
            "PIECEWISE or tuning.ladder to have one nevertheless"
        )
    return ""
