"""Command line of preflight, where the engine will run.

    python3 -m paceline_engine.preflight --asked JSON [--no-machine] [--tiny] [--json]

Cheapest first; after a failure nothing dearer is tried. What came of it is the container's termination message. Exit
status 0, or check.FAILED_STATUS where a check failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paceline_engine.preflight import config, gather, machine, models, tiny
from paceline_engine.preflight.asked import Asked, Source
from paceline_engine.preflight.check import FAILED_STATUS, Check, Level, Report, fitting, passed, timed
from paceline_engine.pull.report import PullError

log = logging.getLogger("paceline.preflight")
NO_MACHINE = "--no-machine"
TERMINATION_LOG = "/dev/termination-log"


def run(
    asked: Asked,
    environment: Mapping[str, str],
    *,
    here: bool = True,
    small: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Check]:
    """All checks of this machine and of the models, in order; it ends after the group in which one failed.

    `here`: the engine will run on this machine; else the models alone are looked at. `small`: a tiny model runs too.
    """
    found = machine.look(asked if here else asked.model_copy(update={"gpu": False}), clock)
    if here and (yield from _group(machine.checks(asked, found))):
        return
    # Where the spec does not say which vLLM it is for, the one that is here is meant.
    asked = asked.model_copy(update={"vllm": asked.vllm or machine.minor(found.versions.get("vllm", ""))})
    yield passed("legality", f"the operator accepted the spec by the rules of vLLM {asked.vllm or 'unknown'}")
    if (yield from _group(timed(_models(asked, found, environment), clock))):
        return
    if small and here:
        yield from timed(iter([tiny.check(asked, *_configurations(asked, environment))]), clock)


def _group(checks: Iterator[Check]) -> Generator[Check, None, bool]:
    """Yields all, and answers whether one failed."""
    broken = False
    for check in checks:
        broken = broken or check.level is Level.FAIL
        yield check
    return broken


def _models(asked: Asked, found: machine.Machine, environment: Mapping[str, str]) -> Iterator[Check]:
    target = gather.model("target", asked.target, environment)
    draft = gather.model("draft", asked.draft, environment) if asked.draft and asked.method else None
    smallest = min((one.bytes for one in found.gpus), default=None)
    yield from models.checks(asked, target, draft, smallest)


def _configurations(asked: Asked, environment: Mapping[str, str]) -> tuple[Any, Any]:
    draft = _configuration(asked.draft, environment) if asked.draft else None
    return _configuration(asked.target, environment), draft


def _configuration(source: Source, environment: Mapping[str, str]) -> Any:
    place = gather.place(source, environment)
    try:
        if isinstance(place, str) or "config.json" not in place.names():
            return None
        return json.loads(place.read("config.json", 0, config.MAX_BYTES))
    except (OSError, ValueError, PullError):
        return None


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Answers the exit status."""
    parser = argparse.ArgumentParser(prog="paceline_engine.preflight", description="Can this serving run here?")
    parser.add_argument("--asked", required=True, help="what the engine is to be, as JSON")
    parser.add_argument(NO_MACHINE, action="store_true", help="look at models alone: the engine runs elsewhere")
    parser.add_argument("--tiny", action="store_true", help="let a tiny model run through the same path")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asked = Asked.model_validate_json(options.asked)
    except ValidationError as error:
        parser.error(f"--asked: {error.errors(include_url=False, include_input=False)[0]['msg']}")
    made: list[Check] = []
    for check in run(asked, environment, here=not options.no_machine, small=options.tiny):
        level = logging.ERROR if check.level is Level.FAIL else logging.INFO
        remedy = f" remedy={check.remedy}" if check.remedy else ""
        log.log(
            level, "%s: check=%s seconds=%.3f reason=%s%s", check.level, check.name, check.seconds, check.reason, remedy
        )
        made.append(check)
    report = Report(checks=made)
    if options.json:
        print(report.model_dump_json(by_alias=True, indent=1))
    _tell(report, Path(environment.get("PACELINE_TERMINATION_LOG", TERMINATION_LOG)))
    return FAILED_STATUS if report.level is Level.FAIL else 0


def _tell(report: Report, at: Path) -> None:
    try:
        if at.exists():
            at.write_bytes(fitting(report))
    except OSError as error:
        log.warning("The termination message could not be written: error=%s", error)


if __name__ == "__main__":
    sys.exit(main())
