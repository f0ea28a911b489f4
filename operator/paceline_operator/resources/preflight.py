"""Preflight in the pod: what the engine is to be, as its checks take it, and the container that runs them.

It comes before the weights do. It has the engine's image, environment, volumes and devices: what it finds holds for the
engine.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline_engine.preflight.asked import MAX_BYTES, MAX_SIZE, Asked, Source
from paceline_operator import naming
from paceline_operator.api.engine import CudagraphMode, Device, Preflight
from paceline_operator.api.runner import without_schedule
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.api.speculation import DraftSampleMethod
from paceline_operator.resources import argv, cache
from paceline_operator.resources.source import resolve
from paceline_operator.resources.substitution import literal

CONTAINER = "paceline-preflight"
WITHOUT_MACHINE = "--no-machine"
SHARED = ("envFrom", "resources", "securityContext", "imagePullPolicy")
"""Fields that are the engine container's as they are."""
OF_GRAPHS = ("ladder", "captureSizes", "fullGraphs")
"""Of the question: what another table changes while pods stay, and no check of models alone fails by."""
LONG_POSITIONS = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def asked(serving: SpeculativeServing, boot_table: Sequence[int], *, drafter: bool = True, version: str = "") -> Asked:
    """Of one engine. `boot_table`: as for argv.build; `version`: of vLLM, `major.minor`, where the spec says none."""
    spec = serving.spec
    engine, speculation = spec.engine, spec.speculation
    drafter = drafter and speculation.enabled
    draft = speculation.draft if drafter else None
    arguments = argv.build(serving, boot_table, drafter=drafter)
    sizes, mode = _graphs(arguments)
    gpu = engine.device is Device.GPU
    ks = {speculation.max_tokens} if without_schedule(spec) else set(boot_table[1:])
    extra = speculation.extra_config or {}
    variables = {one.name: one.value for one in engine.env}
    given = {
        "draft_tensor_parallel": draft.tensor_parallel_size if draft else None,
        "max_model_len": engine.max_model_len,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "kv_cache_bytes": _number(arguments, "--kv-cache-memory-bytes", MAX_BYTES),
        "block_size": _number(arguments, "--block-size", MAX_SIZE),
    }
    return Asked(
        target=_source(spec, "model", spec.model.source, spec.model.revision, engine.quantization),
        draft=_source(spec, "draft", draft.source, draft.revision, draft.quantization) if draft else None,
        method=speculation.method.value if drafter else "",
        max_tokens=speculation.max_tokens if drafter else 0,
        ladder=sorted(ks) if drafter else [0],
        capture_sizes=sizes,
        full_graphs=mode not in (CudagraphMode.NONE, CudagraphMode.PIECEWISE),
        gpu=gpu,
        vllm=".".join(engine.vllm_version.split(".")[:2]) if engine.vllm_version else version,
        dtype=engine.dtype or ("" if gpu else "float32"),
        kv_cache_dtype=engine.kv_cache_dtype or "",
        tensor_parallel=engine.tensor_parallel_size,
        pipeline_parallel=engine.pipeline_parallel_size,
        nodes=engine.multi_node.nodes if engine.multi_node else 1,
        max_num_seqs=engine.max_num_seqs,
        memory_utilization_percent=engine.gpu_memory_utilization_percent,
        lora_rank=engine.lora.max_lora_rank if engine.lora else 0,
        loras=engine.lora.max_loras if engine.lora else 0,
        two_vocabularies=extra.get("use_heterogeneous_vocab") is True,
        long_positions=variables.get(LONG_POSITIONS, "0") not in ("", "0"),
        probabilistic=speculation.draft_sample_method is DraftSampleMethod.PROBABILISTIC,
        **{name: value for name, value in given.items() if value is not None},
    )


def _source(spec: ServingSpec, name: str, source: str, revision: str | None, quantization: str | None) -> Source:
    found = resolve(source, name, revision, cached=spec.model.cache is not None)
    path = found.argument if found.offline else ""
    return Source(source=source, revision=revision or "", path=path, quantization=quantization or "")


def _graphs(arguments: Sequence[str]) -> tuple[list[int], CudagraphMode | None]:
    """(sizes of graphs, their kind where it is said), as the command line has them."""
    if "--compilation-config" not in arguments:
        return [], None
    config: Mapping[str, Any] = json.loads(arguments[arguments.index("--compilation-config") + 1])
    mode = config.get("cudagraph_mode")
    return list(config.get("cudagraph_capture_sizes", ())), CudagraphMode(mode) if mode else None


def _number(arguments: Sequence[str], name: str, most: int) -> int | None:
    """Of an argument written as `--name 16` or `--name=16`; None where it is none from 1 to `most`."""
    for index, one in enumerate(arguments):
        written, equals, value = one.replace("_", "-").partition("=")
        if written == name:
            value = value if equals else next(iter(arguments[index + 1 : index + 2]), "")
            return int(value) if value.isdecimal() and len(value) < 20 and 0 < int(value) <= most else None
    return None


def _named(engine: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """A list of named things, whatever podTemplate made of it."""
    items = engine.get(field)
    return [one for one in items if isinstance(one, dict) and "name" in one] if isinstance(items, list) else []


def _without(items: Sequence[Mapping[str, Any]], *names: str) -> list[Mapping[str, Any]]:
    """It has no control port, so no token."""
    return [item for item in items if item.get("name") not in names]


def waits_for_others(spec: ServingSpec) -> bool:
    """Whether a model is a path that an init container of podTemplate may fill: then it is looked at after that."""
    draft = spec.speculation.draft
    return any("://" not in source for source in (spec.model.source, *([draft.source] if draft else [])))


def container(
    serving: SpeculativeServing,
    boot_table: Sequence[int],
    engine: Mapping[str, Any],
    *,
    drafter: bool = True,
) -> dict[str, Any] | None:
    """`engine`: its container, podTemplate laid over it. The image, variables, mounts, devices and limits are the
    same; the plugin comes besides. None where it is not asked for."""
    mode = serving.spec.engine.preflight
    if mode is Preflight.DISABLED:
        return None
    small = ["--tiny"] if mode is Preflight.TINY_MODEL else []
    text = asked(serving, boot_table, drafter=drafter).model_dump_json(by_alias=True, exclude_defaults=True)
    found = {
        "name": CONTAINER,
        "image": engine.get("image", ""),
        "command": ["python3", "-m", "paceline_engine.preflight"],
        "args": [literal(one) for one in (*small, "--asked", text)],
        "env": _without(
            cache.with_plugin(serving.spec, _named(engine, "env")),
            naming.ENV_TOKEN_DIRECTORY,
            naming.ENV_CONTROL_PORT,
        ),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _without(
            cache.plugin_mounted(serving.spec, _named(engine, "volumeMounts")), naming.TOKEN_VOLUME
        ),
        **{field: engine[field] for field in SHARED if field in engine},
    }
    return copy.deepcopy(found)


def of_models(checks: Mapping[str, Any]) -> dict[str, Any]:
    """The checks that `container` made, where the engine will not run: models alone are looked at."""
    asked = json.loads(checks["args"][-1])
    kept = {name: value for name, value in asked.items() if name not in OF_GRAPHS}
    text = json.dumps(kept, separators=(",", ":"), ensure_ascii=False)
    return {**checks, "args": [WITHOUT_MACHINE, "--asked", text]}
