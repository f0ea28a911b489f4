"""Who runs in the comparison, and over which courses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.tuner.bandits import EpsilonGreedy, Ucb
from benchmarks.tuner.rival import PERIOD_SECONDS, nearest
from benchmarks.tuner.schedules import DOCUMENTED, PULL_REQUEST, Schedule
from benchmarks.tuner.sglang import SLOTS, SglangEma
from benchmarks.tuner.turbospec import TurboSpec
from paceline_operator.replay import grids
from paceline_operator.replay.ask import INTERVAL_SECONDS, Question, material
from paceline_operator.replay.contest import Constant, Pacer, Tuner
from paceline_operator.replay.courses import GRID_SWEEPS, Course
from paceline_operator.replay.world import WINDOW_SECONDS

DATA = Path(__file__).parents[1]
GRIDS = (DATA / "grids" / "h200_llama8b_eagle_small.csv", DATA / "grids" / "h200_dense32b_eagle.csv")
PROFILES = (DATA / "grids" / "workload_acceptance.csv", DATA / "grids" / "poor.csv")
SWITCHES = (("gsm8k", "sharegpt"), ("sharegpt", "poor"), ("poor", "gsm8k"))
"""Each workload comes before another and after one."""
CONSTANTS = tuple(range(9))
"""Every k of the tables and grids."""


@dataclass(frozen=True)
class Contestant:
    """One way to choose k."""

    name: str
    label: str
    source: str
    make: Callable[[Course, np.random.Generator], Pacer]
    period_seconds: float | None = None
    """None: as the operator's tuner, 10 s."""
    fits: Callable[[Course], bool] = lambda course: True
    """Whether it can run: it is left out of tables without the ks, or the acceptance, that it needs."""

    def course(self, course: Course) -> Course:
        """`course` with this contestant's period, and with noise that is the same in the mean of five seconds."""
        if self.period_seconds is None:
            return course
        noise = course.noise * (WINDOW_SECONDS / min(WINDOW_SECONDS, self.period_seconds)) ** 0.5
        return replace(course, setup=replace(course.setup, interval_seconds=self.period_seconds), noise=noise)


def _profile(course: Course, rng: np.random.Generator) -> Mapping[tuple[int, int], float]:
    """Step seconds by load and k, measured once each with the noise of a window."""
    return {
        (load, k): arm.step_seconds * float(np.exp(rng.normal(0.0, course.noise)))
        for load, arms in course.truths[0][1].items()
        for k, arm in arms.items()
    }


def _constant(k: int) -> Contestant:
    def make(course: Course, _rng: np.random.Generator) -> Pacer:
        return Constant.of(course.setup, nearest(course.setup.ladder, k))

    return Contestant(
        f"k{k}", f"constant k={k}" if k else "k=0", "", make, fits=lambda course: k in course.setup.ladder
    )


def has_acceptance(course: Course) -> bool:
    """Whether the acceptance length of every arm is known."""
    return all(arm.length is not None for _, truth in course.truths for arms in truth.values() for arm in arms.values())


def _has_rows(rows: tuple[tuple[int, int], ...]) -> Callable[[Course], bool]:
    """Whether a schedule's k at each load, or one beside it, is a candidate."""

    def fits(course: Course) -> bool:
        wanted = {max(row for row in rows if row[0] <= load)[1] for load in course.loads}
        return all(abs(nearest(course.setup.ladder, k) - k) <= 1 for k in wanted)

    return fits


def _has_candidates(course: Course) -> bool:
    """Whether SGLang's slots for the loads have a candidate each, and acceptance is told."""
    slots = {max(start for start in SLOTS if start <= load) for load in course.loads}
    return has_acceptance(course) and all(set(SLOTS[start][0]) & set(course.setup.ladder) for start in slots)


CONTESTANTS = (
    Contestant("paceline", "paceline", "", lambda course, _: Tuner.of(course.setup)),
    *(_constant(k) for k in CONSTANTS),
    Contestant(
        "vllm_pull_request",
        "vLLM's schedule, as first published",
        "https://github.com/vllm-project/vllm/pull/32374",
        lambda course, _: Schedule.of(course.setup, PULL_REQUEST),
        fits=_has_rows(PULL_REQUEST),
    ),
    Contestant(
        "vllm_documented",
        "vLLM's schedule, as documented",
        "https://docs.vllm.ai/en/latest/features/speculative_decoding/dynamic_speculative_decoding/",
        lambda course, _: Schedule.of(course.setup, DOCUMENTED),
        fits=_has_rows(DOCUMENTED),
    ),
    Contestant(
        "sglang_ema",
        "SGLang's moving average",
        "https://docs.sglang.io/advanced_features/adaptive_speculative_decoding.html",
        lambda course, _: SglangEma.of(course.setup),
        PERIOD_SECONDS,
        _has_candidates,
    ),
    Contestant(
        "turbospec",
        "TurboSpec's goodput rule",
        "https://arxiv.org/abs/2406.14066",
        lambda course, rng: TurboSpec.of(course.setup, _profile(course, rng)),
        PERIOD_SECONDS,
        has_acceptance,
    ),
    Contestant(
        "ucb",
        "UCB bandit (BanditSpec)",
        "https://arxiv.org/abs/2505.15141",
        lambda course, rng: Ucb.of(course.setup, rng),
        PERIOD_SECONDS,
    ),
    Contestant(
        "epsilon_greedy",
        "epsilon-greedy (ik_llama.cpp)",
        "https://github.com/ikawrakow/ik_llama.cpp/pull/1595",
        lambda course, rng: EpsilonGreedy.of(course.setup, rng),
        PERIOD_SECONDS,
    ),
)
BY_NAME = {one.name: one for one in CONTESTANTS}


@cache
def courses() -> tuple[Course, ...]:
    """The published tables, then the H200 grids with a workload that changes in the middle."""
    found = list(material(Question(paths=(DATA / "tables",))).courses)
    for path in GRIDS:
        read, survivals = grids.Read(), dict[str, Mapping[int, tuple[float, ...]]]()
        grids.read_grid(path, read)
        for profile in PROFILES:
            grids.read_acceptance(profile, "eagle", read)
            survivals.update(read.survivals)
        read.survivals = survivals
        for switch in SWITCHES:
            found += grids.courses(path, read, "eagle", GRID_SWEEPS, switch, INTERVAL_SECONDS)
    return tuple(found)
