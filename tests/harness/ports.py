"""Free ports on loopback."""

from __future__ import annotations

import random
import socket

LOWEST, HIGHEST = 20_000, 32_000
"""Below the kernel's ephemeral range: no outgoing connection takes the port between the look and the listen."""


def free_ports(count: int) -> list[int]:
    """`count` different ports nobody listens on at 127.0.0.1."""
    found: list[int] = []
    while len(found) < count:
        port = random.randint(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
