"""The connections of one question, which another thread can cut whatever its own waits for in them."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Wire:
    """Safe for concurrent use. Cut it in the end: it holds a descriptor for each connection until then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[socket.socket] = []
        self._over = False

    def watch(self, connected: socket.socket) -> None:
        """Cut this connection too, at once where all are cut already."""
        # A copy: TLS takes the socket's descriptor over, and a shutdown is of the connection, not of the descriptor.
        copy = connected.dup()
        with self._lock:
            self._held.append(copy)
            over = self._over
        if over:
            self.cut()

    def cut(self) -> None:
        """End all connections: whoever reads or writes one goes on, with an error or an end of file."""
        with self._lock:
            self._over = True
            for one in self._held:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._held.clear()
