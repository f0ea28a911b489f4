"""Spec to manifests: pure, deterministic, one file per child kind."""

from __future__ import annotations

from collections.abc import Sequence

from paceline_operator import naming
from paceline_operator.api.engine import PluginInjection
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources import budget, hashing, network, pod, secret, service, serviceaccount, workload
from paceline_operator.resources.inputs import Defaults, Manifest, Tokens

__all__ = ["Defaults", "Manifest", "Tokens", "around", "render", "token_secret"]


def around(serving: SpeculativeServing, defaults: Defaults) -> list[Manifest]:
    """The children of every serving that run no pods, the token Secret apart."""
    return [
        serviceaccount.build(serving),
        network.build(serving, defaults),
        service.build(serving),
        budget.build(serving),
    ]


def token_secret(serving: SpeculativeServing, tokens: Tokens) -> Manifest | None:
    """None without a plugin: then there is no control port."""
    plugin = serving.spec.engine.plugin.injection is not PluginInjection.NONE
    return secret.build(serving, tokens) if plugin else None


def render(
    serving: SpeculativeServing, boot_table: Sequence[int], defaults: Defaults, tokens: Tokens
) -> list[Manifest]:
    """All children of a serving at rest whose pods have the template that is rendered now, in the order to apply them:
    what a pod refers to before the pods.

    `boot_table` is dense, max_num_seqs + 1 entries (tuning.prior). `suspend` is the caller's business.
    """
    template = pod.build(serving, boot_table, defaults, tokens)
    annotations = {naming.ANNOTATION_TEMPLATE_HASH: hashing.template_hash(template)}
    replicas = serving.spec.replicas
    stable = workload.build(serving, template, track=naming.TRACK_STABLE, replicas=replicas, annotations=annotations)
    kept = token_secret(serving, tokens)
    return [*([kept] if kept else []), *around(serving, defaults), stable]
