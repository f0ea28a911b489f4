"""The operator's configuration: environment variables, read once at start. docs/labels.md lists them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline_operator.resources import Defaults

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
PLUGIN_IMAGE = "paceline-plugin"
"""Of no registry: none is published, and a name that is nobody's yet may become a stranger's."""
DEFAULT_ENGINE_IMAGE = "vllm/vllm-openai:v0.32.0"
DEFAULT_CPU_ENGINE_IMAGE = "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.32.0"


@dataclass(frozen=True)
class OperatorSettings:
    """What an installation decides."""

    namespace: str
    """Where the Lease is: the operator's own."""
    identity: str
    """Of this process, in the Lease."""
    master_key_file: Path
    watch_namespaces: frozenset[str]
    """Empty: all."""
    http_host: str
    http_port: int
    lease_seconds: float
    resync_seconds: float
    """After which every object is looked at though nothing was heard of it."""
    prometheus_url: str
    """Of the Prometheus that servings mean which name none; empty: there is none."""
    prometheus_token_file: Path | None
    """Its bearer token. It is sent to that Prometheus alone."""
    log_format: str
    """text or json."""
    log_level: str
    """DEBUG, INFO, WARNING or ERROR."""
    defaults: Defaults


def read(environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Raises ValueError, naming the variable, where one is missing or is not what it should be."""
    namespace = environment.get("PACELINE_NAMESPACE") or _own_namespace()
    key_file = environment.get("PACELINE_MASTER_KEY_FILE")
    if not key_file:
        raise ValueError("PACELINE_MASTER_KEY_FILE is not set: the path of a file with a key of 32 bytes or more")
    version = environment.get("PACELINE_VERSION", "latest")
    return OperatorSettings(
        namespace=namespace,
        identity=environment.get("PACELINE_IDENTITY") or f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}",
        master_key_file=Path(key_file),
        watch_namespaces=frozenset(environment.get("PACELINE_WATCH_NAMESPACES", "").replace(",", " ").split()),
        http_host=environment.get("PACELINE_HTTP_HOST", "0.0.0.0"),  # noqa: S104 probes come from the node
        http_port=_integer(environment, "PACELINE_HTTP_PORT", 8080, 0, 65_535),
        lease_seconds=_integer(environment, "PACELINE_LEASE_SECONDS", 15, 5, 300),
        resync_seconds=_integer(environment, "PACELINE_RESYNC_SECONDS", 300, 5, 3600),
        prometheus_url=environment.get("PACELINE_PROMETHEUS_URL", ""),
        prometheus_token_file=Path(token) if (token := environment.get("PACELINE_PROMETHEUS_TOKEN_FILE")) else None,
        log_format=_choice(environment, "PACELINE_LOG_FORMAT", ("text", "json")),
        log_level=_choice(environment, "PACELINE_LOG_LEVEL", ("INFO", "DEBUG", "WARNING", "ERROR")),
        defaults=Defaults(
            engine_image=environment.get("PACELINE_ENGINE_IMAGE") or DEFAULT_ENGINE_IMAGE,
            cpu_engine_image=environment.get("PACELINE_CPU_ENGINE_IMAGE") or DEFAULT_CPU_ENGINE_IMAGE,
            plugin_image=environment.get("PACELINE_PLUGIN_IMAGE") or f"{PLUGIN_IMAGE}:{version}",
            operator_namespace=namespace,
        ),
    )


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"


def _choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The first is the default."""
    value = environment.get(name) or choices[0]
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, which is none of {', '.join(choices)}")
    return value


def _integer(environment: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = environment.get(name) or str(default)
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, which is not a whole number") from None
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, which is not within {low}..{high}")
    return value
