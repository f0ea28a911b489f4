"""What is told of a manifest that is refused: what is missing, and also what was written in its place."""

from __future__ import annotations

import copy
import re
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.examined import examine
from paceline_operator.local.document import parse
from paceline_operator.local.mistake import UserError
from tests.servings import MINIMAL

REQUIRED = (
    ("spec",),
    ("spec", "model"),
    ("spec", "speculation"),
    ("spec", "model", "source"),
    ("spec", "speculation", "method"),
)


def told(document: dict[str, Any]) -> list[str]:
    return [remark.message for remark in examine(document).remarks]


@given(st.sampled_from(REQUIRED), st.integers(0, 20), st.booleans())
def test_a_required_field_that_is_misspelt_is_told_beside_what_is_missing(
    field: tuple[str, ...], letter: int, is_doubled: bool
) -> None:
    *at, name = field
    document = copy.deepcopy(MINIMAL)
    parent = reduce(getitem, at, document)
    cut = letter % len(name)
    wrong = name[:cut] + name[cut] * 2 * is_doubled + name[cut + 1 :]
    parent[wrong] = parent.pop(name)
    unknown = f"unknown field {'.'.join([*at, wrong])}: is {name} meant?"
    assert sorted(told(document)) == sorted([f"{'.'.join(field)}: Field required", unknown])
    with pytest.raises(UserError, match=re.escape(unknown)):
        parse(SpeculativeServing, document, Path("file.yaml"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"speculation": {"strategy": "ngram"}},
            ["speculation.method: Field required", "unknown field speculation.strategy"],
        ),
        # What is missing is beside what it is taken for, and nowhere else.
        ({"speculation": {}, "metod": 1}, ["speculation.method: Field required", "unknown field metod"]),
        (
            {"speculation": {"metod": "ngram", "maxToken": 3}, "tunning": {}},
            [
                "speculation.method: Field required",
                "unknown field speculation.metod: is method meant?",
                "unknown field speculation.maxToken",
                "unknown field tunning",
            ],
        ),
        (
            {"engine": {"maxNumSeqs": 0, "max_model_len": 4096}},
            ["engine.maxNumSeqs: Input should be greater than or equal to 1", "unknown field engine.max_model_len"],
        ),
        (
            {"speculation": {"metod": "ngram"}, "engine": {"podTemplate": {"x": 1}, "resources": {"x": 1}}},
            ["speculation.method: Field required", "unknown field speculation.metod: is method meant?"],
        ),
    ],
)
def test_fields_that_nobody_reads_are_told_where_others_are_refused(changes: dict[str, Any], said: list[str]) -> None:
    metadata = {"name": "demo", "labels": {"a": "b"}}
    document = {**MINIMAL, "metadata": metadata, "status": {"x": 1}, "spec": {**MINIMAL["spec"], **changes}}
    place = re.compile("^(unknown field )?")
    assert sorted(told(document)) == sorted(place.sub(r"\g<0>spec.", line, count=1) for line in said)
