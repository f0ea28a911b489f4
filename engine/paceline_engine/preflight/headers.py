"""The header of a safetensors file: names, types and shapes of its tensors, without a byte of weights.

Eight bytes of length (little-endian), that many bytes of JSON, then the data:
https://github.com/huggingface/safetensors#format. What comes may come from anybody: every number is doubted.
"""

from __future__ import annotations

import json
import struct
from math import prod
from typing import Any, NamedTuple

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit (safetensors/src/tensor.rs: MAX_HEADER_SIZE)."""
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Type -> bits of an element (safetensors/src/tensor.rs: Dtype)."""
LFS = b"version https://git-lfs"


class MalformedError(Exception):
    """A file that is not what it should be; the message says where."""


class Tensor(NamedTuple):
    """One tensor, or `copies` of one kind."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    copies: int = 1

    @property
    def elements(self) -> int:
        """Of all."""
        return prod(self.shape) * self.copies

    @property
    def bytes(self) -> int:
        """Of all, as they are stored."""
        return -(-self.elements * BITS[self.dtype] // 8)


def length(first: bytes, file_bytes: int | None = None) -> int:
    """Bytes of the JSON, from the first eight of the file. Raises MalformedError."""
    if first.startswith(LFS):
        raise MalformedError("it is a pointer of git-lfs, not the file: run `git lfs pull` where it was cloned")
    if len(first) < LENGTH_BYTES:
        raise MalformedError(f"it ends after {len(first)} bytes")
    (found,) = struct.unpack("<Q", first[:LENGTH_BYTES])
    limit = MAX_HEADER_BYTES if file_bytes is None else min(MAX_HEADER_BYTES, max(0, file_bytes - LENGTH_BYTES))
    if not 2 <= found <= limit:
        raise MalformedError(
            f"its header claims {found} bytes, at most {limit} are possible: it is no safetensors file"
        )
    return int(found)


def parse(header: bytes, data_bytes: int | None = None) -> tuple[Tensor, ...]:
    """Tensors of the JSON, in the order of their data; `data_bytes` is what follows it. Raises MalformedError."""
    entries = _object(header)
    entries.pop("__metadata__", None)
    placed = sorted((_entry(name, entry) for name, entry in entries.items()), key=lambda one: one[:2])
    end = 0
    for begin, stop, tensor in placed:
        if begin != end:
            raise MalformedError(f"tensor {tensor.name[:80]!r} begins at {begin}, the one before ends at {end}")
        end = stop
    if data_bytes is not None and end != data_bytes:
        raise MalformedError(f"its tensors need {end} bytes and the file has {data_bytes}: it is cut off or damaged")
    return tuple(tensor for _, _, tensor in placed)


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"its header is no JSON: {error}"[:200]) from None
    if not isinstance(found, dict):
        raise MalformedError("its header is no map of tensors")
    return found


def _entry(name: str, entry: Any) -> tuple[int, int, Tensor]:
    shown = repr(name[:80])
    if not isinstance(entry, dict):
        raise MalformedError(f"tensor {shown} is no map")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise MalformedError(f"tensor {shown} has the type {str(dtype)[:40]!r}, which the format does not know")
    if not (_counts(shape) and _counts(offsets) and len(offsets) == 2):
        raise MalformedError(f"tensor {shown} has no shape or no place")
    tensor = Tensor(name, dtype, tuple(shape))
    if offsets[1] - offsets[0] != tensor.bytes:
        raise MalformedError(f"tensor {shown} of {tensor.bytes} bytes has {offsets[1] - offsets[0]}")
    return offsets[0], offsets[1], tensor


def _counts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 16 and all(type(one) is int and 0 <= one < 2**53 for one in value)
