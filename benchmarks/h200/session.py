"""All measurements on a machine with two H200s: two lanes at once, then both GPUs as one engine.

Usage: session.py OUT_FOLDER [--seconds 1290] [--lane loop|plugin|text|ranks|steps|single ...] [--stage STAGE ...]
                  [--smollm FOLDER]

Each lane is a process, each engine another, each stage has its time; what fails is written to lane_*.json with its
traceback in lane_*.log, and the rest goes on. Results are in OUT_FOLDER as soon as they are measured. Idle engines use
no GPU, so all engines of a lane are booted at once and measured in turn.

loop    GPU 0: plugin and schedule (main), no drafter (off), static k twice. What a schedule costs; the closed loop.
plugin  GPU 1: main and av. Changes under load, overhead, samples, verification, the tuner with verification.
ranks   both GPUs: one tensor-parallel engine with av booted, 200 changes.
text    GPU 1, beside ranks: real weights, batch-invariant and not.

Lanes by themselves, for after a change:

steps   both GPUs: ranks, and of `plugin` what does not need av. After one of what runs in every step.
single  one GPU: the closed loops with and without verification, and the overhead. After one of the tuner.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import arms
import changes
import closed_loop
import mixed
import samples
import text
import verification
from lane import Lane
from scale import SCALE

from engine import NO_MULTICAST, Options

ROOT = Path(__file__).resolve().parents[2]
LAST_SECONDS = 220.0
"""Kept for ranks and text at the end."""


def options(port: int, devices: str, name: str, **more: object) -> Options:
    """An engine on the given GPUs."""
    return Options(name=name, devices=devices, port=port, token=secrets.token_hex(32), **more)  # type: ignore[arg-type]


def second() -> str:
    """GPU of the second lane; the first where there is one."""
    return str(max(0, min(1, len(list(Path("/dev").glob("nvidia[0-9]*"))) - 1)))


def loop(lane: Lane) -> None:
    """GPU 0."""
    static = {"kv_gib": 7.5, "schedule": False, "plugin": False}
    engines = [
        options(8801, "0", "main", kv_gib=14.0),
        options(8802, "0", "off", kv_gib=13.0, drafter=False, plugin=False),
    ]
    if not lane.only or "boots" in lane.only:
        engines += [options(8803, "0", "static1", **static), options(8804, "0", "static2", **static)]
    lane.boot(engines)
    lane.stage("boots", 170, arms.boots)
    lane.end(*({"static1", "static2"} & lane.remotes.keys()))
    lane.stage("closed_loop", 780, lambda lane: closed_loop.run(lane, "main", "off"))


def plugin(lane: Lane) -> None:
    """GPU 1."""
    quiet = str(lane.out.resolve() / ".quiet")
    engines = [
        options(8811, second(), "main", kv_gib=26.0),
        options(8812, second(), "av", kv_gib=26.0, verification=True, quiet=quiet),
    ]
    unverified = {"retune", "overhead", "sweep"}
    lane.boot(engines[:1] if lane.only and unverified.issuperset(lane.only) else engines)
    lane.stage("retune", 90, lambda lane: changes.retune(lane, "main"))
    lane.stage("overhead", 360, lambda lane: arms.overhead(lane, "main"))
    lane.stage("sweep", 260, lambda lane: samples.sweep(lane, "main"))
    lane.stage("switches", 60, lambda lane: changes.switches(lane, "av"))
    lane.stage("verification", 180, verification.by_load)
    lane.stage("starved", 60, lambda lane: verification.starve(lane, "av"))
    lane.stage("closed_loop_verification", 340, lambda lane: closed_loop.run_verification(lane, "av"))


def ranks(lane: Lane) -> None:
    """Both GPUs."""
    lane.boot([options(8821, "0,1", "ranks", kv_gib=8.0, verification=True)])
    lane.stage("ranks", 110, lambda lane: changes.ranks(lane, "ranks"))


def steps(lane: Lane) -> None:
    """Both GPUs; main on GPU 0."""
    lane.boot(
        [options(8841, "0", "main", kv_gib=26.0), options(8842, "0,1", "ranks", kv_gib=8.0, verification=True)],
    )
    lane.stage("ranks", 110, lambda lane: changes.ranks(lane, "ranks"))
    lane.end("ranks")
    lane.stage("overhead", 360, lambda lane: arms.overhead(lane, "main"))
    lane.stage("retune", 90, lambda lane: changes.retune(lane, "main"))
    lane.stage("sweep", 260, lambda lane: samples.sweep(lane, "main"))


def single(lane: Lane) -> None:
    """GPU 0."""
    engines = [
        options(8851, "0", "main", kv_gib=14.0),
        options(8852, "0", "off", kv_gib=13.0, drafter=False, plugin=False),
    ]
    if not lane.only or "closed_loop_verification" in lane.only:
        quiet = str(lane.out.resolve() / ".quiet")
        engines += [options(8853, "0", "av", kv_gib=20.0, verification=True, quiet=quiet)]
    lane.boot(engines)
    lane.stage("closed_loop", 780, lambda lane: closed_loop.run(lane, "main", "off"))
    lane.stage("closed_loop_verification", 340, lambda lane: closed_loop.run_verification(lane, "av"))
    lane.stage("overhead", 360, lambda lane: arms.overhead(lane, "main"))
    lane.stage("mixed", 150, lambda lane: mixed.sweep(lane, "main"))


def text_lane(lane: Lane, model: Path) -> None:
    """GPU 1, beside ranks."""
    engines = [
        options(8831, second(), "text_invariant", kv_gib=4.0, model=str(model), batch_invariant=True),
        options(8832, second(), "text", kv_gib=4.0, model=str(model)),
    ]
    lane.boot(engines[1:] if SCALE.cpu else engines)
    for one in engines[1:] if SCALE.cpu else engines:
        lane.stage(one.name, 60, lambda lane, name=one.name: text.compare(lane, name, ROOT))  # type: ignore[misc]


def one_lane(name: str, arguments: argparse.Namespace) -> None:
    """Run a lane in this process; asked to end, it ends its engines."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
    lane = Lane(name, arguments.out, time.monotonic() + arguments.seconds, arguments.stage)
    try:
        if name == "text":
            text_lane(lane, arguments.smollm)
        else:
            {"loop": loop, "plugin": plugin, "ranks": ranks, "steps": steps, "single": single}[name](lane)
    finally:
        for remote in lane.remotes.values():
            remote.close()
        lane.log("lane ends")


def together(names: list[str], until: float, arguments: argparse.Namespace) -> None:
    """Lanes side by side, each with its log; what is there at `until` is ended with all it started."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    for name in names:
        with (arguments.out / f"lane_{name}.log").open("ab") as log:
            command = [
                sys.executable,
                "-u",
                __file__,
                str(arguments.out),
                "--lane",
                name,
                "--smollm",
                str(arguments.smollm),
                *(word for stage in arguments.stage for word in ("--stage", stage)),
            ]
            command += ["--seconds", str(max(0.0, until - time.monotonic()))]
            running[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    for name, process in running.items():
        try:
            code = process.wait(max(1.0, until + 15 - time.monotonic()))
            print(f"lane {name} ended with {code}", flush=True)
        except subprocess.TimeoutExpired:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            print(f"lane {name} was ended: out of time", flush=True)


def main() -> None:
    """All lanes in their order, or the one asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=1290.0)
    parser.add_argument(
        "--lane", action="append", choices=["loop", "plugin", "text", "ranks", "steps", "single"], default=[]
    )
    parser.add_argument("--stage", action="append", default=[], help="of these lanes; all if absent")
    parser.add_argument("--smollm", type=Path, default=Path("/tmp/smollm"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ |= NO_MULTICAST
    if len(arguments.lane) == 1:
        one_lane(arguments.lane[0], arguments)
        return
    end = time.monotonic() + arguments.seconds
    if arguments.lane:
        together(arguments.lane, end, arguments)
        return
    together(["loop", "plugin"], end - LAST_SECONDS, arguments)
    together(["ranks", "text"], end, arguments)
    print("session over", flush=True)


if __name__ == "__main__":
    main()
