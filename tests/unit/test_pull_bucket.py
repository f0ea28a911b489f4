"""s3:// onto the claim: what boto3 lists and signs, and what its errors mean. boto3, no dependency, is stood in for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline_engine.pull import bucket, store
from paceline_engine.pull.layout import weights
from paceline_engine.pull.lock import Lock
from paceline_engine.pull.report import Failure, PullError
from tests.fakehub import Hub, Repository

SOURCE = "s3://bucket/models/llama"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 1000}


class ClientError(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


class BotoCoreError(Exception):
    pass


class NoCredentialsError(BotoCoreError):
    pass


class Client:
    """What boto3.client("s3") is asked for here."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.fails, self.listed = hub, None, 0  # type: ignore[var-annotated]
        self.tag = '"1"'

    def get_paginator(self, operation: str) -> Client:
        assert operation == "list_objects_v2"
        return self

    def paginate(self, **asked: str) -> Iterator[dict[str, Any]]:
        assert asked == {"Bucket": "bucket", "Prefix": "models/llama/"}
        self.listed += 1
        if self.fails is not None:
            raise self.fails
        keys = [{"Key": f"models/llama/{name}", "Size": len(data), "ETag": self.tag} for name, data in FILES.items()]
        yield {"Contents": [{"Key": "models/llama/", "Size": 0}, *keys[:1]]}
        yield {"Contents": keys[1:]}
        yield {}

    def generate_presigned_url(self, operation: str, *, Params: dict[str, str], ExpiresIn: int) -> str:  # noqa: N803
        assert (operation, Params["Bucket"]) == ("get_object", "bucket")
        name = Params["Key"].removeprefix("models/llama/")
        return f"{self.hub.url}/bytes/s3/models/{name}?X-Amz-Signature=abc"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    hub = Hub({"s3/models": Repository(FILES)}).start()
    made = Client(hub)
    names = ("boto3", "botocore", "botocore.config", "botocore.exceptions")
    modules = {name: ModuleType(name) for name in names}
    vars(modules["boto3"])["client"] = lambda service, config: {("s3", "s3v4"): made}[service, config]
    vars(modules["botocore.config"])["Config"] = lambda signature_version: signature_version
    vars(modules["botocore.exceptions"]).update(BotoCoreError=BotoCoreError, ClientError=ClientError)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    yield made
    hub.stop()


def pull(root: Path) -> store.Held:
    def lock(path: Path) -> Lock:
        return Lock(path, "pod")

    return store.pull(root, SOURCE, None, lambda: bucket.listing(SOURCE), lock, lambda *_: None)


def test_a_bucket_s_objects_come_by_signed_addresses(client: Client, tmp_path: Path) -> None:
    held = pull(tmp_path)
    found = {path.name: path.read_bytes() for path in held.path.resolve().iterdir() if path.name != store.MANIFEST}
    assert found == FILES
    assert held.path == tmp_path / weights(SOURCE, None)
    assert store.find(tmp_path, SOURCE, None) == held


def test_the_manifest_of_a_copied_snapshot_is_not_taken(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [file.path for file in bucket.listing(SOURCE).files]
    monkeypatch.setitem(FILES, store.MANIFEST, b"{}")
    assert [file.path for file in bucket.listing(SOURCE).files] == listed == list(FILES)[:2]


def test_the_revision_is_that_of_the_listing(client: Client) -> None:
    first = bucket.listing(SOURCE).revision
    assert first == bucket.listing(SOURCE).revision
    client.tag = '"2"'
    assert bucket.listing(SOURCE).revision != first


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        (ClientError("NoSuchBucket"), Failure.MODEL_NOT_FOUND),
        (ClientError("AccessDenied"), Failure.TOKEN_MISSING),
        (ClientError("SlowDown"), Failure.DOWNLOAD_FAILED),
        (NoCredentialsError("none"), Failure.TOKEN_MISSING),
        (BotoCoreError("cannot connect"), Failure.DOWNLOAD_FAILED),
    ],
)
def test_what_its_errors_mean(client: Client, fails: Exception, reason: Failure) -> None:
    client.fails = fails
    with pytest.raises(PullError) as error:
        bucket.listing(SOURCE)
    assert error.value.reason is reason


def test_without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(PullError) as error:
        bucket.listing(SOURCE)
    assert error.value.reason is Failure.SOURCE_UNSUPPORTED
