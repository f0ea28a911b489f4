"""A real Prometheus (Debian's package) on loopback, that scrapes what a test gives it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.harness.ports import free_ports
from tests.harness.processes import Daemon, wait_until


class Prometheus:
    """Scrapes `targets` (host:port) twice a second, each with `labels`. Stop it in the end."""

    def __init__(self, folder: Path, targets: list[str], labels: Mapping[str, str]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("there is no prometheus: Debian's package of that name brings it, and `make setup` installs it")
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        job = {"job_name": "engines", "static_configs": [{"targets": targets, "labels": dict(labels)}]}
        config = {"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.daemon = Daemon(
            "prometheus",
            [
                program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            folder,
        )  # fmt: skip

    def stop(self) -> None:
        """End it."""
        self.daemon.stop()

    def query(self, text: str) -> list[dict[str, Any]]:
        """An instant query's vector; empty where it does not answer yet."""
        try:
            with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': text})}", timeout=5) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except (URLError, ConnectionError):
            return []

    def wait_for(self, text: str, what: str) -> list[dict[str, Any]]:
        """Until `text` answers something; the first scrape comes five seconds after the start."""
        return wait_until(
            lambda: self.query(text) or None, what, timeout_seconds=30, daemons=[self.daemon], every_seconds=0.2
        )
