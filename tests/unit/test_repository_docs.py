"""The pages under docs/ that state facts of the code name every one of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming
from paceline_operator.api.conditions import ConditionType, Reason

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted({*DOCS.rglob("*.md"), *ROOT.glob("*.md")})
PUBLIC = [
    str(value)
    for name, value in vars(naming).items()
    if name.split("_")[0] in {"LABEL", "ANNOTATION", "ENV", "SERVING", "CONTROL", "TOKEN", "PLUGIN", "CACHE", "FIELD"}
]
VARIABLES = {
    variable
    for file in (*(ROOT / "operator").rglob("*.py"), *(ROOT / "engine").rglob("*.py"), *(ROOT / "hack").rglob("*.py"))
    for variable in re.findall(r'"(PACELINE_[A-Z_]*[A-Z])"', file.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("fact", sorted({*PUBLIC, *VARIABLES, str(CONTROL_PORT)}))
def test_every_name_is_on_the_page_of_labels(fact: str) -> None:
    assert f"`{fact}`" in (text := (DOCS / "labels.md").read_text(encoding="utf-8")) or f"| {fact} |" in text


@pytest.mark.parametrize("word", [*ConditionType, *Reason])
def test_every_condition_and_reason_has_its_row_in_troubleshooting(word: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert word in rows


def test_troubleshooting_has_no_reason_of_its_own() -> None:
    rows = re.findall(r"^\| `([A-Z]\w+)` \|", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) <= {*ConditionType, *Reason}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", prose)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_shows_the_smallest_example_as_it_is() -> None:
    shown = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert [yaml.safe_load(text) for text in shown] == [
        yaml.safe_load((ROOT / "examples" / "minimal.yaml").read_text())
    ]


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


def test_every_decision_record_is_in_their_index() -> None:
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    records = {path.name for path in (DOCS / "adr").glob("[0-9]*.md")}
    assert records
    assert {name for name in records if f"({name})" not in index} == set()
