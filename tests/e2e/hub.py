"""A hub in the node's network that has this machine's model."""

from __future__ import annotations

import sys
from pathlib import Path

from hack.setup.common import cache_folder
from tests.e2e.serving import MODEL
from tests.harness.node import Node
from tests.harness.nodeconfig import ADDRESS
from tests.harness.processes import Daemon, wait_until

PORT = 8900
SOURCE = "hf://test/smollm2"
ENDPOINT = {"name": "HF_ENDPOINT", "value": f"http://{ADDRESS}:{PORT}"}
"""Of containers that are to ask it."""


def served(node: Node, folder: Path, seconds_a_megabyte: float = 0.0) -> tuple[Daemon, Path]:
    """(the hub, to be stopped; the file that counts what it was asked). `folder` is free for both."""
    models, counts = folder / "hub", folder / "counts.json"
    models.mkdir()
    (models / "smollm2").symlink_to(cache_folder() / "models" / MODEL)
    program = [sys.executable, "-m", "tests.fakehub", ADDRESS, str(PORT), str(models), str(counts)]
    command = [*node.prefix, *program, str(seconds_a_megabyte)]
    hub = Daemon("hub", command, node.logs_dir, folder=Path(__file__).parents[2])
    wait_until(lambda: "ready" in hub.tail() or None, "the hub", timeout_seconds=30, daemons=[hub])
    return hub, counts
