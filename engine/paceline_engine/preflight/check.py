"""One check, and the report of all: level, reason, remedy, seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline_engine.protocol import Seconds, Wire

TERMINATION_BYTES = 4096
"""All that the kubelet keeps of a termination message."""
FAILED_STATUS = 30
"""Exit status where a check failed: another attempt of the same would fail the same way."""


def printable(text: object) -> object:
    """`text` on one line that does nothing to a terminal, and that every encoding takes: files' words are in it."""
    return "".join(one if one.isprintable() else " " for one in text) if isinstance(text, str) else text


class Level(StrEnum):
    """Skip: it was not looked at, and the reason says why. Fail: the engine would not start, or would be wrong."""

    PASS = "pass"  # noqa: S105 a level
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


ORDER = (Level.FAIL, Level.WARN, Level.SKIP, Level.PASS)
"""Gravest first."""


class Check(Wire):
    """One question and its answer."""

    name: Annotated[str, Field(max_length=64)]
    level: Level
    reason: Annotated[str, BeforeValidator(printable), Field(max_length=4096)]
    """What was found, with the numbers."""
    remedy: Annotated[str, BeforeValidator(printable), Field(max_length=1024)] = ""
    """What to do about it; empty where nothing is to be done."""
    seconds: Seconds = 0.0
    """It took, reading included."""
    source: Annotated[str, Field(max_length=512)] = ""
    """Link to where it is written, if it is not paceline's own."""


class Report(Wire):
    """All checks, in the order they ran."""

    checks: Annotated[list[Check], Field(max_length=64)] = Field(default_factory=list)

    @property
    def level(self) -> Level:
        """The gravest."""
        return next((level for level in ORDER if any(one.level is level for one in self.checks)), Level.PASS)


def passed(name: str, reason: str, source: str = "") -> Check:
    """In order."""
    return Check(name=name, level=Level.PASS, reason=reason, source=source)


def skipped(name: str, reason: str) -> Check:
    """Not looked at."""
    return Check(name=name, level=Level.SKIP, reason=reason)


def warned(name: str, reason: str, remedy: str, source: str = "") -> Check:
    """It runs, worse than it could."""
    return Check(name=name, level=Level.WARN, reason=reason, remedy=remedy, source=source)


def failed(name: str, reason: str, remedy: str, source: str = "") -> Check:
    """It must not run."""
    return Check(name=name, level=Level.FAIL, reason=reason, remedy=remedy, source=source)


def timed(checks: Iterable[Check], clock: Callable[[], float]) -> Iterator[Check]:
    """Each with the seconds that it took."""
    begun = clock()
    for check in checks:
        yield check.model_copy(update={"seconds": round(max(0.0, clock() - begun), 3)})
        begun = clock()


def fitting(report: Report, limit: int = TERMINATION_BYTES) -> bytes:
    """As JSON of at most `limit` bytes, the gravest checks first: half of a JSON text would tell nothing."""
    ranked = sorted(report.checks, key=lambda one: ORDER.index(one.level))
    for length in (1000, 300, 120):
        cut = [one.model_copy(update={"reason": one.reason[:length], "remedy": one.remedy[:length]}) for one in ranked]
        while cut:
            text = Report(checks=cut).model_dump_json(by_alias=True, exclude_defaults=True).encode()
            if len(text) <= limit:
                return text
            if cut[-1].level in (Level.FAIL, Level.WARN):
                break
            cut.pop()
    return Report(checks=[ranked[0].model_copy(update={"reason": "", "remedy": ""})]).model_dump_json().encode()
