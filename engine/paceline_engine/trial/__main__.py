"""Command line of the load beside an engine of an experiment.

    python3 -m paceline_engine.trial --visit JSON

Waits for the engine, lets every load's shape through once, then measures. What came of it is a line of JSON each on the
standard output, and nothing else is there: lengths and counts, no text. Exit status 0 where all was measured, else 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path

from pydantic import ValidationError

from paceline_engine.trial import bench, enginemetrics, making, waves
from paceline_engine.trial.facts import ResultError, Window
from paceline_engine.trial.serve import Bench, BenchError
from paceline_engine.trial.visit import Line, Measurement, Ready, Visit, Warm

ASK_SECONDS = 30.0
"""For /metrics of an engine that is busy."""
SETTLE_SECONDS = 10.0
"""For an engine that fails to be gone: its processes end one after the other."""
LOADING_SECONDS = 300.0
"""For vllm bench serve to be imported and to make its prompts."""
SLOWEST = 10.0
"""Times as long as asked for a window may take: the baseline says how many requests make it up."""
LARGEST_ANSWER = 8 * 1024 * 1024

Run = Callable[[int, int, int, float], bytes]
Ask = Callable[[str], str]
"""Text of a GET; raises OSError."""


class FailedError(Exception):
    """The engine is of no use any more."""


class Measurer:
    """One engine; `run` is that of serve.Bench, `sleep` waits a second."""

    def __init__(self, visit: Visit, run: Run, ask: Ask, sleep: Callable[[float], None] = time.sleep) -> None:
        self._visit, self._run, self._ask, self._sleep = visit, run, ask, sleep
        self._limit = LOADING_SECONDS + SLOWEST * visit.seconds
        self._requests = dict(visit.requests)
        self._warm: set[int] = set()

    def lines(self) -> Iterator[Line]:
        """What there is to say, as it comes."""
        try:
            yield Line(ready=self._ready())
            for load in self._visit.warm_up:
                if self._warm_up(load):
                    yield Line(warm=Warm(load=load, requests=self._requests[load]))
            for one in self._visit.measurements:
                window = self._window(one)
                yield Line(window=window)
                if window.fault_seconds is not None:
                    raise FailedError("the engine ended while it served")
        except FailedError as error:
            yield Line(failed=str(error))
        else:
            yield Line(done=True)

    def _ready(self) -> Ready:
        waited = 0.0
        while not self._answers("/health"):
            if waited >= self._visit.start_seconds:
                raise FailedError(f"the engine did not answer /health within {waited:.0f} s")
            self._sleep(1.0)
            waited += 1.0
        version = ""
        with suppress(OSError, ValueError, AttributeError):
            version = str(json.loads(self._ask("/version")).get("version", ""))[:64]
        return Ready(version=version, prompts=_digest(self._visit.dataset))

    def _warm_up(self, load: int) -> bool:
        count = load * (1 if load in self._requests else waves.WAVES)
        try:
            content = self._run(load, count, waves.warm_up_seed(load), self._limit)
            latency = waves.wave_latency(bench.times(content)[1], load)
        except (BenchError, ResultError) as error:
            self._check(str(error))
            return False
        if latency == math.inf:
            self._check("no request of a warm-up was answered")
            return False
        self._warm.add(load)
        self._requests.setdefault(load, waves.requests(load, self._visit.seconds, latency))
        return True

    def _window(self, one: Measurement) -> Window:
        try:
            before = self._ask("/metrics")
            content = self._run(one.load, self._requests.get(one.load, waves.WAVES * one.load), one.seed, self._limit)
            first, _ = bench.times(content)
            window = bench.window(
                content,
                round_=self._visit.round,
                seed=one.seed,
                started_at=time.time() - (time.perf_counter() - first),
                warmed=one.load in self._warm,
            )
        except (BenchError, ResultError, OSError) as error:
            self._check(str(error))
            raise FailedError(str(error)) from None
        try:
            server = enginemetrics.between(before, self._ask("/metrics"))
        except (ResultError, OSError):
            if self._gone():
                return window.model_copy(update={"fault_seconds": window.seconds})
            return window
        return server.beside(window)

    def _check(self, what: str) -> None:
        if self._gone():
            raise FailedError(f"the engine ended: {what}")

    def _gone(self) -> bool:
        """Whether it ended; one that still answers is looked at for a while."""
        for _ in range(int(SETTLE_SECONDS)):
            if not self._answers("/health"):
                return True
            self._sleep(1.0)
        return False

    def _answers(self, path: str) -> bool:
        try:
            self._ask(path)
        except OSError:
            return False
        return True


def ask(url: str, path: str) -> str:
    """Of the engine at `url`. Raises OSError."""
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=ASK_SECONDS) as answer:  # noqa: S310 loopback
            content: bytes = answer.read(LARGEST_ANSWER)
    except HTTPException as error:
        raise OSError(f"{path}: no answer in HTTP: {type(error).__name__}") from None
    return content.decode("utf-8", "replace")


def _content(dataset: str) -> bytes:
    try:
        return Path(dataset).read_bytes() if dataset else b""
    except OSError:  # whoever needs it will say so
        return b""


def _digest(dataset: str) -> str:
    content = _content(dataset)
    return f"sha256:{hashlib.sha256(content).hexdigest()}" if content else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers the exit status."""
    parser = argparse.ArgumentParser(prog="paceline_engine.trial", description="Measure the engine beside.")
    parser.add_argument("--visit", required=True, help="what to measure, as JSON")
    options = parser.parse_args(arguments)
    try:
        visit = Visit.model_validate_json(options.visit)
    except ValidationError as error:
        parser.error(f"--visit: {error.errors(include_url=False, include_input=False)[0]['msg']}")
    last = Line()
    with tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True) as folder:
        content = _content(visit.dataset) if visit.making else b""
        made = Bench(Path(folder), visit.arguments, made=visit.making, content=content)
        try:
            if visit.making:
                making.made(visit.making, content, 1, 1, 0)  # a mistake is told before the engine is waited for
            for last in Measurer(visit, made.run, partial(ask, visit.url)).lines():
                _say(last)
        except ResultError as error:
            _say(Line(failed=str(error)))
        finally:
            made.close()
    return 0 if last.done else 1


def _say(line: Line) -> None:
    print(line.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True), flush=True)


if __name__ == "__main__":
    sys.exit(main())
