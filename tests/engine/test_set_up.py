"""The set-up's check of the engine that it built, on this processor, and with an engine without kernels."""

from __future__ import annotations

import subprocess

import pytest

from hack.setup.common import ROOT
from hack.setup.engine import CHECK, VLLM_VERSION

pytestmark = pytest.mark.engine

TIMEOUT_SECONDS = 300
WITHOUT_KERNELS = "import sys, types; sys.modules['vllm._custom_ops'] = types.ModuleType('vllm._custom_ops'); "


def check(before: str = "") -> subprocess.CompletedProcess[str]:
    """What the check says, in a Python that ran `before`."""
    python = ROOT / ".venv" / "engine" / "bin" / "python"
    return subprocess.run(
        [python, "-c", before + CHECK], capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )


def test_the_check_passes_with_the_kernels_of_this_processor() -> None:
    told = check()
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-1] == VLLM_VERSION


def test_the_check_fails_without_kernels() -> None:
    told = check(WITHOUT_KERNELS)
    assert told.returncode == 1
    assert "rms_norm" in told.stderr
