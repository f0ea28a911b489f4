"""The cgroup of the node's pods, in every hierarchy of cgroup v1, v2 or both."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from tests.harness.processes import wait_until

WEIGHT_OF_A_CORE = 2
"""Processes outside that the pods weigh as much as, for each core."""


def roots() -> list[Path]:
    """Where cgroup hierarchies are mounted: one of v2, one a controller of v1."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]


def create(name: str) -> None:
    """Make cgroup `name` in every hierarchy, ready for children. Raises OSError where this process may not."""
    for root in roots():
        group = root / name
        group.mkdir(exist_ok=True)
        controllers = root / "cgroup.controllers"
        if controllers.exists():
            enabled = " ".join(f"+{each}" for each in controllers.read_text().split())
            (root / "cgroup.subtree_control").write_text(enabled)
        # A v1 cpuset starts without a CPU, and no process may join it then.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (root / file).exists():
                (group / file).write_text((root / file).read_text())
        # Else all pods together weigh as much as one process outside: a busy machine would starve them.
        for file, of_one in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (group / file).exists():
                (group / file).write_text(str(min(of_one * WEIGHT_OF_A_CORE * (os.cpu_count() or 1), 10_000)))


def remove(name: str) -> None:
    """Remove cgroup `name` and all below it, once the kernel has buried what ran there; TimeoutError where it lives."""
    for root in roots():
        removed = partial(_removed, root / name)
        wait_until(removed, f"the processes in {root / name} to be gone", timeout_seconds=20)


def _removed(group: Path) -> bool:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not group.exists()
