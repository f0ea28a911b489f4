"""Is paceline installed well in this cluster? What was found there → checks with remedies. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from paceline_operator.clock import moment

Raw = Mapping[str, Any]
OLDEST_MINOR = 30
"""preStop.sleep is on by default from Kubernetes 1.30 on (KEP-3960): every engine pod has one."""
LATE = timedelta(minutes=2)
"""A spec that status does not speak of for so long is not looked after: a pass and its retries take seconds."""
CLOCKS = timedelta(seconds=30)
"""By which this machine's clock may differ from that of the operator's."""
SHOWN = 3
DIGITS = "0123456789"
"""Cloud providers write minors as `34+`."""
SEE_ACCESS = "see the lines about access"


class Grade(StrEnum):
    """Of one check."""

    PASS = "pass"  # noqa: S105 a grade
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line of `paceline doctor`."""

    name: str
    grade: Grade
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Found:
    """What a look at the cluster found. None: it could not be looked at; `refused` says why."""

    server: str
    """Kubernetes' version, as `1.34`."""
    version: str
    """Of this command."""
    crds: Mapping[str, Raw | None] = field(default_factory=dict)
    """CRD name -> as it is in the cluster, None where it is not; absent where it may not be read."""
    wanted_crds: Mapping[str, Raw] = field(default_factory=dict)
    """CRD name -> as this version has it."""
    kinds: frozenset[str] | None = None
    """Plurals that are served."""
    deployments: Sequence[Raw] | None = None
    """Of operators, by their labels."""
    lease: Raw | None = None
    lease_seen: bool = True
    """Whether it could be looked for: None in `lease` then means that there is none."""
    servings: Sequence[Raw] | None = None
    optional: Mapping[str, bool | None] = field(default_factory=dict)
    """Integration -> whether its kinds are served."""
    rights: Mapping[str, bool | None] = field(default_factory=dict)
    """What the user may do, in words -> whether."""
    refused: Sequence[str] = ()
    """Looks that the API did not allow or answer."""


def checks(found: Found, namespace: str, now: datetime) -> list[Check]:
    """All checks in the order in which one fixes what fails."""
    return [
        *_server(found),
        *_kinds(found),
        *_operator(found, namespace, now),
        *_servings(found, now),
        *_rights(found),
        *_optional(found),
        *(Check("access", Grade.WARN, text, _remedy_of(text)) for text in found.refused),
    ]


def worst(found: Sequence[Check]) -> Grade:
    """The grade of the whole."""
    order = list(Grade)
    return max((check.grade for check in found), key=order.index, default=Grade.PASS)


def _server(found: Found) -> Iterator[Check]:
    major, _, minor = found.server.partition(".")
    numbers = [int("0" + "".join(character for character in part if character in DIGITS)) for part in (major, minor)]
    old = tuple(numbers) < (1, OLDEST_MINOR)
    if old:
        remedy = f"upgrade the cluster: engine pods need 1.{OLDEST_MINOR} or later"
        yield Check("kubernetes", Grade.FAIL, f"version {found.server}", remedy)
    else:
        yield Check("kubernetes", Grade.PASS, f"version {found.server}")


def _kinds(found: Found) -> Iterator[Check]:
    for name, wanted in found.wanted_crds.items():
        plural = name.partition(".")[0]
        if found.kinds is None:
            yield Check("crds", Grade.WARN, f"whether {name} is served is not known", SEE_ACCESS)
        elif plural not in found.kinds:
            yield Check("crds", Grade.FAIL, f"{name} is not served", "kubectl apply --server-side -f crds/")
        elif name in found.crds and _schema(found.crds[name]) != _schema(wanted):
            text = f"{name} is of another version than this command ({found.version})"
            remedy = "kubectl apply --server-side -f crds/ of the operator's version (Helm never upgrades CRDs)"
            yield Check("crds", Grade.WARN, text, remedy)
        else:
            yield Check("crds", Grade.PASS, f"{name} is served")


def _schema(crd: Raw | None) -> Any:
    versions = ((crd or {}).get("spec") or {}).get("versions") or []
    return {version.get("name"): version.get("schema") for version in versions}


def _operator(found: Found, namespace: str, now: datetime) -> Iterator[Check]:
    if found.deployments is not None and not found.deployments:
        remedy = f"helm install paceline charts/paceline --namespace {namespace} --create-namespace, with your images"
        yield Check("operator", Grade.WARN, f"no Deployment of it in {namespace}", remedy)
    for deployment in found.deployments or ():
        yield _deployment(deployment, namespace, found.version)
    if not found.lease_seen:
        yield Check("lease", Grade.WARN, f"whether an operator acts in {namespace} is not known", SEE_ACCESS)
        return
    if found.lease is None:
        remedy = "look at the operator's log; where it lives elsewhere, say so with --operator-namespace"
        yield Check("lease", Grade.FAIL, f"no operator ever held the Lease in {namespace}", remedy)
        return
    spec = found.lease.get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), moment(spec.get("renewTime"))
    if not holder or renewed is None:
        yield Check("lease", Grade.FAIL, "nobody holds it: nothing is tuned", "look at the operator's log")
    elif now - renewed > timedelta(seconds=int(spec.get("leaseDurationSeconds") or 15)) + CLOCKS:
        text = f"{holder} renewed it at {spec['renewTime']}, too long ago by this machine's clock: nothing is tuned"
        yield Check("lease", Grade.FAIL, text, "look at the operator's log, and compare the clocks")
    else:
        yield Check("lease", Grade.PASS, f"held by {holder}")


def _deployment(deployment: Raw, namespace: str, version: str) -> Check:
    meta, status = deployment["metadata"], deployment.get("status") or {}
    wanted, ready = (deployment.get("spec") or {}).get("replicas", 1), status.get("readyReplicas", 0)
    name = meta["name"]
    if not ready:
        remedy = f"kubectl -n {namespace} describe deployment {name}; kubectl -n {namespace} logs deployment/{name}"
        return Check("operator", Grade.FAIL, f"{name}: {ready} of {wanted} pods are ready", remedy)
    runs = (meta.get("labels") or {}).get("app.kubernetes.io/version", "unknown")
    if runs != version:
        text = f"{name} is version {runs}, this command {version}"
        return Check("operator", Grade.WARN, text, "use the command of the operator's version")
    return Check("operator", Grade.PASS, f"{name}: {ready} of {wanted} pods are ready, version {runs}")


def _servings(found: Found, now: datetime) -> Iterator[Check]:
    if found.servings is None:
        return
    late = [name for name, raw in _named(found.servings) if _late(raw, now)]
    if late:
        yield Check("servings", Grade.FAIL, f"not looked after: {_some(late)}", "see the checks of operator and lease")
    for kind, remedy in (
        ("Accepted", "kubectl describe it: the condition says which field is wrong"),
        ("Available", "kubectl describe it and its pods"),
        ("MetricsAvailable", "docs/troubleshooting.md has each reason; until then k holds"),
    ):
        wrong = [f"{name} ({reason})" for name, raw in _named(found.servings) if (reason := _false(raw, kind))]
        if wrong:
            yield Check("servings", Grade.WARN, f"{kind} is False: {_some(wrong)}", remedy)
    yield Check("servings", Grade.PASS, f"{len(found.servings)} in all")


def _rights(found: Found) -> Iterator[Check]:
    missing = [what for what, may in found.rights.items() if may is False]
    if any(may is None for may in found.rights.values()):
        yield Check("rights", Grade.WARN, "what you may do is not known", SEE_ACCESS)
    elif missing:
        yield Check("rights", Grade.WARN, f"you may not {', '.join(missing)}", "ask for a role with these verbs")
    elif found.rights:
        yield Check("rights", Grade.PASS, f"you may {', '.join(found.rights)}")


def _optional(found: Found) -> Iterator[Check]:
    for name, there in found.optional.items():
        if there is None:
            yield Check("integrations", Grade.WARN, f"{name}: not known", SEE_ACCESS)
        else:
            yield Check("integrations", Grade.PASS, f"{name}: {'served' if there else 'not installed, and not needed'}")


def _remedy_of(refused: str) -> str:
    """By what the API said: no answer is not a matter of rights."""
    if "HTTP 401" in refused or "HTTP 403" in refused:
        return "use the rights of a cluster administrator"
    return "is the API server up, and reachable from here? then run it again"


def _named(servings: Sequence[Raw]) -> list[tuple[str, Raw]]:
    return [(f"{raw['metadata']['namespace']}/{raw['metadata']['name']}", raw) for raw in servings]


def _late(raw: Raw, now: datetime) -> bool:
    seen = (raw.get("status") or {}).get("observedGeneration", 0)
    created = moment(raw["metadata"].get("creationTimestamp"))
    behind = seen < raw["metadata"].get("generation", 0)
    return behind and created is not None and now - created > LATE


def _false(raw: Raw, kind: str) -> str:
    conditions: Sequence[Raw] = (raw.get("status") or {}).get("conditions") or []
    wrong = (c for c in conditions if c.get("type") == kind and c.get("status") == "False")
    return next((str(condition.get("reason")) for condition in wrong), "")


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
