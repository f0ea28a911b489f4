"""docs/faults.md as the tests of faults write it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.harness.faultbook import FAULTS, NOT_RUN, PAGE, page, rows, short


def test_the_page_has_every_fault_as_the_tests_name_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert list(rows(text)) == list(FAULTS)
    assert all(row.startswith(f"| {fault} | {FAULTS[fault]} | ") for fault, row in rows(text).items())
    assert page(rows(text)) == text
    assert NOT_RUN in page({})


@given(st.lists(st.text("abcd", min_size=1, max_size=12), min_size=1, max_size=60))
def test_a_message_is_cut_between_words(words: list[str]) -> None:
    message = " ".join(words)
    cut = short(message)
    assert len(cut) <= 160
    assert cut == message or (cut.endswith(" …") and message.startswith(cut.removesuffix("…")))
