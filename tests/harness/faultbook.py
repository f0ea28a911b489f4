"""docs/faults.md: what was done about each fault, as the tests that made it saw it. A row that no run filled says so.

A test tells what it saw with `tell`; where PACELINE_UPDATE_FAULTS is set, that becomes the fault's row.
"""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
UPDATE = "PACELINE_UPDATE_FAULTS"
NOT_RUN = "not run yet"
REAL = "real vLLM pods"
STAND_IN = "stand-in engines"
HEAD = """\
# Faults

<!-- Written by the tests: PACELINE_UPDATE_FAULTS=1 pytest tests/e2e/test_safety.py tests/cluster/test_safety.py -m "long or not long" -->

What happens when something is broken on purpose. Each row was written by the test that broke it, on a real API server: with *real
vLLM pods* under a real kubelet (vLLM on a CPU, two cores that other work shares), or with *stand-in engines* behind the plugin's
own control port. In the rows of a claim that is too small, of preflight, and of a model token that is missing, the broken pod ends
before an engine starts in it; the pod beside runs one. Seconds are from the fault to the event about it, looked for about every half
second, and they are the machine's: what counts is the order. *Failures beside* are failed requests of a closed-loop load on another pod that was healthy, over the time of
the fault; requests that ran in the pod that was broken, and those that its Service sent there until the kubelet said that it is
not ready, are not in it. [Preflight](preflight.md), which finds damaged models before an engine starts, is off but in the row that
names it.

| fault | made by | seconds to the event | what is done | condition | event | failures beside | on |
|---|---|---|---|---|---|---|---|
"""  # noqa: E501
FAULTS = {
    "engine killed by SIGKILL": "SIGKILL to the engine process; vLLM's API server then ends with exit code 0",
    "engine killed by SIGSEGV": "SIGSEGV to the engine process",
    "exit code 0": "SIGTERM to vLLM's API server, which ends as if it was asked to",
    "hang": "SIGSTOP to the engine process, with requests running; /health goes on to answer 200",
    "own exception": "a canary with synthetic acceptance, which kills a CPU engine at its first request",
    "two crashes": "after two of the ends above, the breaker",
    "out of memory": "a canary whose container may have 256 MiB",
    "claim too small for the weights": "a canary whose model cache is a claim of 64 MiB",
    "corrupted weights": "a canary whose model.safetensors is cut off",
    "wrong tokenizer": "a canary whose tokenizer.json is no tokenizer",
    "draft of another vocabulary": "a canary with a draft model of another vocabulary",
    "the same, with preflight": "a canary with that draft and engine.preflight Checks, as it is by default",
    "control token Secret missing": "it is deleted, and a pod comes to mount it where no other pod of the node does",
    "model token Secret missing": "a canary that names a Secret that is not there",
    "port taken": "a canary in which another container listens on the serving port",
    "clock jump of an hour": "the operator's wall clock goes an hour ahead, then two back",
    "/metrics garbage": "the control port is shut and /metrics answers bytes that are no text",
    "/metrics of 10 MB": "the control port is shut and /metrics answers 10 MB of series",
    "/metrics nothing": "the control port is shut and /metrics answers an empty page",
}
"""Fault -> how it is made."""


@dataclass(frozen=True)
class Seen:
    """What a test saw of a fault."""

    seconds: float | None
    done: str
    condition: str
    event: str
    failures: str
    """Of how many requests, on the pod beside."""
    on: str


def tell(fault: str, seen: Seen) -> None:
    """Print it, and where it is asked for write it down."""
    print(fault, seen)
    if os.environ.get(UPDATE):
        PAGE.write_text(
            page(rows(PAGE.read_text(encoding="utf-8") if PAGE.exists() else "") | {fault: _row(fault, seen)})
        )


def short(message: str) -> str:
    """What of it fits into a cell: whole words."""
    return textwrap.shorten(message, 160, placeholder=" …")


def rows(text: str) -> dict[str, str]:
    """Fault -> its row, of those that the page has results of."""
    found = re.findall(r"^\| ([^|]+) \|.*\|$", text, re.MULTILINE)
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    return {fault: lines[fault] for fault in found if fault in FAULTS and NOT_RUN not in lines[fault]}


def page(filled: dict[str, str]) -> str:
    """Markdown with every fault."""
    return HEAD + "".join(filled.get(fault, _empty(fault)) + "\n" for fault in FAULTS)


def _row(fault: str, seen: Seen) -> str:
    seconds = "–" if seen.seconds is None else f"{seen.seconds:.1f}"
    cells = (fault, FAULTS[fault], seconds, seen.done, seen.condition, seen.event, seen.failures, seen.on)
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def _empty(fault: str) -> str:
    return f"| {fault} | {FAULTS[fault]} | {NOT_RUN} | | | | | |"
