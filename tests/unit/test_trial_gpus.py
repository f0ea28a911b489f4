"""Is the memory back, and who holds it? By process and owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.local.trial.gpus import Gpu, Holder, Look, not_back, parse

GPUS = """0, GPU-a, NVIDIA H200, 580.1, 512
1, GPU-b, NVIDIA H200, 580.1, 90000
"""
HOLDERS = """4711, GPU-a, 500
4712, GPU-b, 89000
4713, GPU-b, [N/A]
"""


def look(used: int, *holders: tuple[int, int]) -> Look:
    gpu = Gpu(0, "GPU-a", "NVIDIA H200", "580.1", used)
    return Look((gpu,), tuple(Holder(pid, "GPU-a", mib) for pid, mib in holders))


@pytest.mark.parametrize(
    ("visible", "gpus", "pids"),
    [
        (None, ["GPU-a", "GPU-b"], [4711, 4712, 4713]),
        ("1", ["GPU-b"], [4712, 4713]),
        ("GPU-a", ["GPU-a"], [4711]),
        ("", [], []),
    ],
)
def test_only_the_visible_gpus_count(visible: str | None, gpus: list[str], pids: list[int]) -> None:
    found = parse(GPUS, HOLDERS, visible)
    assert [gpu.uuid for gpu in found.gpus] == gpus
    assert [one.pid for one in found.holders] == pids
    assert found.used_mib == sum({"GPU-a": 512, "GPU-b": 90000}[uuid] for uuid in gpus)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (look(500), look(500), ""),
        (look(500), look(900), ""),
        (look(500, (1, 400)), look(500, (1, 400)), ""),
        (look(500), look(80000, (7, 79000)), "process 7 of ada holds 79000 MiB, one of our own"),
        (look(500), look(520, (7, 20)), "process 7 of ada holds 20 MiB, one of our own"),
        (look(500, (1, 400)), look(9000, (1, 400), (8, 8500)), "process 8 of bela holds 8500 MiB"),
        (look(500), look(9000, (9, 8500)), "process 9 of a user that cannot be seen from here holds 8500 MiB"),
        (
            look(500),
            look(9000),
            "8500 MiB more are in use than before the first engine, by a process that cannot be seen",
        ),
        (Look(), Look(), ""),
    ],
)
def test_the_holder_is_named(before: Look, now: Look, said: str) -> None:
    found = not_back(before, now, {7}, {7: "ada", 8: "bela"})
    assert bool(found) is bool(said)
    assert said in found


@given(st.text(max_size=200), st.text(max_size=200), st.none() | st.text(max_size=20))
def test_any_text_is_read(gpus: str, holders: str, visible: str | None) -> None:
    assert parse(gpus, holders, visible).used_mib >= 0 or "-" in gpus
