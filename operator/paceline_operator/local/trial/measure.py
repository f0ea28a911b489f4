"""Warm-up and windows of one engine: `vllm bench serve` from outside, /metrics from inside."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline_engine.trial import bench, enginemetrics, making, waves
from paceline_operator.api.experiment import ExperimentSpec
from paceline_operator.clock import Clock
from paceline_operator.experiment import load
from paceline_operator.experiment.plan import Measurement, Visit, seconds_of
from paceline_operator.experiment.results import ResultError, Window
from paceline_operator.local.runner import EngineFailedError
from paceline_operator.local.trial.bench import Bench, BenchError
from paceline_operator.local.trial.engine import Engine
from paceline_operator.local.trial.files import Folder, Given

SLOWEST = 10.0
"""Times as long as asked for a window may take: the baseline says how many requests make it up."""
LOADING_SECONDS = 300.0
"""For vllm bench serve to be imported and to make its prompts."""
SETTLE_SECONDS = 10.0
"""For an engine that no longer answers to be gone: its processes end one after the other."""
TRUST = "--trust-remote-code"


class Measurer:
    """Of all engines of a run, one at a time."""

    def __init__(
        self, given: Given, folder: Folder, requests: dict[int, int], clock: Clock, say: Callable[[str], None]
    ) -> None:
        self.requests = requests
        """Load -> requests of each of its windows, the same for all variants: they get the same prompts."""
        self._given = given
        self._spec: ExperimentSpec = given.experiment.spec
        self._folder = folder
        self._clock = clock
        self._say = say
        self._bench: Bench | None = None

    async def close(self) -> None:
        """End what runs."""
        if self._bench is not None:
            await self._bench.close()

    async def warm_up(self, engine: Engine, visit: Visit, todo: Sequence[Measurement]) -> None:
        """Every shape once that this engine has not served yet. Raises EngineFailedError."""
        wanted = {one.load for one in todo} - engine.warm
        for at in visit.warm_up:
            if at not in wanted:
                continue
            count = at * (1 if at in self.requests else waves.WAVES)
            try:
                content = await self._run(engine, at, count, waves.warm_up_seed(at))
                latency = waves.wave_latency(bench.times(content)[1], at)
            except (BenchError, ResultError) as error:
                await self._check_soon(engine)
                self._say(f"{engine.variant.name}: the warm-up at {at} failed: {error}")
                continue
            if latency == math.inf:
                await self._check_soon(engine)
                self._say(f"{engine.variant.name}: no request of the warm-up at {at} was answered")
                continue
            engine.warm.add(at)
            if at not in self.requests:
                self.requests[at] = waves.requests(at, seconds_of(self._spec.duration), latency)

    async def window(self, engine: Engine, visit: Visit, one: Measurement, memory: int | None) -> Window:
        """One measurement. Raises EngineFailedError where there is none."""
        requests = self.requests.get(one.load, waves.WAVES * one.load)
        try:
            before = await engine.ask("/metrics")
            content = await self._run(engine, one.load, requests, one.seed)
            first, _ = bench.times(content)
            window = bench.window(
                content,
                round_=visit.round,
                seed=one.seed,
                started_at=self._clock.now().timestamp() - (time.perf_counter() - first),
                warmed=one.load in engine.warm,
            )
        except (BenchError, ResultError) as error:
            await self._check_soon(engine)
            raise EngineFailedError(str(error)) from None
        window = window.model_copy(update={"memory_bytes": memory})
        try:
            server = enginemetrics.between(before, await engine.ask("/metrics"))
        except ResultError as error:
            await engine.settled(SETTLE_SECONDS)
            if engine.ended_at is not None:
                return window.model_copy(update={"fault_seconds": max(0.0, engine.ended_at - window.started_at)})
            self._say(f"{engine.variant.name}: the server's side of a window is missing: {error}")
            return window
        return server.beside(window)

    def check(self, engine: Engine) -> None:
        """Raises EngineFailedError where it has ended."""
        if engine.ended is not None:
            raise engine.failure(f"the engine ended with status {engine.ended} while it served")

    async def _check_soon(self, engine: Engine) -> None:
        """The same of one that may be about to end."""
        await engine.settled(SETTLE_SECONDS)
        self.check(engine)

    async def _run(self, engine: Engine, at: int, requests: int, seed: int) -> bytes:
        argv = engine.command.argv
        if self._bench is None:
            self._bench = Bench(
                argv[0], {**engine.command.environment, **making.HASH_SEED}, self._folder.logs / "bench.log"
            )
        result, dataset = self._files(engine)
        serving = self._given.serving
        shared = load.shared(
            self._spec.load,
            url=engine.command.serving_url,
            model=serving.spec.model.served_name or serving.metadata.name,
            tokenizer=argv[argv.index("serve") + 1],
            dataset=str(dataset),
            trust=TRUST in argv,
        )
        how = load.making(self._spec.load, serving.spec.engine.max_model_len)
        prompts = making.written(how, self._given.prompts or b"", engine.private / making.FILE, requests, at, seed)
        varying = waves.arguments(at, requests, seed, str(result.parent), result.name)
        await self._bench.run(
            [*shared, *prompts, *varying], LOADING_SECONDS + SLOWEST * seconds_of(self._spec.duration)
        )
        try:
            return result.read_bytes()
        except OSError:
            raise BenchError("vllm bench serve wrote no result") from None

    def _files(self, engine: Engine) -> tuple[Path, Path]:
        """Where the result goes, and the prompts. Both hold texts: they are gone with the engine, however that ends."""
        result, prompts = engine.private / "result.json", engine.private / "prompts.jsonl"
        result.unlink(missing_ok=True)
        if self._given.prompts is not None and not prompts.exists():
            prompts.write_bytes(self._given.prompts)
        return result, prompts
