"""The site of the documentation: navigation from the index, links out of docs/ led to copies, code left alone."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hack import pages

ROOT = Path(__file__).parents[2]
COMMANDS = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})
)
WORDS = st.text("abc-/.#:` ", max_size=12)
INDEX = """# Title

[README](../README.md)

## One

| [A](a.md), [B](sub/b.md) | and [A](a.md#part) again, [elsewhere](https://example.org/x.md), [out](../x.md) |

## Two

| [C](c.md) | [file](../f.yaml) |
"""


def test_navigation_is_the_sections_of_the_index() -> None:
    assert pages.navigation(INDEX) == ["index.md", {"One": ["a.md", "sub/b.md"]}, {"Two": ["c.md"]}]


def test_every_page_below_docs_is_in_the_navigation() -> None:
    listed = {
        page
        for section in pages.navigation((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
        for page in ([section] if isinstance(section, str) else next(iter(section.values())))
    }
    assert {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} == listed


@pytest.mark.parametrize(
    ("markdown", "folder", "found"),
    [
        ("[a](../README.md)", "docs", {"../README.md": "README.md"}),
        ("[a](../../README.md#more)", "docs/adr", {"../../README.md": "README.md"}),
        ("[a](tuner.md) [b](../docs/tuner.md)", "docs", {}),
        ("[a](docs/tuner.md) [b](examples/)", "", {"examples/": "examples"}),
        ("[a](../absent.md) [b](../../README.md)", "docs", {}),
        ("`[a](../README.md)`\n```\n[a](../README.md)\n```", "docs", {}),
        ("[a](https://example.org) [b](#part) [c](/README.md) [d](mailto:a@b)", "docs", {}),
    ],
)
def test_what_lies_outside_of_docs(markdown: str, folder: str, found: dict[str, str]) -> None:
    assert pages.outside(markdown, folder) == found


def test_links_are_moved_with_their_anchors_or_taken_away() -> None:
    places = {"../x.md": "repository/x.md", "../folder": None}
    text = "[a](../x.md#p) [b](../folder) `[c](../x.md)` [d](y.md)"
    assert (
        pages.rewritten(text, lambda target: places.get(target, target))
        == "[a](repository/x.md#p) b `[c](../x.md)` [d](y.md)"
    )


def test_what_pages_say_to_type_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", COMMANDS, re.MULTILINE)) <= targets
    files = set(re.findall(r" -f ((?:examples|charts|crds|tests)/[\w./-]+)", COMMANDS))
    assert {file for file in files if not (ROOT / file).exists()} == set()


def test_values_that_pages_set_are_the_charts() -> None:
    values = yaml.safe_load((ROOT / "charts" / "paceline" / "values.yaml").read_text(encoding="utf-8"))
    for path in sorted(set(re.findall(r"--set[= ]([A-Za-z.]+)=", COMMANDS))):
        at = values
        for key in path.split("."):
            assert key in at, path
            at = at[key]


@given(st.lists(st.tuples(WORDS, st.sampled_from(["[{}](a/{})", "`{}{}`", "```\n{}{}\n```", "{}{}"]), WORDS)))
def test_a_page_whose_links_stay_is_the_same_page(parts: list[tuple[str, str, str]]) -> None:
    text = " ".join(template.format(first, second) for first, template, second in parts)
    assert pages.rewritten(text, lambda target: target) == text


@given(st.text(), st.sampled_from(["", "docs", "docs/adr"]))
def test_any_text_is_read(text: str, folder: str) -> None:
    assert all((ROOT / posixpath.normpath(path)).exists() for path in pages.outside(text, folder).values())
    pages.navigation(text)
