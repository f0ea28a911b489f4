"""A real Prometheus (Debian's package) on loopback, that scrapes what a test gives it; here, or in a node's network."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.harness.ports import free_ports
from tests.harness.processes import Daemon, wait_until

FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"


def job(name: str, targets: list[str], labels: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Of a scrape configuration: `targets` (host:port), each with `labels`."""
    return {"job_name": name, "static_configs": [{"targets": targets, "labels": dict(labels)}], **more}


class Prometheus:
    """Scrapes `targets` (host:port) twice a second, each with `labels`. Stop it in the end.

    `more`: further jobs. `rules`: a rule file. `prefix` goes before each command (the node's: its network).
    """

    def __init__(
        self,
        folder: Path,
        targets: list[str],
        labels: Mapping[str, str],
        *,
        more: Sequence[Mapping[str, Any]] = (),
        rules: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("there is no prometheus: Debian's package of that name brings it, and `make setup` installs it")
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.prefix = prefix
        times = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"}
        config = {
            "global": times,
            "scrape_configs": [job("engines", targets, labels), *more],
            "rule_files": [str(rules)] if rules else [],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.daemon = Daemon(
            "prometheus",
            [
                *prefix, program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
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
            found: list[dict[str, Any]] = json.loads(self._get({"query": text}))["data"]["result"]
        except (URLError, ConnectionError):
            return []
        return found

    def _get(self, query: Mapping[str, str]) -> str:
        url = f"{self.url}/api/v1/query?{urlencode(query)}"
        if not self.prefix:
            with urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        done = subprocess.run([*self.prefix, sys.executable, "-c", FETCH, url], capture_output=True, text=True)
        if done.returncode:
            raise ConnectionError(done.stderr.strip())
        return done.stdout

    def wait_for(self, text: str, what: str) -> list[dict[str, Any]]:
        """Until `text` answers something; the first scrape comes five seconds after the start."""
        return wait_until(
            lambda: self.query(text) or None, what, timeout_seconds=30, daemons=[self.daemon], every_seconds=0.2
        )
