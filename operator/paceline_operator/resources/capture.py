"""Which batch sizes get CUDA graphs. A decode step of n requests at k has n * (k + 1) tokens and uses a full graph only
at a multiple of k + 1; vLLM's own ceiling of 512 tokens leaves larger steps eager."""

from __future__ import annotations

from collections.abc import Collection

MAX_SIZES = 96
"""A graph costs start-up time and memory: 80 sizes at 256 requests booted in 170 s on an H200, vLLM 0.33."""
STEPS_PER_DOUBLING = (4, 3, 2, 1)
"""Request counts between n and 2n, from finest: 4 pads a step by at most a fifth, 1 by up to half."""


def request_counts(max_num_seqs: int, steps_per_doubling: int) -> tuple[int, ...]:
    """Ascending request counts from 1 to max_num_seqs, about `steps_per_doubling` in each doubling."""
    doublings = max_num_seqs.bit_length()
    powers = (round(2 ** (step / steps_per_doubling)) for step in range(doublings * steps_per_doubling))
    # Above 16 requests in multiples of 8: matrix kernels work on tiles, and a padded tile costs a full one.
    counts = {count if count <= 16 else -(-count // 8) * 8 for count in powers}
    return tuple(sorted({count for count in counts if count < max_num_seqs} | {max_num_seqs}))


def capture_sizes(ladder: Collection[int], max_num_seqs: int) -> tuple[int, ...]:
    """Ascending graph sizes in tokens: for each k of the ladder multiples of k + 1 up to (k + 1) * max_num_seqs.

    The finest spacing with at most MAX_SIZES sizes, or the coarsest there is. vLLM itself drops what exceeds
    max_num_batched_tokens, which no step can exceed either.
    """
    for steps in STEPS_PER_DOUBLING:
        counts = request_counts(max_num_seqs, steps)
        sizes = {n * (k + 1) for k in ladder for n in counts}
        if len(sizes) <= MAX_SIZES:
            break
    return tuple(sorted(sizes))
