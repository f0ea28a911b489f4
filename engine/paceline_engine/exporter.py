"""`paceline_` series on the serving port's /metrics: what `GET /state` says, read over loopback when somebody scrapes.

Registered with prometheus_client's default registry in every process that loads the plugin. The API server shows that
registry, if it is the only one; in other processes nobody looks at it, so nothing is read. vLLM takes away only
collectors whose name begins with `vllm:` (v1/metrics/prometheus.py), never this one.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline_engine.protocol import (
    CONTROL_PORT,
    ENV_CONTROL_HOST,
    ENV_CONTROL_PORT,
    ENV_TOKEN_DIRECTORY,
    TOKEN_FILE_CURRENT,
    Feature,
    State,
    Verification,
)

CACHE_SECONDS = 1.0
TIMEOUT_SECONDS = 0.5
"""The API server's event loop waits for it. An engine core answers in some milliseconds."""
MAX_STATE_BYTES = 4 * 1024 * 1024
_EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 compared with, not bound to
SERIES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("up", (), "Whether the control port of this engine answers."),
    ("k_in_force", (), "Draft tokens per request (k) of the last step."),
    ("table_generation", (), "Generation of the table in force; 0 is the boot schedule."),
    ("steps_total", ("k", "kind"), "Steps by the k they drafted, and whether the table or a probe burst said so."),
    ("policy_errors_total", (), "Failures of the plugin in the step loop; each takes it out."),
    ("samples_lost_windows_total", (), "Windows of samples that were gone before a slow reader came."),
    ("verification_mode", ("mode",), "How drafts are verified: 1 for the mode in force. No series without it at boot."),
    ("verification_cap", (), "Draft tokens verified a step at most, where capped."),
    ("verification_drafted_tokens_total", (), "Draft tokens that were there to verify."),
    ("verification_verified_tokens_total", (), "Draft tokens that were verified."),
    ("verification_starved", (), "1 while drafts are paid for and (almost) none is verified."),
)
"""Name without `paceline_`, labels, help."""
_registered = False


def feasible(api_servers: int, environment: Mapping[str, str] = os.environ) -> Feature:
    """Whether the serving port's /metrics shows our series; with the reason where the operator has to export them."""
    reason = ""
    if environment.get("VLLM_USE_RUST_FRONTEND", "0") not in {"", "0"}:
        reason = "the Rust front end loads no Python plugin"
    elif api_servers != 1:
        reason = (
            f"{api_servers} API servers share the port and merge counters by files, which no collector goes through"
        )
    elif "PROMETHEUS_MULTIPROC_DIR" in environment:
        reason = "PROMETHEUS_MULTIPROC_DIR is set: vLLM then shows counters kept in files and no collectors"
    elif not environment.get(ENV_TOKEN_DIRECTORY):
        reason = f"{ENV_TOKEN_DIRECTORY} is not set: there is no control port"
    elif environment.get(ENV_CONTROL_PORT) == "0":
        reason = f"{ENV_CONTROL_PORT} is 0: the API server cannot know which port was taken"
    return Feature(supported=not reason, reason=reason)


def register() -> None:
    """Show the series where this process is the API server that is scraped. Any number of calls is one."""
    global _registered
    if _registered or not feasible(1).supported:
        return
    from prometheus_client import REGISTRY

    REGISTRY.register(StateCollector(StateReader(os.environ)))
    _registered = True


class StateReader:
    """The engine's state, at most a second old; None where the engine does not answer."""

    def __init__(self, environment: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        """Where the control port of this pod is, and its tokens, as the plugin itself is told."""
        host = environment.get(ENV_CONTROL_HOST, "")
        self._host = _EVERYWHERE.get(host, host)
        self._port = int(environment.get(ENV_CONTROL_PORT) or CONTROL_PORT)
        self._token = Path(environment[ENV_TOKEN_DIRECTORY], TOKEN_FILE_CURRENT)
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._state: State | None = None

    def __call__(self) -> State | None:
        """Read anew where the last reading is too old, whatever came of it."""
        with self._lock:
            if self._clock() - self._read_at >= CACHE_SECONDS:
                try:
                    self._state = self._read()
                except (OSError, http.client.HTTPException, ValueError):
                    self._state = None
                self._read_at = self._clock()
            return self._state

    def _read(self) -> State | None:
        token = self._token.read_text(encoding="latin-1").strip()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/state", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            body = answer.read(MAX_STATE_BYTES)
            return State.model_validate_json(body) if answer.status == http.client.OK else None
        finally:
            connection.close()


class StateCollector:
    """What prometheus_client asks for the series."""

    def __init__(self, read: Callable[[], State | None]) -> None:
        self._read = read

    def describe(self) -> Iterable[Any]:
        """Names alone, so that registering does not read anything."""
        return families(None)

    def collect(self) -> Iterable[Any]:
        """The series now."""
        return families(self._read())


def families(state: State | None) -> list[Any]:
    """Metric families of a state; without one all are empty but `paceline_up`."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    rows = _rows(state)
    made: list[Any] = []
    for name, labels, text in SERIES:
        counts = name.endswith("_total")
        kind = CounterMetricFamily if counts else GaugeMetricFamily
        family = kind(f"paceline_{name.removesuffix('_total')}", text, labels=labels)
        for values, value in rows.get(name, ()):
            family.add_metric(values, value)
        made.append(family)
    return made


def _rows(state: State | None) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """Label values and value of each series, by name."""
    if state is None:
        return {"up": [((), 0.0)]}
    rows: dict[str, list[tuple[tuple[str, ...], float]]] = {
        "up": [((), 1.0)],
        "table_generation": [((), float(state.generation))],
        "steps_total": [
            ((str(k), kind), float(steps))
            for kind, by_k in (("table", state.steps_by_k), ("probe", state.probe_steps_by_k))
            for k, steps in sorted(by_k.items())
        ],
        "policy_errors_total": [((), float(state.policy_errors))],
        "samples_lost_windows_total": [((), float(state.lost_windows))],
    }
    if state.k_in_force is not None:
        rows["k_in_force"] = [((), float(state.k_in_force))]
    if found := state.adaptive_verification:
        rows |= {
            "verification_mode": [((mode.value,), float(mode is found.mode)) for mode in Verification],
            "verification_drafted_tokens_total": [((), float(found.drafted))],
            "verification_verified_tokens_total": [((), float(found.verified))],
            "verification_starved": [((), float(found.starved))],
        }
        if found.cap is not None:
            rows["verification_cap"] = [((), float(found.cap))]
    return rows
