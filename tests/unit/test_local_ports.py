"""Ports of local runs: nobody else's, not even those of a run that has not bound them yet."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator.local.mistake import UserError
from paceline_operator.local.ports import Claims, listens
from tests.harness.ports import free_ports

CLAIM = """
import sys
from paceline_operator.local.ports import Claims
claims = Claims()
print(*claims.take(int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_a_port_in_use_is_replaced_or_insisted_on() -> None:
    claims = Claims()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = taken.getsockname()[1]
        found, free = claims.take(busy)
        assert found != busy
        assert not free
        with pytest.raises(UserError, match=f"port {busy} is in use"):
            claims.take(busy, insist=True)
    assert claims.take(busy) == (busy, True)
    assert claims.take(busy)[0] != busy
    claims.close()
    assert claims.take(busy) == (busy, True), "given back"
    claims.close()


def test_a_claimed_port_is_nobody_elses_until_its_process_ends() -> None:
    (port,) = free_ports(1)
    claims = Claims()
    with subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"{port} True\n"
        assert claims.take(port)[0] != port, "although nobody listens there yet"
        other.kill()
    assert claims.take(port) == (port, True)
    claims.close()


def test_the_second_engine_of_the_last_port_has_none() -> None:
    claims = Claims()
    with pytest.raises(UserError, match="port 65536"):
        claims.take(65536, insist=True)
    assert claims.take(65536)[0] < 65536
    claims.close()


def test_ports_are_apart_from_each_other() -> None:
    claims = Claims()
    assert len({claims.take(CONTROL_PORT)[0] for _ in range(8)}) == 8
    claims.close()


def test_who_listens_is_told_by_process() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not listens(port, [os.getpid()]), "bound is not listening"
        server.listen()
        assert listens(port, [os.getpid()])
        assert not listens(port, [os.getppid(), 0, 2**22])
        assert not listens(port + 1, [os.getpid()])
    assert not listens(port, [os.getpid()])
