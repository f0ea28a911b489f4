"""kubectl against one cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.kubernetes.build import find

TIMEOUT_SECONDS = 90.0


@dataclass(frozen=True)
class Kubectl:
    """`kubectl(...)` as the user of `kubeconfig`; `prefix` goes before the command (nsenter)."""

    kubeconfig: Path
    prefix: Sequence[str] = ()

    def __call__(
        self,
        *arguments: str | Path,
        input: str | None = None,  # noqa: A002 as subprocess.run calls it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run it; AssertionError with its words where it fails, unless `check` is false."""
        command = [*self.prefix, str(find("kubectl")), "--kubeconfig", str(self.kubeconfig), *map(str, arguments)]
        done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        if check and done.returncode:
            words = " ".join(map(str, arguments))
            raise AssertionError(f"kubectl {words} failed with status {done.returncode}: {done.stderr.strip()}")
        return done
