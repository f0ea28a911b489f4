"""The environment of the engine container: ours, then the user's, and the two variables that both write."""

from __future__ import annotations

from typing import Any

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming
from paceline_operator.api.engine import Device, PluginInjection
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.source import resolve
from paceline_operator.resources.substitution import literal

PLUGIN_NAME = "paceline"
"""Name of the entry point in the group vllm.general_plugins."""
CPU_KV_CACHE_GIB = 1
"""KV cache of a CPU engine, enough for small models; VLLM_CPU_KVCACHE_SPACE in engine.env changes it."""
TOKEN_SECRET_KEY = "token"  # noqa: S105 a key's name


def build(serving: SpeculativeServing) -> list[dict[str, Any]]:
    """`env` of the engine container. A user's variable replaces ours of the same name."""
    engine = serving.spec.engine
    injected = engine.plugin.injection
    user = {variable.name: variable.value for variable in engine.env}
    values = _paths() | _engine(serving) | user
    if injected is PluginInjection.INIT_CONTAINER:
        values["PYTHONPATH"] = ":".join(filter(None, [naming.PLUGIN_DIRECTORY, user.get("PYTHONPATH")]))
    if injected is not PluginInjection.NONE:
        values |= {
            naming.ENV_TOKEN_DIRECTORY: naming.TOKEN_DIRECTORY,
            naming.ENV_CONTROL_PORT: str(CONTROL_PORT),
        }
        if "VLLM_PLUGINS" in user:
            values["VLLM_PLUGINS"] = _with_plugin(user["VLLM_PLUGINS"])
    return [*_hub_token(serving, user), *({"name": name, "value": literal(value)} for name, value in values.items())]


def _with_plugin(names: str) -> str:
    """A set VLLM_PLUGINS is vLLM's allow-list of plugins: ours joins it, the rest stays."""
    listed = [name for name in (part.strip() for part in names.split(",")) if name]
    return ",".join(listed if PLUGIN_NAME in listed else [*listed, PLUGIN_NAME])


def _paths() -> dict[str, str]:
    """Every cache in the one writable folder: the root file system is read-only and the user has no home."""
    cache = naming.CACHE_DIRECTORY
    return {
        "HOME": cache,
        "USER": PLUGIN_NAME,  # torch asks for a user name, which a bare uid has not
        "HF_HOME": f"{cache}/huggingface",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/torchinductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
    }


def _engine(serving: SpeculativeServing) -> dict[str, str]:
    spec = serving.spec
    sources = [spec.model.source, *([spec.speculation.draft.source] if spec.speculation.draft else [])]
    values = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # vLLM gives up after 600 s by itself; the startup probe decides instead.
        "VLLM_ENGINE_READY_TIMEOUT_S": str(spec.engine.startup_timeout_seconds),
    }
    if all(resolve(source, "", cached=spec.model.cache is not None).offline for source in sources):
        values["HF_HUB_OFFLINE"] = "1"
    if spec.engine.device is Device.CPU:
        values["VLLM_CPU_KVCACHE_SPACE"] = str(CPU_KV_CACHE_GIB)
        values["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process less; two would fight for the cores
    return values


def _hub_token(serving: SpeculativeServing, user: dict[str, str]) -> list[dict[str, Any]]:
    name = serving.spec.model.token_secret_name
    if name is None or "HF_TOKEN" in user:
        return []
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": TOKEN_SECRET_KEY}}}]
