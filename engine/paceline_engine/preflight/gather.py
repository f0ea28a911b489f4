"""Reading a model without its weights: config.json, tokenizer and the headers of its safetensors files.

From a folder, or by range from a hub.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from paceline_engine.preflight import config, headers, vocabulary
from paceline_engine.preflight.asked import Source
from paceline_engine.preflight.config import Config
from paceline_engine.preflight.headers import MalformedError, Tensor
from paceline_engine.preflight.model import Model
from paceline_engine.preflight.vocabulary import Vocabulary
from paceline_engine.pull import hub
from paceline_engine.pull.fetch import File, open_url, refusal
from paceline_engine.pull.report import Failure, PullError

INDEX = "model.safetensors.index.json"
INDEX_BYTES = 64 * 2**20
MAX_FILES = 512
"""Safetensors files of one model."""
FIRST_BYTES = 256 * 1024
"""Of a file, asked for at once: most headers are shorter."""
HEADER_BYTES = 128 * 2**20
"""Of all files of one model: those of a trillion parameters in 140,000 tensors have 20 MiB."""
AT_ONCE = 8
OFFLINE, ELSEWHERE = "HF_HUB_OFFLINE", "VLLM_USE_MODELSCOPE"
"""Variables by which an engine does not ask the hub that we would: its own cache has the files, or another hub."""


class Place(Protocol):
    """Where the files of one model are."""

    def names(self) -> Mapping[str, int]:
        """File -> bytes. Raises PullError or OSError."""

    def read(self, name: str, start: int, count: int) -> bytes:
        """At most `count` bytes from `start`. Raises PullError or OSError."""


class Folder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> Mapping[str, int]:
        """Files of the folder itself."""
        if not self.path.is_dir():
            raise PullError(Failure.MODEL_NOT_FOUND, f"{self.path} is no folder")
        return {one.name: one.stat().st_size for one in self.path.iterdir() if one.is_file()}

    def read(self, name: str, start: int, count: int) -> bytes:
        """Of one file."""
        with (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read(count)


class Hub:
    """A repository of a hub, at the commit that the revision means now."""

    def __init__(self, repository: str, revision: str, environment: Mapping[str, str]) -> None:
        self._asked = repository, revision or "main", environment
        self._files: dict[str, File] = {}

    def names(self) -> Mapping[str, int]:
        """One request."""
        self._files = {one.path: one for one in hub.listing(*self._asked, sleep=lambda _: None).files}
        return {one.path: one.size for one in self._files.values() if "/" not in one.path}

    def read(self, name: str, start: int, count: int) -> bytes:
        """By range; a server that knows no ranges sends the beginning, which is cut off."""
        url, given = self._files[name].request()
        ranged = {**given, "Range": f"bytes={start}-{start + count - 1}"}
        try:
            with open_url(url, ranged) as answer:
                if start and answer.status != http.client.PARTIAL_CONTENT:
                    raise PullError(Failure.DOWNLOAD_FAILED, f"{name}: the server does not send parts of files")
                return answer.read(count)
        except urllib.error.HTTPError as error:
            error.close()
            raise refusal(error, name) from None
        except (http.client.HTTPException, urllib.error.URLError) as error:
            raise PullError(Failure.DOWNLOAD_FAILED, f"{name}: {error}") from None


def place(source: Source, environment: Mapping[str, str], root: Path | None = None) -> Place | str:
    """Where a source can be read; a text where it cannot be read ahead.

    `root`: a folder that stands for all places: `<root>/owner/name` of hf://owner/name, `<root>/claim/path` of
    pvc://claim/path, and paths below it.
    """
    scheme, separator, rest = source.source.partition("://")
    if root is not None:
        return Folder(root / (rest if separator else source.source).lstrip("/"))
    if source.path and Path(source.path).is_dir():
        return Folder(Path(source.path))
    if scheme == "hf" and separator:
        for variable in (OFFLINE, ELSEWHERE):
            if environment.get(variable, "").lower() in ("1", "on", "yes", "true"):
                return f"{variable} is set: the hub is not asked"
        return Hub(rest, source.revision, environment)
    if not separator or scheme in ("pvc", "oci"):
        return Folder(Path(source.path or source.source))
    return f"models of {scheme}:// are not read ahead"


def model(name: str, source: Source, environment: Mapping[str, str], root: Path | None = None) -> Model:
    """Whatever the files are. `name`: target or draft."""
    found = place(source, environment, root)
    if isinstance(found, str):
        return Model(name, source.source, unread=found)
    try:
        return read(name, source.source, found)
    except PullError as error:
        if error.reason is Failure.DOWNLOAD_FAILED:
            return Model(name, source.source, unread=f"it cannot be read here: {error}"[:1000])
        return Model(name, source.source, gone=f"{error.reason.value}: {error}"[:1000])
    except OSError as error:
        return Model(name, source.source, unread=f"it cannot be read here: {error}"[:1000])


def read(name: str, source: str, found: Place) -> Model:
    """All of it. Raises PullError or OSError."""
    sizes, problems = found.names(), list[str]()
    if "config.json" not in sizes:
        # Mistral's own format and llama.cpp's, which vLLM reads all the same.
        foreign = next((one for one in sizes if one == "params.json" or one.endswith(".gguf")), None)
        if foreign:
            return Model(name, source, unread=f"{foreign} is of a format that is not read ahead")
    settings: Config | None = None
    tokens: Vocabulary | None = None
    try:
        if "config.json" in sizes:
            settings = config.parse(found.read("config.json", 0, config.MAX_BYTES + 1))
    except MalformedError as error:
        problems.append(str(error))
    file = next((one for one in vocabulary.FILES if one in sizes), None)
    if file and sizes[file] <= vocabulary.MAX_BYTES:
        try:
            tokens = vocabulary.parse(file, found.read(file, 0, vocabulary.MAX_BYTES))
        except MalformedError as error:
            problems.append(f"tokenizer: {error}")
    shards, missing, indexed = _shards(found, sizes)
    problems += missing
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda one: _header(found, one, sizes[one], HEADER_BYTES // len(shards)), shards))
    problems += [one for one in results if isinstance(one, str)]
    taken = [one for one in results if not isinstance(one, str)]
    tensors = () if None in taken else tuple(tensor for one in taken if one for tensor in one)
    whole = sum(sizes[one] for one in shards)
    absent = sorted(indexed - {one.name for one in tensors}) if tensors and not problems else []
    doubt = f"{INDEX} names tensors that no file has: {len(absent)}, the first is {absent[0][:80]}" if absent else ""
    return Model(name, source, settings, tokens, tensors, whole, tuple(problems[:8]), doubt=doubt)


def _shards(found: Place, sizes: Mapping[str, int]) -> tuple[Sequence[str], list[str], Set[str]]:
    """(safetensors files that the engine would read, what is wrong with the list, names of tensors by the index)."""
    there = sorted(one for one in sizes if one.endswith(".safetensors"))
    if INDEX not in sizes:
        # Some repositories have the same weights a second time, under the first authors' names.
        there = [one for one in there if not one.startswith("consolidated")] or there
        return there[:MAX_FILES], [], frozenset()
    try:
        index = json.loads(found.read(INDEX, 0, INDEX_BYTES))
        listed = sorted({str(one) for one in index["weight_map"].values()})
        indexed = frozenset(index["weight_map"]) if len(listed) <= MAX_FILES else frozenset()
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return there[:MAX_FILES], [f"{INDEX} is no index"], frozenset()
    missing = [one for one in listed if one not in sizes]
    text = [f"{INDEX} names {len(missing)} files that are not there, the first is {missing[0]}"] if missing else []
    return [one for one in listed if one in sizes][:MAX_FILES], text, indexed


def _header(found: Place, name: str, size: int, most: int) -> tuple[Tensor, ...] | str | None:
    """Tensors of one file, or what is wrong with it; None where its header is longer than `most`."""
    first = found.read(name, 0, FIRST_BYTES)
    try:
        count = headers.length(first, size)
        if count > most:
            return None
        text = first[headers.LENGTH_BYTES : headers.LENGTH_BYTES + count]
        if len(text) < count:
            text += found.read(name, headers.LENGTH_BYTES + len(text), count - len(text))
        return headers.parse(text, size - headers.LENGTH_BYTES - count)
    except MalformedError as error:
        return f"{name}: {error}"
