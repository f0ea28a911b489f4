"""The Helm chart, rendered or installed by the helm that belongs to the test cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hack.kubernetes.build import find

CHART = Path(__file__).resolve().parents[2] / "charts" / "paceline"
VARIANTS = {path.stem: path for path in sorted((CHART.parents[1] / "tests/golden/chart/values").glob("*.yaml"))}
"""Name -> values: the ways to install it that are rendered, compared and shown to an API server."""
NAMESPACES = ("paceline-system", "team-a", "team-b")
"""Those that the variants' objects are in."""
TIMEOUT_SECONDS = 120.0


def helm(
    *arguments: str | Path, kubeconfig: Path | None = None, prefix: Sequence[str] = (), check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run helm behind `prefix`, against a cluster only where `kubeconfig` is given.

    AssertionError with its words where it fails, unless `check` is false.
    """
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull)}
    command = [*prefix, str(find("helm")), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)} failed with status {done.returncode}: {done.stderr.strip()}")
    return done


def rendered(*arguments: str, release: str = "paceline", namespace: str = "paceline-system") -> list[dict[str, Any]]:
    """What `helm template` makes of the chart, hooks included."""
    return [document for document in yaml.safe_load_all(_text(release, namespace, arguments)) if document]


@cache
def _text(release: str, namespace: str, arguments: tuple[str, ...]) -> str:
    return helm("template", release, CHART, "--namespace", namespace, *arguments).stdout


def one(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only document of a kind."""
    (found,) = (document for document in documents if document["kind"] == kind)
    return found
