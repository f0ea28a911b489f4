"""Every full graph within reach of the steps it fits, in managers laid out as vLLM lays out its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine import graphs


class Mode(Enum):
    """As vLLM's CUDAGraphMode."""

    PIECEWISE = 1
    FULL = 2


@dataclass(frozen=True)
class Graph:
    """As vLLM's BatchExecutionDescriptor."""

    cg_mode: Mode
    num_tokens: int
    uniform_token_count: int | None = None
    num_ubatches: int = 1


@dataclass
class Manager:
    """Captures `sizes` for every k, and offers graphs in vLLM's way."""

    sizes: list[int]
    ladder: list[int]
    requests: int
    loras: list[int] = field(default_factory=lambda: [0])
    dp_size: int = 1

    def __post_init__(self) -> None:
        self._candidates: dict[tuple[int, int], list[Graph]] = {}
        full = sorted(
            {
                Graph(Mode.FULL, tokens, k + 1)
                for size in self.sizes
                for k in self.ladder
                if (tokens := -(-size // (k + 1)) * (k + 1)) // (k + 1) <= self.requests and tokens <= self.sizes[-1]
            },
            key=lambda graph: graph.num_tokens,
        )
        for kind in (full, [Graph(Mode.PIECEWISE, size) for size in self.sizes]):
            for loras in self.loras:
                start = 0
                for tokens, group in groupby(kind, lambda graph: graph.num_tokens):
                    found = list(group)
                    for at in range(start, tokens + 1):
                        self._candidates.setdefault((at, loras), []).extend(found)
                    start = tokens + 1

    def dispatch(self, tokens: int, width: int | None, loras: int = 0) -> Graph | None:
        for graph in self._candidates.get((tokens, loras), []):
            if graph.uniform_token_count in (None, width):
                return graph
        return None

    def own(self, width: int) -> list[int]:
        found = {graph for graphs in self._candidates.values() for graph in graphs}
        return sorted(graph.num_tokens for graph in found if graph.uniform_token_count == width)


SIZES = st.sets(st.integers(1, 96), min_size=1, max_size=12).map(sorted)
LADDERS = st.sets(st.integers(0, 7), min_size=1, max_size=5).map(sorted)


@given(SIZES, LADDERS, st.integers(1, 24), st.booleans())
def test_a_step_finds_the_next_graph_of_its_own_k(
    sizes: list[int], ladder: list[int], requests: int, lora: bool
) -> None:
    loras = [0, 2] if lora else [0]
    manager = Manager(sizes, ladder, requests, loras)
    before = Manager(sizes, ladder, requests, loras)
    graphs.offer(SimpleNamespace(cudagraph_manager=manager, speculator=None))
    for k in ladder:
        own = before.own(k + 1)
        for n in range(1, requests + 1):
            tokens = n * (k + 1)
            for of in loras:
                found, was = manager.dispatch(tokens, k + 1, of), before.dispatch(tokens, k + 1, of)
                reachable = [size for size in own if size >= tokens]
                if reachable and was is not None:
                    assert found == Graph(Mode.FULL, reachable[0], k + 1)
                else:
                    assert found == was
    for tokens in range(1, sizes[-1] + 1):
        assert manager.dispatch(tokens, None) == before.dispatch(tokens, None), "mixed steps stay as they were"


def test_a_second_look_finds_nothing_more() -> None:
    runner = SimpleNamespace(
        cudagraph_manager=Manager([1, 2, 4, 8, 16], [0, 2], 8),
        speculator=SimpleNamespace(prefill_cudagraph_manager=Manager([1, 2, 4, 8, 16], [0, 2], 8)),
    )
    assert graphs.offer(runner) == 2 * graphs.offer(SimpleNamespace(m=Manager([1, 2, 4, 8, 16], [0, 2], 8))) > 0
    assert graphs.offer(runner) == 0


def test_data_parallel_ranks_and_other_runners_stay_as_they_are() -> None:
    assert graphs.offer(SimpleNamespace(cudagraph_manager=Manager([1, 2, 4, 8, 16], [0, 2], 8, dp_size=2))) == 0
    assert graphs.offer(SimpleNamespace(cudagraph_dispatcher=object())) == 0
    assert graphs.offer(object()) == 0
