"""docs/safety.md gives the defaults that the fields have."""

from __future__ import annotations

import re
from pathlib import Path

from paceline_operator.api.safety import Safety

PAGE = Path(__file__).parents[2] / "docs" / "safety.md"


def test_the_defaults_on_the_page_are_those_of_the_fields() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("By default, under `spec.safety`:")[2].partition("\n## ")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", text, re.MULTILINE))
    fields = Safety().model_dump(mode="json", by_alias=True)
    assert shown == {name: "–" if value is None else str(value) for name, value in fields.items()}
