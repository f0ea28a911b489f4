"""A hub on loopback: as much of the public HTTP API of model hubs as a puller asks, with faults to order.

As a program it serves the folders below one: `python -m tests.fakehub HOST PORT FOLDER COUNTS SECONDS`; the file COUNTS
tells after each request what was asked for how often, and a megabyte takes SECONDS.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """One model: its files at one commit, and what goes wrong with them."""

    files: dict[str, bytes]
    commit: str = "c" * 40
    lfs: frozenset[str] = frozenset({"model.safetensors"})
    gated: str = ""
    """Token that is asked for."""
    lies: dict[str, bytes] = field(default_factory=dict)
    """What is sent in place of a file."""
    break_after: int | None = None
    """Bytes after which each answer breaks off."""
    refusals: list[int] = field(default_factory=list)
    """HTTP codes with which the next answers to resolve fail."""
    listing: bytes | None = None
    """What is sent in place of the listing."""
    ranges: bool = True
    seconds_a_megabyte: float = 0.0


@dataclass
class Hub:
    """Repositories by `owner/name`. `asked` counts requests by kind; `storage` is the address files are led to."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    authorized: list[tuple[str, str]] = field(default_factory=list)
    """(host asked, Authorization) of each request for bytes."""
    elsewhere: bool = False
    """Bytes come from another address, as the hub's do."""
    url: str = ""
    storage: str = ""
    counts: Path | None = None
    _servers: list[ThreadingHTTPServer] = field(default_factory=list)

    def start(self, host: str = "127.0.0.1", port: int = 0) -> Hub:
        self.url, self.storage = self._serve(host, port), self._serve(host, 0)
        return self

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _serve(self, host: str, port: int) -> str:
        hub = self

        class Handler(_Handler):
            served = hub

        server = ThreadingHTTPServer((host, port), Handler)
        server.daemon_threads = True
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://{host}:{server.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    served: Hub

    def do_GET(self) -> None:
        hub, path = self.served, unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            hub.asked["listing"] += 1
            self._listing(hub.repositories.get(found[1]), found[2])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            hub.asked["resolve"] += 1
            self._resolve(found[1], found[3])
        elif found := re.fullmatch(r"/bytes/([^/]+/[^/]+)/(.+)", path):
            self._bytes(hub.repositories[found[1]], found[2])
        if hub.counts is not None:
            hub.counts.write_text(json.dumps(hub.asked))

    def _listing(self, repository: Repository | None, revision: str) -> None:
        if repository is None:
            return self._refuse(401, "RepoNotFound")
        if repository.gated and self.headers.get("Authorization") != f"Bearer {repository.gated}":
            return self._refuse(401, "GatedRepo")
        if revision not in ("main", repository.commit):
            return self._refuse(404, "RevisionNotFound")
        if repository.listing is not None:
            return self._answer(repository.listing)
        entries = [_entry(path, content, path in repository.lfs) for path, content in repository.files.items()]
        self._answer(json.dumps({"id": "owner/name", "sha": repository.commit, "siblings": entries}).encode())
        return None

    def _resolve(self, name: str, path: str) -> None:
        repository = self.served.repositories[name]
        if repository.refusals:
            return self._refuse(repository.refusals.pop(0), "")
        if self.served.elsewhere:
            self.send_response(302)
            self.send_header("Location", f"{self.served.storage}/bytes/{name}/{path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        return self._bytes(repository, path)

    def _bytes(self, repository: Repository, path: str) -> None:
        self.served.authorized.append((self.headers["Host"], self.headers.get("Authorization", "")))
        content = repository.lies.get(path, repository.files[path])
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop = (int(asked[1]), int(asked[2] or len(content)) + 1) if asked and repository.ranges else (0, 0)
        stop = min(stop or len(content), len(content))
        if start or stop < len(content):
            self.served.asked["ranges"] += 1
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        end = stop if repository.break_after is None else min(stop, start + repository.break_after)
        for at in range(start, end, 1 << 16):
            piece = content[at : min(end, at + (1 << 16))]
            time.sleep(repository.seconds_a_megabyte * len(piece) / 2**20)
            try:
                self.wfile.write(piece)
            except OSError:
                return
        self.served.asked["bytes"] += end - start
        if end < stop:
            self.close_connection = True

    def _refuse(self, code: int, word: str) -> None:
        self.send_response(code)
        self.send_header("X-Error-Code", word)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base's name
        pass


def _entry(path: str, content: bytes, lfs: bool) -> Mapping[str, object]:
    blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": blob}
    if lfs:
        entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry


def main() -> None:
    """Each folder of FOLDER is the repository `test/<folder>`."""
    host, port, folder, counts, seconds = sys.argv[1:]
    repositories = {
        f"test/{one.name}": Repository(
            {str(path.relative_to(one)): path.read_bytes() for path in one.rglob("*") if path.is_file()},
            seconds_a_megabyte=float(seconds),
        )
        for one in Path(folder).iterdir()
        if one.is_dir()
    }
    Hub(repositories, counts=Path(counts)).start(host, int(port))
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
