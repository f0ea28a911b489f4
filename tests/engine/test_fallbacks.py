"""What vLLM quietly does in place of what it was asked, and the condition that says so: real engines, the real client.

An engine that does not speculate, and one that ends at its start. Of a schedule that is dropped see test_matrix.py.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping

import pytest

from paceline_operator import told
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.engine import EngineClient
from paceline_operator.effective.declared import Declared, of_arguments
from paceline_operator.effective.fleet import Known
from paceline_operator.verdicts import Verdict
from tests.engine.engines import MAX_K, SEED, TOKEN, RealEngine

pytestmark = pytest.mark.engine

COPY = "1, 2, 3, 1, 2, 3, 1, 2, 3, 1,"
"""Every draft is right and has k tokens."""
ASKED = Declared("ngram", MAX_K, tuple((first, k) for first, _, k in SEED))
END_SECONDS = 240
KEPT = 2048
"""Bytes of its log that a kubelet keeps of a container that ended badly."""


@pytest.fixture(scope="module")
def engines(start_engine: Callable[..., RealEngine]) -> dict[str, RealEngine]:
    """Both at once: a boot does not keep two cores busy."""
    return {
        "adaptive": start_engine(speculation={"enable_adaptive_verification": True}),
        "no drafter": start_engine(broken_plugin=True, drafter=False),
    }


def look(
    engine: RealEngine, declared: Declared | None, known: Mapping[str, Known] | None = None, words: str = ""
) -> tuple[Mapping[str, Known], Verdict]:
    """One pass over one engine."""

    async def ask() -> tuple[Mapping[str, Known], Verdict]:
        at = (str(url).rstrip("/") for url in (engine.control.base_url, engine.http.base_url))
        async with EngineClient() as client:
            seen = await client.observe_engine("pod", *at, TOKEN, None)
        return told.effective(known or {}, [seen], {"pod": declared}, {"pod": words})

    return asyncio.run(ask())


def declared_of(engine: RealEngine) -> Declared | None:
    return of_arguments([str(argument) for argument in engine.daemon.command])


def test_verification_that_is_refused_at_the_start_is_read_from_the_last_words(engines: dict[str, RealEngine]) -> None:
    engine = engines["adaptive"]
    try:
        code = engine.daemon.process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.fail("the engine runs")
    assert code != 0
    declared = declared_of(engine)
    assert declared is not None
    assert declared.verification
    _, verdict = look(engine, declared, words=engine.log()[-KEPT:])
    assert (verdict.status, verdict.reason) == (False, Reason.VERIFICATION_REFUSED)
    assert "Model Runner V1 does not support: adaptive draft verification" in verdict.message
    assert "speculation.adaptiveVerification" in verdict.message


def test_an_engine_that_does_not_speculate_shows_no_counter_and_is_told(engines: dict[str, RealEngine]) -> None:
    engine = engines["no drafter"].wait_ready()
    known, verdict = look(engine, ASKED)
    assert (verdict.status, verdict.reason) == (None, Reason.NO_DRAFTS_YET), "without traffic it is no alarm"
    engine.complete([COPY] * 4, tokens=64)
    _, verdict = look(engine, ASKED, known)
    assert (verdict.status, verdict.reason) == (False, Reason.COUNTERS_ABSENT)
    _, verdict = look(engine, declared_of(engine), known)
    assert (verdict.status, verdict.reason) == (True, Reason.OFF_BY_DECISION), "where nobody asked for drafts"
