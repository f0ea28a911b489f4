"""vLLM's own graph manager, its candidates laid out for a schedule, before and after the plugin extends them; and what
the plugin warms of adaptive verification.

Usage: drive_worker.py SIZES LADDER MAX_NUM_SEQS (lists with commas). Prints, as JSON, for each k the tokens of the full
graph that each number of requests finds (0: none), before and after, and what a mixed step of each size finds; then the
requests and drafts that vLLM's function for cutting drafts was warmed with.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.v1.worker.gpu.spec_decode import adaptive_verification

from paceline_engine import graphs, worker


def manager(sizes: list[int], ladder: list[int], seqs: int) -> Any:
    """As its constructor leaves it and a capture would, without a device."""
    most = max(ladder)
    schedule = [(i + 1, i + 1, k) for i, k in enumerate(ladder[:-1])] + [(len(ladder), seqs, ladder[-1])]
    found: Any = object.__new__(CudaGraphManager)
    found.vllm_config = SimpleNamespace(
        num_speculative_tokens=most,
        speculative_config=SimpleNamespace(
            uses_dynamic_speculative_decoding=lambda: True, num_speculative_tokens_per_batch_size=schedule
        ),
        parallel_config=SimpleNamespace(data_parallel_size=1),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
    )
    found.max_num_reqs, found.decode_query_len, found.varlen_decode = seqs, most + 1, False
    found.compilation_config = SimpleNamespace(cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes))
    found.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    found.ubatch_runner, found.lora_capture_cases = None, [0]
    found._lora_dispatch_map, found._max_lora_case = {}, 0
    found._candidates, found._capture_descs, found._graphs_captured = {}, {}, True
    found._init_candidates()
    return found


def told(one: Any, ladder: list[int], seqs: int) -> dict[int, list[int]]:
    """Tokens of the full graph for 1 to `seqs` requests, by k."""

    def full(k: int, n: int) -> int:
        graph = one.dispatch(n, n * (k + 1), k + 1, 0, max_query_len=k + 1)
        return graph.num_tokens if graph.cg_mode == CUDAGraphMode.FULL else 0

    return {k: [full(k, n) for n in range(1, seqs + 1)] for k in ladder}


def warmed() -> list[tuple[int, int]]:
    """(requests, drafts admitted) of each call, vLLM's own function run as it is: compiling it is left out."""
    calls: list[tuple[int, int]] = []
    plain = adaptive_verification._assign_draft_token_budget

    def cut(chances: Any, places: Any, capacities: Any, budget: int, steps: int) -> None:
        assert torch.is_inference_mode_enabled()
        plain(chances, places, capacities, budget, steps)
        calls.append((len(places), int(capacities.sum())))
        assert calls[-1][1] == budget

    adaptive_verification._assign_draft_token_budget_compiled = cut
    worker.warm(
        SimpleNamespace(
            num_speculative_steps=3,
            _confidence_probs=torch.rand(16, 3),
            _batch_draft_capacity=torch.empty(16, dtype=torch.int32),
        )
    )
    return calls


def main() -> None:
    """Before and after."""
    sizes, ladder = ([int(word) for word in text.split(",")] for text in sys.argv[1:3])
    seqs = int(sys.argv[3])
    one = manager(sizes, ladder, seqs)
    captured = {graph for graphs in one._capture_descs.values() for graph in graphs}

    def mixed() -> list[int]:
        return [one.dispatch(1, n, None, 0).num_tokens for n in range(1, max(sizes) + 1)]

    before, mixed_before = told(one, ladder, seqs), mixed()
    more = graphs.offer(SimpleNamespace(cudagraph_manager=one))
    offered = {graph for found in one._candidates.values() for graph in found}
    print(
        json.dumps(
            {
                "before": before, "after": told(one, ladder, seqs), "more": more,
                "mixed_alike": mixed() == mixed_before, "all_captured": offered <= captured,
                "warmed": warmed(),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
