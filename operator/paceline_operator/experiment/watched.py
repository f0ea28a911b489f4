"""How far an experiment is, as rows of a table: what `paceline experiment watch` shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from paceline_operator.api.experiment import BASELINE
from paceline_operator.clock import rfc3339
from paceline_operator.experiment import taint
from paceline_operator.experiment.plan import Plan
from paceline_operator.experiment.results import VariantResult

UNKNOWN = "-"
HEAD = ["VARIANT", "K", "WINDOWS", "CLEAN", "LAST LOAD", "TOK/S", "TPOT MS", "ACCEPTED", "AT"]


def rows(plan: Plan, results: Mapping[str, VariantResult]) -> list[list[str]]:
    """A row of HEAD for each variant; of its newest window, where it has one."""
    marked = taint.of_all(sorted(results.values(), key=lambda one: one.variant != BASELINE)) if results else {}
    asked = dict.fromkeys(plan.variants, 0)
    for visit in plan.visits:
        asked[visit.variant] += len(visit.measurements)
    return [_row(name, count, results.get(name), marked) for name, count in asked.items()]


def _row(
    name: str,
    asked: int,
    result: VariantResult | None,
    marked: Mapping[tuple[str, int, int], tuple[taint.Taint, ...]],
) -> list[str]:
    windows = result.windows if result else ()
    head = [name, str(result.k) if result else UNKNOWN, f"{len(windows)}/{asked}"]
    if not windows:
        return [*head, *[UNKNOWN] * (len(HEAD) - len(head))]
    last = max(windows, key=lambda window: window.started_at)
    tpot, found = last.client.tpot, last.acceptance
    clean = sum(taint.clean(marked.get((name, window.load, window.round), ())) for window in windows)
    return [
        *head,
        str(clean),
        str(last.load),
        f"{last.tokens_per_second:.0f}",
        f"{tpot.p50:.2f}" if tpot else UNKNOWN,
        f"{1 + found.accepted / found.drafts:.2f}" if found and found.drafts else UNKNOWN,
        rfc3339(datetime.fromtimestamp(last.ended_at, UTC)),
    ]
