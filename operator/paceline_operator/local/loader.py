"""YAML as kubectl reads it (sigs.k8s.io/yaml, which is go-yaml v2 and JSON), where PyYAML would read something else."""

from __future__ import annotations

import re
from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
INT = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$")
"""Without base 60: `22:30` is a text."""
FLOAT = re.compile(r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$")
"""go-yaml v2, resolve.go (yamlStyleFloat): `1e3` is a number."""


class TwiceError(ValueError):
    """A key is set twice in one map: the second would silently win."""


class Loader(yaml.SafeLoader):
    """Times and dates are texts, and no key is set twice."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Raises TwiceError, which names key and lines."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                line, before = key.start_mark.line + 1, lines.get((key.tag, key.value))
                if before is not None:
                    raise TwiceError(f"line {line}: {key.value} is set already in line {before}: remove one")
                lines[key.tag, key.value] = line
        return node

    def construct_yaml_int(self, node: Any) -> int:
        """`0o17` too."""
        text = node.value.replace("_", "").replace("0o", "0")
        return super().construct_yaml_int(yaml.ScalarNode(node.tag, text))


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in NUMBERS]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(NUMBERS[0], INT, list("-+0123456789"))
Loader.add_implicit_resolver(NUMBERS[1], FLOAT, list("-+0123456789."))
Loader.add_constructor(NUMBERS[0], Loader.construct_yaml_int)
