"""A SpeculativeServing whose pods run this machine's own vLLM: no image of 5 GB has to be built or imported.

The container's root is almost empty. The host's /usr, its linker cache, the Python installation, the engine's
environment and the models are mounted into it at the paths they have here, so that nothing in them has to be told where
it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hack.setup.common import cache_folder
from tests.harness import images

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
MODELS = "/models"
MAX_NUM_SEQS = 16


def engine_environment() -> Path:
    """The CPU engine's virtual environment of this clone. Raises FileNotFoundError where it has not been set up."""
    environment = ROOT / ".venv" / "engine"
    if not (environment / "bin" / "vllm").exists():
        raise FileNotFoundError(f"{environment} has no vllm: run `make setup`")
    return environment.resolve()


def at_home(serving: dict[str, Any]) -> dict[str, Any]:
    """`serving`, whose pods find this machine's vLLM in whatever image they run, and its models at /models."""
    environment = engine_environment()
    engine = serving["spec"]["engine"]
    given = [each for each in engine.get("env", ()) if each["name"] not in ("PATH", "NUMBA_NUM_THREADS")]
    env = [
        {"name": "PATH", "value": f"{environment}/bin:/usr/bin:/bin"},
        # Numba, which ngram drafts with, sets the number of OpenMP threads of the whole process to its own.
        {"name": "NUMBA_NUM_THREADS", "value": "1"},
    ]
    here = {"env": [*given, *env], "podTemplate": {"spec": _overrides(environment)}}
    return {**serving, "spec": {**serving["spec"], "engine": {**engine, **here}}}


def manifest(name: str, *, tuning: dict[str, Any]) -> dict[str, Any]:
    """`kubectl apply`-able serving with ngram speculation, k up to 4."""
    serving = {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "SpeculativeServing",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": f"{MODELS}/{MODEL}"},
            "speculation": {
                "method": "ngram",
                "maxTokens": 4,
                "ngram": {"promptLookupMin": 1, "promptLookupMax": 4},
            },
            "engine": {
                "device": "CPU",
                "image": images.HOST,
                "plugin": {"image": images.PLUGIN},
                "enforceEager": True,
                "dtype": "float32",
                "maxModelLen": 2048,
                "maxNumSeqs": MAX_NUM_SEQS,
                "shutdownTimeoutSeconds": 0,
                # Without a request for processors a pod has what nobody else wants.
                "resources": {"requests": {"cpu": "1"}},
                "env": [
                    # An engine that waits for its second thread at every layer measures the wait, not k.
                    {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"},
                    {"name": "OMP_NUM_THREADS", "value": "1"},
                ],
            },
            "tuning": tuning,
        },
    }
    return at_home(serving)


def _overrides(environment: Path) -> dict[str, Any]:
    # Where Python came with /usr, /usr has it already.
    python = Path((environment / "bin" / "python").resolve()).parents[1]
    folders = {"usr": Path("/usr"), "linker-cache": Path("/etc/ld.so.cache"), "environment": environment}
    if not python.is_relative_to("/usr"):
        folders["python"] = python
    mounts = [{"name": key, "mountPath": str(path), "readOnly": True} for key, path in folders.items()]
    volumes = [{"name": key, "hostPath": {"path": str(path)}} for key, path in folders.items()]
    models = cache_folder() / "models"
    return {
        # A home folder may be closed to everybody else, and Python or the cache may be inside.
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False},
        "containers": [
            {
                "name": "engine",
                "volumeMounts": [*mounts, {"name": "models", "mountPath": MODELS, "readOnly": True}],
            }
        ],
        "volumes": [*volumes, {"name": "models", "hostPath": {"path": str(models)}}],
    }
