"""What the operator's process takes: CPU, memory, requests to the API server. And how cost grows with servings."""

from __future__ import annotations

import asyncio
import math
import os
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.operators import Operator

TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1024.0


COUNTED = ("paceline_api_reads_total", "paceline_api_writes_total", "paceline_reconcile_duration_seconds_count")
PAGE_SECONDS = 60.0
"""For /metrics of a thousand servings, from an operator that is busy."""


@dataclass(frozen=True)
class Reading:
    """One look."""

    at: float
    """Monotonic."""
    cpu: float
    """Seconds of CPU, user and system, since its start, before /metrics were asked for."""
    cpu_after: float
    """The same afterwards: what that cost is not of the time between two looks."""
    rss_mib: float
    read_of: Mapping[tuple[str, ...], float]
    """(kind, code) -> reads since its start."""
    writes: Mapping[tuple[str, ...], float]
    """(kind, verb, code in the order of the labels) -> requests since its start; watches and the Lease left out."""
    passes: float

    @property
    def all_writes(self) -> float:
        """Of every kind."""
        return sum(self.writes.values())

    @property
    def reads(self) -> float:
        """Of every kind."""
        return sum(self.read_of.values())

    def since(self, first: Reading) -> dict[str, dict[str, float]]:
        """Reads and writes after `first` by their labels, the most first; none where there were none."""
        pairs = {"reads_by_kind": (first.read_of, self.read_of), "writes_by_kind": (first.writes, self.writes)}
        return {name: _more(before, after) for name, (before, after) in pairs.items()}


async def read(operator: Operator) -> Reading:
    """Of a running operator. Raises OSError where it does not tell."""
    pid, at = operator.daemon.process.pid, time.monotonic()
    cpu, rss = cpu_of(pid), rss_of(pid)
    told = await asyncio.to_thread(_counted, f"http://127.0.0.1:{operator.port}/metrics")
    reads, writes, passes = COUNTED
    return Reading(
        at=at,
        cpu=cpu,
        cpu_after=cpu_of(pid),
        rss_mib=rss,
        read_of={key[1:]: value for key, value in told.items() if key[0] == reads},
        writes={key[1:]: value for key, value in told.items() if key[0] == writes and "Lease" not in key},
        passes=sum(value for key, value in told.items() if key[0] == passes),
    )


def _more(before: Mapping[tuple[str, ...], float], after: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    changed = {"/".join(labels): value - before.get(labels, 0.0) for labels, value in after.items()}
    return dict(sorted(((name, more) for name, more in changed.items() if more), key=lambda one: -one[1]))


def _counted(url: str) -> dict[tuple[str, ...], float]:
    """(name, label values ...) -> value of what is counted here, of a page that is tens of thousands of lines long."""
    with urllib.request.urlopen(url, timeout=PAGE_SECONDS) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(COUNTED)]
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def rss_of(pid: int) -> float:
    """Resident memory of a process, MiB."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmRSS")) / MIB


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
