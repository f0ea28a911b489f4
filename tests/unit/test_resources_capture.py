"""Which batch sizes get CUDA graphs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.resources.capture import MAX_SIZES, capture_sizes, request_counts

LADDERS = st.sets(st.integers(0, 32), min_size=1, max_size=16)
SEQS = st.integers(1, 4096)


@given(LADDERS, SEQS)
def test_every_k_has_a_graph_for_every_number_of_requests(ladder: set[int], max_num_seqs: int) -> None:
    sizes = capture_sizes(ladder, max_num_seqs)
    for k in ladder:
        multiples = [size for size in sizes if size % (k + 1) == 0]
        assert k + 1 in multiples
        assert (k + 1) * max_num_seqs in multiples


@given(LADDERS, SEQS)
def test_sizes_ascend_and_none_is_for_no_k(ladder: set[int], max_num_seqs: int) -> None:
    sizes = capture_sizes(ladder, max_num_seqs)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] >= 1
    assert all(any(size % (k + 1) == 0 and size // (k + 1) <= max_num_seqs for k in ladder) for size in sizes)


@given(LADDERS, SEQS)
def test_their_number_is_bounded(ladder: set[int], max_num_seqs: int) -> None:
    sizes = capture_sizes(ladder, max_num_seqs)
    assert len(sizes) <= max(MAX_SIZES, len(ladder) * len(request_counts(max_num_seqs, 1)))


def test_the_default_ladder_is_within_the_bound_up_to_1024_requests() -> None:
    for max_num_seqs in (8, 32, 256, 1024):
        assert len(capture_sizes({5, 3, 2, 1, 0}, max_num_seqs)) <= MAX_SIZES


@given(SEQS, st.integers(1, 4))
def test_padding_is_at_most_a_doubling(max_num_seqs: int, steps: int) -> None:
    counts = request_counts(max_num_seqs, steps)
    assert counts[0] == 1
    assert counts[-1] == max_num_seqs
    assert all(b <= 2 * a for a, b in pairwise(counts))
