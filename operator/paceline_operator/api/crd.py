"""The CustomResourceDefinitions, made from the API types, and the command that writes or checks all that follows.

    python -m paceline_operator.api.crd --write    # crds/, charts/paceline/crds/ and docs/reference/
    python -m paceline_operator.api.crd --check    # exit status 1 and the names of files that differ

Both run in the root of the repository.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel

from paceline_operator.api.experiment import SpeculationExperiment
from paceline_operator.api.profiles import SpeculationProfile
from paceline_operator.api.reference import page
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.structural import Schema, structural
from paceline_operator.naming import GROUP, VERSION

HEADER = "# Generated from operator/paceline_operator/api by `python -m paceline_operator.api.crd --write`.\n"
CRD_FOLDERS = ("crds", "charts/paceline/crds")
REFERENCE_FOLDER = "docs/reference"


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; `wide` ones only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind: its type and how it shows itself."""

    model: type[BaseModel]
    short: str
    columns: tuple[Column, ...]
    scale: bool = False

    @property
    def name(self) -> str:
        """CamelCase name of the kind."""
        return self.model.__name__

    @property
    def plural(self) -> str:
        """Name in URLs."""
        return f"{self.name.lower()}s"


def _condition(kind: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


AGE = Column("Age", ".metadata.creationTimestamp", "date")
KINDS = (
    Kind(
        SpeculativeServing,
        "ss",
        (
            Column("Ready", _condition("Ready")),
            Column("K", ".status.k"),
            Column("Replicas", ".status.replicas", "integer"),
            Column("Tier", ".status.tier"),
            AGE,
            Column("Method", ".spec.speculation.method", wide=True),
            Column("Mode", ".spec.tuning.mode", wide=True),
            Column("Load", ".status.loadRequests", "integer", wide=True),
            Column("RatioToK0", ".status.ratioToK0Permille", "integer", wide=True),
            Column("Tuned", _condition("Tuned", "reason"), wide=True),
            Column("Model", ".spec.model.source", wide=True),
        ),
        scale=True,
    ),
    Kind(
        SpeculationExperiment,
        "sexp",
        (
            Column("Serving", ".spec.servingRef.name"),
            Column("Accepted", _condition("Accepted")),
            Column("Phase", ".status.phase"),
            Column("Windows", ".status.windows", "integer"),
            Column("Winner", ".status.winner"),
            AGE,
            Column("Reason", _condition("Accepted", "reason"), wide=True),
        ),
    ),
    Kind(
        SpeculationProfile,
        "sprof",
        (
            Column("GPU", ".spec.key.gpu"),
            Column("Method", ".spec.key.method"),
            Column("Accepted", _condition("Accepted")),
            AGE,
            Column("Engine", ".spec.key.engineVersion", wide=True),
            Column("Measured", ".spec.measuredAt", "date", wide=True),
        ),
    ),
)


def root_schema(model: type[BaseModel]) -> Schema:
    """Schema of a whole object. Rules of the root type stay at the root, the only place that sees metadata.name."""
    spec, status = (cast(type[BaseModel], model.model_fields[part].annotation) for part in ("spec", "status"))
    rules = cast(Schema, model.model_config.get("json_schema_extra", {}))
    return {
        "type": "object",
        "description": model.__doc__,
        "required": ["spec"],
        **rules,
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
            "kind": {"type": "string", "description": "Kind of this object."},
            # Declared so that a rule may name it as the field it is about; all other metadata is the API server's.
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": structural(spec, "spec"),
            "status": structural(status, "status", defaults=False),
        },
    }


def crd(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    columns = [
        {"name": column.name, "type": column.type, "jsonPath": column.path, **({"priority": 1} if column.wide else {})}
        for column in kind.columns
    ]
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short],
                "categories": ["paceline"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns,
                    "subresources": {"status": {}, **({"scale": scale} if kind.scale else {})},
                    "schema": {"openAPIV3Schema": root_schema(kind.model)},
                }
            ],
        },
    }


def generated() -> dict[str, str]:
    """Text of every generated file by its path from the root of the repository."""
    files: dict[str, str] = {}
    for kind in KINDS:
        definition = crd(kind)
        text = HEADER + yaml.safe_dump(definition, sort_keys=False, width=120, allow_unicode=True)
        files |= {f"{folder}/{GROUP}_{kind.plural}.yaml": text for folder in CRD_FOLDERS}
        files[f"{REFERENCE_FOLDER}/{kind.name.lower()}.md"] = page(definition)
    return files


def stale(root: Path) -> list[str]:
    """Generated files that are missing or differ, and files beside the CRDs that no kind accounts for."""
    files = generated()
    differing = {name for name, text in files.items() if not _holds(root / name, text)}
    present = {f"{folder}/{path.name}" for folder in CRD_FOLDERS for path in (root / folder).glob("*")}
    return sorted(differing | (present - set(files)))


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; answers the exit status."""
    parser = argparse.ArgumentParser(description="Write or check the CRDs and their reference pages.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write every generated file")
    action.add_argument("--check", action="store_true", help="fail where a generated file differs")
    options = parser.parse_args(arguments)
    if options.write:
        for name, text in generated().items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
        return 0
    names = stale(Path())
    for name in names:
        print(
            f"{name} is not what the API types say: run `python -m paceline_operator.api.crd --write`", file=sys.stderr
        )
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
