"""Drafts that are accepted less than before: told beyond doubt, with hysteresis, and never for what is no shift."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.protocol import AcceptanceCell, Verification
from paceline_operator.effective.shift import FALLEN, RISEN, Shift, added, fallen


def cell(shares: tuple[float, ...], drafts: int = 100, verification: Verification = Verification.ALL) -> AcceptanceCell:
    reached, drafted, accepted = drafts, [], []
    for share in shares:
        drafted.append(reached)
        reached = round(reached * share)
        accepted.append(reached)
    return AcceptanceCell(
        k=len(shares), load=4, verification=verification, request_steps=100, drafts=drafts,
        drafted=tuple(drafted), accepted=tuple(accepted),
    )  # fmt: skip


def course(past: Shift, one: AcceptanceCell, passes: int) -> Shift:
    for _ in range(passes):
        past = added(past, [one])
    return past


USUAL = cell((0.8, 0.7, 0.6))


def test_what_stays_as_it_is_has_not_fallen_and_a_drafter_that_fits_no_more_has() -> None:
    usual = course(Shift(), USUAL, 400)
    assert fallen(usual, was=False) == ""
    worse = course(usual, cell((0.4, 0.7, 0.6)), 40)
    assert fallen(worse, was=False) == "drafts are accepted less often at position 1"
    later = course(usual, cell((0.8, 0.3, 0.6)), 60)
    assert fallen(later, was=False) == "drafts are accepted less often at position 2"


def test_prompt_lookup_that_fires_less_is_told() -> None:
    usual = course(Shift(), USUAL, 400)
    assert fallen(course(usual, cell((0.8, 0.7, 0.6), drafts=20), 60), was=False) == "fewer request-steps have a draft"


def test_adaptive_verification_and_an_engine_that_just_began_are_no_shift() -> None:
    usual = course(Shift(), USUAL, 400)
    adaptive = cell((0.2, 0.1, 0.1), verification=Verification.ADAPTIVE)
    assert course(usual, adaptive, 100) == usual
    assert fallen(course(course(Shift(), USUAL, 20), cell((0.2, 0.1, 0.1)), 20), was=False) == ""


def test_between_the_two_limits_it_stays_what_it_was() -> None:
    usual = course(Shift(), cell((0.8,)), 400)
    between = course(usual, cell((0.8 * (FALLEN + RISEN) / 2,)), 60)
    assert fallen(between, was=False) == ""
    assert fallen(between, was=True) != ""
    assert fallen(course(between, cell((0.8,)), 60), was=True) == ""


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.lists(st.integers(0, 10**15), min_size=1, max_size=6)), max_size=20)
)
def test_any_counts_are_taken(rows: list[tuple[int, list[int]]]) -> None:
    past = Shift()
    for requests, drafted in rows:
        counts = tuple(drafted)
        past = added(past, [AcceptanceCell(
            k=len(counts), load=1, request_steps=requests, drafts=requests, drafted=counts, accepted=counts,
        )])  # fmt: skip
        assert fallen(past, was=False) == ""
