"""A real vLLM on this machine's CPU with the plugin of this clone, for tests: start, ask, push, read, stop."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from paceline_engine.protocol import (
    ENV_CONTROL_HOST,
    ENV_CONTROL_PORT,
    ENV_TOKEN_DIRECTORY,
    TOKEN_FILE_CURRENT,
    Policy,
    Samples,
    State,
)
from tests.harness.ports import free_ports
from tests.harness.processes import Daemon, wait_until

ROOT = Path(__file__).resolve().parents[2]
VLLM = Path(sys.prefix) / "engine" / "bin" / "vllm"
MODEL = "smollm2-135m-instruct"
TOKEN = "0123456789abcdef0123456789abcdef"
READY_SECONDS = 240.0
"""25 s on an idle machine with two cores."""
REQUEST_SECONDS = 120.0
SEED = ((1, 1, 5), (2, 4, 3), (5, 8, 1), (9, 16, 0))
"""Boot schedule: first and last request count, k."""
MAX_NUM_SEQS = 16
MAX_K = 5


def models_folder() -> Path:
    """Where `make setup` keeps models: in `$PACELINE_CACHE`, else the user's cache folder."""
    base = os.environ.get("PACELINE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "paceline")
    return Path(base).expanduser() / "models"


def plugin_folder(folder: Path, *, broken: bool = False) -> Path:
    """The plugin as it lies on a pod's PYTHONPATH; `broken`: one that cannot be imported."""
    package = folder / "paceline_engine"
    shutil.copytree(ROOT / "engine" / "paceline_engine", package, ignore=shutil.ignore_patterns("__pycache__"))
    if broken:
        (package / "plugin.py").write_text("import a_module_that_is_not_there\n")
    installed = importlib.metadata.distribution("paceline")
    info = folder / f"paceline-{installed.version}.dist-info"
    info.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (info / name).write_text(installed.read_text(name) or "")
    return folder


class RealEngine:
    """One `vllm serve` with ngram speculation, and clients of its two ports. Stop it in the end."""

    def __init__(
        self,
        folder: Path,
        *,
        broken_plugin: bool = False,
        multiprocessing: bool = False,
        seed: Sequence[tuple[int, int, int]] | None = SEED,
        speculation: Mapping[str, Any] | None = None,
        drafter: bool = True,
        arguments: Sequence[str] = (),
    ) -> None:
        """Start it; files and the log go to `folder`."""
        assert VLLM.exists(), f"{VLLM} is not there: run `make setup`"
        model = models_folder() / MODEL
        assert model.exists(), f"{model} is not there: run `make setup`"
        self.serving_port, self.control_port = free_ports(2)
        tokens = folder / "token"
        tokens.mkdir()
        (tokens / TOKEN_FILE_CURRENT).write_text(TOKEN)
        config: dict[str, Any] = {
            "method": "ngram",
            "num_speculative_tokens": MAX_K,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
            **(speculation or {}),
        }
        if seed:
            config["num_speculative_tokens_per_batch_size"] = [list(row) for row in seed]
        self.daemon = Daemon(
            "engine",
            [
                VLLM, "serve", model, "--served-model-name", MODEL,
                "--host", "127.0.0.1", "--port", str(self.serving_port),
                "--enforce-eager", "--dtype", "float32", "--max-model-len", "2048",
                "--max-num-seqs", str(MAX_NUM_SEQS),
                *(["--speculative-config", json.dumps(config)] if drafter else []), *arguments,
            ],
            folder,
            env={
                "PYTHONPATH": str(plugin_folder(folder / "plugin", broken=broken_plugin)),
                ENV_TOKEN_DIRECTORY: str(tokens),
                ENV_CONTROL_HOST: "127.0.0.1",
                ENV_CONTROL_PORT: str(self.control_port),
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(multiprocessing)),
            },
        )  # fmt: skip
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.serving_port}", timeout=REQUEST_SECONDS)
        self.control = httpx.Client(
            base_url=f"http://127.0.0.1:{self.control_port}", headers={"Authorization": f"Bearer {TOKEN}"}
        )

    def wait_ready(self) -> RealEngine:
        """Until it serves."""

        def serves() -> bool:
            return self.http.get("/health").status_code == httpx.codes.OK

        wait_until(
            serves, "the engine to serve", timeout_seconds=READY_SECONDS, daemons=[self.daemon], every_seconds=0.5
        )
        return self

    def stop(self) -> None:
        """End it and everything it started."""
        self.http.close()
        self.control.close()
        self.daemon.stop(grace_seconds=20)
        with suppress(ProcessLookupError):
            os.killpg(self.daemon.process.pid, signal.SIGKILL)

    def log(self) -> str:
        """All it has said."""
        return self.daemon.log.read_text(errors="replace")

    @property
    def core_pid(self) -> int:
        """Process id of the engine core, from its own log."""
        found = re.findall(r"EngineCore pid=(\d+)", self.log())
        return int(found[-1])

    def complete(self, prompts: Sequence[str], tokens: int = 64) -> list[str]:
        """Greedy completions of exactly `tokens` tokens, all asked at once."""

        def one(prompt: str) -> str:
            body = {
                "model": MODEL, "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "temperature": 0,
            }  # fmt: skip
            answer = self.http.post("/v1/completions", json=body).raise_for_status().json()
            assert answer["usage"]["completion_tokens"] == tokens
            return str(answer["choices"][0]["text"])

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(one, prompts))

    def counters(self) -> dict[str, float]:
        """The engine's own counters: name, or name[position], or name[source], without `vllm:` and `_total`."""
        found: dict[str, float] = {}
        for line in self.http.get("/metrics").text.splitlines():
            if match := re.match(r"vllm:(\w+)_total\{(.*)\} (\S+)$", line):
                label = re.search(r'(?:position|source)="(\w+)"', match[2])
                found[f"{match[1]}[{label[1]}]" if label else match[1]] = float(match[3])
        return found

    def state(self) -> State:
        """`GET /state`."""
        return State.model_validate(self.control.get("/state").raise_for_status().json())

    def samples(self, cursor: str | None = None) -> Samples:
        """`GET /samples`."""
        answer = self.control.get("/samples", params={"cursor": cursor} if cursor else None)
        return Samples.model_validate(answer.raise_for_status().json())

    def push(self, policy: Policy) -> httpx.Response:
        """`PUT /policy`."""
        return self.control.put("/policy", content=policy.model_dump_json(by_alias=True))

    def push_k(self, k: int, **fields: Any) -> int:
        """Put one k for all loads in force, as the next generation, which is returned."""
        generation = self.state().generation + 1
        policy = Policy(generation=generation, table=(k,) * (MAX_NUM_SEQS + 1), **fields)
        assert self.push(policy).status_code == httpx.codes.OK
        return generation
