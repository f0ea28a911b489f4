"""The cgroup of the node's pods, on cgroup v1 (a folder a controller) and v2."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from tests.harness.processes import wait_until

UNIFIED = Path("/sys/fs/cgroup")


def roots() -> list[Path]:
    """Where cgroup hierarchies with controllers, or v1's named ones, are mounted."""
    if (UNIFIED / "cgroup.controllers").exists():
        return [UNIFIED]
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(fields[1]) for fields in mounts if fields[2] == "cgroup"]


def create(name: str) -> None:
    """Make cgroup `name` in every hierarchy, ready for children. Raises OSError where this process may not."""
    for root in roots():
        group = root / name
        group.mkdir(exist_ok=True)
        if root == UNIFIED:
            available = (root / "cgroup.controllers").read_text().split()
            (root / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in available))
        # A v1 cpuset starts without a CPU, and no process may join it then.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (root / file).exists():
                (group / file).write_text((root / file).read_text())


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
