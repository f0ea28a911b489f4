"""Changes of a spec, drawn from the schema that is installed: good ones, wrong ones, and some that come to grief later.

Weighted by what they mean: most are what a user does, in fields that go together; the rest is what a schema, a rule
over several fields, `Accepted` or the API of a child refuses. A step does not depend on those before it, so that
any of them can be left out where a failure is made smaller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.cluster.transitions import (
    CACHED,
    CLAIMED,
    DRAFTED,
    GROUP,
    KEDA,
    LORA,
    MANUAL,
    PLAIN,
    POOL,
    SMALL,
    SUFFIX,
    WINDOW,
    Journey,
    journeys,
)
from tests.harness.fields import laid, refused, values
from tests.harness.objects import EAGLE, Change, merged

BASES: Mapping[str, Change] = {
    "small": SMALL,
    "one pod": merged(SMALL, {"replicas": 1}),
    **{
        name: merged(SMALL, change)
        for name, change in {
            "eagle": EAGLE, "drafted": DRAFTED, "suffix": SUFFIX, "manual": MANUAL, "cached": CACHED,
            "claimed": CLAIMED, "lora": LORA, "window": WINDOW, "keda": KEDA, "pool": POOL, "plain": PLAIN,
            "group": GROUP,
        }.items()
    },
}  # fmt: skip
"""Specs that a walk begins with, by name."""
HOSTILE = (
    "$(PACELINE_TOKEN_CURRENT)", "${HOME}", "{{ .Values.x }}", "`id`", "; rm -rf /", "a\nb", "a\x00b", "../../etc",
    "x" * 300, "ä\u202eb", "--trust-remote-code", "http://169.254.169.254/latest", "' OR '1'='1", "%n%s", "\ud7ff",
)  # fmt: skip
"""Texts that are meant to be something else to whoever reads them."""
GRIEF: tuple[tuple[str, Any], ...] = (
    ("engine.podTemplate", {"spec": {"nodeSelector": {"not a key": "x"}}}),
    ("engine.podTemplate", {"spec": {"priorityClassName": "Not A Name"}}),
    ("engine.podTemplate", {"spec": {"volumes": [{"name": "Not A Name", "emptyDir": {}}]}}),
    ("engine.podTemplate", {"spec": {"restartPolicy": "Never"}}),
    ("engine.podTemplate", {"spec": {"containers": [{"name": "second"}]}}),
    ("engine.podTemplate", {"spec": {"containers": [{"name": "engine", "ports": [{"containerPort": 99999}]}]}}),
    ("engine.podTemplate", {"metadata": {"labels": {"a": "not a label"}}}),
    ("engine.podTemplate", {"metadata": {"annotations": {"not a key": "x"}}}),
    ("engine.podTemplate", {"spec": {"tolerations": 7}}),
    ("engine.podTemplate", {"spec": {"terminationGracePeriodSeconds": "soon"}}),
    ("engine.resources", {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
    ("engine.resources", {"limits": {"not a name": "1"}}),
    ("engine.resources", {"claims": "none"}),
)
"""What the schema takes and the API of Deployments does not."""


@dataclass(frozen=True)
class Step:
    """One write of the whole spec."""

    what: str
    """Of which sort it is."""
    edits: tuple[tuple[str, Any], ...] = ()
    """(path below spec, value; None takes the field out), in order."""
    around: Change | None = None
    """What the field needs, laid over the spec before."""
    base: str = ""
    """Of BASES, in place of the spec before; empty: the spec before."""

    def applied(self, spec: Change) -> Change:
        """The spec after it, of the one before."""
        found: Change = merged(BASES[self.base] if self.base else spec, self.around or {})
        for path, value in self.edits:
            found = laid(found, path, value)
        return found


@cache
def _journeys() -> tuple[Journey, ...]:
    return tuple(journeys())


def _text(node: Mapping[str, Any]) -> SearchStrategy[str]:
    longest = node.get("maxLength", 2000)
    if "pattern" not in node:
        return st.sampled_from(HOSTILE) | st.text(st.characters(codec="utf-8"), max_size=min(longest, 40))
    # Go's \w and \d are of ASCII.
    of_form = st.from_regex(
        re.compile(node["pattern"], re.ASCII), fullmatch=True, alphabet=st.characters(codec="utf-8")
    )
    return of_form.filter(lambda text: node.get("minLength", 0) <= len(text) <= longest)


def value(node: Mapping[str, Any]) -> SearchStrategy[Any]:
    """Whatever the schema of a field takes, as far as it goes: rules over several fields may still refuse it."""
    if "enum" in node:
        return st.sampled_from(node["enum"])
    match node["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = node.get("minimum", 0), node.get("maximum", 2**31 - 1)
            near = node.get("default", low)
            return st.integers(max(low, near - 3), min(high, near + 3)) | st.integers(low, high)
        case "string":
            return _text(node)
        case "array":
            least, most = node.get("minItems", 0), min(node.get("maxItems", 4), 4)
            return st.lists(value(node["items"]), min_size=least, max_size=max(least, most))
    if "additionalProperties" in node and node["additionalProperties"] is not True:
        names = st.sampled_from(("a-name", "b_name", "example.com/c", "")) | st.sampled_from(HOSTILE)
        return st.dictionaries(names, value(node["additionalProperties"]), max_size=3)
    if "properties" in node:
        needs = node.get("required", ())
        of = {name: value(member) for name, member in node["properties"].items()}
        return st.fixed_dictionaries(
            {name: of[name] for name in needs}, optional={n: s for n, s in of.items() if n not in needs}
        )
    free = st.sampled_from(HOSTILE) | st.integers() | st.booleans() | st.none()
    return st.recursive(
        free, lambda inner: st.dictionaries(st.sampled_from(("a", "spec", "metadata")), inner), max_leaves=5
    )


def _good(journey: Journey) -> SearchStrategy[Step]:
    """What a user does: a value that goes with what is around it."""
    known = st.sampled_from((journey.first, journey.second, *values(journey.field.node)))
    return st.builds(
        lambda value, base: Step("set", ((journey.field.path, value),), journey.base, base),
        known,
        st.sampled_from(("", "", "small")),
    )


def _drawn(journey: Journey) -> SearchStrategy[Step]:
    return value(journey.field.node).map(lambda v: Step("drawn", ((journey.field.path, v),), journey.base))


def _wrong(journey: Journey) -> SearchStrategy[Step]:
    """What the API server refuses by itself."""
    bad = [*refused(journey.field.node), *journey.refused]
    return st.sampled_from(bad).map(lambda v: Step("wrong", ((journey.field.path, v),), journey.base))


def _not_accepted(journey: Journey) -> SearchStrategy[Step]:
    bad = [value for value, _ in journey.not_accepted]
    return st.sampled_from(bad).map(lambda v: Step("not accepted", ((journey.field.path, v),), journey.base))


@cache
def steps() -> SearchStrategy[Step]:
    """One step."""
    fields = st.sampled_from(_journeys())
    refusable = st.sampled_from([each for each in _journeys() if each.not_accepted])
    good = fields.flatmap(_good)
    kinds: Mapping[str, tuple[int, SearchStrategy[Step]]] = {
        "skip": (1, st.just(Step("skip"))),  # the first: what a failure needs not becomes this
        "set": (6, good),
        "pair": (3, st.tuples(good, good).map(_together)),
        "unset": (2, fields.map(lambda each: Step("unset", ((each.field.path, None),)))),
        "scale": (2, st.integers(0, 3).map(lambda n: Step("scale", (("replicas", n),)))),
        "base": (2, st.sampled_from(list(BASES)).map(lambda name: Step("base", base=name))),
        "drawn": (3, fields.flatmap(_drawn)),
        "wrong": (2, fields.flatmap(_wrong)),
        "not accepted": (2, refusable.flatmap(_not_accepted)),
        "grief": (2, st.sampled_from(GRIEF).map(lambda edit: Step("grief", (edit,)))),
        "suspend": (1, st.booleans().map(lambda on: Step("suspend", (("suspend", on),)))),
    }
    names = [name for name, (weight, _) in kinds.items() for _ in range(weight)]
    return st.sampled_from(names).flatmap(lambda name: kinds[name][1])


def _together(pair: tuple[Step, Step]) -> Step:
    """Two fields in one write."""
    one, other = pair
    around = merged(one.around or {}, other.around or {})
    return Step("pair", (*one.edits, *other.edits), around, one.base or other.base)


def walks(length: int) -> SearchStrategy[tuple[str, list[Step]]]:
    """The name of the spec that a walk begins with, and its steps."""
    return st.tuples(st.sampled_from(list(BASES)), st.lists(steps(), min_size=length, max_size=length))
