"""Checks of whether it all fits into the GPU's memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.check import Check, failed, passed, skipped, warned
from paceline_engine.preflight.memory import Budget, gib

LESS = (
    "lower spec.engine.maxModelLen or maxNumSeqs, raise gpuMemoryUtilizationPercent or tensorParallelSize, shorten "
    "spec.tuning.ladder, or use quantized weights"
)

SHORTEST = 256
"""Tokens of a request, prompt and answer: with less room for each the engine does not reach maxNumSeqs."""


def checks(asked: Asked, budget: Budget | None, gpu_bytes: int | None) -> Iterator[Check]:
    """`memory`. `gpu_bytes`: of one GPU, all of it; None: not known here."""
    name = "memory"
    if budget is None:
        yield skipped(name, "the target's configuration was not read")
    elif not asked.gpu:
        yield skipped(name, f"no GPU asked for: {_arithmetic(budget)}")
    elif budget.weights is None:
        yield skipped(name, f"the size of the weights is not known: {_arithmetic(budget)}")
    elif gpu_bytes is None:
        least = budget.fixed + budget.longest_request
        text = f"a GPU needs {gib(least)} at least ({asked.memory_utilization_percent} % of it are taken)"
        yield passed(name, f"{text}: {_arithmetic(budget)}")
    else:
        yield _judged(asked, budget, gpu_bytes)


def _judged(asked: Asked, budget: Budget, gpu_bytes: int) -> Check:
    name, taken = "memory", gpu_bytes * asked.memory_utilization_percent // 100
    certain = (budget.weights or 0) + (budget.draft_weights or 0)
    left = asked.kv_cache_bytes or taken - budget.fixed
    sums = (
        f"{asked.memory_utilization_percent} % of {gib(gpu_bytes)} are {gib(taken)}, left for KV: {gib(max(0, left))}"
    )
    text = f"{sums}; {_arithmetic(budget)}"
    if certain + budget.longest_request > (gpu_bytes if asked.kv_cache_bytes else taken):
        need = f"weights and one request of {budget.max_model_len} tokens need {gib(certain + budget.longest_request)}"
        return failed(name, f"{need}; {text}", LESS)
    if left < budget.longest_request:
        return warned(name, f"one request of {budget.max_model_len} tokens may not fit; {text}", LESS)
    tokens = budget.blocks(left) * budget.block_size
    each = tokens // asked.max_num_seqs
    room = f"room for {tokens} tokens, {each} for each of {asked.max_num_seqs} requests"
    if each < SHORTEST:
        return warned(name, f"{room}: requests will wait or be preempted; {text}", LESS)
    return passed(name, f"{room}; {text}")


def _arithmetic(budget: Budget) -> str:
    return "; ".join(budget.steps)
