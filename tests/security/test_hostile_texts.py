"""Texts of a spec that are meant to be something else to whoever reads them: a shell, a template, an option, a path, a
$(NAME) of the kubelet. Each free text of the schema with each of them: refused, or an argument that is but itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from paceline_operator.acceptance import accept
from paceline_operator.resources import Defaults, Manifest, Tokens, render
from paceline_operator.resources.substitution import expand
from paceline_operator.tuning.decide import settings_of
from tests.cluster.transitions import SMALL, journeys
from tests.harness.fields import laid
from tests.harness.objects import merged, thing
from tests.walk.steps import HOSTILE

DEFAULTS = Defaults("engine:1", "cpu-engine:1", "plugin:1")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
MOUNTS = ("/mnt/paceline", "/dev/shm", "/tmp", "/etc/paceline", "/opt/paceline", "/var/cache", "/home", "/root")
SHELLS = {"sh", "bash", "dash", "/bin/sh", "/bin/bash", "-c"}
SECRET = {"PACELINE_TOKEN": "a-token", "HOME": "/root", "A": "expanded"}
SOURCES = (
    "/models/../etc/passwd", "/..", "pvc://claim/../../etc", "pvc://claim/..", "hf://owner/..", "hf://../name",
    "s3://bucket/../key", "s3://bucket/a/../../b", "oci://image/../other", "file:///etc/passwd",
    "http://169.254.169.254/", "pvc://other-namespace/claim/../x", "hf://owner/name/../../x", "../models",
    "-rf", "hf://-x/y", "hf://owner/name?x", "s3://a b/c", "pvc://Claim/x", "\n/etc", "/a\n/../b", "hf://owner/name\n",
)  # fmt: skip
"""Of models: out of where they belong, or by another way than the five that there are."""


def rendered(spec: Mapping[str, Any]) -> list[Manifest] | None:
    """Children of a serving with this spec; None where it is refused."""
    body = {"metadata": {"name": "chat", "namespace": "team", "uid": "1"}, "spec": spec}
    serving, _ = accept(thing("SpeculativeServing", {}) | body, DEFAULTS)
    if serving is None:
        return None
    return render(serving, settings_of(serving.spec).boot_table, DEFAULTS, Tokens("v1", "token"))


def texts() -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """(path, what goes around it, its value with a hostile text in it)"""
    for journey in journeys():
        node = journey.field.node
        if node["type"] == "string" and "enum" not in node:
            yield from ((journey.field.path, journey.base, text) for text in HOSTILE)
        if node["type"] == "array" and node["items"]["type"] == "string" and "enum" not in node["items"]:
            yield from ((journey.field.path, journey.base, [text]) for text in HOSTILE)
            yield from ((journey.field.path, journey.base, ["--seed", text]) for text in HOSTILE)
    yield from (("engine.env", {}, [{"name": "A", "value": text}]) for text in HOSTILE)
    yield from (("speculation.extraConfig", {}, {"a": text}) for text in HOSTILE)


def containers(manifests: list[Manifest]) -> Iterator[dict[str, Any]]:
    for manifest in manifests:
        template = manifest.get("spec", {}).get("template", {}).get("spec", {})
        yield from (*template.get("containers", ()), *template.get("initContainers", ()))


def test_a_hostile_text_is_refused_or_nothing_but_a_text() -> None:
    refused = harmless = 0
    for path, around, value in texts():
        spec = laid(merged(SMALL, around), path, value)
        manifests = rendered(spec)
        if manifests is None:
            refused += 1
            continue
        harmless += 1
        where = f"{path}: {value!r}"
        for container in containers(manifests):
            arguments = [*container.get("command", ()), *container.get("args", ())]
            assert not SHELLS & set(arguments) - set(_strings(value)), where
            environment = {each["name"]: each.get("value", "") for each in container.get("env", ())} | SECRET
            said = [expand(argument, environment) for argument in arguments]
            assert not any("a-token" in argument for argument in said), where
            for mount in container.get("volumeMounts", ()):
                assert mount["mountPath"].startswith(MOUNTS), where
                assert ".." not in mount["mountPath"].split("/"), where
            if path.startswith(("model.", "speculation.draft")) or path == "engine.extraArgs":
                for text in _strings(value):
                    if any(text in argument for argument in arguments):
                        assert any(text in argument for argument in said), f"{where} became {said}"
        for manifest in manifests:
            assert manifest["metadata"]["namespace"] == "team", where
            for label in manifest["metadata"].get("labels", {}).values():
                assert LABEL.fullmatch(label), where
        assert json.dumps(manifests), where
    print(f"{refused + harmless} hostile texts: {refused} refused, {harmless} harmless")
    assert min(refused, harmless) > 50


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for member in members for text in _strings(member)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("field", ["model.source", "speculation.draft.source"])
def test_a_source_leads_nowhere_else(field: str, source: str) -> None:
    base = merged(SMALL, {"speculation": {"method": "eagle3", "draft": {"source": "hf://owner/draft"}}})
    assert rendered(laid(base, field, source)) is None
