"""The engine's log -> kernels compiled while it served, and the acceptance length over time. No line can raise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from pydantic import ValidationError

from paceline_operator.experiment.results import LengthPoint, LogWarning
from paceline_operator.safety.incident import printable

HEAD = re.compile(r"\b[A-Z]+ (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[[^\]]*\] (.*)")
"""vllm/logger.py: level, month-day and time without a year, file and line, message."""
COMPILED = re.compile(r"(.{1,100}?) during inference: ([^\s(]+)")
"""vllm/utils/jit_monitor.py: `Triton kernel JIT compilation during inference: NAME`. Each kernel is told once only,
unless the engine runs with --jit-monitor-verbose."""
LENGTH = re.compile(r"SpecDecoding metrics: Mean acceptance length: (\d+(?:\.\d+)?)")
"""vllm/v1/spec_decode/metrics.py: every ten seconds in which something was drafted."""
LONGEST_LINE = 4096


def read(lines: Iterable[str], started: datetime) -> tuple[tuple[LogWarning, ...], tuple[LengthPoint, ...]]:
    """Warnings and lengths in the order of the log.

    `started` is when the engine's process began, in the time zone in which it writes its log: it gives the year. What
    is earlier in the year than that is of the next year.
    """
    warnings: list[LogWarning] = []
    lengths: list[LengthPoint] = []
    for line in lines:
        head = HEAD.search(printable(line[:LONGEST_LINE]))
        at = _time(head, started) if head else None
        if head is None or at is None:
            continue
        try:
            if found := COMPILED.match(head[6]):
                warnings.append(LogWarning(at=at, event=found[1], kernel=found[2].rstrip(".,;")))
            elif found := LENGTH.match(head[6]):
                lengths.append(LengthPoint(at=at, length=float(found[1])))
        except ValidationError:  # a length below 1 or beyond any k, a time before 1970: nothing to count
            continue
    return tuple(warnings), tuple(lengths)


def _time(head: re.Match[str], started: datetime) -> float | None:
    month, day, hour, minute, second = (int(head[part]) for part in range(1, 6))
    year = started.year + ((month, day) < (started.month, started.day))
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=started.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None
