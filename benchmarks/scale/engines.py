"""Engines without vLLM, thousands in one process: the control protocol at loopback addresses, fed from recorded data.

Step costs are those measured on an H200 (benchmarks/grids), acceptance that of public traces. Each engine has a control
port of its own and answers as the plugin does: state, samples since a cursor, a policy that is taken or refused.
"""

from __future__ import annotations

import asyncio
import csv
import json
import math
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from paceline_engine.protocol import (
    CONTROL_PORT,
    HISTOGRAM_BASE,
    Capabilities,
    Feature,
    Policy,
    State,
    VerificationFeature,
    load_bucket,
)

GRIDS = Path(__file__).resolve().parents[1] / "grids"
GRID, ACCEPTANCE, WORKLOAD = "h200_llama8b_eagle_small.csv", "workload_acceptance.csv", "sharegpt"
LADDER = (5, 3, 2, 1, 0)
"""What a serving of maxTokens 5 has by default."""
MAX_NUM_SEQS = 256
NOISE = 0.02
"""Relative standard deviation of a window's mean step time."""
GARBAGE = b'{"bootId":"\\u0000","cursor":{},"cells":[{"seconds":-1e308,"load":NaN}],"acceptance":[[[[[[]]]]]]}' * 50


@cache
def step_seconds() -> dict[tuple[int, int], float]:
    """(load bucket, k) -> seconds of a step."""
    with (GRIDS / GRID).open() as file:
        rows = list(csv.DictReader(file))
    return {(load_bucket(int(row["concurrency"])), int(row["k"])): float(row["step_ms"]) / 1000 for row in rows}


@cache
def survival() -> dict[int, list[float]]:
    """k -> chance that position 1..k is accepted."""
    with (GRIDS / ACCEPTANCE).open() as file:
        rows = [row for row in csv.DictReader(file) if (row["dataset"], row["method"]) == (WORKLOAD, "eagle")]
    return {int(row["k"]): [float(chance) for chance in row["survival"].split()] for row in rows} | {0: []}


@cache
def loads() -> tuple[int, ...]:
    """Load buckets that were measured for every k of the ladder."""
    every = sorted({load for load, _ in step_seconds()})
    return tuple(load for load in every if all((load, k) in step_seconds() for k in LADDER))


@dataclass
class Engine:
    """One engine process: what it was told and asked."""

    tokens: tuple[bytes, ...]
    boot_id: str
    boot_table: tuple[int, ...]
    load: int = 0
    """Requests that decode; 0: nobody asks it anything."""
    born: float = field(default_factory=time.monotonic)
    policy: Policy | None = None
    hangs: bool = False
    """It takes connections and never answers."""
    lies: bool = False
    """What it says of its samples is garbage."""
    asked: list[float] = field(default_factory=list)
    """When its samples were asked for (monotonic)."""
    requests: int = 0

    def __post_init__(self) -> None:
        self._words(None)

    def answer(self, method: str, path: str, query: str, token: bytes, body: bytes) -> tuple[int, bytes]:
        """HTTP status and body."""
        self.requests += 1
        if token not in self.tokens:
            return 401, b'{"reason":"Unauthorized","message":"not the token"}'
        if (method, path) == ("GET", "/state"):
            state = self._state % (self.now(), self._in_force())
            cursor = parse_qs(query, keep_blank_values=True).get("samples")
            if cursor is None:
                return 200, state
            self.asked.append(time.monotonic())
            samples = GARBAGE if self.lies else self._samples(cursor[0]).encode()
            return 200, state[:-1] + b',"samples":' + samples + b"}"
        if (method, path) == ("GET", "/samples"):
            self.asked.append(time.monotonic())
            return 200, GARBAGE if self.lies else self._samples(parse_qs(query).get("cursor", [""])[0]).encode()
        if (method, path) == ("PUT", "/policy"):
            policy = Policy.model_validate_json(body)
            if self.policy and policy.generation < self.policy.generation:
                return 409, b'{"reason":"OlderGeneration","message":"a newer one is in force"}'
            self._words(policy)
            return 200, b'{"generation":%d,"applied":true}' % policy.generation
        return 404, b'{"reason":"NotFound","message":"no such path"}'

    def now(self) -> float:
        """Seconds since it booted."""
        return time.monotonic() - self.born

    def _in_force(self) -> int:
        table = self.policy.table if self.policy else self.boot_table
        return table[self.load]

    def _words(self, policy: Policy | None) -> None:
        """Take a policy, and make the text of /state, of which only two numbers change from then on."""
        self.policy = policy
        state = State(
            plugin_version="0",
            engine_version="0.32.0",
            boot_id=self.boot_id,
            uptime_seconds=0,
            capabilities=Capabilities(
                live_k=Feature(supported=True),
                adaptive_verification=VerificationFeature(supported=False, reason="not booted"),
                max_k=LADDER[0],
                ladder=LADDER,
                max_num_seqs=MAX_NUM_SEQS,
                method="eagle",
                runner="V2",
                metrics=Feature(supported=True),
            ),
            generation=policy.generation if policy else 0,
            table=policy.table if policy else self.boot_table,
            k_in_force=None,
            steps_by_k={},
            probe_steps_by_k={},
            policy_errors=0,
            probe=policy.probe if policy else None,
        )
        told = state.model_dump(mode="json", by_alias=True, exclude={"uptime_seconds", "k_in_force"})
        text = json.dumps(told, separators=(",", ":")).replace("%", "%%")
        self._state = (text[:-1] + ',"uptimeSeconds":%f,"kInForce":%d}').encode()

    def _samples(self, cursor: str) -> str:
        boot, _, since = cursor.partition(":")
        fresh, now = boot != self.boot_id, self.now()
        begun = 0.0 if fresh else float(since)
        cells, fates, force = [], [], self._in_force()
        for k, probe, steps in self._runs(now - begun, force) if self.load else ():
            cells.append(_cost(self.load, k, probe, steps))
            fates.append(_fate(self.load, k, steps))
        return (
            f'{{"bootId":"{self.boot_id}","cursor":"{self.boot_id}:{now:f}","reset":{json.dumps(fresh)},'
            f'"lostWindows":0,"fromSeconds":{begun:f},"toSeconds":{now:f},"cells":[{",".join(cells)}],'
            f'"acceptance":[{",".join(fates)}],"excludedSteps":{{}},"stepsByK":{{}},"probeStepsByK":{{}},'
            f'"gauges":{{"running":{self.load},"waiting":0,"kvCacheUsage":0.1,"promptTokens":0,'
            f'"generationTokens":{int(100 * now)}}}}}'
        )

    def _runs(self, seconds: float, force: int) -> list[tuple[int, bool, int]]:
        """(k, in a burst, steps that count) of so many seconds."""
        steps = max(1, int(seconds / step_seconds()[self.load, force]))
        probe = self.policy.probe if self.policy else None
        if probe is None:
            return [(force, False, steps)]
        bursts = steps / probe.interval_steps / len(probe.ks)
        tried = [(k, True, int(bursts * probe.burst_steps)) for k in probe.ks]
        lost = sum(each for _, _, each in tried)
        return [(force, False, max(1, steps - lost)), *(run for run in tried if run[2])]


def _cost(load: int, k: int, probe: bool, steps: int) -> str:
    mean = step_seconds()[load, k] * math.exp(random.gauss(0, NOISE))
    index = int(math.log(mean * 1e6) / math.log(HISTOGRAM_BASE))
    tokens = int(steps * load * (1 + sum(survival()[k])))
    return (
        f'{{"load":{load},"context":0,"kDrafted":{k},"kVerified":{k},"probe":{json.dumps(probe)},"steps":{steps},'
        f'"requestSteps":{steps * load},"emitted":{tokens},"seconds":{steps * mean:f},'
        f'"secondsSquared":{steps * mean * mean:.9f},"histogram":{{"{index}":{steps}}}}}'
    )


def _fate(load: int, k: int, steps: int) -> str:
    total = steps * load
    accepted = [int(total * chance) for chance in survival()[k]]
    return (
        f'{{"k":{k},"load":{load},"requestSteps":{total},"drafts":{total if k else 0},"drafted":{[total] * k},'
        f'"accepted":{accepted}}}'
    )


class _Connection(asyncio.Protocol):
    """HTTP/1.1 as far as a client of the control port needs it."""

    def __init__(self, engine: Engine, open_now: set[Any]) -> None:
        self._engine, self._read, self._open = engine, b"", open_now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._open.add(transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if self._engine.hangs or b"\r\n\r\n" not in self._read:
            return
        head, _, body = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(body) < int(headers.get("content-length", "0")):
            return
        self._read = b""
        method, target, _ = first.split(" ")
        path, _, query = target.partition("?")
        token = headers.get("authorization", "").removeprefix("Bearer ").encode()
        status, answer = self._engine.answer(method, path, query, token, body)
        closing = b"Connection: close\r\n" if headers.get("connection") == "close" else b""
        form = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"
        self._transport.write(form % (status, len(answer), closing) + answer)
        if closing:
            self._transport.close()


class Engines:
    """All engines, by address."""

    def __init__(self) -> None:
        self.by_address: dict[str, Engine] = {}
        self._servers: list[asyncio.Server] = []
        self._open: set[Any] = set()
        """Connections."""

    async def start(self, address: str, engine: Engine) -> None:
        """Listen at `address`, the control port."""
        self.by_address[address] = engine
        loop = asyncio.get_running_loop()
        made = await loop.create_server(lambda: _Connection(engine, self._open), address, CONTROL_PORT)
        self._servers.append(made)

    async def close(self) -> None:
        """Listen no more, and end what is open."""
        for server in self._servers:
            server.close()
        for transport in self._open:
            transport.abort()
        await asyncio.sleep(0)  # they end in the next turn of the loop

    def lags(
        self, since: float, until: float, interval: float, of: Callable[[Engine], bool] = lambda _: True
    ) -> list[float]:
        """Seconds by which the readings of engines came later than `interval` after the one before, in order.

        Of readings between two times (monotonic); an engine that was not read until the end counts as late until then.
        """
        found = []
        for engine in filter(of, self.by_address.values()):
            first = bisect_left(engine.asked, since)
            before = engine.asked[first - 1] if first else since
            for at in engine.asked[first:]:
                if at <= until:
                    found.append(max(0.0, at - before - interval))
                    before = at
            with suppress(ValueError):
                if until - before > interval:
                    found.append(until - before - interval)
        return sorted(found)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of `ordered` that `share` of them do not exceed; 0 where there are none."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
