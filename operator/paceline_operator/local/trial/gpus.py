"""GPU memory of this machine, by nvidia-smi: who holds it, and whether what our engines had is back.

Holders are told by process id and owner, never by a name: a shared machine runs many processes that are called alike.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""CUDA numbers GPUs by speed otherwise, and nvidia-smi by bus."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
SLACK_MIB = 512
"""Contexts of others come and go by a few hundred MiB."""
PROGRAM = "nvidia-smi"
SECONDS = 20.0
MIB = 1024 * 1024


@dataclass(frozen=True)
class Holder:
    """A process with memory on a GPU."""

    pid: int
    gpu: str
    """UUID."""
    mib: int


@dataclass(frozen=True)
class Gpu:
    """One device."""

    index: int
    uuid: str
    name: str
    driver: str
    used_mib: int


@dataclass(frozen=True)
class Look:
    """All that engines here may use, at one moment."""

    gpus: tuple[Gpu, ...] = ()
    holders: tuple[Holder, ...] = ()
    """Those that this machine's processes can see: in a container without the host's processes, none."""

    @property
    def used_mib(self) -> int:
        """On all of them together."""
        return sum(gpu.used_mib for gpu in self.gpus)


def parse(gpus: str, holders: str, visible: str | None) -> Look:
    """Of nvidia-smi's CSV without head and units. Lines that are none are left out."""
    found = []
    for line in gpus.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        with suppress(ValueError, IndexError):
            found.append(Gpu(int(cells[0]), cells[1], cells[2], cells[3], int(cells[4])))
    wanted = {one.strip() for one in visible.split(",")} if visible is not None else None
    used = tuple(one for one in found if wanted is None or {str(one.index), one.uuid} & wanted)
    ids = {one.uuid for one in used}
    there = []
    for line in holders.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        with suppress(ValueError, IndexError):
            there.append(Holder(int(cells[0]), cells[1], int(cells[2]) if cells[2].isdigit() else 0))
    return Look(used, tuple(one for one in there if one.gpu in ids))


def not_back(before: Look, now: Look, ours: Collection[int], owners: dict[int, str]) -> str:
    """Who holds memory that was free before the first engine; empty where it is all back.

    `ours`: processes that we started; `owners`: user of each process.
    """
    known = {(one.pid, one.gpu) for one in before.holders}
    new = [one for one in now.holders if (one.pid, one.gpu) not in known]
    mine = [one for one in new if one.pid in ours]
    more = now.used_mib - before.used_mib
    if not mine and more <= SLACK_MIB:
        return ""
    if new:
        return "; ".join(
            f"process {one.pid} of {owners.get(one.pid, 'a user that cannot be seen from here')} holds {one.mib} MiB"
            + (", one of our own" if one.pid in ours else "")
            for one in new
        )
    return f"{more} MiB more are in use than before the first engine, by a process that cannot be seen from here"


async def look() -> Look:
    """Nothing where there is no nvidia-smi, or none that answers."""
    program = shutil.which(PROGRAM)
    if program is None:
        return Look()
    gpus = await _ask(program, "--query-gpu=index,uuid,name,driver_version,memory.used")
    holders = await _ask(program, "--query-compute-apps=pid,gpu_uuid,used_memory")
    return parse(gpus, holders, os.environ.get(VISIBLE))


async def _ask(program: str, query: str) -> str:
    process = await asyncio.create_subprocess_exec(
        program,
        query,
        "--format=csv,noheader,nounits",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, ORDER[0]: ORDER[1]},
        start_new_session=True,
    )
    try:
        answer, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return answer.decode("utf-8", "replace")


def owners(holders: Sequence[Holder]) -> dict[int, str]:
    """User of each process that there still is."""
    found: dict[int, str] = {}
    for one in holders:
        with suppress(OSError):
            uid = Path(f"/proc/{one.pid}").stat().st_uid
            try:
                found[one.pid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                found[one.pid] = f"user {uid}"
    return found


def processor() -> str:
    """What engines without a GPU run on."""
    name = "CPU"
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} cores"
