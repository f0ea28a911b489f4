"""What one engine did lately, counted from its samples or, where it has no plugin, from its own counters.

Forgotten by evidence, never by time: an idle engine's counts stay as they are. `GET /state` and samples have k, steps
and drafts by position; vLLM's counters only sums, and none of drafts in an engine that does not speculate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline_engine.protocol import Samples, State
from paceline_operator.effective import decay
from paceline_operator.effective.decay import Decay
from paceline_operator.effective.shift import Shift, added

MEMORY_STEPS = 4000.0
"""Request-steps, drafts or steps after which what came before counts for half or less."""
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
GENERATED_TOKENS = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
READ = (DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, GENERATED_TOKENS, RUNNING)
LARGEST = 10**15
"""A count above this is nonsense."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one engine process."""

    boot: str = ""
    on: float = 0.0
    off: float = 0.0
    """Steps that the table in force gave a k above 0, and k 0. Without a plugin: request-steps by the schedule."""
    request_steps: float = 0.0
    """That sampled under a k above 0."""
    drafts: float = 0.0
    """Of these, those that had a draft."""
    verified: float = 0.0
    accepted: float = 0.0
    """First draft tokens verified, and those of them accepted. Without a plugin: drafts, and all accepted tokens."""
    smaller: float = 0.0
    surplus: float = 0.0
    """Steps (without a plugin: drafts) for which less than the largest k was asked, and of these, as a share of the way
    from that k to the largest, what was drafted beyond: all of it, where an engine does not heed k."""
    decoded: float = 0.0
    missed: float = 0.0
    """Decode steps, and those of them that had no full graph, by what the engine says of its graphs."""
    shift: Shift = field(default_factory=Shift)
    """Drafts lately, and before."""
    decay: Decay = field(default_factory=Decay)
    """Drafts by context."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """vLLM's, as read last."""


def sampled(past: Seen, state: State, samples: Samples) -> Seen:
    """`past` with the samples of an engine that has the plugin."""
    if past.boot != state.boot_id or past.counters or samples.reset:
        past = Seen(boot=state.boot_id)
    cells = [cell for cell in samples.acceptance if cell.k > 0]
    graphs, most = state.capabilities.graph_requests, state.capabilities.max_k
    decoded = [cell for cell in samples.cells if not cell.probe and not cell.prompt]
    missed = [cell for cell in decoded if cell.request_steps > graphs.get(cell.k_drafted, 0) * cell.steps]
    smaller = [cell for cell in samples.cells if cell.k_drafted < most]
    return replace(
        past,
        shift=added(past.shift, samples.acceptance),
        decay=decay.added(past.decay, samples.cells),
        **_added(
            past,
            verified=_total(cell.drafted[0] for cell in cells if cell.drafted),
            accepted=_total(cell.accepted[0] for cell in cells if cell.accepted),
        ),
        **_added(
            past,
            request_steps=_total(cell.request_steps for cell in cells),
            drafts=_total(cell.drafts for cell in cells),
        ),
        **_added(
            past,
            on=_total(steps for k, steps in samples.steps_by_k.items() if k > 0),
            off=_total([samples.steps_by_k.get(0, 0)]),
        ),
        **_added(
            past,
            smaller=_total(cell.steps for cell in smaller),
            surplus=sum(_total([cell.steps]) * _beyond(cell.k_verified, cell.k_drafted, most) for cell in smaller),
        ),
        **_added(past, decoded=_total(cell.steps for cell in decoded), missed=_total(cell.steps for cell in missed)),
    )


def counted(past: Seen, counters: Mapping[str, float], asked: tuple[int, int]) -> Seen:
    """`past` with what vLLM's counters gained; without one reading before, or after a restart, nothing did.

    `asked`: the k that the boot schedule gives at the requests that run now, and its largest.
    """
    before, now = past.counters, {name: counters[name] for name in READ if 0 <= counters.get(name, -1.0) <= LARGEST}
    if not before or any(now.get(name, 0.0) < value for name, value in before.items() if name != RUNNING):
        return Seen(counters=now)

    def gain(name: str) -> float:
        return now.get(name, 0.0) - before.get(name, 0.0)

    accepted, drafts = gain(ACCEPTED_TOKENS), gain(DRAFTS)
    request_steps = max(0.0, gain(GENERATED_TOKENS) - accepted)  # each gives one token beside the accepted ones
    k, most = asked
    smaller = drafts if k < most and before.get(RUNNING) == now.get(RUNNING) else 0.0
    surplus = smaller * _beyond(gain(DRAFT_TOKENS) / drafts, k, most) if smaller else 0.0
    return replace(
        past,
        counters=now,
        **_added(past, verified=drafts, accepted=accepted),
        **_added(past, request_steps=request_steps if k else 0.0, drafts=drafts if k else 0.0),
        **_added(past, on=request_steps if k else 0.0, off=0.0 if k else request_steps),
        **_added(past, smaller=smaller, surplus=surplus),
    )


def _beyond(drafted: float, asked: int, most: int) -> float:
    """Share of the way from the k asked for to the largest, 0 to 1."""
    return min(1.0, max(0.0, (drafted - asked) / (most - asked)))


def _total(counts: Iterable[float]) -> float:
    return float(min(sum(counts), LARGEST))


def _added(past: Seen, **news: float) -> dict[str, Any]:
    """Of `past`, what belongs together with more of it, of which the old counts the less the more is new."""
    most, new = max(getattr(past, name) for name in news), max(news.values())
    keep = min(MEMORY_STEPS / (MEMORY_STEPS + new), MEMORY_STEPS / max(most, MEMORY_STEPS)) if new > 0 else 1.0
    return {name: keep * getattr(past, name) + value for name, value in news.items()}
