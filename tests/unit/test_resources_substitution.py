"""The kubelet's $(NAME) expansion and its escape."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.resources.substitution import expand, literal

TEXTS = st.text(alphabet="$()AB a", max_size=12)


@given(TEXTS | st.text())
def test_a_literal_comes_through_whatever_the_environment_holds(text: str) -> None:
    assert expand(literal(text), {"A": "expanded", "": "empty"}) == text


@given(TEXTS)
def test_without_a_dollar_nothing_is_touched(text: str) -> None:
    plain = text.replace("$", "")
    assert literal(plain) == expand(plain, {"A": "x"}) == plain


def test_references_are_expanded_as_the_kubelet_does() -> None:
    """The cases of the Kubernetes documentation on dependent environment variables."""
    environment = {"A": "1", "B": "$(A)"}
    assert expand("$(A)/$(B)/$(MISSING)/$$(A)/$A/$", environment) == "1/$(A)/$(MISSING)/$(A)/$A/$"
