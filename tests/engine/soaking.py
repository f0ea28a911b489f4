"""Policies changing all the time in a real engine under load: does anything leak, fail or get lost?

Shared by the short, seeded test and by `make soak`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from paceline_engine.protocol import Policy, Probe, Samples
from tests.engine.engines import MAX_K, MAX_NUM_SEQS, RealEngine

CLIENTS = 6
MEMORY_SECONDS = 10.0
SLOW_READER_SECONDS = 7.0
WORDS = ["one", "two", "three", "red", "green", "blue", "sun", "moon", "star", "north", "south", "east", "west"]


class Load:
    """A closed loop of requests with texts that partly repeat, so that some drafts fire and some are right."""

    def __init__(self, engine: RealEngine, seed: int) -> None:
        self.finished = 0
        self.failures: list[str] = []
        self._engine = engine
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._client, args=(random.Random(seed + n),), daemon=True) for n in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def _client(self, chance: random.Random) -> None:
        while not self._stop.is_set():
            phrase = " ".join(chance.choices(WORDS, k=chance.randint(2, 6)))
            try:
                self._engine.complete([f"{phrase} " * chance.randint(1, 6)], tokens=chance.randint(4, 48))
                with self._lock:
                    self.finished += 1
            except (httpx.HTTPError, AssertionError) as error:
                with self._lock:
                    self.failures.append(f"{type(error).__name__}: {error}"[:200])

    def stop(self) -> None:
        """Wait for what is under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Reader:
    """Reads the samples by cursor and adds up what it was given."""

    def __init__(self, engine: RealEngine) -> None:
        self._engine = engine
        self._cursor: str | None = None
        self.reads = self.resets = self.lost_windows = 0
        self.counts = dict.fromkeys(count(EMPTY), 0)

    def read(self) -> None:
        """Once more."""
        answer = self._engine.samples(self._cursor)
        self._cursor = answer.cursor
        self.reads += 1
        self.resets += answer.reset
        self.lost_windows += answer.lost_windows
        for name, value in count(answer).items():
            self.counts[name] += value


def count(samples: Samples) -> dict[str, int]:
    """What a reader of every window has to find again in the totals since boot."""
    return {
        "steps": sum(samples.steps_by_k.values()) + sum(samples.probe_steps_by_k.values()),
        "in_cells_or_excluded": sum(c.steps for c in samples.cells) + sum(samples.excluded_steps.values()),
        "emitted_in_cells": sum(c.emitted for c in samples.cells),
        "request_steps": sum(a.request_steps for a in samples.acceptance),
        "drafted": sum(sum(a.drafted) for a in samples.acceptance),
        "accepted": sum(sum(a.accepted) for a in samples.acceptance),
    }


EMPTY = Samples.model_validate(
    {
        "bootId": "", "cursor": "", "reset": False, "lostWindows": 0, "fromSeconds": 0, "toSeconds": 0, "cells": [],
        "acceptance": [], "excludedSteps": {}, "stepsByK": {}, "probeStepsByK": {},
        "gauges": {"running": 0, "waiting": 0, "kvCacheUsage": 0, "promptTokens": 0, "generationTokens": 0},
    }
)  # fmt: skip


def policy(chance: random.Random, generation: int) -> Policy:
    """Any policy this engine takes."""
    probe = Probe(ks=tuple(chance.sample(range(MAX_K + 1), 2)), interval_steps=chance.randint(20, 60))
    return Policy(
        generation=generation,
        table=tuple(chance.randint(0, MAX_K) for _ in range(MAX_NUM_SEQS + 1)),
        probe=chance.choice([None, probe]),
        dwell_steps=chance.randint(1, 8),
    )


def process(pid: int) -> dict[str, int]:
    """Resident memory in KiB, threads and open files of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def soak(engine: RealEngine, seconds: float, seed: int, every: float = 1.0) -> dict[str, Any]:
    """Push another policy every `every` seconds for `seconds`; what was counted on all sides at the end."""
    chance = random.Random(seed)
    quick, slow = Reader(engine), Reader(engine)
    load = Load(engine, seed)
    generation = engine.state().generation
    pushes: list[float] = []
    refused = 0
    memory: list[dict[str, Any]] = []
    start = time.monotonic()
    due: dict[Callable[[], None], tuple[float, float]] = {}

    def push() -> None:
        nonlocal generation, refused
        generation += 1
        began = time.monotonic()
        refused += engine.push(policy(chance, generation)).status_code != httpx.codes.OK
        pushes.append(1000 * (time.monotonic() - began))

    def look() -> None:
        memory.append({"seconds": round(time.monotonic() - start), **process(engine.core_pid)})

    for what, period in ((push, every), (quick.read, every), (slow.read, SLOW_READER_SECONDS), (look, MEMORY_SECONDS)):
        due[what] = (start, period)
    while time.monotonic() < start + seconds:
        for what, (at, period) in due.items():
            if time.monotonic() >= at:
                what()
                due[what] = (at + period, period)
        time.sleep(0.02)
    load.stop()
    look()
    totals = _settled(engine)
    quick.read()
    slow.read()
    state = engine.state()
    pushes.sort()
    return {
        "seconds": round(time.monotonic() - start),
        "changes": len(pushes),
        "refused": refused,
        "put_ms": {"p50": pushes[len(pushes) // 2], "max": pushes[-1]},
        "requests": load.finished,
        "failed_requests": len(load.failures),
        "failures": load.failures[:3],
        "since_boot": totals,
        "steps_by_the_policys_count": sum(state.steps_by_k.values()) + sum(state.probe_steps_by_k.values()),
        "readers": [_sums(reader) for reader in (quick, slow)],
        "policy_errors": state.policy_errors,
        "memory": memory,
    }


def _sums(reader: Reader) -> dict[str, Any]:
    """A reader's sums."""
    return {
        "reads": reader.reads, "resets": reader.resets, "lost_windows": reader.lost_windows, **reader.counts,
    }  # fmt: skip


def _settled(engine: RealEngine) -> dict[str, int]:
    """Totals since boot once the window of the last step is sealed; another request may have to seal it."""
    for _ in range(50):
        engine.complete(["Once"], tokens=4)
        time.sleep(0.3)
        engine.complete(["Once"], tokens=1)
        totals, state = count(engine.samples()), engine.state()
        if totals["steps"] == sum(state.steps_by_k.values()) + sum(state.probe_steps_by_k.values()):
            return totals
    raise AssertionError("the last window is never sealed")


def lost(result: dict[str, Any]) -> list[str]:
    """In which way the sides disagree; empty where nothing was lost or repeated."""
    totals = result["since_boot"]
    problems = [
        f"reader {at}: {name} {reader[name]}, since boot {total}"
        for at, reader in enumerate(result["readers"])
        for name, total in totals.items()
        if reader[name] != total
    ]
    problems += [
        f"reader {at} was reset or lost windows"
        for at, r in enumerate(result["readers"])
        if r["resets"] != 1 or r["lost_windows"]
    ]
    if totals["steps"] != result["steps_by_the_policys_count"] or totals["steps"] != totals["in_cells_or_excluded"]:
        problems.append(f"steps: {totals}, the policy counted {result['steps_by_the_policys_count']}")
    return problems
