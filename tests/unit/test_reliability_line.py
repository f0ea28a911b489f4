"""The relay before etcd of the tests of reliability: what it holds back comes later, whole and in order."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tests.reliability.second import Line

PATIENCE_SECONDS = 30.0


@pytest.fixture
def line() -> Iterator[Line]:
    """Before a server that says what it is told."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def echo() -> None:
            with suppress(OSError), closing(server.accept()[0]) as peer:
                while said := peer.recv(1024):
                    peer.sendall(said)

        thread = threading.Thread(target=echo)
        thread.start()
        found = Line(server.getsockname()[1])
        yield found
        found.close()
        thread.join()


def test_what_is_held_back_comes_later_in_order(line: Line) -> None:
    with closing(socket.create_connection(("127.0.0.1", line.port), PATIENCE_SECONDS)) as peer:
        peer.sendall(b"a")
        assert peer.recv(1) == b"a"
        line.hold()
        peer.sendall(b"b")
        peer.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        peer.settimeout(PATIENCE_SECONDS)
        line.lag(0.1)
        peer.sendall(b"c")
        line.free()
        assert peer.recv(1) + peer.recv(1) == b"bc"


def test_an_end_is_passed_on(line: Line) -> None:
    with closing(socket.create_connection(("127.0.0.1", line.port), PATIENCE_SECONDS)) as peer:
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b""
