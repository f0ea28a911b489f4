"""Runs in the engine's environment: drives vLLM's real AsyncScheduler, with the plugin, two steps in flight.

vLLM switches asynchronous scheduling off on a CPU, so no engine there would show it. The model runner is played here:
every draft is accepted. JSON on stdout: per step the k chosen, the drafts verified and what is reserved for the next;
before that, what a scheduler looks like that found no token. In: the model's folder, the token folder and an empty one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from paceline_engine.plugin import paced
from paceline_engine.protocol import ENV_CONTROL_HOST, ENV_CONTROL_PORT, ENV_TOKEN_DIRECTORY, Policy

BLOCKS, BLOCK_SIZE = 1000, 16
PROMPT_TOKENS = 70
CHUNK_TOKENS = 64
SEED = [[1, 16, 5]]
SEQUENCE = (5, 1, 0, 3)
STEPS_EACH = 4


def build(model: str, tokens: str) -> Any:
    os.environ |= {ENV_TOKEN_DIRECTORY: tokens, ENV_CONTROL_HOST: "127.0.0.1", ENV_CONTROL_PORT: "0"}
    config = EngineArgs(
        model=model,
        enforce_eager=True,
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=16,
        max_num_batched_tokens=CHUNK_TOKENS,
        enable_prefix_caching=False,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 5,
            "prompt_lookup_max": 4,
            "num_speculative_tokens_per_batch_size": SEED,
        },
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return paced(AsyncScheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=True,
    )


def complete(scheduler: Any, output: Any) -> None:
    ids = list(output.num_scheduled_tokens)
    sampled = []
    for req_id in ids:
        drafts = len(output.scheduled_spec_decode_tokens.get(req_id, ()))
        chunk = scheduler.requests[req_id].num_computed_tokens < PROMPT_TOKENS
        sampled.append([] if chunk else [7] * (1 + drafts))
    result = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={req_id: at for at, req_id in enumerate(ids)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
    scheduler.update_from_output(output, result)


def main() -> None:
    model, tokens, empty = sys.argv[1:]
    tokenless = build(model, empty)
    without = {
        "installed": tokenless._paceline is not None,
        "lookup": list(tokenless.dynamic_sd_lookup),
        "lookup_type": type(tokenless.dynamic_sd_lookup).__name__,
        "threads": [thread.name for thread in threading.enumerate() if "paceline" in thread.name],
    }
    scheduler = build(model, tokens)
    for name in ("a", "b"):
        scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=[1] * PROMPT_TOKENS,
                sampling_params=SamplingParams(max_tokens=500),
                pooling_params=None,
            )
        )
    installed = scheduler._paceline
    steps = []
    in_flight = [scheduler.schedule()]
    for generation, k in enumerate(SEQUENCE, start=1):
        installed.hooks.policy.swap(Policy(generation=generation, table=(k,) * 17))
        for _ in range(STEPS_EACH):
            output = scheduler.schedule()
            in_flight.append(output)
            steps.append(
                {
                    "k": output.num_spec_tokens_to_schedule,
                    "scheduled": dict(output.num_scheduled_tokens),
                    "verified": {r: len(drafts) for r, drafts in output.scheduled_spec_decode_tokens.items()},
                    "reserved": len(scheduler._spec_token_placeholders),
                }
            )
            complete(scheduler, in_flight.pop(0))
    state = installed.server._backend.state()
    digest = installed.server._backend._digest
    digest.run()
    digest.recorder.tick(digest.uptime + 10, idle=False)
    samples = installed.server._backend.samples(None)
    scheduler.shutdown()
    told = {"without": without, "steps": steps, "state": state.model_dump(), "samples": samples.model_dump()}
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
