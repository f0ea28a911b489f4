"""Who wrote spec.replicas, by the object's own managedFields; pure.

The API server notes for each field who set its present value, with the subresource it came through: an autoscaler and
`kubectl scale` through `scale`, a manifest through none
(https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator import naming
from paceline_operator.api.status_scaling import ScalingStatus


@dataclass(frozen=True)
class Writer:
    """A field manager that holds spec.replicas."""

    manager: str
    subresource: str
    at: str
    """RFC 3339, of its last write through this door; empty where the server notes none, as for the scale subresource of
    a custom resource."""

    @property
    def ours(self) -> bool:
        """This operator."""
        return self.manager == naming.FIELD_MANAGER


def last(raw: Mapping[str, Any]) -> Writer | None:
    """Who wrote the present value last; this operator where it is one of several. None: nobody is noted."""
    found = []
    for entry in (raw.get("metadata") or {}).get("managedFields") or []:
        spec = (entry.get("fieldsV1") or {}).get("f:spec")
        if isinstance(spec, Mapping) and "f:replicas" in spec:
            names = (str(entry.get(name) or "") for name in ("manager", "subresource", "time"))
            found.append(Writer(*names))
    return max(found, key=lambda writer: (writer.ours, writer.at), default=None)


def foreign(writer: Writer | None, replicas: int, held: ScalingStatus | None) -> Writer | None:
    """The writer for whom mode Builtin steps back, if there is one.

    `held`: what status says of the last accepted writer; None where the mode was just switched on: then whoever wrote
    before is accepted. Later, a write through the scale subresource by anybody else is another autoscaler, or a person
    who scales by hand. One through no subresource may be of any field (an apply of the whole manifest), and one by the
    accepted writer may be the one that was accepted: these count where the value is not the one that was decided. No
    clocks are compared.
    """
    if held is None or writer is None or writer.ours:
        return None
    accepted = (writer.manager, writer.at) == (held.writer, held.written_at or "")
    another = bool(writer.subresource) and (not accepted or held.foreign_writer == writer.manager)
    return writer if another or replicas != held.desired_replicas else None
