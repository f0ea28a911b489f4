"""What a s3:// source consists of. Credentials, region and signing are boto3's, which a vLLM image may have or not.

vLLM asks for it by its extra `runai` (runai-model-streamer[s3]). The bytes come by signed addresses, as from a hub.
Sizes are verified and digests are not: an ETag is an MD5 only under some kinds of encryption.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from paceline_engine.pull.fetch import File
from paceline_engine.pull.hub import Listing
from paceline_engine.pull.layout import MANIFEST
from paceline_engine.pull.report import Failure, PullError

SIGNED_SECONDS = 3600


def listing(source: str) -> Listing:
    """Of s3://bucket/prefix. The revision is a digest of keys, sizes and ETags. Raises PullError."""
    bucket, _, key = source.removeprefix("s3://").partition("/")
    prefix = key.rstrip("/") + "/"
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        text = "s3:// onto a cache needs boto3 in the engine's image (vLLM's extra `runai` brings it)"
        raise PullError(Failure.SOURCE_UNSUPPORTED, text) from None
    try:
        # By itself it signs addresses in the old way where no region speaks against it, which few buckets take.
        client = boto3.client("s3", config=Config(signature_version="s3v4"))
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        objects = [
            entry for page in pages for entry in page.get("Contents", []) if not _is_passed_over(entry["Key"], prefix)
        ]
        files = tuple(_file(client, bucket, prefix, entry) for entry in sorted(objects, key=lambda one: one["Key"]))
    except ClientError as error:
        raise _refusal(error, source) from None
    except BotoCoreError as error:
        reason = Failure.TOKEN_MISSING if "redentials" in type(error).__name__ else Failure.DOWNLOAD_FAILED
        raise PullError(reason, f"{source}: {error}") from None
    if not files:
        raise PullError(Failure.MODEL_NOT_FOUND, f"{source}: the bucket has nothing under {prefix}")
    told = repr([(entry["Key"], entry["Size"], entry.get("ETag")) for entry in objects])
    return Listing(hashlib.sha256(told.encode()).hexdigest()[:40], files)


def _is_passed_over(key: str, prefix: str) -> bool:
    return key.endswith("/") or key == f"{prefix}{MANIFEST}"


def _file(client: Any, bucket: str, prefix: str, entry: Mapping[str, Any]) -> File:
    key = str(entry["Key"])

    def request() -> tuple[str, Mapping[str, str]]:
        asked = {"Bucket": bucket, "Key": key}
        return client.generate_presigned_url("get_object", Params=asked, ExpiresIn=SIGNED_SECONDS), {}

    return File(key.removeprefix(prefix), int(entry["Size"]), None, request)


def _refusal(error: Any, source: str) -> PullError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code in ("NoSuchBucket", "NoSuchKey", "404"):
        return PullError(Failure.MODEL_NOT_FOUND, f"{source}: {code}")
    if code in ("AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"):
        return PullError(Failure.TOKEN_MISSING, f"{source}: {code}: give the pod credentials that may list and read it")
    return PullError(Failure.DOWNLOAD_FAILED, f"{source}: {code}")
