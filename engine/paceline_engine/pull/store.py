"""The volume: what is complete on it, and how a download becomes so. layout.py says where things lie."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline_engine.pull.fetch import PART, Progress, fetch_all, sync_folder
from paceline_engine.pull.hub import Listing
from paceline_engine.pull.layout import MANIFEST, folder, weights
from paceline_engine.pull.lock import Lock
from paceline_engine.pull.report import Failure, PullError

RESERVE_BYTES = 64 * 1024 * 1024
"""Left free beside what is downloaded."""


@dataclass(frozen=True)
class Held:
    """Weights that are there."""

    path: Path
    revision: str
    bytes: int


def find(root: Path, source: str, revision: str | None) -> Held | None:
    """What `revision` of `source` meant when it was pulled first, where all of it is there still: by name and size."""
    link = root / weights(source, revision)
    try:
        snapshot = link.resolve(strict=True)
        manifest = json.loads((snapshot / MANIFEST).read_text())
        files: dict[str, int] = manifest["files"]
        if any((snapshot / path).stat().st_size != size for path, size in files.items()):
            return None
        return Held(link, str(manifest["revision"]), sum(files.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def pull(
    root: Path,
    source: str,
    revision: str | None,
    list_files: Callable[[], Listing],
    lock: Callable[[Path], Lock],
    began: Callable[[str, int, Progress], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Held:
    """Download what `find` does not find. `began` is told revision, bytes and the progress. Raises PullError."""
    home = root / folder(source)
    try:
        with lock(home / "lock") as held:
            # Whoever held it before may have brought it.
            if (found := find(root, source, revision)) is not None:
                return found
            files = list_files()
            snapshot, partial = home / "snapshots" / files.revision, home / "partial" / files.revision
            if not _complete(snapshot, files):
                _take_back(snapshot, partial)
                progress = Progress()
                total = sum(file.size for file in files.files)
                began(files.revision, total, progress)
                _room(partial, total)
                fetch_all(files.files, partial, progress, lambda: not held.lost, sleep)
                _publish(partial, snapshot, source, files)
            _point(root / weights(source, revision), snapshot)
    except OSError as error:
        raise _of_disk(error) from error
    if (found := find(root, source, revision)) is None:
        raise PullError(Failure.DOWNLOAD_FAILED, f"{snapshot} is not as it was left: something else writes there")
    return found


def _complete(snapshot: Path, files: Listing) -> bool:
    try:
        return (snapshot / MANIFEST).is_file() and all(
            (snapshot / file.path).stat().st_size == file.size for file in files.files
        )
    except OSError:
        return False


def _take_back(snapshot: Path, partial: Path) -> None:
    """A snapshot that is not complete any more: what is left of it need not be downloaded again."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    if snapshot.exists():
        (snapshot / MANIFEST).unlink(missing_ok=True)
        if partial.exists():
            shutil.rmtree(partial)
        snapshot.rename(partial)
    partial.mkdir(exist_ok=True)


def _room(partial: Path, total: int) -> None:
    there = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
    missing, free = total - there, shutil.disk_usage(partial).free
    if missing > 0 and free < missing + RESERVE_BYTES:
        text = f"{_gib(missing)} are still to come and {_gib(free)} are free: give the claim more room"
        raise PullError(Failure.DISK_FULL, text)


def _publish(partial: Path, snapshot: Path, source: str, files: Listing) -> None:
    """One rename: before it nobody sees anything, after it all of it."""
    wanted = {file.path for file in files.files}
    for path in partial.rglob("*"):
        if path.is_file() and str(path.relative_to(partial)) not in wanted:
            path.unlink()  # of an earlier attempt, e.g. a part
    sizes = {file.path: file.size for file in files.files}
    manifest = partial / MANIFEST
    with manifest.open("w") as out:
        json.dump({"version": 1, "source": source, "revision": files.revision, "files": sizes}, out)
        out.flush()
        os.fsync(out.fileno())
    for inner in [path for path in partial.rglob("*") if path.is_dir()]:
        sync_folder(inner)
    sync_folder(partial)
    snapshot.parent.mkdir(parents=True, exist_ok=True)
    partial.rename(snapshot)
    sync_folder(snapshot.parent)


def _point(link: Path, snapshot: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f"{link.name}{PART}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(snapshot, link.parent))
    fresh.rename(link)
    sync_folder(link.parent)


def _of_disk(error: OSError) -> PullError:
    where = f": {error.filename}" if error.filename else ""
    text = f"{error.strerror or error}{where}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PullError(Failure.DISK_FULL, f"{text}: give the claim more room")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PullError(Failure.CACHE_UNWRITABLE, f"{text}: the claim must be writable by the pod's user or fsGroup")
    return PullError(Failure.DOWNLOAD_FAILED, text)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
