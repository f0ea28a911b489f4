"""The puller against a hub on loopback: complete or not there, resumed, verified, once for all."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.pull import __main__ as command
from paceline_engine.pull import fetch, store
from paceline_engine.pull.hub import listing as hub_listing
from paceline_engine.pull.layout import folder, weights
from paceline_engine.pull.report import EXIT_STATUS, Artefact, Failure, PullError, Report
from tests.fakehub import Hub, Repository

SOURCE = "hf://owner/target"
BIG = random.Random(7).randbytes(3 * 2**20 + 17)
FILES = {
    "config.json": b'{"a": 1}',
    "model.safetensors": BIG,
    "nested/tokenizer.json": b"t" * 5000,
    "empty.txt": b"",
    "pytorch_model.bin": b"the same again",
    "original/params.json": b"{}",
}
WANTED = {"config.json", "model.safetensors", "nested/tokenizer.json", "empty.txt"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    started = Hub({"owner/target": Repository(dict(FILES)), "owner/draft": Repository({"config.json": b"{}"})}).start()
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr("paceline_engine.pull.hub.PAUSES", (0.0, 0.0))


class Puller:
    """The command, in this process."""

    def __init__(self, root: Path, hub: Hub) -> None:
        self.root, self.message = root, root.parent / "termination-log"
        self.environment = {"HF_ENDPOINT": hub.url, "PACELINE_TERMINATION_LOG": str(self.message)}

    def run(self, *artefacts: tuple[str, str, str], **environment: str) -> tuple[int, Report]:
        self.message.write_text("")
        arguments = ["--root", str(self.root)]
        for artefact in artefacts or (("model", SOURCE, ""),):
            arguments += ["--artefact", *artefact]
        status = command.main(arguments, {**self.environment, **environment})
        return status, Report.model_validate_json(self.message.read_text())


@pytest.fixture
def puller(tmp_path: Path, hub: Hub) -> Puller:
    (tmp_path / "claim").mkdir()
    return Puller(tmp_path / "claim", hub)


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != store.MANIFEST
    }


def test_what_an_engine_reads_is_there_and_only_that(puller: Puller) -> None:
    status, report = puller.run()
    (told,) = report.artefacts
    assert (status, told.phase, told.revision) == (0, "Ready", "c" * 40)
    link = puller.root / weights(SOURCE, None)
    assert contents(link.resolve()) == {name: FILES[name] for name in WANTED}
    assert told.bytes == told.done == sum(len(FILES[name]) for name in WANTED)
    home = puller.root / folder(SOURCE)
    assert not list((home / "partial").iterdir())
    assert not (home / "lock").exists()


def test_a_second_puller_asks_nobody(puller: Puller, hub: Hub) -> None:
    puller.run()
    asked = dict(hub.asked)
    status, report = puller.run(HF_ENDPOINT="http://127.0.0.1:9")
    assert (status, report.artefacts[0].revision, dict(hub.asked)) == (0, "c" * 40, asked)


def test_a_branch_stays_at_the_commit_it_was_first_resolved_to(puller: Puller, hub: Hub) -> None:
    puller.run()
    hub.repositories["owner/target"] = Repository({"config.json": b"newer"}, commit="d" * 40)
    assert puller.run()[1].artefacts[0].revision == "c" * 40
    status, report = puller.run(("model", SOURCE, "d" * 40))
    assert (status, report.artefacts[0].revision) == (0, "d" * 40)
    assert contents((puller.root / weights(SOURCE, "d" * 40)).resolve()) == {"config.json": b"newer"}


def test_two_names_of_one_commit_share_its_files(puller: Puller, hub: Hub) -> None:
    puller.run()
    resolved = hub.asked["resolve"]
    puller.run(("model", SOURCE, "c" * 40))
    assert hub.asked["resolve"] == resolved
    assert len({(puller.root / weights(SOURCE, name)).resolve() for name in (None, "c" * 40)}) == 1


def test_target_and_draft_come_by_one_run(puller: Puller) -> None:
    status, report = puller.run(("model", SOURCE, ""), ("draft", "hf://owner/draft", ""))
    assert status == 0
    assert [(told.name, told.phase) for told in report.artefacts] == [("model", "Ready"), ("draft", "Ready")]


def test_a_connection_that_breaks_is_resumed_by_range(puller: Puller, hub: Hub) -> None:
    hub.repositories["owner/target"].break_after = 2**20
    status, _ = puller.run()
    assert status == 0
    assert hub.asked["ranges"] >= 3
    assert hub.asked["bytes"] == sum(len(FILES[name]) for name in WANTED)


def test_a_server_without_ranges_begins_anew(puller: Puller, hub: Hub) -> None:
    repository = hub.repositories["owner/target"]
    repository.ranges, repository.break_after = False, 2**20
    status, report = puller.run()
    assert (status, report.artefacts[0].reason) == (10, "DownloadFailed")
    repository.break_after = None
    assert puller.run()[0] == 0


def test_passing_troubles_are_waited_out(puller: Puller, hub: Hub) -> None:
    hub.repositories["owner/target"].refusals += [503, 429]
    assert puller.run()[0] == 0


def test_lasting_ones_are_told_and_what_came_stays(puller: Puller, hub: Hub) -> None:
    hub.repositories["owner/target"].refusals += [500] * 99
    status, report = puller.run()
    assert (status, report.artefacts[0].reason) == (10, "DownloadFailed")
    assert "HTTP 500" in report.artefacts[0].message
    hub.repositories["owner/target"].refusals.clear()
    assert puller.run()[0] == 0


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_other_bytes_than_announced_are_never_published(puller: Puller, hub: Hub, path: str) -> None:
    """Both kinds of digest: sha256 of large files, git's own of small ones."""
    hub.repositories["owner/target"].lies[path] = bytes(len(FILES[path]))
    status, report = puller.run()
    assert (status, report.artefacts[0].reason) == (11, "DigestMismatch")
    assert path in report.artefacts[0].message
    assert not (puller.root / weights(SOURCE, None)).exists()
    hub.repositories["owner/target"].lies.clear()
    assert puller.run()[0] == 0


def test_a_gated_model_needs_its_token_and_storage_never_sees_it(puller: Puller, hub: Hub) -> None:
    hub.repositories["owner/target"].gated, hub.elsewhere = "hf_secret", True
    status, report = puller.run()
    assert (status, report.artefacts[0].reason) == (21, "TokenMissing")
    assert "tokenSecretName" in report.artefacts[0].message
    status, _ = puller.run(HF_TOKEN="hf_secret")
    assert status == 0
    assert {token for host, token in hub.authorized if host in hub.storage} == {""}
    assert "hf_secret" not in puller.message.read_text()


@pytest.mark.parametrize(
    ("source", "revision", "reason"),
    [
        ("hf://owner/none", "", "TokenMissing"),  # a hub does not tell strangers what is not there
        (SOURCE, "v9", "ModelNotFound"),
        ("/nowhere/at/all", "", "ModelNotFound"),
        ("s3://bucket/key", "", "SourceUnsupported"),
    ],
)
def test_what_is_not_there(puller: Puller, source: str, revision: str, reason: str) -> None:
    status, report = puller.run(("model", source, revision))
    assert (status, report.artefacts[0].reason) == (EXIT_STATUS[Failure(reason)], reason)


def test_the_last_word_is_never_cut_in_half() -> None:
    artefacts = [
        {"name": name, "source": "hf://o/" + "ü" * 500, "phase": "Failed", "reason": "DiskFull", "message": "ü" * 1000}
        for name in ("model", "draft")
    ]
    text = command._fitting(Report.model_validate({"artefacts": artefacts}))
    assert len(text) <= 4096
    assert Report.model_validate_json(text).artefacts[1].reason is Failure.DISK_FULL


def test_a_path_is_looked_at_and_left_where_it_is(puller: Puller, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"123")
    status, report = puller.run(("model", str(tmp_path), ""))
    assert (status, report.artefacts[0].phase) == (0, "Ready")
    assert not (puller.root / "weights").exists()


def test_a_listing_cannot_write_outside(puller: Puller, hub: Hub) -> None:
    hub.repositories["owner/target"] = Repository({"../../escaped": b"x"})
    status, report = puller.run()
    assert (status, report.artefacts[0].reason) == (10, "DownloadFailed")
    assert not list(puller.root.parent.rglob("escaped"))


@pytest.mark.parametrize(
    ("listing", "says"),
    [
        (b'{"sha":"abc","siblings":[{"rfilename":"a\\ud800","size":5}]}', "not a name to write"),
        (b'{"sha":"abc","siblings":[{"rfilename":"a","size":5},{"rfilename":"./a","size":5}]}', "not a name to write"),
        (b'{"sha":"abc","siblings":[{"rfilename":"a","size":Infinity}]}', "OverflowError"),
        (b'{"sha":"abc","siblings":[{"rfilename":"a","size":-5}]}', "sizes that cannot be"),
        (b'{"sha":"abc","siblings":[{"rfilename":"a","size":%s}]}' % (b"9" * 400), "sizes that cannot be"),
        (b'{"sha":"abc","siblings":[{"rfilename":"a","size":5,"lfs":"x"}]}', "AttributeError"),
        (b'{"sha":"%s","siblings":[{"rfilename":"a","size":5}]}' % (b"a" * 200), "which is no commit"),
        (b'{"sha":"\xc3\xa9\xc3\xa9","siblings":[{"rfilename":"a","size":5}]}', "which is no commit"),
        (b'{"sha":"\\ud800","siblings":[{"rfilename":"a","size":5}]}', "which is no commit"),
        (b"[" * 200_000, "recursion"),
    ],
)
def test_whatever_a_hub_lists_the_reason_is_told(puller: Puller, hub: Hub, listing: bytes, says: str) -> None:
    hub.repositories["owner/target"] = Repository({}, listing=listing)
    status, report = puller.run()
    (told,) = report.artefacts
    assert (status, told.phase, told.reason) == (10, "Failed", "DownloadFailed")
    assert says in told.message


LISTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["sha", "siblings", "rfilename", "size", "lfs", "sha256", "blobId"]), inner)
    ),
    max_leaves=12,
)
FILE = st.fixed_dictionaries({"rfilename": LISTED, "size": LISTED}, optional={"lfs": LISTED, "blobId": LISTED})


@given(LISTED | st.fixed_dictionaries({"sha": LISTED | st.just("c" * 40), "siblings": st.lists(FILE, max_size=3)}))
def test_a_listing_is_of_files_that_can_be_or_refused(found: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline_engine.pull.hub._json", lambda *_: found)
        try:
            listed = hub_listing("owner/target", "main", {})
        except PullError:
            return
    total = sum(file.size for file in listed.files)
    Artefact(name="model", source=SOURCE, revision=listed.revision, bytes=total)
    for file in listed.files:
        assert (Path("/claim") / file.path).is_relative_to("/claim")
        assert ".." not in Path(file.path).parts
        assert file.request()[0].isascii()


def test_what_nobody_foresaw_is_told_too(puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("\udc80" + "x" * 5000)

    monkeypatch.setattr(store, "pull", broken)
    status, report = puller.run()
    assert (status, report.artefacts[0].reason) == (10, "DownloadFailed")
    assert f"{SOURCE}: LookupError: \\udc80xxx" in report.artefacts[0].message


def test_names_that_are_ours_elsewhere_do_no_harm(puller: Puller, hub: Hub) -> None:
    files = {"a": b"1" * 70_000, "a.part": b"2" * 70_000, store.MANIFEST: b"of a snapshot", "deep/.paceline.json": b"3"}
    hub.repositories["owner/target"] = Repository(files)
    for _ in range(2):
        status, report = puller.run()
        assert (status, report.artefacts[0].bytes) == (0, 140_001)
    snapshot = (puller.root / weights(SOURCE, None)).resolve()
    assert {path for path in files if (snapshot / path).read_bytes() == files[path]} == set(files) - {store.MANIFEST}


def test_files_that_went_are_brought_again_and_only_they(puller: Puller, hub: Hub) -> None:
    puller.run()
    snapshot = (puller.root / weights(SOURCE, None)).resolve()
    (snapshot / "config.json").unlink()
    hub.asked.clear()
    assert puller.run()[0] == 0
    assert hub.asked["resolve"] == 1
    assert contents(snapshot)["config.json"] == FILES["config.json"]


def test_a_disk_too_small_is_told_before_the_download(
    puller: Puller, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    status, report = puller.run()
    assert (status, report.artefacts[0].reason) == (20, "DiskFull")
    assert "3 MiB are still to come and 1 MiB are free" in report.artefacts[0].message
    assert hub.asked["resolve"] == 0


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.ENOSPC, "DiskFull"), (errno.EDQUOT, "DiskFull"), (errno.EROFS, "CacheUnwritable")]
)
def test_a_disk_that_refuses_in_the_middle(
    puller: Puller, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fetch.os, "fsync", refuse)
    status, report = puller.run()
    assert (status, report.artefacts[0].reason) == (EXIT_STATUS[Failure(reason)], reason)
    monkeypatch.undo()
    assert puller.run()[0] == 0


def test_a_full_tmpfs(hub: Hub, tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    claim.mkdir()
    mounted = f"mount -t tmpfs -o size=66m none {claim} && head -c 64m /dev/zero >{claim}/other && exec "
    own_mounts = ["unshare", "--mount", "--", "sh", "-c"]
    if subprocess.run([*own_mounts, f"mount -t tmpfs none {claim}"], capture_output=True).returncode:
        pytest.skip("this user may not mount anything")
    run = subprocess.run([*own_mounts, mounted + " ".join(_command(claim))], env=_environment(hub), capture_output=True)
    assert (run.returncode, b"DiskFull" in run.stderr) == (20, True), run.stderr


def test_killed_in_the_middle_and_resumed(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["owner/target"].seconds_a_megabyte = 0.3
    claim = tmp_path / "claim"
    process = subprocess.Popen(_command(claim), env=_environment(hub), stderr=subprocess.DEVNULL)
    part = claim / folder(SOURCE) / "partial" / ("c" * 40) / f"model.safetensors{fetch.PART}"
    _until(lambda: part.exists() and part.stat().st_size >= 2**20)
    process.send_signal(signal.SIGKILL)
    process.wait()
    held = part.stat().st_size
    assert not (claim / weights(SOURCE, None)).exists()
    hub.repositories["owner/target"].seconds_a_megabyte = 0.0
    hub.asked.clear()
    began = time.monotonic()
    subprocess.run(_command(claim), env=_environment(hub), check=True, capture_output=True)
    assert time.monotonic() - began < 30, "the same pod's lock is no living one's"
    assert hub.asked["ranges"] == 1
    assert hub.asked["bytes"] <= sum(len(FILES[name]) for name in WANTED) - held
    assert contents((claim / weights(SOURCE, None)).resolve())["model.safetensors"] == BIG


def test_two_pods_at_once_download_once(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["owner/target"].seconds_a_megabyte = 0.1
    claim = tmp_path / "claim"
    pods = [
        subprocess.Popen(_command(claim), env=_environment(hub, pod), stderr=subprocess.PIPE) for pod in ("a", "b", "c")
    ]
    ends = [pod.communicate(timeout=60)[1] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0, 0], ends
    assert (hub.asked["listing"], hub.asked["resolve"]) == (1, sum(1 for name in WANTED if FILES[name]))


def test_progress_is_told_to_who_has_the_token(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["owner/target"].seconds_a_megabyte = 0.5
    (tmp_path / "token").mkdir()
    (tmp_path / "token" / "current").write_text("abc\n")
    port = str(_free_port())
    extra = {"PACELINE_TOKEN_DIR": str(tmp_path / "token"), "PACELINE_CONTROL_PORT": port}
    environment = _environment(hub) | extra | {"PACELINE_CONTROL_HOST": "127.0.0.1"}
    process = subprocess.Popen(_command(tmp_path / "claim"), env=environment, stderr=subprocess.DEVNULL)

    def told(token: str = "abc") -> Any:
        try:
            with fetch.open_url(f"http://127.0.0.1:{port}/pull", {"Authorization": f"Bearer {token}"}) as answer:
                return json.load(answer)["artefacts"][0]
        except HTTPError as error:
            error.close()
            return {"code": error.code}
        except OSError:
            return {}

    _until(lambda: told().get("done", 0) >= 2**20)
    assert told()["phase"] == "Downloading"
    assert told()["bytes"] == sum(len(FILES[name]) for name in WANTED)
    assert told("abd") == {"code": 401}
    process.kill()
    process.wait()


def _command(claim: Path) -> list[str]:
    module = [sys.executable, "-m", "paceline_engine.pull", "--root", str(claim)]
    return [*module, "--artefact", "model", SOURCE, "main"]


def _environment(hub: Hub, pod: str = "pod") -> dict[str, str]:
    return {**os.environ, "HF_ENDPOINT": hub.url, "PACELINE_POD": pod}


def _until(probe: Any) -> None:
    deadline = time.monotonic() + 20
    while not probe():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
