"""Which batch sizes get CUDA graphs. A decode step of n requests at k has n * (k + 1) tokens, and vLLM's own ceiling of
512 tokens leaves larger steps eager.

A size that one k needs can keep another from its graphs. vLLM (0.33, V2 runner: v1/worker/gpu/cudagraph_utils.py; see
also vllm#56136) captures each size for every k, rounded up to a multiple of k + 1, and looks for a step's graph at the
smallest captured token count that holds it and nowhere else: where that count is no multiple of this k + 1, the step
runs piecewise. The plugin puts the next graph of the step's own k within its reach (engine: graphs.py), so with it
sizes are simply close to each other. Without it they are multiples of all k + 1 at once above a few tokens, as far as
that is possible; at 32 requests and k=3 that pads 128 tokens to 240, and a step took 9.6 ms in place of 8.1 on an H200.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from itertools import pairwise
from math import lcm

MAX_SIZES, MAX_GRAPHS = 112, 450
"""A graph costs start-up time and memory: 107 sizes with 350 full graphs for 7 ks were captured in 35 s and took 4.0
GiB (8B model with a one-layer draft, H200, vLLM 0.33)."""
STEPS_PER_DOUBLING = (4, 3, 2, 1)
"""Sizes between n and 2n, from finest: 4 pads a step by at most a fifth, 1 by up to half."""
EVERY_SIZE = 64
"""Tokens up to which every size is captured that some k can have."""

SPACING = (8, 6, 4, 3, 2, 1)
"""Sizes in each doubling where any graph is within reach, from finest: 8 pads a step by 4 % on average."""
SMALL = (*range(1, 17), 20, 24, 28, 32)
"""Sizes up to which padding costs little time, but is a large share."""
TILE = 8
"""Above them in its multiples: matrix kernels work on tiles, and a padded tile costs a full one."""
LARGEST_COMMON = 2 * MAX_SIZES
"""Of the smallest multiple of all k + 1. Every size that a k can have is captured up to there, half of all sizes
or more; beyond it there would be too many."""


def request_counts(max_num_seqs: int, steps_per_doubling: int) -> tuple[int, ...]:
    """Ascending request counts from 1 to max_num_seqs, about `steps_per_doubling` in each doubling."""
    doublings = max_num_seqs.bit_length()
    powers = (round(2 ** (step / steps_per_doubling)) for step in range(doublings * steps_per_doubling))
    # Above 16 requests in multiples of 8: matrix kernels work on tiles, and a padded tile costs a full one.
    counts = {count if count <= 16 else -(-count // 8) * 8 for count in powers}
    return tuple(sorted({count for count in counts if count < max_num_seqs} | {max_num_seqs}))


def capture_sizes(ladder: Collection[int], max_num_seqs: int) -> tuple[int, ...]:
    """Ascending graph sizes in tokens, up to (k + 1) * max_num_seqs for each k of the ladder.

    The finest spacing with at most MAX_SIZES sizes, or the coarsest there is; of the two ways to lay them out the one
    under which more steps find a graph. vLLM itself drops what exceeds max_num_batched_tokens, which no step can exceed
    either.
    """
    return _capture_sizes(tuple(sorted(set(ladder))), max_num_seqs)


@lru_cache(maxsize=256)  # every pass over a serving renders its pods, and a millisecond for each is too much
def _capture_sizes(ladder: tuple[int, ...], max_num_seqs: int) -> tuple[int, ...]:
    fits: list[tuple[int, ...]] = []
    for steps in STEPS_PER_DOUBLING:
        layouts = [_by_requests(ladder, max_num_seqs, steps)]
        if lcm(*(k + 1 for k in ladder)) <= LARGEST_COMMON:
            layouts.append(_aligned(ladder, max_num_seqs, steps))
        fits = [sizes for sizes in layouts if len(sizes) <= MAX_SIZES]
        if fits:
            break
    return max(fits or layouts[:1], key=lambda sizes: sum(covered(sizes, ladder, max_num_seqs).values()))


def close_sizes(ladder: Collection[int], max_num_seqs: int) -> tuple[int, ...]:
    """The same where every full graph is within reach, or none is wanted: at the finest spacing with at most MAX_SIZES
    sizes and about MAX_GRAPHS full graphs, or the coarsest there is."""
    return _close_sizes(tuple(sorted(set(ladder))), max_num_seqs)


@lru_cache(maxsize=256)
def _close_sizes(ladder: tuple[int, ...], max_num_seqs: int) -> tuple[int, ...]:
    ends = {(k + 1) * max_num_seqs for k in ladder}
    top = max(ends)
    sizes: tuple[int, ...] = ()
    for steps in SPACING:
        wide = (SMALL[-1] * 2 ** (step / steps) for step in range(1, steps * top.bit_length()))
        tiled = {-(-int(size) // TILE) * TILE for size in wide}
        sizes = tuple(sorted({size for size in {*SMALL, *tiled} if size < top} | ends))
        if len(sizes) <= MAX_SIZES and sum(size <= end for end in ends for size in sizes) <= MAX_GRAPHS:
            break
    return sizes


def covered(sizes: Collection[int], ladder: Collection[int], max_num_seqs: int) -> dict[int, float]:
    """For each k the share of request counts, 1 to max_num_seqs, whose decode step replays a full graph."""
    widths = [k + 1 for k in ladder]
    largest = min(max(sizes), max_num_seqs * max(widths))
    graphs: dict[int, set[int]] = {0: set()}
    for size in sizes:
        for width in widths:
            tokens = -(-size // width) * width
            if tokens <= largest and tokens // width <= max_num_seqs:
                graphs.setdefault(tokens, set()).add(width)
    steps = list(pairwise(sorted(graphs)))
    return {
        width - 1: sum(at // width - below // width for below, at in steps if width in graphs[at]) / max_num_seqs
        for width in widths
    }


def _by_requests(ladder: Collection[int], max_num_seqs: int, steps: int) -> tuple[int, ...]:
    """For each k multiples of k + 1, at the same request counts."""
    return tuple(sorted({n * (k + 1) for k in ladder for n in request_counts(max_num_seqs, steps)}))


def _aligned(ladder: Collection[int], max_num_seqs: int, steps: int) -> tuple[int, ...]:
    """Every size that a k can have, and above EVERY_SIZE multiples of all k + 1; the end of each k is among them."""
    widths = {k + 1 for k in ladder}
    common, top = lcm(*widths), max(widths) * max_num_seqs
    dense = min(top, common * -(-EVERY_SIZE // common))
    sizes = {size for size in range(2, dense + 1) if any(width > 1 and size % width == 0 for width in widths)}
    size = float(dense)
    while size < top and len(sizes) <= MAX_SIZES:
        size *= 2 ** (1 / steps)
        sizes.add(min(top, common * -(-int(size) // common)))
    sizes |= {1} | {width * max_num_seqs for width in widths}
    return tuple(sorted(size for size in sizes if any(size % w == 0 and size // w <= max_num_seqs for w in widths)))
