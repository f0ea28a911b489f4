"""`paceline experiment run --local`: every variant as an engine of this machine, one device at a time, under the load.

A window is on disk as soon as it is measured. Whatever ends a run, what is there stays, and the next run of the same
experiment goes on with what is missing.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline_operator.clock import Clock
from paceline_operator.experiment import progress, variants
from paceline_operator.experiment.plan import Costs, Plan, PlanError, Visit, plan
from paceline_operator.experiment.results import VariantResult
from paceline_operator.local.mistake import UserError
from paceline_operator.local.runner import SIGNALS, EngineFailedError
from paceline_operator.local.trial import gpus, record
from paceline_operator.local.trial.engine import Engine
from paceline_operator.local.trial.files import Folder, Given
from paceline_operator.local.trial.measure import Measurer

if TYPE_CHECKING:
    from paceline_operator.local.view import View

BACK_SECONDS = 180.0
"""For GPU memory to be back after an engine has ended: a driver takes seconds."""
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    folder: Path
    """Of results."""
    keep: bool = False
    """All engines live at once, each from the first round to the last: they must fit into the memory together."""
    port: int | None = None


class Run:
    """One run. Not to be used twice."""

    def __init__(self, options: Options, given: Given, view: View, clock: Clock) -> None:
        """Raises UserError for what cannot be run."""
        self._options, self._given, self._view, self._clock = options, given, view, clock
        self._plan = planned(given, options)
        self._variants = variants.of(given.experiment.spec, given.serving.spec)
        if wrong := [*record.impossible(self._variants), *variants.refusals(self._variants)]:
            raise UserError("\n".join(wrong))
        self._folder = Folder(options.folder)
        self._results = record.first(given, self._plan, self._variants, self._folder.earlier(), clock)
        self._budget = progress.Budget(
            given.experiment.spec.budget_gpu_minutes, record.spent(self._results), variants.gpus_of(given.serving.spec)
        )
        self._reasons: dict[progress.Place, str] = {}
        self._engines: dict[str, Engine] = {}
        self._earlier: dict[str, VariantResult] = {}
        self._before = gpus.Look()
        self._pids: set[int] = set()
        self._longest = 0.0
        self._began = clock.monotonic()
        self._body: asyncio.Task[None] | None = None
        self._ended_by = ""
        self._measurer = Measurer(given, self._folder, progress.requests(self._results), clock, view.say)

    @property
    def results(self) -> tuple[VariantResult, ...]:
        """The baseline first."""
        return tuple(self._results.values())

    async def run(self) -> bool:
        """Measure what is missing. Whether everything is there in the end."""
        self._folder.begin(self._given)
        self._write()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        self._view.say(self._plan.message)
        self._view.say(f"{progress.state(self._plan, self._results)}; results: {self._folder.path}")
        self._body = asyncio.create_task(self._measure())
        try:
            await self._body
        except asyncio.CancelledError:
            if not self._ended_by:
                raise
            self._note(self._plan.visits, f"cancelled: {self._ended_by}")
        finally:
            await self._measurer.close()
            await asyncio.gather(*(engine.stop() for engine in self._engines.values()))
            self._write()
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        self._view.close()
        self._view.say(f"{progress.state(self._plan, self._results)}; every engine process is gone")
        return progress.whole(self._plan, self._results) and not self._plan.cut

    def _on_signal(self, number: int) -> None:
        if self._ended_by:
            self._view.say("again: ending the engines without grace")
            for engine in self._engines.values():
                engine.hurry()
            return
        self._ended_by = signal.Signals(number).name
        self._view.say(f"{self._ended_by}: ending the engines; what was measured stays")
        if self._body is not None:
            self._body.cancel()

    async def _measure(self) -> None:
        self._before = await gpus.look()
        if self._options.keep:
            await self._start_all()
        for visit in self._plan.visits:
            if not progress.left(visit, self._results):
                continue
            began = self._clock.monotonic()
            if why := self._budget.refuses(began - self._began, self._longest):
                self._note(self._plan.visits, why)
                self._view.say(why)
                return
            try:
                await self._visit(visit)
            except EngineFailedError as error:
                reason = str(error)
                self._note([visit], reason)
                self._view.say(f"{visit.variant}, round {visit.round + 1}: {reason}")
            self._longest = max(self._longest, self._clock.monotonic() - began)

    async def _start_all(self) -> None:
        """What does not start is missing in every round."""
        wanted = list(dict.fromkeys(visit.variant for visit in progress.rest(self._plan.visits, self._results)))
        failures = await asyncio.gather(*(self._start(name, 0) for name in wanted), return_exceptions=True)
        for name, failure in zip(wanted, failures, strict=True):
            if isinstance(failure, EngineFailedError):
                self._note([visit for visit in self._plan.visits if visit.variant == name], str(failure))
                self._view.say(str(failure))
            elif isinstance(failure, BaseException):
                raise failure

    async def _visit(self, visit: Visit) -> None:
        engine = self._engines.get(visit.variant)
        if engine is None:
            if self._options.keep:
                raise EngineFailedError(self._reason_of(visit))
            await self._memory_back()
            engine = await self._start(visit.variant, visit.round)
        self._view.say(f"round {visit.round + 1}: {visit.variant}")
        try:
            todo = progress.left(visit, self._results)
            await self._measurer.warm_up(engine, visit, todo)
            for one in todo:
                window = await self._measurer.window(engine, visit, one, await self._memory_of(engine))
                found = self._results[visit.variant]
                found = found.model_copy(update={"windows": (*found.windows, window)})
                self._results[visit.variant] = record.with_log(found, self._earlier[visit.variant], engine)
                self._write()
                self._view.say(record.line(visit, window))
                self._measurer.check(engine)
        finally:
            if not self._options.keep or engine.ended is not None:
                await self._stop(visit.variant)

    async def _start(self, name: str, round_: int) -> Engine:
        log = self._folder.log(f"{name}-{round_ + 1}")
        self._earlier[name] = self._results[name]
        engine = self._engines[name] = Engine(
            self._given.serving, self._variants[name], log, self._options.port, self._clock
        )
        try:
            await engine.start(self._view.starting)
        except EngineFailedError as error:
            await self._stop(name)
            raise EngineFailedError(record.first_line(error, engine)) from None
        self._pids |= engine.pids
        self._results[name] = await record.with_methods(self._results[name], engine, self._before)
        return engine

    async def _stop(self, name: str) -> None:
        engine = self._engines[name]
        await engine.stop()
        del self._engines[name]  # not before: whoever is asked to end meanwhile must still wait for it
        self._pids |= engine.pids

    async def _memory_back(self) -> None:
        """Until what earlier engines had is free. Raises EngineFailedError that names the holder."""
        deadline, said = self._clock.monotonic() + BACK_SECONDS, ""
        while True:
            now = await gpus.look()
            why = gpus.not_back(self._before, now, self._pids, gpus.owners(now.holders))
            if not why:
                return
            if self._clock.monotonic() > deadline:
                raise EngineFailedError(f"GPU memory was not given back in {BACK_SECONDS:.0f} s: {why}")
            if why != said:
                self._view.say(f"waiting for GPU memory: {why}")
            said = why
            await asyncio.sleep(POLL_SECONDS)

    async def _memory_of(self, engine: Engine) -> int | None:
        if not engine.on_gpu:
            return None
        now = await gpus.look()
        own = sum(one.mib for one in now.holders if one.pid in engine.pids)
        if not own and not self._options.keep:
            own = max(0, now.used_mib - self._before.used_mib)
        return own * gpus.MIB or None

    def _note(self, visits: list[Visit] | tuple[Visit, ...], reason: str) -> None:
        self._reasons = progress.noted(visits, reason, self._results) | self._reasons

    def _reason_of(self, visit: Visit) -> str:
        place = visit.variant, visit.round, visit.measurements[0].load
        return self._reasons.get(place, "its engine ended in an earlier round")

    def _write(self) -> None:
        minutes = self._budget.after(self._clock.monotonic() - self._began)
        for name, result in self._results.items():
            written = record.told(
                result, self._plan, self._reasons, self._measurer.requests, minutes, self._options.keep
            )
            self._results[name] = written
            with suppress(OSError):  # a full disk: the next window tries again, and the last write says so
                self._folder.write(written)


def planned(given: Given, options: Options) -> Plan:
    """The schedule. Raises UserError."""
    spec = given.experiment.spec
    try:
        costs = Costs(gpus=variants.gpus_of(given.serving.spec))
        if options.keep:
            costs = Costs(boot_seconds=costs.boot_seconds / spec.repetitions, gpus=costs.gpus)
        return plan(spec, costs)
    except PlanError as error:
        raise UserError(str(error)) from None
