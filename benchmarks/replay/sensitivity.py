"""How much the tuner's constants matter on the published tables, and what choosing them without a table would give it.

`.venv/bin/python -m benchmarks.replay.sensitivity [--seeds N] [--out FILE]`. Every number in the tuner that shapes a
decision is halved and doubled, one at a time, and all tables are replayed with it. From the same runs follows
leave-one-table-out: for each table, the variation that is best on the others, and what it gives on the one left out.
What FILE has already is not run again, so that it can be ended and started anew.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

from paceline_operator.cli.replay import OWN_TABLES
from paceline_operator.replay.ask import Question, material
from paceline_operator.replay.contest import Pacer, Setup, Tuner
from paceline_operator.replay.courses import TABLE_SWEEPS, Course
from paceline_operator.replay.report import replay

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks" / "results" / "replay" / "sensitivity.json"
PACKAGE = "paceline_operator.tuning"
MODULES = ("acceptance", "correct", "cost", "direct", "decide", "explore", "moves", "prior", "prompts", "solve")
LIMITS = frozenset(
    {
        *("LONGEST_PAUSE_SECONDS", "PUBLISH_SECONDS", "FAILED_LENGTH"),
        *("SETTLE_STEPS", "BURST_STEPS", "EFFECTS", "HIDDEN"),
        *("FULL_CACHE", "QUEUE_SHARE", "CONTEXT_HALF_LIFE_SECONDS", "NEGLIGIBLE_SHARE"),
        *("FORGOTTEN", "NEWTON_STEPS"),
    }
)
"""What decides no k, what the protocol or the form of the model fixes, and what no table has (context, queues)."""
DEFAULT = "as it is"
SHOWN = 8
Regrets = Mapping[str, Mapping[str, float]]
"""Mean regret in percent by variation and table, everything counted."""


def numbers() -> Iterator[tuple[ModuleType, str, float]]:
    """Module, name and value of each number that a module itself defines."""
    for name in MODULES:
        module = import_module(f"{PACKAGE}.{name}")
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        for constant in (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)):
            value = getattr(module, constant)
            if type(value) in (int, float) and constant not in LIMITS:
                yield module, constant, value


def scaled(name: str, value: float, factor: float) -> float:
    """`value` by `factor`; of a ratio near 1 its distance from 1; a count stays a count."""
    if name.endswith("_RATIO"):
        return 1 - (1 - value) * factor
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


@contextmanager
def changed(constant: str, old: float, new: float) -> Iterator[None]:
    """The constant with another value in the module that defines it and in all that import it."""
    holders = [
        module
        for name, module in sys.modules.items()
        if name.startswith(PACKAGE) and getattr(module, constant, None) is old
    ]
    for module in holders:
        setattr(module, constant, new)
    try:
        yield
    finally:
        for module in holders:
            setattr(module, constant, old)


def regrets(courses: Sequence[Course], seeds: int, min_gain: float | None = None) -> dict[str, float]:
    """Mean regret of each table."""
    factory = Tuner.of if min_gain is None else partial(_with_gain, min_gain)
    report = replay(courses, seeds=tuple(range(seeds)), pacer=factory, processes=os.cpu_count() or 1)
    tables: dict[str, list[float]] = {}
    for case in report.cases:
        tables.setdefault(case.table_id, []).append(case.regret_pct)
    return {table: round(fmean(values), 4) for table, values in tables.items()}


def _with_gain(min_gain: float, setup: Setup) -> Pacer:
    return Tuner.of(replace(setup, min_gain=min_gain))


def left_out(found: Regrets) -> dict[str, dict[str, Any]]:
    """By table: the variation that is best on the mean of the others, and the regret of both on the one left out."""
    tables = list(found[DEFAULT])
    result = {}
    for table in tables:
        others = [other for other in tables if other != table]
        best = min(found, key=lambda name: (fmean(found[name][other] for other in others), name != DEFAULT))
        result[table] = {
            "chosen": best,
            "regret_pct": found[best][table],
            "as_it_is_pct": found[DEFAULT][table],
            "best_of_all_pct": min(row[table] for row in found.values()),
        }
    return result


def told(found: Regrets) -> str:
    """Markdown: leave-one-table-out, and the variations that change most."""
    mean = {name: fmean(row.values()) for name, row in found.items()}
    lines = [
        "| table left out | chosen on the others | regret there, % | as it is, % | best of all there, % |",
        "|---|---|---|---|---|",
    ]
    rows = left_out(found)
    lines += [
        f"| {table} | {row['chosen']} | {row['regret_pct']:.2f} | {row['as_it_is_pct']:.2f} |"
        f" {row['best_of_all_pct']:.2f} |"
        for table, row in rows.items()
    ]
    chosen, plain = (fmean(row[name] for row in rows.values()) for name in ("regret_pct", "as_it_is_pct"))
    lines += [
        f"| mean | | {chosen:.2f} | {plain:.2f} | |",
        "",
        "| variation | mean regret of the tables, % |",
        "|---|---|",
    ]
    order = sorted(mean, key=lambda name: -abs(mean[name] - mean[DEFAULT]))
    lines += [f"| {name} | {mean[name]:.2f} |" for name in [DEFAULT, *order[:SHOWN]]]
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, write after each variation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0 to N-1")
    parser.add_argument("--sweeps", nargs="+", choices=TABLE_SWEEPS, default=list(TABLE_SWEEPS))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    read = material(Question((OWN_TABLES,))).courses
    courses = [replace(course, sweeps=tuple(options.sweeps)) for course in read]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    runs = {"seeds": options.seeds, "sweeps": options.sweeps}
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    found: dict[str, dict[str, float]] = kept.get("regret_pct", {}) if kept.get("runs") == runs else {}

    def keep(name: str, row: dict[str, float]) -> None:
        found[name] = row
        body = {"runs": runs, "regret_pct": found, "leave_one_table_out": left_out(found)}
        options.out.write_text(json.dumps(body, indent=1) + "\n")
        print(f"{name}\t{fmean(row.values()):.3f}", flush=True)

    if DEFAULT not in found:
        keep(DEFAULT, regrets(courses, options.seeds))
    for factor in (0.5, 2.0):
        if (name := f"minGainPercent x{factor:g}") not in found:
            keep(name, regrets(courses, options.seeds, 0.01 * factor))
        for module, constant, value in list(numbers()):
            name = f"{module.__name__.rpartition('.')[2]}.{constant} x{factor:g}"
            new = scaled(constant, value, factor)
            if name in found or new == value:
                continue
            with changed(constant, value, new):
                keep(name, regrets(courses, options.seeds))
    print(told(found))


if __name__ == "__main__":
    main()
