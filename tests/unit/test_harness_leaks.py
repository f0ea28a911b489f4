"""The look for tokens and keys in what a cluster leaves behind finds them, wherever they are told."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_engine.protocol import derive_token
from tests.harness.leaks import leaks

KEY = "a-master-key-that-is-long-enough-for-all"
TOKEN = derive_token(KEY.encode(), "uid", "v1")
BEARER = "header.payload-of-a-service-account.signature"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def left_behind(folder: Path, resource: str, body: Any, log: str = "") -> Path:
    """What a cluster leaves in which an operator wrote its token Secret, one object more, and a line of its log."""
    secret = {"kind": "Secret", "stringData": {"current": TOKEN, "version": "v1"}}
    writes = [("secrets", secret), (resource, body)]
    entries = [{"verb": "patch", "objectRef": {"resource": r, "name": "demo"}, "requestObject": b} for r, b in writes]
    (folder / "audit.log").write_text("".join(json.dumps(e) + "\n" for e in entries) + '{"cut of')
    (folder / "logs").mkdir()
    (folder / "logs" / "operator.log").write_text(f"started\n{log}\n")
    (folder / "pki").mkdir()
    config = {"users": [{"name": "operator", "user": {"token": BEARER}}]}
    (folder / "pki" / "operator.kubeconfig").write_text(yaml.safe_dump(config))
    return folder


@pytest.mark.parametrize(
    ("resource", "body", "log"),
    [
        ("events", {"message": f"pod refused {TOKEN}"}, ""),
        ("speculativeservings", {"status": {"conditions": [{"message": f"x{TOKEN}y"}]}}, ""),
        ("configmaps", {"data": {"record": encoded(TOKEN)}}, ""),
        ("deployments", {"spec": {"args": ["--key", KEY]}}, ""),
        ("events", {}, f"GET http://10.0.0.1/state Bearer {TOKEN}"),
        ("events", {}, f"Authorization: Bearer {BEARER}"),
    ],
    ids=["event", "status", "record in base64", "master key", "token in a log", "account's token in a log"],
)
def test_a_secret_that_is_told_is_found(tmp_path: Path, resource: str, body: Any, log: str) -> None:
    (found,) = leaks(left_behind(tmp_path, resource, body, log), [KEY])
    assert not any(secret in found for secret in (TOKEN, KEY, BEARER)), "the failure does not tell it again"


def test_digests_and_versions_are_no_secrets(tmp_path: Path) -> None:
    body = {"message": "digest " + derive_token(b"another", "uid", "v1"), "data": {"keyVersion": encoded("v1")}}
    assert leaks(left_behind(tmp_path, "events", body, "key version v1"), [KEY]) == []


def test_a_folder_without_a_cluster_tells_nothing(tmp_path: Path) -> None:
    assert leaks(tmp_path, [KEY]) == []
