"""Parts of an HTML page: text in, text out, all of it escaped."""

from __future__ import annotations

import html as markup
from collections.abc import Iterable, Sequence

Head = Sequence[str | tuple[str, str]]
"""Titles of columns, or a class and a title."""


def items(texts: Iterable[str]) -> str:
    """Of a list."""
    return "".join(f"<li>{markup.escape(text)}</li>" for text in texts)


def note(text: str) -> str:
    """A paragraph."""
    return f"<p class=note>{markup.escape(text)}</p>"


def cell(value: object) -> str:
    """Of a table."""
    return f"<td>{markup.escape(str(value))}</td>"


def number(value: float | None, digits: int) -> str:
    """As a cell; a dash where it is not known."""
    return cell("-" if value is None else f"{value:,.{digits}f}")


def table(head: Head, rows: Sequence[Sequence[str]]) -> str:
    """`rows` are ready cells."""
    titles = "".join(
        f"<th>{markup.escape(one)}</th>" if isinstance(one, str) else f"<th class={one[0]}>{markup.escape(one[1])}</th>"
        for one in head
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<div class=wide><table><tr>{titles}</tr>{body}</table></div>"
