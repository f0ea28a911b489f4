"""Command line of the puller.

    python3 -m paceline_engine.pull --root DIR [--compiled HOME] --artefact NAME SOURCE REVISION ...

REVISION "" is the default branch. A path as SOURCE is only looked at. What came of it is the container's termination
message; exit status 0 where everything is there, else report.EXIT_STATUS.
"""

from __future__ import annotations

import argparse
import hmac
import logging
import os
import platform
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from paceline_engine.protocol import CONTROL_PORT, ENV_CONTROL_HOST, ENV_CONTROL_PORT, ENV_TOKEN_DIRECTORY
from paceline_engine.pull import bucket, compiled, hub, store
from paceline_engine.pull.fetch import Progress
from paceline_engine.pull.layout import DOWNLOADED
from paceline_engine.pull.lock import Lock
from paceline_engine.pull.report import (
    EXIT_STATUS,
    PATH,
    TERMINATION_BYTES,
    Artefact,
    Failure,
    Phase,
    PullError,
    Report,
)

log = logging.getLogger("paceline.pull")
ENV_POD = "PACELINE_POD"
TERMINATION_LOG = "/dev/termination-log"
BEAT_SECONDS = 30.0
"""Between lines about progress in the log."""


@dataclass
class Work:
    """One artefact as it stands. Read by the port's threads."""

    told: Artefact
    progress: Progress = field(default_factory=Progress)

    @property
    def name(self) -> str:
        """model or draft."""
        return self.told.name

    @property
    def source(self) -> str:
        """As it was asked for."""
        return self.told.source

    @property
    def revision(self) -> str | None:
        """As it was asked for; None is the default."""
        return self.told.asked or None

    def report(self) -> Artefact:
        """With the bytes of now."""
        if self.told.phase is not Phase.DOWNLOADING:
            return self.told
        return self.told.model_copy(update={"done": self.progress.done})


def bring(work: Work, root: Path, owner: str, environment: Mapping[str, str]) -> None:
    """Have the weights on the volume, or say in `work.told` why not."""
    scheme = work.source.partition("://")[0] if "://" in work.source else ""
    try:
        held = _looked_at(work) if scheme not in DOWNLOADED else store.find(root, work.source, work.revision)
        if held is None:
            log.info("Pulling: artefact=%s source=%s revision=%s", work.name, work.source, work.revision or "")
            held = store.pull(
                root,
                work.source,
                work.revision,
                partial(_listing, work, scheme, environment),
                lambda path: Lock(path, owner),
                partial(_began, work),
            )
        ready = {"phase": Phase.READY, "revision": held.revision, "bytes": held.bytes, "done": held.bytes}
        work.told = work.told.model_copy(update=ready)
        log.info("Ready: artefact=%s revision=%s bytes=%d path=%s", work.name, held.revision, held.bytes, held.path)
    except PullError as error:
        _failed(work, error.reason, str(error))
    except Exception as error:  # whatever a hub or a bucket sends, why there are no weights is told
        log.exception("Unforeseen: artefact=%s", work.name)
        _failed(work, Failure.DOWNLOAD_FAILED, f"{work.source}: {type(error).__name__}: {error}")


def _failed(work: Work, reason: Failure, text: str) -> None:
    message = text.encode(errors="backslashreplace").decode()[:1000]
    work.told = work.told.model_copy(update={"phase": Phase.FAILED, "reason": reason, "message": message})
    log.error("Failed: artefact=%s reason=%s message=%s", work.name, reason, message)


def _looked_at(work: Work) -> store.Held:
    """Weights that are mounted or in the image: there is nothing to bring, but they may not be there."""
    path = Path(work.source)
    try:
        files = [entry for entry in path.iterdir() if entry.is_file()] if path.is_dir() else [path]
        return store.Held(path, "", sum(file.stat().st_size for file in files))
    except OSError as error:
        raise PullError(Failure.MODEL_NOT_FOUND, f"{path}: {error.strerror}") from None


def _listing(work: Work, scheme: str, environment: Mapping[str, str]) -> hub.Listing:
    if scheme == "s3":
        return bucket.listing(work.source)
    return hub.listing(work.source.removeprefix("hf://"), work.revision or "main", environment)


def _began(work: Work, revision: str, total: int, progress: Progress) -> None:
    work.progress = progress
    begun = {"phase": Phase.DOWNLOADING, "revision": revision, "bytes": total}
    work.told = work.told.model_copy(update=begun)


def report(works: Sequence[Work]) -> Report:
    """Of all."""
    return Report(artefacts=[work.report() for work in works])


def serve(works: Sequence[Work], environment: Mapping[str, str]) -> ThreadingHTTPServer | None:
    """`GET /pull` on the control port, which is free as long as no engine runs; None where there is no token for it."""
    folder = environment.get(ENV_TOKEN_DIRECTORY)
    if not folder:
        return None
    tokens = [path.read_bytes().strip() for path in Path(folder).glob("[!.]*") if path.is_file()]

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            shown = (self.headers.get("Authorization") or "").removeprefix("Bearer ").encode()
            admitted = any(hmac.compare_digest(shown, token) for token in tokens if token)
            found = HTTPStatus.OK if self.path == PATH else HTTPStatus.NOT_FOUND
            self.send_response(found if admitted else HTTPStatus.UNAUTHORIZED)
            body = report(works).model_dump_json(by_alias=True).encode() if admitted and self.path == PATH else b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base's name
            pass

    address = environment.get(ENV_CONTROL_HOST, "0.0.0.0"), int(environment.get(ENV_CONTROL_PORT, CONTROL_PORT))  # noqa: S104
    try:
        server = ThreadingHTTPServer(address, Handler)
    except OSError as error:  # progress is a comfort, weights are not
        log.warning("Progress is not served: address=%s:%d error=%s", *address, error)
        return None
    threading.Thread(target=server.serve_forever, name="paceline-progress", daemon=True).start()
    return server


def _tell(works: Sequence[Work], over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        for told in report(works).artefacts:
            if told.phase is Phase.DOWNLOADING and told.bytes:
                log.info("Downloading: artefact=%s done=%d bytes=%d", told.name, told.done, told.bytes)


def ended(works: Sequence[Work], at: Path) -> int:
    """Write the termination message; the exit status."""
    found = report(works)
    try:
        if at.exists():
            at.write_bytes(_fitting(found))
    except OSError as error:
        log.warning("The termination message could not be written: error=%s", error)
    return max((EXIT_STATUS[told.reason] for told in found.artefacts if told.reason), default=0)


def _fitting(found: Report) -> bytes:
    """As JSON that the kubelet keeps whole: half of it would tell nothing."""
    for length in (1000, 200, 0):
        cut = [one.model_copy(update={"message": one.message[:length]}) for one in found.artefacts]
        text = Report(artefacts=cut).model_dump_json(by_alias=True, exclude_none=True).encode()
        if len(text) <= TERMINATION_BYTES:
            break
    return text


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Answers the exit status."""
    parser = argparse.ArgumentParser(prog="paceline_engine.pull", description="Bring weights onto a volume.")
    parser.add_argument("--root", type=Path, required=True, help="the volume")
    parser.add_argument("--compiled", type=Path, help="the engine's home: its folders of compiled code will lead there")
    parser.add_argument("--artefact", nargs=3, action="append", default=[], metavar=("NAME", "SOURCE", "REVISION"))
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    works = [Work(Artefact(name=name, source=source, asked=asked)) for name, source, asked in options.artefact]
    owner = (environment.get(ENV_POD) or platform.node()).replace(" ", "_")
    server, over = serve(works, environment), threading.Event()
    threading.Thread(target=_tell, args=(works, over), daemon=True).start()
    for work in works:
        bring(work, options.root, owner, environment)
    if options.compiled:
        try:
            log.info("Compiled code: path=%s", compiled.link(options.root, options.compiled))
        except OSError as error:  # the engine compiles anew, in a folder of its pod
            log.warning("The cache of compiled code is not used: error=%s", error)
    over.set()
    if server is not None:
        server.shutdown()
        server.server_close()
    return ended(works, Path(environment.get("PACELINE_TERMINATION_LOG", TERMINATION_LOG)))


if __name__ == "__main__":
    sys.exit(main())
