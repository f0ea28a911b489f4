"""Real weights, real text: does changing k while it generates change what it says?

SmolLM2-135M with ngram drafts, greedy. The same prompts five times in one engine: k=0 twice (how far the engine agrees
with itself), the largest k twice, and k changed over HTTP all the while, in another order of arrival.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from lane import Lane
from scale import SCALE

from engine import Engine

REPLY_TOKENS = 160
PASSAGE_CHARACTERS = 200 if SCALE.cpu else 900
STEPS_BETWEEN = 4
ASKS = ("Repeat the following text word for word.", "Summarize the following text.", "List the key terms of this text.")


def prompts(root: Path, count: int) -> list[str]:
    """Passages of the project's own prose, each with something to do."""
    prose = "\n".join((root / name).read_text() for name in ("LICENSE", "README.md", "docs/architecture.md"))
    start = random.Random(0)
    found = []
    for i in range(count):
        at = start.randrange(len(prose) - PASSAGE_CHARACTERS)
        found.append(f"{ASKS[i % len(ASKS)]}\n\n{prose[at : at + PASSAGE_CHARACTERS]}")
    return found


def compare(lane: Lane, engine: str, root: Path) -> None:
    """Five passes over the prompts; mismatches against the first."""
    count = 3 if SCALE.cpu else 64
    facts = lane.remotes[engine].facts
    found = lane.ask(engine, passes, texts=prompts(root, count), tokens=24 if SCALE.cpu else REPLY_TOKENS)
    lane.save(engine, {"engine": facts, "batch_invariant": lane.remotes[engine].options.batch_invariant, **found})


def passes(engine: Engine, *, texts: list[str], tokens: int) -> dict[str, Any]:
    """Texts of every pass, compared token by token."""
    tokenizer = engine.llm.get_tokenizer()
    ids = [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
        for text in texts
    ]
    top = SCALE.ladder[0]
    plan: dict[str, tuple[list[int], int]] = {
        "k0": ([0], 0), "k0_again": ([0], 0), "k0_other_order": ([0], 1), f"k{top}": ([top], 0),
        "live": ([top, 0, 3, 1], 0), "live_other_order": ([1, top, 0, 3], 1),
    }  # fmt: skip
    replies: dict[str, dict[int, list[int]]] = {}
    found: dict[str, Any] = {"prompts": len(ids), "tokens_each": tokens, "passes": {}}
    for name, (ks, order) in plan.items():
        begun, steps = time.perf_counter(), engine.completed
        replies[name], changes = generate(engine, ids, tokens, ks, order)
        cells = engine.control("GET", "/state")
        same = [replies[name][i] == replies["k0"][i] for i in range(len(ids))]
        found["passes"][name] = {
            "ks": ks, "changes": changes, "mismatches": same.count(False), "steps": engine.completed - steps,
            "tokens": sum(map(len, replies[name].values())), "seconds": time.perf_counter() - begun,
            "first_difference": [_first_difference(replies[name][i], replies["k0"][i]) for i in range(len(ids))
                                 if not same[i]][:20],
            "policy_errors": cells["policyErrors"],
        }  # fmt: skip
    found["example"] = {"prompt": texts[0], "reply": tokenizer.decode(replies["k0"][0])}
    rate = {name: at["mismatches"] / len(ids) for name, at in found["passes"].items()}
    found["mismatch_rate_k0"] = max(rate["k0_again"], rate["k0_other_order"])
    found["mismatch_rate_live"] = max(rate["live"], rate["live_other_order"])
    return found


def generate(
    engine: Engine, ids: list[list[int]], tokens: int, ks: list[int], order: int
) -> tuple[dict[int, list[int]], int]:
    """Greedy replies by prompt, all at once, the k pushed anew every few steps; and how often it was."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine.push(ks[0])
    replies: dict[int, list[int]] = {}
    names = {}
    for i in reversed(range(len(ids))) if order else range(len(ids)):
        engine.serial += 1
        names[f"t{engine.serial}"] = i
        engine.engine.add_request(
            f"t{engine.serial}",
            {"prompt_token_ids": ids[i]},
            SamplingParams(
                temperature=0.0, max_tokens=tokens, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
            ),
        )
    changes, turn = 0, 0
    while engine.engine.has_unfinished_requests():
        for output in engine.engine.step():
            if output.finished and output.request_id in names:
                replies[names[output.request_id]] = list(output.outputs[0].token_ids)
        turn += 1
        if len(ks) > 1 and turn % STEPS_BETWEEN == 0:
            changes += 1
            engine.push(ks[changes % len(ks)])
    return replies, changes


def _first_difference(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
