"""Walks over specs on a real API server with a real operator; how far `long` ones go, PACELINE_WALK says."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from paceline_operator.kinds import OPTIONAL
from tests.cluster.operators import account, start, wait_for_leader
from tests.harness.controlplane import ControlPlane
from tests.harness.optional import install
from tests.walk.ground import Land, RealGround
from tests.walk.steps import Step, walks
from tests.walk.walker import MAX_WRITES, Walker, transitions

pytestmark = [
    pytest.mark.cluster,
    # Lives of tests/reliability go on in other threads, which draw numbers of their own.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]

TOGETHER, LENGTH = 12, 6
"""Walks at the same time, and steps of each: a pass over one serving comes half a second after the one before it."""
FEW, MANY = 60, int(os.environ.get("PACELINE_WALK", "500"))
"""Transitions at least."""
PARTS = 5
"""Of the many, which can be walked one by one."""


@pytest.fixture(scope="module")
def land(crds: ControlPlane, module_namespace: str) -> Iterator[Land]:
    install(crds, *OPTIONAL)
    names = tuple(f"{module_namespace}-{part}" for part in ("walks", "fresh"))
    for name in names:
        crds.kubectl("create", "namespace", name)
    operator = start(crds, "operator-walk", module_namespace, account(crds, module_namespace), watch=",".join(names))
    try:
        wait_for_leader(operator)
        yield Land(crds, operator, *names)
    finally:
        operator.daemon.stop()
        for name in names:
            crds.kubectl("delete", "namespace", name, "--wait=false")


def led(land: Land, wanted: int, number: int) -> None:
    """So many transitions, in walks that are drawn from seed `number`."""
    counts: Counter[str] = Counter()
    before = land.writes()

    @seed(number)
    @settings(
        max_examples=wanted,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(st.lists(walks(LENGTH), min_size=TOGETHER, max_size=TOGETHER))
    def walked(drawn: list[tuple[str, list[Step]]]) -> None:
        wake = [walk for walk in drawn if any(step.what != "skip" for step in walk[1])]
        if transitions(counts) >= wanted or not wake:
            return
        with ThreadPoolExecutor(TOGETHER) as pool:
            walkers = [pool.submit(Walker(RealGround(land), counts).walk, *walk) for walk in wake]
        for walker in walkers:
            walker.result()
        land.check()

    walked()
    made = transitions(counts)
    mean = (land.writes() - before) / made
    print(f"{made} transitions: {dict(counts)}, {mean:.0f} writes for one")
    assert made >= wanted
    assert mean <= MAX_WRITES
    land.rest()


def test_a_few_walks(land: Land) -> None:
    led(land, FEW, 7)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_many_walks(land: Land, part: int) -> None:
    led(land, -(-MANY // PARTS), 11 + part)
