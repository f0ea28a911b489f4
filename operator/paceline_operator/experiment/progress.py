"""What of a plan is there, what is missing and why, and whether the budget pays what comes next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline_operator.experiment.plan import Measurement, Plan, Visit
from paceline_operator.experiment.results import VariantResult

NOT_REACHED = "not reached"
REQUESTS = "requests at "
MINUTES = "gpuMinutes"
"""In the methods of each result."""
LONGEST = 1024
Place = tuple[str, int, int]
"""Variant, round, load."""


def left(visit: Visit, results: Mapping[str, VariantResult]) -> tuple[Measurement, ...]:
    """Measurements of a visit that no file holds, in their order."""
    there = {(window.round, window.load) for window in results[visit.variant].windows}
    return tuple(one for one in visit.measurements if (visit.round, one.load) not in there)


def missing(plan: Plan, result: VariantResult, reasons: Mapping[Place, str]) -> tuple[str, ...]:
    """What was asked for and not measured of one variant: a text for each reason and the loads that it is for."""
    loads = sorted({one.load for visit in plan.visits for one in visit.measurements})
    there = {(window.round, window.load) for window in result.windows}
    found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for round_ in range(plan.rounds + len(plan.cut)):
        by_reason: dict[str, list[int]] = {}
        for load in loads:
            if (round_, load) not in there:
                cut = "left out by the budget before it began" if round_ in plan.cut else NOT_REACHED
                by_reason.setdefault(reasons.get((result.variant, round_, load), cut), []).append(load)
        for why, at in by_reason.items():
            found.setdefault((why, tuple(at)), []).append(round_ + 1)
    return tuple(
        f"{_counted('round', rounds)}, {_counted('load', at)}: {why}"[:LONGEST] for (why, at), rounds in found.items()
    )


def _counted(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s'[: len(numbers) > 1]} {', '.join(map(str, numbers))}"


def requests(results: Mapping[str, VariantResult]) -> dict[int, int]:
    """Load -> requests of its windows, as the first variant that has served it tells."""
    told = [item for result in reversed(list(results.values())) for item in result.methods.load.items()]
    return {int(name.removeprefix(REQUESTS)): int(value) for name, value in told if name.startswith(REQUESTS)}


@dataclass(frozen=True)
class Budget:
    """What may be spent, and what was."""

    gpu_minutes: float
    spent: float = 0.0
    """Before this run."""
    gpus: int = 1

    def after(self, seconds: float) -> float:
        """GPU-minutes in all, `seconds` into this run."""
        return self.spent + seconds / 60 * self.gpus

    def refuses(self, seconds: float, next_seconds: float) -> str:
        """Why the next step, of about `next_seconds`, is not taken; empty if it is."""
        spent = self.after(seconds)
        if spent + next_seconds / 60 * self.gpus <= self.gpu_minutes:
            return ""
        return (
            f"spec.budgetGpuMinutes {self.gpu_minutes:g}: {spent:.1f} are spent, and what came next takes "
            f"{next_seconds / 60 * self.gpus:.1f}"
        )


def noted(visits: Iterable[Visit], reason: str, results: Mapping[str, VariantResult]) -> dict[Place, str]:
    """`reason` for everything of these visits that is not there."""
    return {(visit.variant, visit.round, one.load): reason for visit in visits for one in left(visit, results)}


def whole(plan: Plan, results: Mapping[str, VariantResult]) -> bool:
    """Whether everything that was planned is there."""
    return not any(left(visit, results) for visit in plan.visits)


def state(plan: Plan, results: Mapping[str, VariantResult]) -> str:
    """How far it is, in a sentence."""
    total = sum(len(visit.measurements) for visit in plan.visits)
    todo = sum(len(left(visit, results)) for visit in plan.visits)
    return f"{total - todo} of {total} windows measured"


def rest(visits: Sequence[Visit], results: Mapping[str, VariantResult]) -> tuple[Visit, ...]:
    """Visits in which something is left."""
    return tuple(visit for visit in visits if left(visit, results))
