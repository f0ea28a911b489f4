"""Every full CUDA graph within reach of the steps it fits: in a worker process, once, after the graphs are captured.

vLLM (0.32 and 0.33, V2 runner: v1/worker/gpu/cudagraph_utils.py) captures each size for every k of the schedule,
rounded up to a multiple of k + 1, and then offers a step only the graphs at the smallest captured token count that
holds it. Where none of these is of the step's own k + 1 the step runs piecewise, though a graph of its own lies a few
tokens further up (vllm#56136). Offered after the ones that vLLM offers itself, and before the piecewise ones, such a
graph is replayed as any other: padded, by vLLM's own code, which checks each one that it is offered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

CANDIDATES = "_candidates"
"""(tokens, active LoRAs) -> graphs, in the order in which they are tried."""


def offer(runner: Any) -> int:
    """Extend what the target's and the draft's graph managers of this `runner` offer.

    Returns for how many token counts there is more now; 0 also where the runner keeps its graphs in another way. Ranks
    that share data-parallel work agree on shapes step by step: there nothing is changed.
    """
    return sum(_extend(manager) for manager in _managers(runner) if getattr(manager, "dp_size", 1) == 1)


def _managers(runner: Any) -> Iterator[Any]:
    for owner in (runner, getattr(runner, "speculator", None)):
        for value in list(getattr(owner, "__dict__", {}).values()):
            if isinstance(getattr(value, CANDIDATES, None), dict):
                yield value


def _extend(manager: Any) -> int:
    candidates: dict[tuple[int, int], list[Any]] = getattr(manager, CANDIDATES)
    own: dict[tuple[int, int], dict[int, Any]] = {}
    for (_, loras), found in candidates.items():
        for graph in found:
            if _is_full(graph):
                own.setdefault((loras, graph.uniform_token_count), {})[graph.num_tokens] = graph
    sizes = {kind: sorted(graphs) for kind, graphs in own.items()}
    more = 0
    for (tokens, loras), found in candidates.items():
        full = [graph for graph in found if _is_full(graph)]
        there = {graph.uniform_token_count for graph in full}
        added = []
        for (of, width), graphs in own.items():
            at = bisect_left(sizes[of, width], tokens)
            if of == loras and width not in there and at < len(sizes[of, width]):
                added.append(graphs[sizes[of, width][at]])
        if added:
            found[len(full) : len(full)] = added
            more += 1
    return more


def _is_full(graph: Any) -> bool:
    return graph.cg_mode.name == "FULL" and graph.uniform_token_count is not None and graph.num_ubatches == 1
