"""The history part of a pass: hours of load, from Prometheus where the spec names one, else from our own readings.

A question is asked beside the passes and its answer taken by a later one: k does not wait for history.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.clients.prometheus import PrometheusClient
from paceline_operator.clock import Clock
from paceline_operator.history import Absence, Load, Source, own, told
from paceline_operator.history.question import Question, question
from paceline_operator.memory import Remembered
from paceline_operator.retune import Retuned

_LOG = logging.getLogger(__name__)
ASK_SECONDS = 600.0
"""Between two questions of one serving: a history of hours does not change faster."""
OWN_SECONDS = 60.0
"""Between two looks at our own."""


@dataclass(frozen=True)
class Recalled:
    """`load` None: proposals that rest on it are not made."""

    load: Load | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    """Of ServingStatus, by attribute name."""


def recall(
    client: PrometheusClient,
    clock: Clock,
    memory: Remembered,
    serving: SpeculativeServing,
    previous: ServingStatus,
    tuned: Retuned,
) -> Recalled:
    """After the tuner's pass: add its readings, ask or take an answer where that is due, and say what is known.

    Never raises: a pass does not break for want of history. The log says what happened, once for each kind of error.
    """
    try:
        return _recall(client, clock, memory, serving, previous, tuned)
    except Exception as error:
        if type(error) is not memory.recall_error:
            memory.recall_error = type(error)
            _LOG.exception("History failed: object=%s/%s", serving.metadata.namespace, serving.metadata.name)
        return Recalled()


def _recall(
    client: PrometheusClient,
    clock: Clock,
    memory: Remembered,
    serving: SpeculativeServing,
    previous: ServingStatus,
    tuned: Retuned,
) -> Recalled:
    now = clock.monotonic()
    gauges = [engine.samples.gauges for engine in tuned.engines if engine.samples is not None]
    if gauges:
        memory.own = own.observed(memory.own, gauges, now)
    asked = question(serving)
    if asked != memory.asked:
        if memory.asking is not None:
            memory.asking.cancel()
        memory.asked, memory.asking, memory.history, memory.recalled_at = asked, None, None, None
    if asked is not None:
        _answered(client, clock, memory, asked, now)
    elif memory.recalled_at is None or now - memory.recalled_at >= OWN_SECONDS:
        memory.history, memory.recalled_at = own.load(memory.own), now
    if memory.history is None:  # the first answer is on its way: what was told holds
        return Recalled()
    source = Source.OWN_SAMPLES if asked is None else Source.PROMETHEUS
    fields = {"history": told.status(memory.history, source, previous.history)}
    return Recalled(memory.history if isinstance(memory.history, Load) else None, fields)


def _answered(client: PrometheusClient, clock: Clock, memory: Remembered, asked: Question, now: float) -> None:
    if memory.asking is not None and memory.asking.done():
        done, memory.asking = memory.asking, None
        memory.history = _outcome(done)
    due = memory.recalled_at is None or now - memory.recalled_at >= ASK_SECONDS
    if memory.asking is None and due:
        memory.asking, memory.recalled_at = asyncio.create_task(client.load(asked, clock.now())), now


def _outcome(done: asyncio.Task[Load | Absence]) -> Load | Absence:
    if done.cancelled():
        return Absence(Reason.HISTORY_ERROR, "the question was given up")
    if (error := done.exception()) is not None:
        _LOG.error("A question to Prometheus failed", exc_info=error)
        return Absence(Reason.HISTORY_ERROR, f"the question failed: {type(error).__name__}, see the operator's log")
    return done.result()
