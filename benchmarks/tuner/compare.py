"""The tuner and its rivals over published tables and measured grids: a table, a result file, a picture.

usage: python -m benchmarks.tuner.compare [--seeds N] [--processes N] [--out FOLDER] [--page FILE]
All run in the replay's simulated engine, on the same walks of load and with the same noise in five seconds, and are
scored on the files' own numbers (`paceline replay` says how).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from zlib import crc32

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.tuner import page, picture
from benchmarks.tuner.contestants import BY_NAME, CONTESTANTS, Contestant, courses
from benchmarks.tuner.ledger import Ledger, ledger
from paceline_operator.cli.get import console_of_output
from paceline_operator.replay.courses import Course
from paceline_operator.replay.engine import run
from paceline_operator.replay.score import Case, Tally, cases, overall, tallies
from paceline_operator.replay.world import Run, Scenario

ROOT = Path(__file__).parents[2]
OUT = ROOT / "benchmarks" / "results" / "tuner"
PAGE = ROOT / "docs" / "tuner.md"
PICTURE = ROOT / "docs" / "images" / "tuner.svg"
SHOWN_COURSE, SHOWN_SWEEP = ("h200_dense32b_eagle", "sharegpt,poor"), "steps"
"""Of the picture's run over time."""
SHOWN = ("paceline", "vllm_documented", "sglang_ema")


@dataclass(frozen=True)
class Task:
    """One run of one contestant. Names and numbers only, so that any process can make it."""

    contestant: str
    course: int
    sweep: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What is left of a run."""

    tallies: dict[int, Tally]
    ledger: Ledger


def runs(task: Task) -> tuple[Scenario, Run]:
    """The run of a task: the same for the same task, and the same walk for all contestants."""
    contestant = BY_NAME[task.contestant]
    course = contestant.course(courses()[task.course])
    name = crc32(f"{course.table_id}/{course.workload}/{course.loads}/{task.sweep}".encode())
    scenario = course.scenario(task.sweep, np.random.default_rng((task.seed, name)))
    own = np.random.default_rng((task.seed, name, crc32(task.contestant.encode())))
    pacer = contestant.make(course, own)
    return scenario, run(scenario, pacer, np.random.default_rng((task.seed, name, 1)))


def play(task: Task) -> Outcome:
    """The sums of a run."""
    scenario, windows = runs(task)
    return Outcome(tallies(scenario, windows), ledger(scenario, windows))


def tasks(contestant: Contestant, all_courses: Sequence[Course], seeds: int) -> Iterator[Task]:
    """Every course that it can run on, sweep and seed."""
    for index, course in enumerate(all_courses):
        if contestant.fits(course):
            for sweep in course.sweeps:
                for seed in range(seeds):
                    yield Task(contestant.name, index, sweep, seed)


def group_of(course: Course) -> str:
    """Cases are summed up by kind."""
    return "tables" if course.by_load else "grids"


def summary(found: Sequence[Case], spent: Ledger) -> dict[str, Any]:
    """One group of one contestant."""
    kept = [case.gain_kept_pct for case in found if case.gain_kept_pct is not None]
    below = [case.time_below_off_pct for case in found if case.time_below_off_pct is not None]
    return {
        **overall(found),
        "gain_kept_pct": round(fmean(kept), 2) if kept else None,
        "time_below_off_pct": round(fmean(below), 2) if below else None,
        "changes_per_hour": round(fmean(case.changes_per_hour for case in found), 2) if found else None,
        **spent.shares(),
    }


def hindsight(by_contestant: dict[str, list[tuple[Course, list[Case]]]]) -> list[tuple[Course, list[Case]]]:
    """The best constant of each course, chosen when all was over."""
    best: dict[int, tuple[Course, list[Case]]] = {}
    for name, several in by_contestant.items():
        for course, of_course in several if page.is_constant(name) else ():
            regret = fmean(case.regret_pct for case in of_course)
            if id(course) not in best or regret < fmean(case.regret_pct for case in best[id(course)][1]):
                best[id(course)] = (course, of_course)
    return list(best.values())


def over_time(seed: int = 0) -> dict[str, Any]:
    """One run of the picture: goodput over the oracle's, minute by minute, and the k in force."""
    all_courses = courses()
    index = next(i for i, one in enumerate(all_courses) if (one.table_id, one.workload) == SHOWN_COURSE)
    lines: dict[str, Any] = {}
    visits: list[dict[str, Any]] = []
    for name in SHOWN:
        scenario, windows = runs(Task(name, index, SHOWN_SWEEP, seed))
        got: dict[int, list[float]] = {}
        for window in windows:
            visit = scenario.visits[window.visit]
            at = got.setdefault(int(window.start // 60), [0.0, 0.0])
            at[0] += sum(visit.rates[k] * time for k, time in window.seconds.items())
            at[1] += max(visit.rates.values()) * sum(window.seconds.values())
        lines[name] = [round(100 * a / b, 2) for a, b in got.values()]
        visits = [
            {
                "load": visit.load,
                "minutes": visit.seconds / 60,
                "workload": visit.workload,
                "best_k": max(visit.rates, key=lambda k: visit.rates[k]),
            }
            for visit in scenario.visits
        ]
    return {"course": list(SHOWN_COURSE), "sweep": SHOWN_SWEEP, "seed": seed, "visits": visits, "lines": lines}


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on (default 3)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the result")
    parser.add_argument("--page", type=Path, default=PAGE, help="page whose table is written anew")
    asked = parser.parse_args()
    all_courses = courses()
    todo = [task for contestant in CONTESTANTS for task in tasks(contestant, all_courses, asked.seeds)]
    outcomes: dict[Task, Outcome] = {}
    console = console_of_output()
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(asked.processes) as pool:
        shown = progress.add_task("runs", total=len(todo))
        for task, outcome in zip(todo, pool.map(play, todo, chunksize=4), strict=True):
            outcomes[task] = outcome
            progress.advance(shown)
    found: dict[str, list[tuple[Course, list[Case]]]] = {}
    spent: dict[tuple[str, str], Ledger] = {}
    for contestant in CONTESTANTS:
        mine = list(tasks(contestant, all_courses, asked.seeds))
        rows = found.setdefault(contestant.name, [])
        for index, course in enumerate(all_courses):
            here = [outcomes[task] for task in mine if task.course == index]
            if here:
                rows.append((course, cases(course, [outcome.tallies for outcome in here])))
                for outcome in here:
                    spent.setdefault((contestant.name, group_of(course)), Ledger()).add(outcome.ledger)
    found["hindsight"] = hindsight(found)
    result = _result(found, spent, asked.seeds)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "comparison.json").write_text(json.dumps(result, indent=1) + "\n")
    _write_cases(asked.out / "cases.csv", found)
    page.write(asked.page, result)
    picture.draw(PICTURE if asked.page == PAGE else asked.out / "tuner.svg", result)
    console.print(page.table(result))


def _result(
    found: dict[str, list[tuple[Course, list[Case]]]], spent: dict[tuple[str, str], Ledger], seeds: int
) -> dict[str, Any]:
    named = {one.name: (one.label, one.source) for one in CONTESTANTS}
    named["hindsight"] = ("best constant k of each course, with hindsight", "")
    rows = []
    for name, (label, source) in named.items():
        groups = {}
        for group in ("tables", "grids"):
            of_group = [case for course, several in found[name] if group_of(course) == group for case in several]
            groups[group] = summary(of_group, spent.get((name, group), Ledger()))
            there = {id(course) for course, _ in found[name] if group_of(course) == group}
            own = [case.regret_pct for course, several in found[page.OWN] if id(course) in there for case in several]
            groups[group]["own_mean_regret_pct"] = round(fmean(own), 4) if own else None
        rows.append({"name": name, "label": label, "source": source, **groups})
    return {"seeds": seeds, "contestants": rows, "by_table": by_table(found[page.OWN]), "over_time": over_time()}


def by_table(found: Sequence[tuple[Course, list[Case]]]) -> list[dict[str, Any]]:
    """Each table or grid by itself, beside the mean over the cases of all others of its kind."""
    groups: dict[tuple[str, str], list[float]] = {}
    for course, several in found:
        groups.setdefault((group_of(course), course.table_id), []).extend(case.regret_pct for case in several)
    rows = []
    for (kind, table), regrets in groups.items():
        others = [one for other, more in groups.items() if other[0] == kind and other[1] != table for one in more]
        rows.append(
            {
                "table": table,
                "cases": len(regrets),
                "mean_regret_pct": round(fmean(regrets), 4),
                "worst_regret_pct": max(regrets),
                "others_mean_regret_pct": round(fmean(others), 4),
            }
        )
    return rows


def _write_cases(path: Path, found: dict[str, list[tuple[Course, list[Case]]]]) -> None:
    rows = [
        {"contestant": name, **{key: value for key, value in case.json().items() if key != "loads"}}
        for name, several in found.items()
        for _, of_course in several
        for case in of_course
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
