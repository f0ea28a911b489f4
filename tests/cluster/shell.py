"""`paceline` as a user of a namespace runs it, in a pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import yaml
from typer.testing import CliRunner

from paceline_operator.cli.app import app
from tests.harness.controlplane import ControlPlane

BIN = Path(sys.prefix) / "bin"


class Shell:
    """`paceline` as a user of this namespace runs it, in a pipe."""

    def __init__(self, cluster: ControlPlane, namespace: str, folder: Path) -> None:
        config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
        for context in config["contexts"]:
            context["context"]["namespace"] = namespace
        config["contexts"].append({"name": "elsewhere", "context": {**config["contexts"][0]["context"]}})
        config["contexts"][-1]["context"]["namespace"] = "default"
        self.folder = folder
        """Where it runs."""
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def __call__(
        self, *arguments: str, status: int = 0, command: str = "paceline", more: Mapping[str, str] | None = None
    ) -> str:
        """What it prints; with a `status` that is a mistake, on either stream. `more` of its environment."""
        given = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "TERM": "dumb", **(more or {})}
        result = subprocess.run(
            [str(BIN / command), *arguments],
            env=given,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == status, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        assert "\x1b" not in result.stdout, "no colours in a pipe"
        return result.stdout if status == 0 else result.stdout + result.stderr


class Here(Shell):
    """The same in this process: a start of Python for each of many verbs would be most of a test's time."""

    def __call__(
        self, *arguments: str, status: int = 0, command: str = "paceline", more: Mapping[str, str] | None = None
    ) -> str:
        """As in a Shell."""
        given = {"TERM": "dumb", **(more or {})}
        kubeconfig = patch("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(self.kubeconfig))
        with chdir(self.folder), kubeconfig:
            result = CliRunner().invoke(app, arguments, prog_name=command, env=given)
        assert result.exit_code == status, result.output + repr(result.exception)
        assert "\x1b" not in result.output, "no colours in a pipe"
        return result.stdout if status == 0 else result.stdout + result.stderr
