"""Files from their addresses onto the disk: resumed by range, verified while they are written, several at once.

huggingface_hub is not used here: it begins a file that was broken off by a kill anew (2.4.0: a temporary file has a new
name each time), and files of weights are gigabytes long.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from paceline_engine.pull.report import Failure, PullError

AT_ONCE = 8
CHUNK_BYTES = 1024 * 1024
TIMEOUT_SECONDS = 60.0
"""Without a byte."""
PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Before another attempt at a file; what has arrived stays. An attempt that brought something begins anew with them."""
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
PART = ".paceline-part"
"""No name that a source has: there, `a` and `a.part` are two files."""


@dataclass(frozen=True)
class File:
    """One file to fetch. `request` is asked at each attempt: signed addresses expire."""

    path: str
    size: int
    digest: tuple[str, str] | None
    """("sha256" | "md5" | "git", hex): git's is sha1 over a header and the content."""
    request: Callable[[], tuple[str, Mapping[str, str]]] = field(repr=False)
    """URL and headers."""

    def __post_init__(self) -> None:
        plain = PurePosixPath(self.path)
        if not plain.parts or ".." in plain.parts or plain.is_absolute() or "\0" in self.path:
            raise PullError(Failure.DOWNLOAD_FAILED, f"the listing has a file {self.path!r}, outside of its folder")
        if str(plain) != self.path or self.path.encode(errors="ignore").decode() != self.path:
            raise PullError(Failure.DOWNLOAD_FAILED, f"the listing has a file {self.path!r}: not a name to write")


class Progress:
    """Bytes on the disk, told by several threads."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}

    @property
    def done(self) -> int:
        """Of all files."""
        return sum(list(self._done.values()))

    def tell(self, path: str, count: int) -> None:
        """`count` bytes of one file are there."""
        self._done[path] = count


def fetch_all(
    files: Sequence[File],
    folder: Path,
    progress: Progress,
    go_on: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """All `files` into `folder`, flushed to the disk. Raises PullError, and OSError of the disk.

    `go_on` False ends it: it is asked at each chunk. A file that has its name is complete.
    """
    failed = threading.Event()

    def one(file: File) -> None:
        try:
            fetch(file, folder, progress, lambda: go_on() and not failed.is_set(), sleep)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(AT_ONCE) as threads:
        results = [threads.submit(one, file) for file in files]
    errors = [error for error in (result.exception() for result in results) if error is not None]
    # The first failure tells; the others were stopped by it.
    telling = [error for error in errors if not isinstance(error, _Stopped)]
    for error in [*telling, *errors]:
        raise error


class _Stopped(PullError):  # noqa: N818 not a failure of its own
    def __init__(self) -> None:
        super().__init__(Failure.DOWNLOAD_FAILED, "stopped: another puller has taken over, or another file failed")


class _Broken(Exception):  # noqa: N818 worth another attempt, from where it broke off
    pass


class _Spoilt(Exception):  # noqa: N818 worth one more attempt, from the start
    def __init__(self, message: str, reason: Failure = Failure.DIGEST_MISMATCH) -> None:
        super().__init__(message)
        self.reason = reason


def fetch(
    file: File, folder: Path, progress: Progress, go_on: Callable[[], bool], sleep: Callable[[float], None]
) -> None:
    """One file, by as many attempts as bring something, and a few more."""
    whole, part = folder / file.path, folder / (file.path + PART)
    if whole.is_file() and whole.stat().st_size == file.size:
        progress.tell(file.path, file.size)
        return
    whole.unlink(missing_ok=True)
    whole.parent.mkdir(parents=True, exist_ok=True)
    pauses, spoilt = list(PAUSES), False
    while True:
        held = part.stat().st_size if part.exists() else 0
        try:
            _attempt(file, part, progress, go_on)
            break
        except _Spoilt as error:
            if spoilt:
                raise PullError(error.reason, str(error)) from None
            spoilt = True
        except _Broken as error:
            if part.exists() and part.stat().st_size > held:
                pauses = list(PAUSES)
            if not pauses:
                raise PullError(Failure.DOWNLOAD_FAILED, f"{file.path}: {error}") from None
            sleep(pauses.pop(0))
    part.rename(whole)
    sync_folder(whole.parent)


def _attempt(file: File, part: Path, progress: Progress, go_on: Callable[[], bool]) -> None:
    with part.open("a+b") as out:
        digest, held = _digest(file), 0
        out.seek(0)
        while chunk := out.read(CHUNK_BYTES):
            digest.update(chunk)
            held += len(chunk)
        progress.tell(file.path, held)
        try:
            if held < file.size:
                held = _receive(file, out, digest, held, progress, go_on)
            if held < file.size:
                raise _Broken(f"ended after {held} of {file.size} bytes")
            if held > file.size:
                raise _Spoilt(f"{file.path}: {held} bytes came, announced are {file.size}")
            if file.digest and digest.hexdigest() != file.digest[1]:
                raise _Spoilt(f"{file.path}: {file.digest[0]} is {digest.hexdigest()}, announced is {file.digest[1]}")
        except _Spoilt:
            out.truncate(0)
            raise
        out.flush()
        os.fsync(out.fileno())


def _receive(file: File, out: IO[bytes], digest: Any, held: int, progress: Progress, go_on: Callable[[], bool]) -> int:
    """Append what is missing; the bytes that are there then."""
    url, headers = file.request()
    ranged = {"Range": f"bytes={held}-"} if held else {}
    try:
        with open_url(url, {**headers, **ranged}) as answer:
            if held and not _continues(answer, held):
                text = f"{file.path}: the server does not continue where it broke off"
                raise _Spoilt(text, Failure.DOWNLOAD_FAILED)
            while held <= file.size and (chunk := _read(answer)):
                if not go_on():
                    raise _Stopped
                out.write(chunk)
                digest.update(chunk)
                held += len(chunk)
                progress.tell(file.path, held)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _Spoilt(f"{file.path}: the server has no more than {held} bytes") from None
        if error.code in TRANSIENT:
            raise _Broken(f"HTTP {error.code}") from None
        raise refusal(error, file.path) from None
    except (http.client.HTTPException, urllib.error.URLError, ConnectionError, TimeoutError) as error:
        raise _Broken(str(error) or type(error).__name__) from None
    return held


def _read(answer: http.client.HTTPResponse) -> bytes:
    """The next chunk. What fails here is the network; what fails where it is written is the disk."""
    try:
        return answer.read(CHUNK_BYTES)
    except (http.client.HTTPException, OSError) as error:
        raise _Broken(str(error) or type(error).__name__) from None


def _continues(answer: http.client.HTTPResponse, held: int) -> bool:
    return answer.status == HTTPStatus.PARTIAL_CONTENT and f"bytes {held}-" in (answer.headers["Content-Range"] or "")


def _digest(file: File) -> Any:
    algorithm = file.digest[0] if file.digest else "sha256"
    if algorithm != "git":
        return hashlib.new(algorithm, usedforsecurity=False)
    digest = hashlib.sha1(usedforsecurity=False)
    digest.update(f"blob {file.size}\0".encode())
    return digest


class _Redirects(urllib.request.HTTPRedirectHandler):
    """The hub's answers lead to storage elsewhere: the token is for the hub alone."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            found.remove_header("Authorization")
        return found


def open_url(url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    """GET; raises what urllib raises. Proxies as the environment says, certificates as Python or certifi have them."""
    place = urlsplit(url)
    if place.username is not None:
        raise PullError(
            Failure.DOWNLOAD_FAILED, f"the address of {place.hostname} has a user in it: give a token alone"
        )
    if place.scheme not in ("http", "https"):
        raise PullError(Failure.DOWNLOAD_FAILED, f"{url[:200]} is not an address of the web")
    # http.client would say the whole value, which is a token.
    if odd := [name for name, value in headers.items() if not (value.isascii() and value.isprintable())]:
        text = f"what is to be sent as {odd[0]} has a line break or another character in it that no header takes"
        raise PullError(Failure.TOKEN_MISSING, f"{text}: look at the token's Secret")
    opener = urllib.request.build_opener(_Redirects(), urllib.request.HTTPSHandler(context=_certificates()))
    request = urllib.request.Request(url, headers={"User-Agent": "paceline", **headers})  # noqa: S310 checked above
    answer: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT_SECONDS)
    return answer


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not context.get_ca_certs() and not os.environ.get("SSL_CERT_DIR"):
        with suppress(ImportError):
            import certifi  # of vLLM's environment: an image may have no certificates of its own

            context.load_verify_locations(certifi.where())
    return context


def refusal(error: urllib.error.HTTPError, what: str) -> PullError:
    """What a hub's refusal means. X-Error-Code is huggingface.co's, which answers 401 also for what is not there."""
    code = error.headers.get("X-Error-Code", "")
    if code in ("RevisionNotFound", "EntryNotFound") or error.code == HTTPStatus.NOT_FOUND:
        text = f"{what}: the hub has no such repository, revision or file"
        return PullError(Failure.MODEL_NOT_FOUND, f"{text} ({code})" if code else text)
    if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        text = "it is private or gated (or not there): set model.tokenSecretName to a token that may read it"
        return PullError(Failure.TOKEN_MISSING, f"{what}: {f'HTTP {error.code} {code}'.rstrip()}: {text}")
    return PullError(Failure.DOWNLOAD_FAILED, f"{what}: HTTP {error.code}")


def sync_folder(folder: Path) -> None:
    """Make renames in it last."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems cannot: their close is their flush
        pass
    finally:
        os.close(handle)
