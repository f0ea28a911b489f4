"""The children of every example and of a few servings that exercise what examples do not, as committed.

After a wanted change: `PACELINE_UPDATE_GOLDEN=1 pytest tests/golden/test_manifests.py`, then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.preflight.legality import check
from tests.first_pass import children

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "manifests"
EXPECTED = FOLDER / "expected"
UPDATE = "PACELINE_UPDATE_GOLDEN"


def documents() -> dict[str, dict[str, Any]]:
    """Every SpeculativeServing of examples/ and of manifests/inputs/, by the name of its golden file."""
    found = {}
    for file in sorted([*(ROOT / "examples").glob("*.yaml"), *(FOLDER / "inputs").glob("*.yaml")]):
        servings = [document for document in yaml.safe_load_all(file.read_text()) if is_serving(document)]
        for document in servings:
            prefix = "example-" if file.parent.name == "examples" else ""
            suffix = f"-{document['metadata']['name']}" if len(servings) > 1 else ""
            found[f"{prefix}{file.stem}{suffix}"] = document
    return found


def is_serving(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind") == naming.KIND_SERVING


def rendered(document: dict[str, Any]) -> list[dict[str, Any]]:
    metadata = {"namespace": "default", "uid": "00000000-0000-4000-8000-000000000001", **document["metadata"]}
    serving = SpeculativeServing.model_validate({**document, "metadata": metadata})
    assert check(serving.spec) == []
    # ControllerRevisions repeat the templates.
    return [manifest for manifest in children(serving) if manifest["kind"] != "ControllerRevision"]


DOCUMENTS = documents()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_children_are_as_committed(name: str) -> None:
    file = EXPECTED / f"{name}.yaml"
    text = yaml.safe_dump_all(rendered(DOCUMENTS[name]), sort_keys=False, width=110)
    if os.environ.get(UPDATE):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.exists(), f"no golden file for {name}: run this test with {UPDATE}=1 and commit {file.name}"
    assert text == file.read_text(), f"the children of {name} changed: if that is wanted, run with {UPDATE}=1"


def test_no_golden_file_is_left_behind() -> None:
    assert {file.stem for file in EXPECTED.glob("*.yaml")} == set(DOCUMENTS)


def test_examples_and_inputs_are_found() -> None:
    assert {"example-minimal", "everything", "cpu-ngram"} <= set(DOCUMENTS)
