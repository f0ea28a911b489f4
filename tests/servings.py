"""Servings for tests of builders and rules: the smallest valid one, with any part of its spec replaced."""

from __future__ import annotations

import copy
from typing import Any

from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources import Defaults, Tokens
from paceline_operator.tuning.prior import boot_table, ladder_of

MINIMAL: dict[str, Any] = {
    "apiVersion": "paceline.dev/v1alpha1",
    "kind": "SpeculativeServing",
    "metadata": {"name": "demo", "namespace": "team-a", "uid": "5d0c", "generation": 1},
    "spec": {
        "model": {"source": "hf://owner/target"},
        "speculation": {"method": "eagle3", "draft": {"source": "hf://owner/draft"}},
    },
}
DEFAULTS = Defaults(
    engine_image="registry.example/vllm:1",
    cpu_engine_image="registry.example/vllm-cpu:1",
    plugin_image="registry.example/paceline-plugin:1",
)
TOKENS = Tokens(key_version="2", current="c" * 64, previous="p" * 64)


def serving(**spec: Any) -> SpeculativeServing:
    """The smallest serving with these fields (camelCase) laid over its spec, section by section."""
    sections: dict[str, Any] = copy.deepcopy(MINIMAL["spec"])
    for name, value in spec.items():
        sections[name] = {**sections.get(name, {}), **value} if isinstance(value, dict) else value
    return SpeculativeServing.model_validate({**MINIMAL, "spec": sections})


def table_of(given: SpeculativeServing) -> tuple[int, ...]:
    """The boot table that the operator would hand to the builders."""
    return boot_table(ladder_of(given.spec), given.spec.engine.max_num_seqs)
