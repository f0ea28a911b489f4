"""The routing part of a pass: a pool for an endpoint picker, plain pods beside the speculating ones, a route. Pure."""

from __future__ import annotations

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.plan import WORKLOAD_KINDS, Object, Observation
from paceline_operator.resources import (
    Defaults,
    Tokens,
    budget,
    httproute,
    inferencepool,
    pod,
    revision,
    service,
    token_secret,
    workload,
)
from paceline_operator.resources.revision import Revision
from paceline_operator.rolling import revisions
from paceline_operator.rollout.diff import boot_spec
from paceline_operator.rollout.revision import changes, next_number
from paceline_operator.tuning.decide import settings_of
from paceline_operator.verdicts import is_ready

NOT_PLAIN = ("speculation", "tuning")
"""Sections that a pod without a drafter has nothing of."""


def manifests(
    serving: SpeculativeServing,
    in_force: SpeculativeServing,
    look: Observation,
    defaults: Defaults,
    tokens: Tokens,
    *,
    held: bool = False,
) -> list[Object]:
    """Children of spec.routing. Plain pods have the template of `in_force`, what the stable pods run, without a
    drafter: a change reaches them when it is in force for the others. `held`: no pod is to be made yet."""
    ready = {
        naming.TRACK_STABLE: any(map(is_ready, look.pods)),
        naming.TRACK_PLAIN: any(map(is_ready, look.plain)),
    }
    built = [inferencepool.build(serving), *_plain(serving, in_force, look, defaults, tokens)]
    without = WORKLOAD_KINDS if held else ()
    found = [each for each in (*built, httproute.build(serving, ready)) if each is not None]
    return [each for each in found if each["kind"] not in without]


def is_plain(serving: SpeculativeServing, manifest: Object) -> bool:
    """Whether it is of the plain pods: all such children have names that begin alike."""
    name, plain = manifest["metadata"]["name"], naming.child(serving.metadata.name, naming.TRACK_PLAIN)
    return bool(name == plain or name.startswith(f"{plain}-"))


def without_plain(serving: SpeculativeServing) -> SpeculativeServing:
    """`serving` as if it asked for no plain pods."""
    routing = serving.spec.routing.model_copy(update={"plain": None})
    return serving.model_copy(update={"spec": serving.spec.model_copy(update={"routing": routing})})


def _plain(
    serving: SpeculativeServing, in_force: SpeculativeServing, look: Observation, defaults: Defaults, tokens: Tokens
) -> list[Object]:
    if serving.spec.routing.plain is None:
        return []
    of = _template(in_force, look, defaults, tokens)
    annotations = {naming.ANNOTATION_REVISION: of.name, naming.ANNOTATION_TEMPLATE_HASH: of.hash}
    return [
        service.build(serving, plain=True),
        budget.build(in_force, plain=True),
        revision.build(serving, of),
        workload.build(
            in_force,
            of.template,
            track=naming.TRACK_PLAIN,
            replicas=serving.spec.routing.plain.replicas,
            annotations=annotations,
        ),
    ]


def _template(serving: SpeculativeServing, look: Observation, defaults: Defaults, tokens: Tokens) -> Revision:
    """As stored, where it is of this spec: the same spec rendered otherwise restarts no pod."""
    name, uid = naming.child(serving.metadata.name, naming.TRACK_PLAIN), serving.metadata.uid
    stored = revisions(look.children or {}, name, uid)
    boot = boot_spec(serving.spec)
    key_version = tokens.key_version if token_secret(serving, tokens) else ""
    fitting = [one for one in stored if all(f.startswith(NOT_PLAIN) for f in changes(one, boot, key_version))]
    if fitting:
        return max(fitting, key=lambda one: one.number)
    template = pod.build(serving, settings_of(serving.spec).boot_table, defaults, tokens, drafter=False)
    return revision.of(name, template, boot, key_version, next_number(stored))
