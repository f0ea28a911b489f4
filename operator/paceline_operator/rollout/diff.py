"""Which fields of spec are in a pod's template, and which of them changed, named as users write them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from paceline_operator.api.engine import PluginInjection
from paceline_operator.api.model import Download
from paceline_operator.api.serving import ServingSpec
from paceline_operator.tuning.prior import ladder_of

Boot = dict[str, Any]
"""The part of a spec that pods are made from, as JSON, defaults filled in."""

LIVE = ("replicas", "tuning", "slo", "rollout", "suspend", "autoscaling", "metrics", "routing", "safety")
"""Sections of spec that act on running pods, or on none: a change never restarts one."""
ANY_SIZE = "1Gi"
TABLE_AT_BOOT = ("ladder", "table")
"""Of tuning: without a plugin a table reaches the engine in its command line alone."""
LADDER = "ladder"
"""With a plugin: the ks that the schedule at boot names. Fewer of them are live; others need a boot."""
DEFAULTED = "ladderDefaulted"
"""Whether the operator chose them: another version that would choose others is no reason to restart."""


def boot_spec(spec: ServingSpec) -> Boot:
    """What of `spec` is in the template."""
    whole: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    boot = {name: value for name, value in whole.items() if name not in LIVE}
    if cache := boot["model"].get("cache"):
        # How large the claim is, and when weights come onto it, is not in a pod: held to one value.
        cache["download"] = Download.INIT_CONTAINER.value
        if "claim" in cache:
            cache["claim"]["size"] = ANY_SIZE
    if spec.engine.plugin.injection is PluginInjection.NONE:
        boot["tuning"] = {name: whole["tuning"][name] for name in TABLE_AT_BOOT if name in whole["tuning"]}
    else:
        boot[LADDER] = list(ladder_of(spec))
        boot[DEFAULTED] = spec.tuning.ladder is None
    return boot


def with_boot(spec: ServingSpec, boot: Boot) -> ServingSpec:
    """`spec` with `boot` in place of what it says of the template: what pods made from `boot` run under.

    Raises ValueError where the two do not go together.
    """
    whole = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    kept = {name: whole[name] for name in LIVE if name in whole}
    kept["tuning"] = whole["tuning"] | boot.get("tuning", {})
    found = ServingSpec.model_validate({**_fields(boot), **kept})
    if LADDER not in boot or set(ladder_of(found)) <= set(boot[LADDER]):
        return found
    return found.model_copy(update={"tuning": found.tuning.model_copy(update={"ladder": boot[LADDER]})})


def changed(before: Boot, after: Boot) -> tuple[str, ...]:
    """Paths at which two templates' specs differ, in the order of the text; empty where they mean the same.

    `before` may be of an earlier version: what it does not know has the default it has now.
    """
    one, other = _completed(before), _completed(after)
    found = sorted(_differing(_fields(one), _fields(other), ""))
    there, asked = one.get(LADDER), other.get(LADDER)
    chosen = not (one.get(DEFAULTED) and other.get(DEFAULTED))
    if not found and chosen and isinstance(there, list) and isinstance(asked, list) and not set(asked) <= set(there):
        return ("tuning.ladder",)  # where another field changed, the ladder may follow from that
    return tuple(found)


def _fields(boot: Boot) -> Boot:
    """Those that a spec has."""
    return {name: value for name, value in boot.items() if name not in (LADDER, DEFAULTED)}


def _completed(boot: Boot) -> Boot:
    try:
        whole = boot_spec(ServingSpec.model_validate(_fields(boot)))
    except ValidationError:  # written by another version: compared as it is
        return boot
    return whole | {name: value for name, value in boot.items() if name in (LADDER, DEFAULTED)}


def _differing(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in before.keys() | after.keys():
            at = f"{path}.{name}" if path else str(name)
            if name not in before or name not in after:
                yield at
            else:
                yield from _differing(before[name], after[name], at)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _items(before, after, path)
    elif before != after or type(before) is not type(after):
        yield path


def _items(before: list[Any], after: list[Any], path: str) -> Iterator[str]:
    """By name where all items have one (env, containers), else by position."""
    named = all(isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in (*before, *after))
    if named and (before or after):
        one, other = ({item["name"]: item for item in items} for items in (before, after))
        if len(one) == len(before) and len(other) == len(after):
            for name in one.keys() | other.keys():
                at = f"{path}[{name}]"
                if name not in one or name not in other:
                    yield at
                else:
                    yield from _differing(one[name], other[name], at)
            if one.keys() == other.keys() and list(one) != list(other):
                yield path
            return
    for index in range(max(len(before), len(after))):
        at = f"{path}[{index}]"
        if index >= min(len(before), len(after)):
            yield at
        else:
            yield from _differing(before[index], after[index], at)
