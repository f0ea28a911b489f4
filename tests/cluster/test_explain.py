"""`paceline explain` on the real API server, of a status as large as a tuned serving's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_operator import act, naming, told
from paceline_operator.api.conditions import Condition
from paceline_operator.api.status import ServingStatus
from paceline_operator.clients.kube import Kube
from paceline_operator.verdicts import merge, status_of
from tests.cluster.operators import Place
from tests.harness.controlplane import ControlPlane
from tests.unit.simulated import Loop, grid, workload

pytestmark = pytest.mark.cluster

PACELINE = Path(sys.prefix) / "bin" / "paceline"


def explain(cluster: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PACELINE), "explain", *arguments]
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def tuned() -> ServingStatus:
    """Of a serving that was tuned through a day of changing loads."""
    loop = Loop.of(grid("h200_dense32b_eagle.csv"), workload("gsm8k"), noise=0.02, count=3)
    status, conditions = ServingStatus(), list[Condition]()
    for requests in (1, 4, 8, 64, 8, 128, 16, 96, 4, 64):
        for minute in range(15):
            step = loop.run(1, requests)
            at = f"2026-01-01T00:{minute:02}:00Z"
            engines = [engine.answer(10.0, name) for name, engine in loop.engines.items()]
            fields, verdicts = told.status(step, engines, status, at)
            conditions = merge(conditions, verdicts, 1, at)
            status = status.model_copy(update={**fields, "conditions": conditions})
    return status


def test_a_tuned_status_is_stored_whole_and_explained(crds: ControlPlane, namespace: str) -> None:
    place = Place(crds, namespace)
    place.serve("chat")
    status = tuned()
    raw = place.get(naming.KIND_SERVING, "chat") or {}

    async def write() -> None:
        async with Kube(crds.api) as kube:
            await act.write_status(kube, raw, status)

    asyncio.run(write())
    stored = place.get(naming.KIND_SERVING, "chat") or {}
    assert status_of(stored, ServingStatus) == status, "no field is pruned or refused"
    assert len(json.dumps(stored["status"])) < 100_000

    said = explain(crds, f"{namespace}/chat")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"{namespace}/chat\n")
    for record in status.decisions:
        assert record.message in said.stdout
    assert "accepted up to position" in said.stdout
    answered = explain(crds, f"{namespace}/chat", "-o", "json")
    assert json.loads(answered.stdout) == {"name": f"{namespace}/chat", "status": stored["status"]}


def test_a_serving_that_is_not_there_or_has_no_status_is_told(crds: ControlPlane, namespace: str) -> None:
    absent = explain(crds, f"{namespace}/absent")
    assert absent.returncode == 2
    assert f"no SpeculativeServing absent in namespace {namespace}" in absent.stderr
    Place(crds, namespace).serve("new")
    new = explain(crds, f"{namespace}/new")
    assert new.returncode == 0, new.stderr
    assert "no decision was made yet" in new.stdout
