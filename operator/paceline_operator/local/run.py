"""`paceline local`: the operator's loop over engine processes of this machine, a load beside it, a report after.

The same walk as in a cluster: render, observe, decide, push, tell status. Only the hands differ: processes instead of
pods, a record instead of an API server.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import signal
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline_engine.protocol import CONTROL_PORT, derive_token
from paceline_operator import naming
from paceline_operator.api.profiles import SpeculationProfile
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clock import Clock, SystemClock, rfc3339
from paceline_operator.local import container, document, report
from paceline_operator.local.document import LocalLoad, Phase
from paceline_operator.local.load import ClosedLoop
from paceline_operator.local.mistake import UserError
from paceline_operator.local.passes import Passes
from paceline_operator.local.ports import Claims
from paceline_operator.local.record import EngineRecord, PhaseRecord, Record
from paceline_operator.local.runner import SIGNALS, EngineFailedError, Supervisor
from paceline_operator.local.view import View
from paceline_operator.profiling import learn
from paceline_operator.replay.traces import Writer
from paceline_operator.resources import Manifest, Tokens, render
from paceline_operator.tuning import decide

KEY_VERSION = "local"


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    file: Path
    report: Path
    duration: float | None = None
    port: int | None = None
    trace: Path | None = None
    """Where every pass is recorded, for `paceline replay`."""
    profile: Path | None = None
    """A SpeculationProfile to start from."""
    save_profile: Path | None = None
    """Where what was learnt goes at the end."""


async def run(options: Options, view: View, clock: Clock | None = None) -> int:
    """Exit status: 0 for a run that ended as asked (signals included), 1 where an engine failed. Raises UserError."""
    serving, load = document.read(options.file)
    if serving.spec.replicas < 1:
        raise UserError(f"{options.file}: spec.replicas is 0: there would be no engine to run")
    if serving.spec.engine.multi_node:
        raise UserError(f"{options.file}: spec.engine.multiNode: this machine is one node")
    container.check_device(serving.spec.engine.device, str(options.file))
    _writable("--report", options.report)
    for option, path in (("--out", options.trace), ("--save-profile", options.save_profile)):
        if path is not None:
            _writable(option, path)
    profile = document.profile(options.profile)[1] if options.profile else None
    return await Run(options, serving, load, profile, view, clock or SystemClock()).run()


class Run:
    """One run. Not to be used twice."""

    def __init__(
        self,
        options: Options,
        serving: SpeculativeServing,
        load: LocalLoad | None,
        profile: SpeculationProfile | None,
        view: View,
        clock: Clock,
    ) -> None:
        self._options = options
        self._serving = serving
        self._load = load
        self._profile = profile
        self._view = view
        self._clock = clock
        self._token = derive_token(secrets.token_bytes(32), serving.metadata.uid, KEY_VERSION)
        self._engines: list[Supervisor] = []
        self._loop: ClosedLoop | None = None
        self._passes: Passes | None = None
        self._client = EngineClient()
        self._stop = asyncio.Event()
        self._trace: Writer | None = None
        self._record = Record(serving, rfc3339(clock.now()), status=serving.status)

    async def run(self) -> int:
        """Start, drive, report, stop: in this order whatever happens in between."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        status = 0
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._client.close)
            if self._options.trace is not None:
                file = stack.enter_context(self._options.trace.open("w"))
                self._trace = Writer(file, self._serving.metadata.name, self._serving.spec)
            tasks = self._start(stack)
            stack.push_async_callback(self._end, tasks)
            try:
                await self._ready()
                await self._drive()
            except EngineFailedError as error:
                self._record.ended_by = "engine failure"
                self._view.say(str(error))
                status = 1
            except Exception:
                self._record.ended_by = "an error of paceline itself"
                raise
            finally:
                if self._loop:
                    await self._loop.stop()
                self._finish()
        self._view.say("every engine process is gone")
        return status

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            self._view.say("again: ending the engines without grace")
            for engine in self._engines:
                engine.hurry()
        self._record.ended_by = self._record.ended_by or f"signal {signal.Signals(number).name}"
        self._stop.set()

    def _start(self, stack: AsyncExitStack) -> list[asyncio.Task[None]]:
        table = decide.settings_of(self._serving.spec).boot_table
        manifests = render(self._serving, table, container.IMAGES, Tokens(KEY_VERSION, self._token))
        by_kind: dict[str, Manifest] = {manifest["kind"]: manifest for manifest in manifests}
        claims = Claims()
        stack.callback(claims.close)
        for index in range(self._serving.spec.replicas):
            private = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True))
            )
            folders = container.folders(private, by_kind.get("Secret"))
            serving_port = self._port(self._options.port or naming.SERVING_PORT, index, claims, "serving")
            control_port = self._port(CONTROL_PORT, index, claims, "control")
            command = container.command(by_kind["Deployment"], index, folders, serving_port, control_port)
            log = container.cache_folder() / "logs" / f"{command.name}-{serving_port}.log"
            self._engines.append(Supervisor(command, private, log, self._clock))
            self._view.say(f"{command.name}: serves at {command.serving_url}, control port {control_port}, log {log}")
        self._record.engines = [EngineRecord(engine.command.name, engine.pids) for engine in self._engines]
        return [asyncio.create_task(engine.run()) for engine in self._engines]

    def _port(self, wanted: int, index: int, claims: Claims, purpose: str) -> int:
        insist = self._options.port is not None and purpose == "serving"
        found, free = claims.take(wanted + index, insist)
        if not free:
            self._view.say(f"port {wanted + index} is in use, so the {purpose} port is {found}")
        return found

    async def _ready(self) -> None:
        since = self._clock.monotonic()
        timeout = float(self._serving.spec.engine.startup_timeout_seconds)

        async def one(engine: Supervisor) -> None:
            await engine.wait_ready(
                timeout, lambda line: self._view.starting(engine.command.name, self._clock.monotonic() - since, line)
            )

        async def everyone() -> None:
            async with asyncio.TaskGroup() as group:
                for engine in self._engines:
                    group.create_task(one(engine))

        stopped, ready = asyncio.create_task(self._stop.wait()), asyncio.create_task(everyone())
        await asyncio.wait([stopped, ready], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        ready.cancel()
        for result in await asyncio.gather(ready, return_exceptions=True):
            if isinstance(result, ExceptionGroup):
                raise result.exceptions[0]

    async def _drive(self) -> None:
        """Passes until the last phase, the duration or a signal, whichever is first."""
        if self._stop.is_set():
            return
        self._passes = passes = Passes(
            self._serving.spec, self._token, self._engines, self._record, self._client, self._clock, self._view.say
        )
        passes.trace = self._trace
        if self._profile is not None:
            passes.profile = self._profile.metadata.name, self._profile.spec
        elif ref := self._serving.spec.tuning.profile_ref:
            self._view.say(f"spec.tuning.profileRef {ref.name}: here no profile is looked up, --profile names a file")
        duration = self._options.duration
        end = math.inf if duration is None else passes.started + duration
        phases: Sequence[Phase | None] = self._load.spec.phases if self._load else [None]
        for number, phase in enumerate(phases, start=1):
            last = number == len(phases) and (phase is None or duration is not None)
            until = end if phase is None or last else min(passes.last + phase.duration_seconds, end)
            self._enter(phase)
            while not self._stop.is_set() and passes.last < until:
                self._record.phases[-1].left_over = self._loop.left_over if self._loop else 0
                await self._sleep(min(passes.settings.interval_seconds, until - passes.last))
                await passes.once()
                self._count()
                self._view.update(self._record)
            if self._stop.is_set():
                return
            if passes.last >= end:
                break
        self._record.ended_by = "the last phase" if duration is None else f"--duration {duration:g}"

    def _enter(self, phase: Phase | None) -> None:
        self._record.phases.append(
            PhaseRecord(phase.concurrency if phase else None, phase.text.value if phase else None)
        )
        if phase is None or self._load is None:
            return
        if self._loop is None:
            urls = [engine.command.serving_url for engine in self._engines]
            model = self._serving.spec.model.served_name or self._serving.metadata.name
            self._loop = ClosedLoop(urls, model, self._load.spec.max_tokens)
        self._loop.change(phase.concurrency, phase.text)

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), max(0.05, seconds))

    def _count(self) -> None:
        for supervisor, kept in zip(self._engines, self._record.engines, strict=True):
            kept.restarts = supervisor.restarts
        if self._loop:
            self._record.completed_requests, self._record.failed_requests = self._loop.completed, self._loop.failed
            self._record.last_failure = self._loop.last_failure

    def _finish(self) -> None:
        self._count()
        report.write(self._record, self._options.report)
        self._view.close()
        self._view.say(report.summary(self._record))
        self._view.say(f"\nreport: {self._options.report}")
        if self._options.save_profile is not None:
            self._save(self._options.save_profile)

    def _save(self, path: Path) -> None:
        texts = {phase.text.value for phase in self._load.spec.phases} if self._load else ()
        workload = ", ".join(sorted(texts)) or "unknown"
        body = learn.profile_of(self._serving.metadata.name, self._passes.learnt() if self._passes else None, workload)
        if isinstance(body, str):
            self._view.say(f"no profile: {body}")
            return
        try:
            path.write_text(document.written(body), encoding="utf-8")
        except OSError as error:
            self._view.say(f"no profile: {path}: {error.strerror}")
            return
        self._view.say(f"profile: {path}")

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _writable(option: str, path: Path) -> None:
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be written: {error.strerror}") from None
