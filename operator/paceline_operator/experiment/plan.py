"""Which variant runs when: interleaved rounds, so that drift of the machine falls on all variants alike. Pure.

A round is every variant once, in an engine of its own, with every load once. Rounds go forwards and backwards in turn
(A B, B A, A B ...), and so do the loads within them. A round is what a ratio to the baseline is taken in, and what the
budget cuts: whole, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator.api.experiment import BASELINE, SERVING, Duration, ExperimentSpec, Variant
from paceline_operator.preflight import evidence

LEAST_ROUNDS = 2
"""One measurement has no spread."""
SEEDS = 2**31
"""Seeds of `vllm bench serve` go to numpy, which takes 32 bits; the API's own limit."""


class PlanError(ValueError):
    """A spec that cannot be planned; one message a line."""


@dataclass(frozen=True)
class Costs:
    """What is assumed of time and GPUs before anything ran."""

    boot_seconds: float = 180.0
    """From the start of an engine to its end, measurements apart: an 8B model on one H200 took 145 and 156 s to boot
    (benchmarks/results/h200/2026-11-29)."""
    warm_up_seconds: float = 15.0
    """Of each load's shape."""
    gpus: int = 1
    """Of one engine."""


@dataclass(frozen=True)
class Measurement:
    """One window to come."""

    load: int
    seed: int
    """Same for all variants of a round: they get the same prompts. Other loads and rounds get others, which no prefix
    cache has seen."""


@dataclass(frozen=True)
class Visit:
    """One engine from start to end: first every shape once, uncounted, then the measurements."""

    round: int
    variant: str
    warm_up: tuple[int, ...]
    """Loads, the largest first: it is what can fail."""
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True)
class Plan:
    """All visits in their order."""

    variants: tuple[str, ...]
    changes: Mapping[str, Mapping[str, str]]
    """Variant -> every field of the one group that differs from its parent, and its value."""
    seconds: float
    """Of each measurement."""
    visits: tuple[Visit, ...]
    rounds: int
    cut: tuple[int, ...]
    """Rounds that were asked for and are not in the budget, from 0."""
    round_gpu_minutes: float
    message: str

    @property
    def gpu_minutes(self) -> float:
        """Of everything that is planned."""
        return self.rounds * self.round_gpu_minutes


def plan(spec: ExperimentSpec, costs: Costs | None = None) -> Plan:
    """The schedule that the spec and its budget give. Raises PlanError."""
    if wrong := tuple(evidence.of_experiment(spec)):
        raise PlanError("\n".join(wrong))
    costs = costs or Costs()
    variants = (BASELINE, SERVING, *(variant.name for variant in spec.variants))
    loads, seconds = sorted(set(spec.load.concurrency)), seconds_of(spec.duration)
    visit = costs.boot_seconds + len(loads) * (costs.warm_up_seconds + seconds)
    each = len(variants) * visit * costs.gpus / 60
    paid = min(spec.repetitions, int(spec.budget_gpu_minutes // each)) if each else spec.repetitions
    if paid < LEAST_ROUNDS:
        raise PlanError(
            f"spec.budgetGpuMinutes {spec.budget_gpu_minutes} pays {paid} of the {LEAST_ROUNDS} rounds that an "
            f"experiment needs: a round of {len(variants)} variants and {len(loads)} loads takes {each:.1f} "
            f"GPU-minutes; raise it to {math.ceil(LEAST_ROUNDS * each)}, or take fewer variants, fewer loads or "
            "shorter measurements"
        )
    message = f"{paid} rounds of {len(variants)} variants and {len(loads)} loads: {paid * each:.0f} GPU-minutes"
    if paid < spec.repetitions:
        message += (
            f"; spec.budgetGpuMinutes {spec.budget_gpu_minutes} leaves out rounds {paid + 1} to {spec.repetitions}, "
            f"which need {spec.repetitions * each:.0f}"
        )
    return Plan(
        variants,
        {variant.name: dict(_fields(variant)) for variant in spec.variants},
        seconds,
        tuple(visit for round_ in range(paid) for visit in _round(round_, variants, loads, spec.load.seed)),
        paid,
        tuple(range(paid, spec.repetitions)),
        each,
        message,
    )


def seconds_of(duration: Duration) -> float:
    """Of one measurement. A fault that shows itself after a time needs a multiple of it to be called absent."""
    if duration.seconds is not None:
        return float(duration.seconds)
    return float((duration.times_to_fault or 0) * (duration.seconds_to_fault or 0))


def _round(round_: int, variants: tuple[str, ...], loads: list[int], seed: int) -> Iterator[Visit]:
    step = -1 if round_ % 2 else 1
    ways = [Measurement(load, (seed + round_ * len(loads) + at) % SEEDS) for at, load in enumerate(loads)]
    for variant in variants[::step]:
        yield Visit(round_, variant, tuple(loads[::-1]), tuple(ways[::step]))


def _fields(variant: Variant) -> Iterator[tuple[str, str]]:
    yield from _leaves(variant.change.model_dump(exclude_none=True, by_alias=True, mode="json"), "")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield path, str(value)
        return
    for name, inner in value.items():
        yield from _leaves(inner, f"{path}.{name}" if path else name)
