"""Spec to manifests: pure, deterministic, one file per child kind."""

from __future__ import annotations

from collections.abc import Sequence

from paceline_operator.api.engine import PluginInjection
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources import budget, network, secret, service, serviceaccount, workload
from paceline_operator.resources.inputs import Defaults, Manifest, Tokens

__all__ = ["Defaults", "Manifest", "Tokens", "render"]


def render(
    serving: SpeculativeServing, boot_table: Sequence[int], defaults: Defaults, tokens: Tokens
) -> list[Manifest]:
    """All children of a serving in the order to apply them: what a pod refers to before the pods.

    `boot_table` is dense, max_num_seqs + 1 entries (tuning.prior). `suspend` is the caller's business. Without a plugin
    there is no control port and so no Secret.
    """
    plugin = serving.spec.engine.plugin.injection is not PluginInjection.NONE
    return [
        serviceaccount.build(serving),
        *([secret.build(serving, tokens)] if plugin else []),
        network.build(serving, defaults),
        service.build(serving),
        workload.build(serving, boot_table, defaults, tokens),
        budget.build(serving),
    ]
