"""While pods are replaced: the table in force goes to pods that can have the same, and to no other."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import Feature, State
from paceline_operator.hold import carried_over
from paceline_operator.tuning.model import Engine
from tests.fakes import FakeEngines

TABLE = (5, 5, 3, 1)


async def engine(name: str, generation: int = 0, *, ladder: tuple[int, ...] = (5, 3, 1, 0), **changes: Any) -> Engine:
    found = await FakeEngines().observe_engine(name, "", "", "", None)
    assert isinstance(found.state, State)
    able = found.state.capabilities.model_copy(update={"ladder": ladder, "max_num_seqs": 3})
    state = found.state.model_copy(update={"capabilities": able, "generation": generation, "table": TABLE, **changes})
    return Engine(name, state=state, samples=found.samples)


async def test_a_canary_that_booted_for_the_same_ks_is_given_the_table_of_the_others() -> None:
    engines = [await engine("old", 7), await engine("new"), await engine("promoted", 3)]
    policy, late = carried_over(engines, ["new"])
    assert policy is not None
    assert (policy.generation, policy.table, late) == (7, TABLE, ("new", "promoted"))


async def test_one_that_booted_for_other_ks_or_cannot_change_keeps_what_it_booted_with() -> None:
    other = await engine("new", ladder=(8, 4, 0))
    assert carried_over([await engine("old", 7), other], ["new"])[1] == ()
    fixed = await engine("new")
    assert fixed.state is not None
    able = fixed.state.capabilities.model_copy(update={"live_k": Feature(supported=False, reason="suffix")})
    unable = Engine("new", state=fixed.state.model_copy(update={"capabilities": able}), samples=fixed.samples)
    assert carried_over([await engine("old", 7), unable], ["new"])[1] == ()


async def test_where_nothing_was_ever_pushed_nothing_is() -> None:
    assert carried_over([await engine("old"), await engine("new")], ["new"]) == (None, ())
    assert carried_over([await engine("new", 9)], ["new"]) == (None, ()), "a canary's own table is nobody's"
    assert carried_over([Engine("old"), await engine("new")], ["new"]) == (None, ())


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.sampled_from([(5, 3, 1, 0), (8, 0)])), max_size=6))
async def test_nobody_is_given_an_older_table_than_it_has(rows: list[tuple[int, bool, tuple[int, ...]]]) -> None:
    engines = [await engine(f"e{i}", generation, ladder=ladder) for i, (generation, _, ladder) in enumerate(rows)]
    canaries = [f"e{i}" for i, (_, canary, _) in enumerate(rows) if canary]
    policy, late = carried_over(engines, canaries)
    newest = max((generation for generation, canary, _ in rows if not canary), default=0)
    assert (policy.generation if policy else 0) == newest
    generations = {f"e{i}": generation for i, (generation, _, _) in enumerate(rows)}
    assert all(generations[name] < newest for name in late)
