"""The operator's master keys, from a file that a Secret mounts, and the tokens that follow from them.

The file has one key a line: the first is current, a second one is the key before, which keeps pods reachable whose
Secret was written under it while they are replaced. Keys and tokens are in no repr, log line or error.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from pathlib import Path

from paceline_engine.protocol import derive_token
from paceline_operator.resources.inputs import Tokens

logger = logging.getLogger(__name__)

MIN_KEY_BYTES = 32


@dataclass(frozen=True)
class KeyRing:
    """The current master key and, during a rotation, the one before."""

    current: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)

    def tokens(self, uid: str) -> Tokens:
        """What the token Secret of the serving with this UID holds."""
        before = None if self.previous is None else derive_token(self.previous, uid, key_version(self.previous))
        version = key_version(self.current)
        return Tokens(key_version=version, current=derive_token(self.current, uid, version), previous=before)

    def token_of(self, uid: str, version: str) -> str:
        """The token that a pod knows whose Secret is of `version`; the current one where the version is unknown."""
        key = self.previous if self.previous is not None and version == key_version(self.previous) else self.current
        return derive_token(key, uid, key_version(key))


def key_version(key: bytes) -> str:
    """Eight hex digits that name a key without telling it."""
    return hashlib.sha256(b"paceline/key-version/" + key).hexdigest()[:8]


def parse(content: bytes) -> KeyRing:
    """Raises ValueError, without showing a key, where `content` is not one or two keys of MIN_KEY_BYTES or more."""
    keys = [line.strip() for line in content.splitlines() if line.strip()]
    if not 1 <= len(keys) <= 2:
        raise ValueError(f"expected one or two keys, a line each, found {len(keys)}")
    if any(len(key) < MIN_KEY_BYTES for key in keys):
        raise ValueError(f"a key is shorter than {MIN_KEY_BYTES} bytes")
    return KeyRing(*keys)


class KeyFile:
    """The key ring as the file holds it now: a rotation is seen without a restart."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError or OSError where there is no usable key to start with."""
        self._path = path
        try:
            self._last = parse(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"master key file {path}: {error}") from None

    def ring(self) -> KeyRing:
        """The last good content: a file that is being rewritten changes nothing."""
        try:
            self._last = parse(self._path.read_bytes())
        except (OSError, ValueError) as error:
            logger.warning(
                "Master key file not usable, keeping the keys read before: path=%s error=%s", self._path, error
            )
        return self._last
