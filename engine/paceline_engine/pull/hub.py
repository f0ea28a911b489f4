"""What a hf:// source consists of: the commit behind a revision, its files with sizes and digests.

The hub's public API:

GET {HF_ENDPOINT}/api/models/{owner}/{name}/revision/{revision}?blobs=true
GET {HF_ENDPOINT}/{owner}/{name}/resolve/{commit}/{path}          (by range; leads to storage elsewhere)
"""

from __future__ import annotations

import fnmatch
import http.client
import json
import re
import ssl
import time
import urllib.error
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from paceline_engine.pull.fetch import PAUSES, TRANSIENT, File, open_url, refusal
from paceline_engine.pull.layout import MANIFEST
from paceline_engine.pull.report import MAX_BYTES, MAX_REVISION, Failure, PullError

DEFAULT_ENDPOINT = "https://huggingface.co"
COMMIT = re.compile(rf"[0-9A-Za-z]{{1,{MAX_REVISION}}}")
LISTING_BYTES = 64 * 1024 * 1024
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "*.ot", "*.tflite", "*.mlmodel")
NEVER = (
    MANIFEST,
    "original/*",
    ".git*",
    "*.png",
    "*.jpg",
    "*.gif",
    "*.mp4",
    "*.onnx_data",
    "onnx/*",
    "openvino/*",
    "coreml/*",
)


@dataclass(frozen=True)
class Listing:
    """All files of one revision that are wanted."""

    revision: str
    files: tuple[File, ...]

    def __post_init__(self) -> None:
        if not COMMIT.fullmatch(self.revision):
            text = f"the listing is of {self.revision[:MAX_REVISION]!r}, which is no commit"
            raise PullError(Failure.DOWNLOAD_FAILED, text)
        if any(file.size < 0 for file in self.files) or sum(file.size for file in self.files) > MAX_BYTES:
            raise PullError(Failure.DOWNLOAD_FAILED, "the listing has files of sizes that cannot be")


def wanted(paths: Collection[str]) -> list[str]:
    """What an engine may read. Weights that are there as safetensors are not taken in other formats too."""
    safetensors = any(path.endswith(".safetensors") and "/" not in path for path in paths)
    unwanted = (*NEVER, *OTHER_FORMATS) if safetensors else NEVER
    return sorted(path for path in paths if not any(fnmatch.fnmatchcase(path, pattern) for pattern in unwanted))


def listing(
    repository: str,
    revision: str,
    environment: Mapping[str, str],
    sleep: Callable[[float], None] = time.sleep,
) -> Listing:
    """Of `owner/name` at a branch, tag or commit. `environment`: HF_ENDPOINT, HF_TOKEN. Raises PullError."""
    endpoint = (environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    token = environment.get("HF_TOKEN", "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{endpoint}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"
    found = _json(url, headers, f"{repository}@{revision}", sleep)
    try:
        commit = str(found["sha"])
        sizes = {str(one["rfilename"]): one for one in found["siblings"]}
        files = tuple(
            File(
                path,
                int(sizes[path]["size"]),
                _digest(sizes[path]),
                lambda path=path: (f"{endpoint}/{repository}/resolve/{commit}/{quote(path)}", headers),  # type: ignore[misc]
            )
            for path in wanted(sizes)
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        text = f"{endpoint} does not answer like a hub: {type(error).__name__} {error} in its listing of {repository}"
        raise PullError(Failure.DOWNLOAD_FAILED, text) from None
    if not files:
        raise PullError(Failure.MODEL_NOT_FOUND, f"{repository}@{revision} has no files of a model")
    return Listing(commit, files)


def _digest(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    lfs = entry.get("lfs") or {}
    if lfs.get("sha256"):
        return "sha256", str(lfs["sha256"])
    return ("git", str(entry["blobId"])) if entry.get("blobId") else None


def _json(url: str, headers: Mapping[str, str], what: str, sleep: Callable[[float], None]) -> Any:
    for pause in (*PAUSES, None):
        try:
            with open_url(url, headers) as answer:
                return json.loads(answer.read(LISTING_BYTES))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in TRANSIENT:
                raise refusal(error, what) from None
            problem = f"HTTP {error.code}"
        except (http.client.HTTPException, OSError, ssl.SSLError, ValueError, RecursionError) as error:
            problem = str(error) or type(error).__name__
        if pause is not None:
            sleep(pause)
    raise PullError(Failure.DOWNLOAD_FAILED, f"{what}: {url}: {problem}")
