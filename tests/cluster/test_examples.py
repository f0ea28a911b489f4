"""The examples as `kubectl apply` sends them: a real API server takes each without a warning, the operator accepts it.

The operator logs in JSON here, and its log is made louder and quieter while it runs.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_operator.naming import API_VERSION, GROUP
from tests.cluster.operators import Operator, Place, account, start, wait_for_leader
from tests.harness.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOCAL = "LocalLoad"
"""A format of `paceline local`, of no cluster."""


@pytest.fixture(scope="module")
def operator(crds: ControlPlane, module_namespace: str) -> Iterator[Operator]:
    """It logs JSON."""
    config = account(crds, module_namespace)
    started = start(crds, "operator-examples", module_namespace, config, more={"PACELINE_LOG_FORMAT": "json"})
    wait_for_leader(started)
    yield started
    started.daemon.stop()


def documents() -> list[dict[str, Any]]:
    found = [each for file in sorted(EXAMPLES.rglob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]
    return [each for each in found if each["kind"] != LOCAL]


def test_every_example_is_taken_and_accepted(place: Place) -> None:
    ours = [each for each in documents() if each["apiVersion"] == API_VERSION]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents()})
    command = ("-n", place.namespace, "apply", "--validate=strict", "-f", "-")
    done = place.cluster.kubectl(*command, input=listed)
    assert (len(done.stdout.splitlines()), done.stderr) == (len(documents()), "")
    waiting = {(each["kind"], each["metadata"]["name"]) for each in ours}
    assert len(waiting) == len(ours), "no two have the same name"

    def accepted() -> bool:
        for kind, name in sorted(waiting):
            condition = place.conditions(name, kind).get("Accepted", {})
            assert condition.get("status") != "False", (kind, name, condition)
            waiting.difference_update({(kind, name)} if condition else ())
        return not waiting

    place.wait(f"all kinds of {GROUP} to be accepted", accepted)


def test_a_log_in_json_is_made_louder_and_quieter_while_it_runs(operator: Operator, place: Place) -> None:
    for number, level in ((signal.SIGUSR1, "DEBUG"), (signal.SIGUSR2, "INFO")):
        operator.daemon.process.send_signal(number)
        place.wait(f"the level {level}", lambda level=level: f"Log level: level={level}" in messages(operator)[1:])


def messages(operator: Operator) -> list[str]:
    """Every line is one object."""
    lines = operator.log().splitlines(keepends=True)
    return [json.loads(line)["message"] for line in lines if line.endswith("\n")]
