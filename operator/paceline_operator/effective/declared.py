"""What a pod's engine was asked to do, read from its own command line: of a pod that waits to be replaced, the old one.

What runs is what counts: the spec may be newer than the pod, and engine.podTemplate may have changed the arguments.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeGuard

CONTAINER = "engine"
"""As resources/pod.py names it."""
DRAFTLESS_METHODS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""They look drafts up in text: where nothing fits, there is none, and nothing is wrong."""
WITHOUT_FULL_GRAPHS = frozenset({"NONE", "PIECEWISE"})
"""cudagraph modes in which no decode step replays a full graph."""


@dataclass(frozen=True)
class Declared:
    """The speculation that a command line asks for."""

    method: str = ""
    """Empty: no speculation."""
    max_k: int = 0
    schedule: tuple[tuple[int, int], ...] = ()
    """(first request count, k), ascending; empty where one k is for all loads."""
    verification: bool = False
    """Adaptive verification at boot."""
    full_graphs: bool = False
    """Decode steps are to replay full graphs."""

    @property
    def ks(self) -> frozenset[int]:
        """All that the engine is to draft at some load."""
        return frozenset(k for _, k in self.schedule) or frozenset({self.max_k})

    def k_at(self, requests: int) -> int:
        """What its boot schedule says at so many scheduled requests."""
        if not self.schedule:
            return self.max_k
        row = bisect_right([first for first, _ in self.schedule], max(1, requests)) - 1
        return self.schedule[max(0, row)][1]

    def __str__(self) -> str:
        if not self.method:
            return "no speculation"
        ks = " ".join(map(str, sorted(self.ks, reverse=True)))
        by_load = f"a schedule of the ks {ks}" if len(self.ks) > 1 else f"k {ks}"
        return f"{self.method} with {by_load}{' and adaptive verification' if self.verification else ''}"


def of_arguments(arguments: Sequence[str]) -> Declared | None:
    """Of the arguments of `vllm serve`; None where its speculative configuration is no JSON that says what is asked."""
    graphs = "--enforce-eager" not in map(_name, arguments)
    compilation = _json(arguments, "--compilation-config")
    if isinstance(compilation, Mapping):
        mode = str(compilation.get("cudagraph_mode", "")).upper().rpartition(".")[2]
        graphs = graphs and mode not in WITHOUT_FULL_GRAPHS
    config = _json(arguments, "--speculative-config")
    if config is None:
        return Declared(full_graphs=graphs)
    if not isinstance(config, Mapping):
        return None
    k, rows = config.get("num_speculative_tokens"), config.get("num_speculative_tokens_per_batch_size")
    schedule = _schedule(rows)
    if not _is_count(k) or schedule is None:
        return None
    return Declared(
        method=str(config.get("method") or "draft_model")[:64],
        max_k=k,
        schedule=tuple((first, min(one, k)) for first, one in schedule),
        verification=config.get("enable_adaptive_verification") is True,
        full_graphs=graphs,
    )


def of_pod(pod: Mapping[str, Any]) -> Declared | None:
    """Of a raw Pod; None where it has no engine container or its arguments cannot be read."""
    found = [one for one in (pod.get("spec") or {}).get("containers") or [] if one.get("name") == CONTAINER]
    if not found:
        return None
    return _of_arguments(tuple(str(one) for one in (*(found[0].get("command") or ()), *(found[0].get("args") or ()))))


_of_arguments = lru_cache(maxsize=16)(of_arguments)
"""The pods of a serving mostly have the same."""


def last_words(pod: Mapping[str, Any]) -> str:
    """What the engine's container said last before it ended; empty where it did not, or where nobody kept it."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        if status.get("name") == CONTAINER:
            states = status.get("state") or {}, status.get("lastState") or {}
            return next((str(one["terminated"].get("message", "")) for one in states if one.get("terminated")), "")
    return ""


def _schedule(rows: object) -> list[tuple[int, int]] | None:
    if rows is None:
        return []
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 3 for row in rows):
        return None
    if not all(_is_count(number) for row in rows for number in row):
        return None
    return sorted((first, k) for first, _, k in rows)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _name(argument: str) -> str:
    return argument.partition("=")[0].replace("_", "-")


def _json(arguments: Sequence[str], name: str) -> Any:
    """The value of the last option `name`; None where it is not given, () where it is not JSON."""
    text = None
    for argument, following in pairwise([*arguments, ""]):
        if _name(argument) == name:
            text = argument.partition("=")[2] if "=" in argument else following
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ()
