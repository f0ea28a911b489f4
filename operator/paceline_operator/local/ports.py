"""Ports of this machine: claimed before an engine binds them, and whose process it is that listens. Linux only."""

from __future__ import annotations

import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from paceline_operator.local.mistake import UserError

HOST = "127.0.0.1"
LAST_PORT = 65535
LISTENING = "0A"
"""State of a socket in /proc/net/tcp (the kernel's include/net/tcp_states.h)."""


class Claims:
    """Ports that this process has claimed. An engine takes a minute to bind its port: other runs must know before.

    A claim is an abstract Unix socket with the port's number in its name: bound by one process at a time, in the
    network namespace that the port is in too, and gone with the process however that ends.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def close(self) -> None:
        """Give them back."""
        for held in self._held:
            held.close()

    def take(self, wanted: int, insist: bool = False) -> tuple[int, bool]:
        """A free port, `wanted` if it is one, and whether it is. With `insist`, UserError instead of another."""
        if self._claim(wanted):
            return wanted, True
        if insist:
            raise UserError(f"port {wanted} is in use or above {LAST_PORT}: stop what uses it, or give another --port")
        while True:
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                free = int(probe.getsockname()[1])
            if self._claim(free):
                return free, False

    def _claim(self, port: int) -> bool:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0paceline-port-{port}")
        except OSError:
            claim.close()
            return False
        if not _bindable(port):
            claim.close()
            return False
        self._held.append(claim)
        return True


def _bindable(port: int) -> bool:
    if port > LAST_PORT:
        return False
    with socket.socket() as probe:
        # As servers do: a port whose last connections still fade away is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def listens(port: int, processes: Collection[int]) -> bool:
    """Whether one of `processes` listens on the TCP port, at whatever address."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listeners(table, port)}
    for process in processes:
        with suppress(OSError):  # it ended, or is another user's
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in sockets:
                        return True
    return False


def _listeners(table: str, port: int) -> list[str]:
    """Inodes of the sockets that listen on `port`. Columns: proc(5), /proc/net/tcp."""
    try:
        rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    except OSError:  # a kernel without IPv6
        return []
    return [row[9] for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port]
