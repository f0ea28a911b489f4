"""What the control port's requests mean: the state of one engine, the checks of a pushed policy, its samples.

Needs no scheduler: a policy, a history and a way to read gauges are enough, which is also how tests stand in for an
engine. Called by the control server's threads, never by the step loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import ValidationError

from paceline_engine.digest import Digest
from paceline_engine.policy import LivePolicy
from paceline_engine.protocol import (
    MAX_PROBE_SHARE,
    Capabilities,
    Feature,
    Gauges,
    Policy,
    PolicyAck,
    ProtocolError,
    Samples,
    State,
    VerificationState,
)
from paceline_engine.samples import History
from paceline_engine.verification import VerificationControl

log = logging.getLogger("vllm.paceline")
MAX_PROBLEMS = 5
"""Problems named in one answer; the rest are counted."""


class Refusal(Exception):  # noqa: N818 an answer on its way to the peer, not an error of ours
    """An answer that is not 200."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = ProtocolError(reason=reason, message=message)


class Backend:
    """One engine process as its control port shows it."""

    def __init__(
        self,
        *,
        capabilities: Capabilities,
        policy: LivePolicy,
        history: History,
        digest: Digest,
        gauges: Callable[[], Gauges],
        boot_id: str,
        engine_version: str,
        verification: VerificationControl | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`verification`: None where the engine booted without, or where it cannot be changed."""
        self._capabilities = capabilities
        self._policy = policy
        self._verification = verification
        self._history = history
        self._digest = digest
        self._gauges = gauges
        self._boot_id = boot_id
        self._engine_version = engine_version
        self._plugin_version = plugin_version()
        self._clock = clock
        self._boot = clock()
        self._push = threading.Lock()
        self._failures = 0
        self._closed = False

    def state(self) -> State:
        """Body of `GET /state`."""
        self._ready()
        plan = self._policy.plan
        return State(
            plugin_version=self._plugin_version,
            engine_version=self._engine_version,
            boot_id=self._boot_id,
            uptime_seconds=self._clock() - self._boot,
            capabilities=self._capabilities,
            generation=plan.generation,
            table=plan.table,
            k_in_force=self._policy.k_in_force,
            steps_by_k=_counts(self._policy.steps_by_k),
            probe_steps_by_k=_counts(self._policy.probe_steps_by_k),
            policy_errors=self._failures + self._digest.failures,
            lost_windows=self._history.lost_windows,
            probe=plan.probe,
            adaptive_verification=self._verification_state(),
        )

    def _verification_state(self) -> VerificationState | None:
        if self._verification is not None:
            return self._verification.state
        feature = self._capabilities.adaptive_verification
        return VerificationState(mode=feature.modes[0]) if feature.present else None

    def samples(self, cursor: str | None) -> Samples:
        """Body of `GET /samples?cursor=`."""
        self._ready()
        self._digest.run()
        return self._history.since(cursor, self._gauges())

    def push(self, body: bytes) -> PolicyAck:
        """Check the body of `PUT /policy` and put it in force. Raises Refusal; then nothing has changed."""
        self._ready()
        policy = _parse(body)
        if problems := list(_problems(policy, self._capabilities)):
            raise Refusal(422, "Invalid", _text(problems))
        with self._push:
            if reason := self._untakeable(policy):
                raise Refusal(422, "Invalid", reason)
            present = self._policy.plan
            if policy.generation < present.generation:
                raise Refusal(
                    409,
                    "OlderGeneration",
                    f"generation {policy.generation} is older than {present.generation}, which is in force",
                )
            if policy.generation == present.generation and policy != present.policy:
                raise Refusal(
                    409,
                    "GenerationConflict",
                    f"generation {policy.generation} is in force with another body: push a change as a new generation",
                )
            if policy.generation > present.generation:
                if self._verification is not None:
                    self._verification.ask(policy.adaptive_verification, policy.generation)
                self._policy.swap(policy)
        taken = self._policy.taken or not self._capabilities.live_k.supported
        settled = self._verification is None or self._verification.settled
        return PolicyAck(generation=policy.generation, applied=taken and settled)

    def _untakeable(self, policy: Policy) -> str:
        """Why an engine without live k does not take this policy: its verification can be changed, its k cannot."""
        live = self._capabilities.live_k
        if live.supported:
            return ""
        if not self._capabilities.adaptive_verification.supported:
            return f"this engine takes no policy: {live.reason}"
        if policy.probe or policy.table[1:] != self._policy.boot[1:]:
            return f"this engine takes no table but the one it booted with, and no probe: {live.reason}"
        return ""

    def housekeep(self) -> None:
        """Called every half second or so by whoever serves this backend."""
        self._digest.run()
        self._history.collect()
        if self._verification is not None:
            self._verification.tick()

    def fail(self, error: Exception) -> None:
        """The step loop's hooks failed and are out: say so from now on."""
        reason = f"the plugin failed in the step loop and took itself out: {type(error).__name__}: {error}"[:500]
        with self._push:
            self._failures += 1
            self._capabilities = self._capabilities.model_copy(
                update={"live_k": Feature(supported=False, reason=reason)}
            )
            self._policy.restore()
            if self._verification is not None:
                self._verification.ask(None, 0)
        log.error("Paceline: %s. The engine runs on with its boot schedule", reason, exc_info=error)

    def close(self) -> None:
        """The engine shuts down: every later request is told so."""
        self._closed = True

    def _ready(self) -> None:
        if self._closed:
            raise Refusal(503, "NotReady", "the engine is shutting down")


def plugin_version() -> str:
    """Version of the installed distribution; `unknown` where its metadata did not travel with the code."""
    try:
        return version("paceline")
    except PackageNotFoundError:
        return "unknown"


def _counts(by_k: list[int]) -> dict[int, int]:
    return {k: count for k, count in enumerate(list(by_k)) if count}


def _parse(body: bytes) -> Policy:
    try:
        return Policy.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        if problems[0]["type"] == "json_invalid":
            raise Refusal(400, "Malformed", f"the body is not JSON: {problems[0]['msg']}") from None
        # A table is read up to its first bad entry, and is then also too short: only the first says something.
        roots = {problem["loc"][0] for problem in problems if len(problem["loc"]) > 1}
        told = [problem for problem in problems if len(problem["loc"]) != 1 or problem["loc"][0] not in roots]
        raise Refusal(422, "Invalid", _text([_problem(problem) for problem in told])) from None


def _problem(problem: Any) -> str:
    """One line for one of pydantic's errors: where, what, and what was there instead."""
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    line = f"{where or 'the body'}: {problem['msg']}"
    if problem["type"] == "missing":
        return line
    got = repr(problem["input"])
    return f"{line}, got {got if len(got) <= 60 else got[:57] + '...'}"


def _problems(policy: Policy, engine: Capabilities) -> Iterable[str]:
    """What this engine cannot take, though it is a policy: the first offence of each kind."""
    if len(policy.table) != engine.max_num_seqs + 1:
        yield (
            f"table: has {len(policy.table)} entries, this engine needs {engine.max_num_seqs + 1} "
            f"(max_num_seqs {engine.max_num_seqs}, and one for no request)"
        )
    probe = policy.probe
    for where, ks in (("table", policy.table), ("probe.ks", probe.ks if probe else ())):
        for at, k in enumerate(ks):
            if k > engine.max_k:
                yield f"{where}[{at}]: is {k}, this engine takes 0..{engine.max_k} (num_speculative_tokens at boot)"
                break
    if probe:
        share = (probe.settle_steps + probe.burst_steps) / probe.interval_steps
        if share > MAX_PROBE_SHARE:
            yield (
                f"probe: settleSteps {probe.settle_steps} + burstSteps {probe.burst_steps} in every "
                f"{probe.interval_steps} steps is a share of {share:.2f}, the limit is {MAX_PROBE_SHARE}"
            )

    yield from _verification_problems(policy, engine)


def _verification_problems(policy: Policy, engine: Capabilities) -> Iterable[str]:
    asked, feature = policy.adaptive_verification, engine.adaptive_verification
    if asked is None:
        return
    why = f": {feature.reason}" if feature.reason else ""
    if asked.mode not in feature.modes:
        yield f"adaptiveVerification.mode: is {asked.mode}, this engine takes {', '.join(feature.modes)}{why}"
    elif asked.draft_costs and not feature.repriceable:
        yield f"adaptiveVerification.draftCosts: this engine takes no other costs than those it measured{why}"


def _text(problems: list[str]) -> str:
    more = len(problems) - MAX_PROBLEMS
    return "; ".join(problems[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
