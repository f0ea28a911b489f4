"""What the operator's process takes: CPU, memory, requests to the API server. And how cost grows with servings."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.operators import Operator

TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1024.0


@dataclass(frozen=True)
class Reading:
    """One look."""

    at: float
    """Monotonic."""
    cpu: float
    """Seconds of CPU, user and system, since its start."""
    rss_mib: float
    reads: float
    writes: float
    """Requests to the API server since its start; watches and the Lease left out."""
    passes: float


def read(operator: Operator) -> Reading:
    """Of a running operator."""
    process = Path("/proc") / str(operator.daemon.process.pid)
    spent = process.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
    (rss,) = (
        line.split()[1] for line in process.joinpath("status").read_text().splitlines() if line.startswith("VmRSS")
    )
    told = operator.metrics()
    return Reading(
        at=time.monotonic(),
        cpu=sum(map(int, spent)) / TICKS,
        rss_mib=int(rss) / MIB,
        reads=sum(value for key, value in told.items() if key[0] == "paceline_api_reads_total"),
        writes=sum(operator.writes().values()),
        passes=sum(value for key, value in told.items() if key[0] == "paceline_reconcile_duration_seconds_count"),
    )


def cpu_of(pid: int) -> float:
    """Seconds of CPU of a process since its start."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / TICKS


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """b of the least-squares fit y = a x^b; None below two points."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len(logs) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    below = sum((x - mean_x) ** 2 for x, _ in logs)
    return round(above / below, 3) if below else None
