"""JSON that is nested thousands of levels deep, as whoever may write an object can send it.

The API server takes 10,000 levels, Python's parser about 1,000 (in 3.12: 1,500, whatever the recursion limit says): it
would refuse the object, and with it the list or the watch of all objects in which it comes. What is deeper than any
spec is read as null instead, and the spec is refused for its depth by `acceptance`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import from_json

MAX_DEPTH = 128
"""Levels of a document that are read where it has too many: of a list, two more than of its items."""
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


class Decoder(json.JSONDecoder):
    """Reads any depth."""

    def decode(self, s: str, *where: Any) -> Any:
        """As that of the library; what is deeper than MAX_DEPTH is null where the document is too deep for it."""
        try:
            return super().decode(s, *where)
        except RecursionError:
            return super().decode(cut(s), *where)


def loads(body: bytes) -> Any:
    """A document of any depth, by the faster parser where it reads it. Raises ValueError where it is no JSON."""
    try:
        return from_json(body)
    except ValueError:  # also for more than 200 levels
        return Decoder().decode(body.decode())


def install() -> None:
    """Let every `json.loads` of this process read so: those of kopf and aiohttp cannot be told otherwise."""
    json._default_decoder = Decoder()  # type: ignore[attr-defined]


def cut(text: str, depth: int = MAX_DEPTH) -> str:
    """JSON of at most `depth` levels: what is nested deeper is null."""
    parts, level, since = [], 0, 0
    for token in _TOKENS.finditer(text):
        sign = text[token.start()]
        if sign in "[{":
            level += 1
            if level == depth + 1:
                parts.append(text[since : token.start()])
        elif sign in "]}":
            if level == depth + 1:
                parts.append("null")
                since = token.end()
            level -= 1
    return "".join([*parts, text[since:] if level <= depth else ""])  # the else: it ends in the middle
