"""Do tokens or keys show up where people look? What operators wrote into a cluster, and every log below its folder.

The API server's audit log has each write of a service account as it was sent: events, statuses, records of incidents
and everything else, also of objects that are gone. Tokens are known from the Secrets that were written.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

AUDIT_LOG, AUDIT_LOGS = "audit.log", "audit*.log"
"""Of the first API server, and of all."""
WRITES = ("create", "update", "patch", "delete", "deletecollection")
RUN = re.compile(r"[A-Za-z0-9+/=]{64,}")
"""What a token is in, which has 64 digits, or 88 in base64."""
LONG_ENOUGH = 20
"""Shorter ones would be found by chance."""
AROUND = 60


def audit_rules() -> list[dict[str, Any]]:
    """What the API server notes: whatever service accounts write, but for its own controllers'."""
    return [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Request", "verbs": list(WRITES), "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ]


def leaks(folder: Path, keys: Iterable[str] = ()) -> list[str]:
    """Where below a cluster's folder, and around what, a token or one of `keys` (master keys) is told."""
    tokens, long = written_tokens(folder), {key for key in (*keys, *credentials(folder)) if len(key) >= LONG_ENOUGH}
    found = []
    for where, line in told(folder):
        at = next(iter(_places(line, tokens, long)), None)
        if at is not None:
            found.append(f"{where}: ...{line[max(0, at - AROUND) : at]}<the secret>")
    return found


def written_tokens(folder: Path) -> set[str]:
    """What the Secrets held that operators wrote, plain and in base64."""
    plain: set[str] = set()
    for entry in _entries(folder):
        if entry["objectRef"]["resource"] == "secrets":
            sent = entry.get("requestObject") or {}
            plain |= set((sent.get("stringData") or {}).values())
            plain |= {base64.b64decode(text).decode() for text in (sent.get("data") or {}).values()}
    long = {text for text in plain if len(text) >= LONG_ENOUGH}
    return long | {base64.b64encode(text.encode()).decode() for text in long}


def credentials(folder: Path) -> set[str]:
    """Bearer tokens of the users that kubeconfigs of this cluster are for."""
    users = [
        user for path in (folder / "pki").glob("*.kubeconfig") for user in yaml.safe_load(path.read_text())["users"]
    ]
    return {user["user"]["token"] for user in users if "token" in user["user"]}


def told(folder: Path) -> Iterator[tuple[str, str]]:
    """(where, text) of everything that people can read."""
    for entry in _entries(folder):
        where = entry["objectRef"]
        if where["resource"] != "secrets":
            what = "/".join(filter(None, (where["resource"], where.get("subresource"), where.get("name"))))
            yield f"{entry['verb']} {what}", json.dumps(entry.get("requestObject"))
    for path in sorted((folder / "logs").rglob("*.log")):
        with path.open(errors="replace") as file:
            for number, line in enumerate(file, 1):
                yield f"{path.name}:{number}", line


def _entries(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(AUDIT_LOGS)):
        with path.open(errors="replace") as file:
            for line in file:
                if line.endswith("}\n"):  # the API server may be killed in the middle of one
                    entry: dict[str, Any] = json.loads(line)
                    if entry.get("objectRef", {}).get("resource"):
                        yield entry


def _places(text: str, tokens: set[str], long: set[str]) -> Iterator[int]:
    for match in RUN.finditer(text):
        run = match.group()
        if run in tokens or (len(run) > 64 and any(token in run for token in tokens)):
            yield match.start()
    for secret in long:
        if (at := text.find(secret)) >= 0:
            yield at
