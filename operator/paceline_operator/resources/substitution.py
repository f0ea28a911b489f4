"""The kubelet's `$(NAME)` expansion of commands, arguments and environment values, and the way around it.

The kubelet replaces `$(NAME)` by a variable of the container and `$$` by `$`. What a user writes in the spec is meant
literally, so builders double each dollar sign; whoever runs a container without a kubelet applies `expand`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def literal(text: str) -> str:
    """`text` written so that the kubelet hands it on unchanged."""
    return text.replace("$", "$$")


def expand(text: str, environment: Mapping[str, str]) -> str:
    """`text` as the kubelet would hand it on. An unknown reference stays as it is."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else environment.get(name, match[0])

    return _REFERENCE.sub(value, text)
