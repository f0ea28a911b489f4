"""One variant as an engine of this machine: rendered as the operator renders its pods, started once, asked, ended."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming
from paceline_operator.api.engine import Device
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.clock import Clock
from paceline_operator.experiment.results import ResultError
from paceline_operator.experiment.variants import Variant, rendered
from paceline_operator.local import container
from paceline_operator.local.container import Command
from paceline_operator.local.guard import descendants
from paceline_operator.local.ports import Claims
from paceline_operator.local.runner import EngineFailedError, Supervisor, tail
from paceline_operator.local.trial.gpus import ORDER
from paceline_operator.resources import Manifest
from paceline_operator.resources.pod import CONTAINER

ASK_SECONDS = 30.0
"""For /metrics of an engine that is busy."""
LARGEST_METRICS = 8 * 1024 * 1024


def arguments(template: Manifest) -> tuple[str, ...]:
    """Of the engine as a pod would have them: paths and ports of a container."""
    found = next(one for one in template["spec"]["containers"] if one["name"] == CONTAINER)
    return tuple(str(one) for one in found.get("args", []))


class Engine:
    """Not to be used twice."""

    def __init__(
        self, serving: SpeculativeServing, variant: Variant, log: Path, port: int | None, clock: Clock
    ) -> None:
        """Raises UserError for what only a cluster can give it, and for a port that is in use."""
        self.variant = variant
        self.ended_at: float | None = None
        """Unix seconds at which it ended by itself."""
        self.pids: set[int] = set()
        """Of the engine and all that it has started."""
        self.warm: set[int] = set()
        """Loads whose shape it has served."""
        self._clock = clock
        self._serving = serving
        self._stack = ExitStack()
        claims = Claims()
        self._stack.callback(claims.close)
        serving_port, _ = claims.take(port or naming.SERVING_PORT, insist=port is not None)
        control_port, _ = claims.take(CONTROL_PORT)
        self.private = private = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True))
        )
        self.template = rendered(serving, variant, container.IMAGES)
        folders = container.folders(private, None, plugin=False)
        pod = {"metadata": {"name": variant.name}, "spec": {"template": self.template}}
        command = container.command(pod, 0, folders, serving_port, control_port)
        environment = {**command.environment, ORDER[0]: ORDER[1]}
        self.command = Command(variant.name, command.argv, environment, serving_port, control_port)
        self.folders: Mapping[str, Path] = folders
        self.log = log
        self.started = clock.now().astimezone()
        """In the time zone in which it writes its log."""
        self._supervisor = Supervisor(self.command, private, log, clock, again=False)
        self._task: asyncio.Task[None] | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether it takes GPU memory."""
        return self._serving.spec.engine.device is Device.GPU

    @property
    def ended(self) -> int | None:
        """Its exit status, where it ended by itself."""
        return self._supervisor.ended

    async def start(self, show: Callable[[str, float, str], None]) -> None:
        """Until it answers /health; `show` is given name, seconds and last line. Raises EngineFailedError."""
        self._task = asyncio.create_task(self._run())
        since = self._clock.monotonic()
        timeout = float(self._serving.spec.engine.startup_timeout_seconds)
        await self._supervisor.wait_ready(
            timeout, lambda line: show(self.variant.name, self._clock.monotonic() - since, line)
        )
        self._look()

    async def _run(self) -> None:
        await self._supervisor.run()
        if self._supervisor.ended is not None:
            self.ended_at = self._clock.now().timestamp()

    def _look(self) -> None:
        for pid in self._supervisor.pids:
            self.pids |= {pid, *descendants(pid)}

    async def ask(self, path: str) -> str:
        """Text of a GET. Raises ResultError."""
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=ASK_SECONDS) as client:
                answer = await client.get(f"{self.command.serving_url}{path}")
        except httpx.HTTPError as error:
            raise ResultError(f"{path}: {str(error) or type(error).__name__}") from None
        if answer.status_code != httpx.codes.OK or len(answer.content) > LARGEST_METRICS:
            raise ResultError(f"{path}: HTTP {answer.status_code}, {len(answer.content)} bytes")
        return answer.text

    async def version(self) -> str:
        """Of vLLM, as it says; empty where it does not."""
        with suppress(ResultError, ValueError, AttributeError):
            found = httpx.Response(200, text=await self.ask("/version")).json().get("version")
            return found[:64] if isinstance(found, str) else ""
        return ""

    async def settled(self, seconds: float) -> None:
        """For so long, or until it has ended by itself."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)

    def failure(self, what: str) -> EngineFailedError:
        """What happened to it, with the end of its log."""
        return EngineFailedError(f"{what}; its log ends: {' | '.join(tail(self.log)[-3:])[:600]}")

    def hurry(self) -> None:
        """Without grace."""
        self._supervisor.hurry()

    async def stop(self) -> None:
        """End it and everything it started; returns when all is gone."""
        self._look()
        await self._supervisor.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._stack.close()
