"""A control plane whose audit log tells who wrote what, and what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.harness.controlplane import ControlPlane
from tests.harness.leaks import WRITES


@dataclass(frozen=True)
class Write:
    """One request of a service account's that changes something, or would."""

    account: str
    """`namespace:name`"""
    at: datetime
    verb: str
    namespace: str
    resource: str
    """With `/subresource` where it is of one."""
    name: str
    code: int
    version: str
    """resourceVersion after it; empty where the log does not say."""
    reason: str
    """Of an Event."""
    facts: str
    """Of a status: all of it but times, as text."""

    @property
    def target(self) -> tuple[str, str]:
        """(resource, name)"""
        return self.resource, self.name


Right = tuple[str, str, str]
"""(API group, resource with its subresource, verb)"""


@dataclass
class AuditedPlane(ControlPlane):
    """It notes writing requests as they came and were answered; with `reads` all others of service accounts too."""

    reads: bool = False

    def writes(self, account: str) -> list[Write]:
        """Of one service account (`namespace:name`), in order."""
        found = [_write(json.loads(line)) for line in self.audit_log.read_text().splitlines()]
        return [write for write in found if write.account == account]

    def rights(self, account: str) -> tuple[set[Right], set[Right]]:
        """What one service account asked for: that which was granted, and that which was not. Needs `reads`.

        An apply that made the object needs the right to create it, though its verb is patch.
        """
        used: set[Right] = set()
        refused: set[Right] = set()
        for line in self.audit_log.read_text().splitlines():
            entry = json.loads(line)
            where = entry.get("objectRef")
            if entry["user"]["username"] != f"system:serviceaccount:{account}" or not where or "resource" not in where:
                continue
            resource = "/".join(filter(None, (where["resource"], where.get("subresource"))))
            code = entry.get("responseStatus", {}).get("code")
            right = (where.get("apiGroup", ""), resource, entry["verb"])
            if entry["annotations"]["authorization.k8s.io/decision"] != "allow":
                refused.add(right)
                continue
            used |= {right, (*right[:2], "create")} if (right[2], code) == ("patch", 201) else {right}
        return used, refused

    def audit_rules(self) -> list[dict[str, Any]]:
        return [
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
            {"level": "RequestResponse", "verbs": list(WRITES), "userGroups": ["system:serviceaccounts"]},
            *([{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}] if self.reads else []),
            {"level": "None"},
        ]


def _write(entry: dict[str, Any]) -> Write:
    where, made = entry["objectRef"], entry.get("responseObject") or {}
    sent = entry.get("requestObject") or {}
    meta = made.get("metadata") or {}
    return Write(
        account=entry["user"]["username"].removeprefix("system:serviceaccount:"),
        at=datetime.fromisoformat(entry["requestReceivedTimestamp"]),
        verb=entry["verb"],
        namespace=where.get("namespace", ""),
        resource="/".join(filter(None, (where["resource"], where.get("subresource")))),
        name=where.get("name") or meta.get("name") or "",
        code=entry["responseStatus"]["code"],
        version=meta.get("resourceVersion", ""),
        facts=json.dumps(_facts(made.get("status")), sort_keys=True),
        reason=sent.get("reason", "") if where["resource"] == "events" else "",
    )


def _facts(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _facts(v) for k, v in value.items() if not k.endswith(("Time", "At"))}
    return [_facts(item) for item in value] if isinstance(value, list) else value
