"""An operator that stands still in a pass, as by SIGSTOP, while another takes its place, does not end that pass."""

from __future__ import annotations

import os
import secrets
import signal
import threading

import pytest

from tests.cluster.operators import account, start, wait_for_leader
from tests.cluster.proxy import Answer, Request
from tests.harness.controlplane import ControlPlane
from tests.reliability.life import NAME, STAGES, lived, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_one_that_was_stopped_writes_nothing_of_what_it_had_read(crds: ControlPlane) -> None:
    namespace = f"life-{secrets.token_hex(3)}"
    with lived(crds, namespace) as life:
        create, *_ = STAGES
        create.act(life)
        wait_for(life, create)
        first, stopped = life.operator, threading.Event()

        def stop(request: Request, answer: Answer) -> Answer:
            if not request.writes and "/deployments" in request.target and not stopped.is_set():
                first.daemon.process.send_signal(signal.SIGSTOP)
                stopped.set()
            return answer

        life.killer.answers = stop
        life.patch({"replicas": 3})
        assert stopped.wait(60)
        direct = account(crds, namespace, watch=namespace)
        second = start(crds, f"second-{namespace}", namespace, direct, watch=namespace)
        try:
            wait_for_leader(second)
            life.patch({"replicas": 1})
            life.place.wait("the other to act", lambda: life.place.child("Deployment", NAME)["spec"]["replicas"] == 1)
            before = life.place.children()
            life.killer.arm(None)
            os.kill(first.daemon.process.pid, signal.SIGCONT)
            life.place.wait("it to find out", lambda: "Stepping down" in first.log())
            assert not first.leads()
            assert life.killer.calls == [], "it wrote what it had read before"
            assert life.place.children() == before
        finally:
            os.kill(first.daemon.process.pid, signal.SIGCONT)
            second.daemon.stop()
