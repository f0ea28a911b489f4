"""The model cache on a real API server: claim and Job as its schema takes them, pods after the Job, changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline_operator import naming
from tests.cluster.operators import Object, Place

pytestmark = pytest.mark.cluster

CLAIM: Object = {"source": "hf://owner/target", "cache": {"claim": {"size": "10Gi"}, "download": "Job"}}


def _job(place: Place, source: str) -> Object:
    def found() -> Object | None:
        jobs = [job for job in place.list("Job") if source in json.dumps(job["spec"]["template"])]
        return jobs[0] if len(jobs) == len(place.list("Job")) == 1 else None

    return dict(place.wait(f"the Job for {source}, alone", found))


def _end(place: Place, job: Object, artefact: Object, *, complete: bool) -> None:
    """What a kubelet and the Job's controller would write: the pod's last word, then the Job's condition."""
    name = job["metadata"]["name"]
    pod = place.wait("the Job's pod", lambda: next(iter(_pods(place, name)), None))
    code = 0 if complete else 22
    said = {"name": "model", "source": "hf://owner/target", **artefact}
    message = json.dumps({"artefacts": [said]})
    ended = {
        "exitCode": code, "reason": "Completed" if complete else "Error", "message": message,
        "startedAt": "2026-11-30T01:00:00Z", "finishedAt": "2026-11-30T01:00:00Z",
    }  # fmt: skip
    container = {
        "name": "paceline-pull", "image": "x", "imageID": "x", "ready": False, "restartCount": 0,
        "state": {"terminated": ended},
    }  # fmt: skip
    phase = "Succeeded" if complete else "Failed"
    status = {"phase": phase, "containerStatuses": [container]}
    place.patch("Pod", pod["metadata"]["name"], {"status": status}, "status")


def _pods(place: Place, job: str) -> list[Object]:
    return [pod for pod in place.list("Pod") if pod["metadata"]["labels"].get("job-name") == job]


def _condition(place: Place, name: str, kind: str) -> bool:
    job = place.get("Job", name) or {}
    return any(one["type"] == kind for one in job.get("status", {}).get("conditions", []))


def test_weights_come_before_pods_and_a_job_that_gives_up_says_why(place: Place) -> None:
    place.serve("chat", model=CLAIM)
    job = _job(place, "hf://owner/target")
    (claim,) = place.list("PersistentVolumeClaim")
    assert claim["spec"]["resources"]["requests"] == {"storage": "10Gi"}
    owner = claim["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == (naming.KIND_SERVING, "chat")
    place.condition("chat", "ModelAvailable", "DownloadPending")
    assert place.list("Deployment") == []
    revision = {"phase": "Ready", "revision": "c" * 40, "bytes": 7}
    _end(place, job, revision, complete=True)
    place.child("Deployment", "chat")
    place.condition("chat", "ModelAvailable", "ModelReady")
    (artefact,) = (place.get(naming.KIND_SERVING, "chat") or {})["status"]["modelCache"]["artefacts"]
    assert (artefact["phase"], artefact["revision"]) == ("Ready", "c" * 40)
    before = _model(place)

    place.patch(naming.KIND_SERVING, "chat", {"spec": {"model": {"revision": "none"}}})
    failing = _job(place, '"none"')
    told = {"phase": "Failed", "reason": "ModelNotFound", "message": "no such revision", "asked": "none"}
    _end(place, failing, told, complete=False)
    condition = place.condition("chat", "ModelAvailable", "ModelNotFound")
    place.wait("the Job to give up at once", lambda: _condition(place, failing["metadata"]["name"], "Failed"))
    place.wait("the condition to say so", lambda: "has given up" in _message(place))
    assert "no such revision" in condition["message"]
    assert _model(place) == before, "pods that run serve on"

    place.patch(naming.KIND_SERVING, "chat", {"spec": {"model": {"cache": None, "revision": None}}})
    place.wait("claim and Job to go", lambda: not (place.list("Job") or _claims(place)))
    place.wait("the condition to go", lambda: "ModelAvailable" not in place.conditions("chat"))


def _claims(place: Place) -> list[str]:
    """Those that are not on their way out: a claim in use waits for its pods."""
    return [
        one["metadata"]["name"]
        for one in place.list("PersistentVolumeClaim")
        if "deletionTimestamp" not in one["metadata"]
    ]


def _model(place: Place) -> str:
    template = (place.get("Deployment", "chat") or {})["spec"]["template"]
    return str(template["spec"]["containers"][0]["args"][1])


def _message(place: Place) -> str:
    return str(place.conditions("chat")["ModelAvailable"]["message"])


REFUSED: list[tuple[str, Any, str]] = [
    ("both claims", {"cache": {"claimName": "a", "claim": {"size": "1Gi"}}}, "one of claimName"),
    ("no claim", {"cache": {"download": "Job"}}, "one of claimName"),
    ("a size of words", {"cache": {"claim": {"size": "large"}}}, "should match"),
    ("another mode", {"cache": {"claim": {"size": "1Gi", "accessMode": "Any"}}}, "ReadWriteMany"),
]


@pytest.mark.parametrize(("what", "change", "words"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_the_schema_refuses(place: Place, what: str, change: Object, words: str) -> None:
    body = {
        "apiVersion": naming.API_VERSION,
        "kind": naming.KIND_SERVING,
        "metadata": {"name": "chat"},
        "spec": {"model": {"source": "hf://owner/target", **change}, "speculation": {"method": "ngram"}},
    }
    answer = place.cluster.kubectl(
        "-n", place.namespace, "apply", "--dry-run=server", "-f", "-", input=json.dumps(body), check=False
    )
    assert words in answer.stderr


def test_a_claim_may_grow_and_not_shrink(place: Place) -> None:
    place.serve("chat", suspend=True, model={"source": "hf://owner/target", "cache": {"claim": {"size": "10Gi"}}})

    def size(text: str, **more: str) -> None:
        place.patch(naming.KIND_SERVING, "chat", {"spec": {"model": {"cache": {"claim": {"size": text, **more}}}}})

    size("20Gi")
    with pytest.raises(Exception, match="cannot shrink"):
        size("10Gi")
    size("10Gi", accessMode="ReadWriteOnce")
