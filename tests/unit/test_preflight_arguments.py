"""Owned arguments are recognised however they are spelled; free ones stay free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.preflight.arguments import OWNED, OWNED_ARGUMENTS, SHORT, name_of, owner_of

FREE = [
    "--max-num-batched-tokens-hint",
    "--lora-modules",
    "--kv-cache-dtype-skip-layers",
    "--quantization-config",
    "--max-model-len-hint",
    "--config-format",
    "--model-impl",
    "--runner",
    "--no-enable-chunked-prefill",
    "--seed=1",
    "--disable-log-stats-for-tests",
    "-O3",
    "-O",
    "-ep",
    "-ac.backend=FLASHINFER",
    "-dcp",
    "-asc",
    "-1",
    "-",
    "",
    "8",
    "{}",
    "a--port",
]


@given(st.sampled_from(sorted(OWNED)), st.booleans(), st.sampled_from(["", "=8", "=", "=a=b", ".method", ".a.b+=x"]))
def test_long_forms_are_recognised(name: str, underscores: bool, rest: str) -> None:
    written = "--" + name[2:].replace("-", "_") if underscores else name
    assert owner_of(written + rest) == name


@given(st.sampled_from(sorted(SHORT)), st.sampled_from(["", "=8", ".method", ".a=x"]))
def test_short_forms_are_recognised(short: str, rest: str) -> None:
    assert owner_of(short + rest) == SHORT[short]


@given(st.sampled_from(sorted(OWNED)), st.data())
def test_abbreviations_are_recognised(name: str, data: st.DataObject) -> None:
    """argparse takes any unambiguous beginning."""
    length = data.draw(st.integers(3, len(name)))
    assert owner_of(name[:length]) in OWNED


@pytest.mark.parametrize(
    ("element", "owner"),
    [
        ("--no-enforce-eager", "--enforce-eager"),
        ("--no_enable_prefix_caching", "--enable-prefix-caching"),
        ("--no-enforce", "--enforce-eager"),
        ("-n2", "--nnodes"),
        ("-r0", "--node-rank"),
        ("-t", "--tensor-parallel-size"),
        ("-s", "--speculative-config"),
    ],
)
def test_negated_attached_and_short_abbreviated_forms_are_recognised(element: str, owner: str) -> None:
    assert owner_of(element) == owner


@pytest.mark.parametrize("element", FREE)
def test_everything_else_is_the_users(element: str) -> None:
    assert owner_of(element) is None


@given(st.text())
def test_no_text_breaks_the_recogniser(element: str) -> None:
    owner = owner_of(element)
    assert owner is None or owner in OWNED
    assert (name_of(element) is None) == (len(element) < 2 or element[0] != "-")


def test_each_short_form_stands_for_an_owned_argument() -> None:
    assert set(SHORT.values()) <= set(OWNED)
    assert set(OWNED) | set(SHORT) == OWNED_ARGUMENTS
