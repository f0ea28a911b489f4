"""What is told of the cache, from pods, the Job and the status before."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from paceline_engine.pull.report import Failure, Phase, Report
from paceline_operator import modelcache
from paceline_operator.api.conditions import Reason
from tests.servings import serving

SERVING = serving(model={"cache": {"claimName": "shared"}}, speculation={"method": "ngram", "draft": None})
GIB = 2**30


def report(phase: Phase, source: str = "hf://owner/target", **fields: Any) -> Report:
    artefact = {"name": "model", "source": source, "phase": phase, **fields}
    return Report.model_validate({"artefacts": [artefact]})


def pod(state: dict[str, Any], last: dict[str, Any] | None = None, name: str = "demo-1") -> dict[str, Any]:
    container = {"name": "paceline-pull", "state": state, "lastState": last or {}}
    return {"metadata": {"name": name}, "status": {"initContainerStatuses": [container]}}


def ended(said: Report | str, at: str = "2026-11-30T01:00:00Z", code: int = 0) -> dict[str, Any]:
    text = said if isinstance(said, str) else said.model_dump_json(by_alias=True, exclude_none=True)
    return {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at, "message": text}}


READY = report(Phase.READY, revision="c" * 40, bytes=3 * GIB, done=3 * GIB)
JOB = {"metadata": {"name": "demo-pull-1"}, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}


def view(pods: list[Any] = [], working: dict[str, Report] | None = None, job: Any = None, before: Any = None) -> Any:  # noqa: B006
    return modelcache.view(SERVING, pods, working or {}, job, before)


def test_before_anybody_looked() -> None:
    found = view()
    assert (found.verdict.status, found.verdict.reason) == (False, Reason.DOWNLOAD_PENDING)
    assert found.status.claim_name == "shared"
    assert found.after is None


def test_a_download_is_told_in_tens_of_percent() -> None:
    working = {"demo-1": report(Phase.DOWNLOADING, revision="c" * 40, bytes=100 * GIB, done=37 * GIB)}
    found = view([pod({"running": {}})], working)
    (row,) = found.status.artefacts
    assert (row.phase, row.progress_percent, row.revision, row.bytes) == ("Downloading", 30, "c" * 40, 100 * GIB)
    assert (found.verdict.reason, found.after) == (Reason.DOWNLOADING, modelcache.LOOK_SECONDS)
    assert "30 % of 100.0 GiB" in found.verdict.message


def test_ready_with_its_commit_and_it_stays_when_pods_are_gone() -> None:
    found = view([pod(ended(READY))])
    assert (found.verdict.status, found.verdict.reason) == (True, Reason.MODEL_READY)
    assert found.status.artefacts[0].revision == "c" * 40
    assert view(before=found.status) == found
    other = serving(model={"cache": {"claimName": "other"}}, speculation={"method": "ngram", "draft": None})
    assert modelcache.view(other, [], {}, None, found.status).verdict.reason is Reason.DOWNLOAD_PENDING


def test_what_was_said_of_another_source_does_not_count() -> None:
    old = report(Phase.READY, source="hf://owner/older", revision="d" * 40)
    assert view([pod(ended(old))]).verdict.reason is Reason.DOWNLOAD_PENDING


def test_a_failure_that_another_attempt_does_not_change_is_one() -> None:
    full = report(Phase.FAILED, reason=Failure.DISK_FULL, message="257 MiB are still to come and 60 MiB are free")
    broken = report(Phase.FAILED, reason=Failure.DOWNLOAD_FAILED, message="HTTP 503")
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    text = "model hf://owner/target: DiskFull: 257 MiB are still to come and 60 MiB are free"
    assert modelcache.unobtainable(pod(waiting, ended(full, code=20))) == text
    assert modelcache.unobtainable(pod(ended(full, code=20))) == text
    for others in (
        pod(ended(READY), ended(full, code=20)),
        pod(waiting, ended(broken, code=10)),
        pod(waiting, ended("killed", code=137)),
        pod({}),
    ):
        assert modelcache.unobtainable(others) == ""


def test_the_newest_word_counts() -> None:
    failed = report(Phase.FAILED, reason=Failure.DISK_FULL, message="no room")
    pods = [pod(ended(READY, "2026-11-30T01:00:00Z")), pod(ended(failed, "2026-11-30T02:00:00Z"), name="demo-2")]
    found = view(pods)
    assert (found.verdict.status, found.verdict.reason) == (False, Reason.DISK_FULL)
    assert found.verdict.message == "model hf://owner/target: no room"
    waiting = {"demo-3": report(Phase.PENDING)}
    assert view([pods[0]], waiting).verdict.reason is Reason.MODEL_READY, "one that has just begun says nothing yet"


def test_between_attempts_the_last_one_tells() -> None:
    failed = report(Phase.FAILED, reason=Failure.TOKEN_MISSING, message="gated")
    found = view([pod({"waiting": {"reason": "CrashLoopBackOff"}}, ended(failed, code=21))])
    assert found.verdict.reason is Reason.TOKEN_MISSING
    assert found.status.artefacts[0].reason == "TokenMissing"


def test_a_puller_without_a_last_word_is_told_by_its_log() -> None:
    found = view([pod(ended("...\nMemoryError", code=137))])
    assert found.verdict.reason is Reason.DOWNLOAD_FAILED
    assert "exit code 137" in found.verdict.message
    assert found.verdict.message.endswith("MemoryError")


def test_a_secret_that_is_not_there() -> None:
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}
    found = view([pod({"waiting": waiting})])
    assert (found.verdict.reason, 'secret "hub" not found' in found.verdict.message) == (Reason.TOKEN_MISSING, True)


def test_a_job_that_gave_up_says_what_to_do() -> None:
    failed = report(Phase.FAILED, reason=Failure.MODEL_NOT_FOUND, message="none such")
    found = view([pod(ended(failed, code=22))], job=JOB)
    assert found.verdict.reason is Reason.MODEL_NOT_FOUND
    assert "Job demo-pull-1 has given up" in found.verdict.message
    assert view(job=JOB).verdict.reason is Reason.DOWNLOAD_FAILED


words = st.text() | st.builds(
    json.dumps,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["artefacts", "name", "phase", "bytes"]), inner)
        ),
        max_leaves=12,
    ),
)


@given(words, st.integers(0, 255))
@example('{"artefacts":[]}', 1)
def test_whatever_a_container_leaves_behind(text: str, code: int) -> None:
    found = view([pod(ended(text, code=code))])
    assert found.verdict.reason in (Reason.DOWNLOAD_PENDING, Reason.DOWNLOAD_FAILED)
    assert (found.verdict.reason is Reason.DOWNLOAD_FAILED) == (code != 0)


NUMBERS = st.integers(-(10**30), 10**30) | st.floats()


@given(
    phase=st.sampled_from(list(Phase)),
    reason=st.none() | st.sampled_from(list(Failure)),
    size=st.none() | NUMBERS,
    done=NUMBERS,
    message=st.text(max_size=2000),
)
@example(phase=Phase.FAILED, reason=None, size=None, done=0, message="")
@example(phase=Phase.DOWNLOADING, reason=None, size=10**400, done=0, message="")
def test_whatever_a_puller_says_is_told_or_not_believed(
    phase: Phase, reason: Failure | None, size: float | None, done: float, message: str
) -> None:
    said = {"name": "model", "source": "hf://owner/target", "phase": phase, "reason": reason, "message": message}
    found = view([pod(ended(json.dumps({"artefacts": [{**said, "bytes": size, "done": done}]}), code=1))])
    (row,) = found.status.artefacts
    assert (row.phase == "Failed") == bool(row.reason)
    assert row.bytes is None or 0 <= row.bytes < 2**63
    assert row.progress_percent is None or 0 <= row.progress_percent <= 100
