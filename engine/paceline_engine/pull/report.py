"""What a puller says of itself: on its port while it works, in its container's termination message when it ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from paceline_engine.protocol import Count, Wire

PATH = "/pull"
"""Of the report on the control port."""
TERMINATION_BYTES = 4096
"""All that the kubelet keeps of a termination message."""
MAX_REVISION = 128
"""Characters."""
MAX_BYTES = 2**53
"""Of one set of weights: more is no volume, and no number that every reader of JSON keeps."""


class Phase(StrEnum):
    """Of one artefact."""

    PENDING = "Pending"
    DOWNLOADING = "Downloading"
    READY = "Ready"
    FAILED = "Failed"


class Failure(StrEnum):
    """Why weights are not there. The same words as the operator's reasons."""

    DOWNLOAD_FAILED = "DownloadFailed"
    """The hub does not answer, or breaks off: worth another attempt."""
    TOKEN_MISSING = "TokenMissing"  # noqa: S105 a reason
    """The hub wants a token, or another one."""
    MODEL_NOT_FOUND = "ModelNotFound"
    DISK_FULL = "DiskFull"
    DIGEST_MISMATCH = "DigestMismatch"
    """What came is not what the hub announced."""
    SOURCE_UNSUPPORTED = "SourceUnsupported"
    """The image lacks what this kind of source needs."""
    CACHE_UNWRITABLE = "CacheUnwritable"


EXIT_STATUS = {
    Failure.DOWNLOAD_FAILED: 10,
    Failure.DIGEST_MISMATCH: 11,
    Failure.DISK_FULL: 20,
    Failure.TOKEN_MISSING: 21,
    Failure.MODEL_NOT_FOUND: 22,
    Failure.SOURCE_UNSUPPORTED: 23,
    Failure.CACHE_UNWRITABLE: 24,
}
"""From FINAL_STATUS on another attempt of the same would fail the same way."""
FINAL_STATUS = 20


class Artefact(Wire):
    """One set of weights."""

    name: Annotated[str, Field(max_length=16)]
    source: Annotated[str, Field(max_length=512)]
    asked: Annotated[str, Field(max_length=MAX_REVISION)] = ""
    """Revision as it was asked for; empty: the default."""
    phase: Phase = Phase.PENDING
    revision: Annotated[str, Field(max_length=MAX_REVISION)] = ""
    bytes: Annotated[Count, Field(le=MAX_BYTES)] | None = None
    done: Annotated[Count, Field(le=MAX_BYTES)] = 0
    """Bytes that are on the volume."""
    reason: Failure | None = None
    message: Annotated[str, Field(max_length=1024)] = ""


class Report(Wire):
    """Of all that one puller was asked for."""

    artefacts: Annotated[list[Artefact], Field(min_length=1, max_length=2)]


class PullError(Exception):
    """An artefact that could not be had."""

    def __init__(self, reason: Failure, message: str) -> None:
        super().__init__(message)
        self.reason = reason
