"""Objects as the API server is sent them: JSON that is YAML too.

An apply is read as YAML, in which an escape is one character: of a pair of surrogates, as JSON writes what is beyond
U+FFFF (an emoji in an annotation), the server says "invalid Unicode character escape code" and refuses the object.
"""

from __future__ import annotations

import json
import re
from typing import Any

_OTHERWISE = re.compile(r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|\x7f")


def body(value: Any) -> bytes:
    """UTF-8; escaped is all but ASCII's printable characters and those beyond U+FFFF."""
    return _OTHERWISE.sub(_said, json.dumps(value, separators=(",", ":"))).encode()


def _said(match: re.Match[str]) -> str:
    found = match.group()
    if found == r"\\":  # what follows is no escape
        return found
    return r"\u007f" if found == "\x7f" else str(json.loads(f'"{found}"'))
