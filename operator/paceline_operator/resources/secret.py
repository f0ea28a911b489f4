"""The Secret with the bearer tokens of one serving's control ports."""

from __future__ import annotations

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.inputs import Manifest, Tokens
from paceline_operator.resources.meta import child_metadata


def suffix(tokens: Tokens) -> str:
    """Suffix of the Secret's name. Immutable and named by key version: a new key is a new Secret and a new mount."""
    return f"token-{tokens.key_version}"


def build(serving: SpeculativeServing, tokens: Tokens) -> Manifest:
    """Secret `<serving>-token-<key version>`."""
    previous = {} if tokens.previous is None else {naming.TOKEN_FILE_PREVIOUS: tokens.previous}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": child_metadata(serving, suffix(tokens)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {naming.TOKEN_FILE_CURRENT: tokens.current, **previous},
    }
