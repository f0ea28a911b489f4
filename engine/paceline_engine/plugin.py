"""Entry point of the vLLM general plugin: put the hooks into whatever scheduler the engine builds.

Patches two public methods at once and for good: an engine core that is forked off inherits them, one that is spawned
loads the plugin anew. SchedulerConfig.get_scheduler_cls gives the scheduler; Executor.__init__ the way to the workers,
which the engine core builds, without telling anybody, just before the scheduler. Everything else waits until a
scheduler exists, so processes that never build one (API server, workers) carry nothing but the patches.

It must never break an engine: whatever fails in here is logged once, and the engine runs as it was booted.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline_engine import exporter
from paceline_engine.backend import Backend
from paceline_engine.capabilities import boot_table, missing_seam, probe
from paceline_engine.control import ControlServer, TokenFiles, TokenMissing
from paceline_engine.digest import Digest
from paceline_engine.policy import LivePolicy
from paceline_engine.protocol import CONTROL_PORT, ENV_CONTROL_HOST, ENV_CONTROL_PORT, ENV_TOKEN_DIRECTORY, Gauges
from paceline_engine.samples import History, Recorder
from paceline_engine.steps import StepHooks
from paceline_engine.verification import VerificationControl

log = logging.getLogger("vllm.paceline")
AS_BOOTED = "The engine runs as it was booted"
_executors: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those built in this process."""


def register() -> None:
    """Called by vLLM in each of its processes, possibly more than once."""
    try:
        _patch()
    except Exception:
        log.exception("Paceline: cannot be installed in this vLLM. %s", AS_BOOTED)
        return
    try:
        _remember_executors()
    except Exception:
        log.exception("Paceline: cannot reach the workers of this vLLM: adaptive verification stays as it was booted")
    try:
        exporter.register()
    except Exception:
        log.exception("Paceline: /metrics of this process will have no paceline series")


def _remember_executors() -> None:
    if not os.environ.get(ENV_TOKEN_DIRECTORY):
        return
    from vllm.v1.executor import Executor

    original = Executor.__init__
    if getattr(original, "paceline", False):
        return

    @functools.wraps(original)
    def remembered(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _executors.add(self)

    remembered.paceline = True  # type: ignore[attr-defined]
    Executor.__init__ = remembered


def _patch() -> None:
    from vllm.config import SchedulerConfig

    original = SchedulerConfig.get_scheduler_cls
    if getattr(original, "paceline", False):
        return

    @functools.wraps(original)
    def get_scheduler_cls(self: Any) -> Any:
        base = original(self)
        try:
            return paced(base) if os.environ.get(ENV_TOKEN_DIRECTORY) else base
        except Exception:
            log.exception("Paceline: cannot extend the scheduler %r. %s", base, AS_BOOTED)
            return base

    get_scheduler_cls.paceline = True  # type: ignore[attr-defined]
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls


@functools.cache
def paced(base: Any) -> Any:
    """A subclass of the scheduler class `base` that calls the hooks; without hooks it is `base` by another name."""

    class Paced(base):  # type: ignore[misc]
        _paceline: Installation | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._paceline = install(self)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            paceline = self._paceline
            if paceline is not None:
                if paceline.verification is not None and paceline.verification.due:
                    paceline.verification.act()  # a call to the workers, before the step is timed
                if not paceline.hooks.in_flight:
                    paceline.hooks.begin()
            return super().schedule(*args, **kwargs)

        def _update_after_schedule(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            paceline = self._paceline
            if paceline is not None:
                paceline.hooks.scheduled(self, scheduler_output)
            return super()._update_after_schedule(scheduler_output, *args, **kwargs)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any) -> Any:
            paceline = self._paceline
            if paceline is None:
                return super().update_from_output(scheduler_output, model_runner_output, *args, **kwargs)
            hooks = paceline.hooks
            if not hooks.counted:
                hooks.completed(self, scheduler_output, model_runner_output)
            outputs = super().update_from_output(scheduler_output, model_runner_output, *args, **kwargs)
            hooks.applied(self, scheduler_output, model_runner_output, outputs)
            return outputs

        def shutdown(self, *args: Any, **kwargs: Any) -> Any:
            if self._paceline:
                self._paceline.server.close()
            return super().shutdown(*args, **kwargs)

    Paced.__name__ = Paced.__qualname__ = f"Paced{base.__name__}"
    return Paced


@dataclass(frozen=True, slots=True)
class Installation:
    """What lives in an engine that has the plugin."""

    hooks: StepHooks
    server: ControlServer
    verification: VerificationControl | None


def install(scheduler: Any) -> Installation | None:
    """Probe the scheduler, open the control port, and only then put the policy in; None where that cannot be."""
    lookup = getattr(scheduler, "dynamic_sd_lookup", None)
    try:
        if rank := _later_rank(scheduler):
            log.info("Paceline: data-parallel rank %d: the control port is the first rank's. %s", rank, AS_BOOTED)
            return None
        return _install(scheduler)
    except TokenMissing:
        log.warning("Paceline: no token in $%s, so no control port is opened. %s", ENV_TOKEN_DIRECTORY, AS_BOOTED)
    except OSError as error:
        log.error("Paceline: the control port cannot be opened: %s. %s", error, AS_BOOTED)
    except Exception:
        log.exception("Paceline: cannot take hold of this engine. %s", AS_BOOTED)
    if lookup is not None:
        scheduler.dynamic_sd_lookup = lookup
    return None


def _later_rank(scheduler: Any) -> int:
    """Which of the engine cores on this machine it is; 0 for the first or only one."""
    return int(getattr(scheduler.vllm_config.parallel_config, "data_parallel_rank_local", None) or 0)


def _install(scheduler: Any) -> Installation:
    engine_version = _engine_version()
    executor = next((one for one in _executors if one.vllm_config is scheduler.vllm_config), None)
    capabilities = probe(scheduler, engine_version, executor)
    policy = LivePolicy(boot_table(scheduler, capabilities), capabilities.max_k)
    policy.verification = capabilities.adaptive_verification.modes[0]
    verification = None
    if capabilities.adaptive_verification.supported:
        verification = VerificationControl(executor, on_mode=functools.partial(setattr, policy, "verification"))
    recorder = Recorder()
    digest = Digest(recorder)
    boot_id = secrets.token_hex(8)

    def gauges() -> Gauges:
        running, waiting = scheduler.get_request_counts()
        cache = getattr(scheduler, "kv_cache_manager", None)
        return Gauges(
            running=running,
            waiting=waiting,
            kv_cache_usage=min(max(float(getattr(cache, "usage", 0.0)), 0.0), 1.0),
            prompt_tokens=recorder.prompt_tokens,
            generation_tokens=recorder.generation_tokens,
        )

    backend = Backend(
        capabilities=capabilities,
        policy=policy,
        history=History(recorder, boot_id),
        digest=digest,
        gauges=gauges,
        boot_id=boot_id,
        engine_version=engine_version,
        verification=verification,
    )
    hooks = StepHooks(
        policy,
        digest,
        live=capabilities.live_k.supported,
        lag=max(1, int(scheduler.vllm_config.parallel_config.pipeline_parallel_size)),
        counted=bool(getattr(scheduler, "log_stats", False)),
        on_failure=backend.fail,
    )
    hooks.active = not missing_seam(scheduler)
    host = os.environ.get(ENV_CONTROL_HOST) or "0.0.0.0"  # noqa: S104 admitted by token and NetworkPolicy
    port = int(os.environ.get(ENV_CONTROL_PORT) or CONTROL_PORT)
    server = ControlServer(backend, TokenFiles(Path(os.environ[ENV_TOKEN_DIRECTORY])), host, port)
    server.start()
    if capabilities.live_k.supported:
        scheduler.dynamic_sd_lookup = policy
    adaptive = capabilities.adaptive_verification
    log.info(
        "Paceline: control port %s:%d, live k %s, adaptive verification %s",
        host,
        server.port,
        f"0..{capabilities.max_k}" if capabilities.live_k.supported else f"absent: {capabilities.live_k.reason}",
        "live" if adaptive.supported else f"absent: {adaptive.reason}",
    )
    return Installation(hooks, server, verification)


def _engine_version() -> str:
    from vllm.version import __version__

    return str(__version__)
