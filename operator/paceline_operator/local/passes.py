"""The reconcile pass of `paceline local`: observe, decide, push, tell. A serving's pass without children or API server.

Processes stand where pods do, and a record where the object is; the tuner and its words are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from paceline_engine.protocol import PolicyAck
from paceline_operator import observe, sightings, told
from paceline_operator.api.learned import LearnedStatus, ProfileKey
from paceline_operator.api.profiles import ProfileSpec
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import ServingStatus
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clock import Clock, rfc3339
from paceline_operator.firsttokens import FirstTokens
from paceline_operator.local.record import DecisionRecord, Record
from paceline_operator.local.runner import Supervisor
from paceline_operator.profiling import learn
from paceline_operator.profiling.key import NO_ANSWER, key_of
from paceline_operator.profiling.prior import prior
from paceline_operator.replay.traces import Writer
from paceline_operator.tuning import decide
from paceline_operator.tuning.model import Engine, Memory, Settings, Step
from paceline_operator.tuning.state import TunerState


class Passes:
    """All passes of one run, into one record. Not for concurrent use."""

    def __init__(
        self,
        spec: ServingSpec,
        token: str,
        engines: Sequence[Supervisor],
        record: Record,
        client: EngineClient,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`say` is told what went wrong, a sentence at a time."""
        self.settings = decide.settings_of(spec)
        self.started = self.last = clock.monotonic()
        """When the first pass was due, and when the last was made."""
        self.trace: Writer | None = None
        """Is given every pass."""
        self.profile: tuple[str, ProfileSpec] | None = None
        """Name and content of one to start from."""
        self._spec = spec
        self._token = token
        self._engines = engines
        self._record = record
        self._client = client
        self._clock = clock
        self._say = say
        self._memory = Memory()
        self._key: ProfileKey | str = NO_ANSWER
        """As told last."""
        self._first_tokens = FirstTokens()
        self._sightings: dict[str, sightings.Sighting] = {}
        self._tokens: dict[str, tuple[str, int]] = {}
        """Engine -> boot id and tokens generated since, as read last."""

    async def once(self) -> None:
        """One pass."""
        found = await asyncio.gather(*(self._observe(engine) for engine in self._engines))
        engines, self._sightings, news = sightings.look(self._sightings, found, {}, rfc3339(self._clock.now()))
        for event in news:
            self._say(f"{event.reason}: {event.message}")
        now = self._clock.monotonic()
        urls = {engine.command.name: engine.command.serving_url for engine in self._engines}
        engines, self._first_tokens = await observe.first_tokens(
            self._client, engines, urls, self.settings, self._first_tokens, now
        )
        known = self._record.status.policy_generation
        self._recorded(now, known, engines)
        if (key := key_of(self._spec, engines)) != NO_ANSWER:
            self._key = key
        step = decide.step(self._started(self._key), self._memory, engines, known_generation=known, now=now)
        self._memory = step.memory
        await self._push(step)
        self._tell(step, engines, now)
        self._count(engines, step, now)
        self.last = now

    def learnt(self) -> LearnedStatus | None:
        """What the engines have shown so far; None where nothing was decided about yet."""
        state, at = self._memory.state, rfc3339(self._clock.now())
        if not isinstance(state, TunerState):
            return None
        return learn.learned(state, self._key, {}, ServingStatus(), self._record.status, at)

    def _recorded(self, now: float, known: int, engines: Sequence[Engine]) -> None:
        if self.trace is None:
            return
        try:
            self.trace(now, known, engines)
        except OSError as error:  # a full disk ends the recording, not the run
            self.trace = None
            self._say(f"the trace ends here, it cannot be written: {error.strerror}")

    async def _observe(self, engine: Supervisor) -> Engine:
        command = engine.command
        return await self._client.observe_engine(
            command.name, command.control_url, command.serving_url, self._token, self._memory.cursors.get(command.name)
        )

    async def _push(self, step: Step) -> None:
        policy = step.policy
        if policy is None:
            return
        commands = [engine.command for engine in self._engines if engine.command.name in step.push_to]
        answers = await asyncio.gather(
            *(self._client.push(command.control_url, self._token, policy) for command in commands)
        )
        for command, answer in zip(commands, answers, strict=True):
            if not isinstance(answer, PolicyAck):
                self._say(f"{command.name} did not take a policy: {answer.reason}: {answer.message}")

    def _started(self, key: ProfileKey | str) -> Settings:
        """Settings that start from the profile where its key is that of the engines; said where it changes."""
        if self.profile is None:
            return self.settings
        found = prior(*self.profile, key)
        message = f"{found.verdict.reason}: {found.verdict.message}"
        if message != self._record.prior:
            self._say(message)
        self._record.prior = message
        return found.into(self.settings)

    def _tell(self, step: Step, engines: Sequence[Engine], now: float) -> None:
        record = self._record
        for error in step.errors:
            self._say(f"part of a decision failed and was left out: {error}")
        fields, _ = told.status(step, engines, record.status, rfc3339(self._clock.now()))
        record.status = record.status.model_copy(update=fields)
        record.step = step
        record.seconds = now - self.started
        record.decisions += [DecisionRecord(record.seconds, decision) for decision in step.decisions]

    def _count(self, engines: Sequence[Engine], step: Step, now: float) -> None:
        phase = self._record.phases[-1]
        phase.table = step.table
        tally = phase.drain if phase.left_over else phase.tally
        tally.seconds += now - self.last
        for seen, kept in zip(engines, self._record.engines, strict=True):
            if seen.state is None or seen.samples is None:
                continue
            kept.state = seen.state
            tally.add(seen.samples)
            boot, tokens = self._tokens.get(seen.name, ("", 0))
            generated = seen.samples.gauges.generation_tokens
            tally.tokens += generated - tokens if boot == seen.samples.boot_id else generated
            self._tokens[seen.name] = (seen.samples.boot_id, generated)
