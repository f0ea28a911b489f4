"""How requests reach the engines: a pool for an endpoint picker, plain pods beside the speculating ones, a route.

Names follow the Gateway API and its inference extension, whose objects are made of this.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from paceline_operator.api.base import ApiModel, Name, ObjectName

Port = Annotated[int, Field(ge=1, le=65_535)]
Hostname = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]


class FailureMode(StrEnum):
    """What a gateway does with requests while the endpoint picker does not answer."""

    FAIL_OPEN = "FailOpen"
    FAIL_CLOSE = "FailClose"


class EndpointPicker(ApiModel):
    """The Service of an endpoint picker, which somebody else runs."""

    name: ObjectName = Field(description="Service in this namespace.")
    port: Port = Field(default=9002, description="Port of its external-processing gRPC server.")
    failure_mode: FailureMode = Field(
        default=FailureMode.FAIL_CLOSE, description="FailOpen: any pod of the pool while the picker does not answer."
    )


class InferencePool(ApiModel):
    """An InferencePool of the speculating pods with the template in force: one pool, one speculation configuration."""

    endpoint_picker: EndpointPicker = Field(description="Who chooses the pod for each request.")


class Plain(ApiModel):
    """Pods of the same engine without a drafter. What they do at a load tells what speculation is worth there."""

    replicas: int = Field(default=1, ge=0, le=10_000, description="Plain pods, beside spec.replicas.")
    weight_percent: int = Field(
        default=10, ge=0, le=100, description="Share of the requests of routing.gateway's route."
    )


class ParentRef(ApiModel):
    """A Gateway, or one of its listeners."""

    name: ObjectName = Field(description="Gateway.")
    namespace: ObjectName | None = Field(default=None, description="Its namespace; this one if absent.")
    section_name: Name | None = Field(default=None, description="Listener; all if absent.")
    port: Port | None = Field(default=None, description="Port of the listeners; all if absent.")


class Gateway(ApiModel):
    """An HTTPRoute from Gateways to the engines."""

    parent_refs: Annotated[list[ParentRef], Field(min_length=1, max_length=32)] = Field(
        description="Gateways that the route attaches to.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    hostnames: Annotated[list[Hostname], Field(max_length=16)] = Field(
        default_factory=list, description="Hosts that it is for; all if empty."
    )
    request_timeout_seconds: int = Field(
        default=0,
        ge=0,
        le=86_400,
        description="For a whole answer, streamed ones included; 0: as long as it takes. Gateways have short defaults.",
    )


class Routing(ApiModel):
    """How requests reach the engines, beside the Service of the object's name."""

    inference_pool: InferencePool | None = Field(default=None, description="A pool for an endpoint picker.")
    plain: Plain | None = Field(default=None, description="Plain pods beside the speculating ones.")
    gateway: Gateway | None = Field(default=None, description="A route from Gateways.")
