"""A stand-in for the `vllm` command of an experiment: `serve` answers, `bench serve` writes what the real one writes.

Each benchmark leaves a line with an acceptance length of its own in the log. Speeds are made up: 100 tokens a second
and load without drafts, 30 % more for each drafted token. By STAND_IN_FAILS (JSON, k -> `start` or `serve`) engines of
that k end before they are ready, or with their fourth benchmark.
STAND_IN_SLOW: seconds that a benchmark takes; STAND_IN_STAYS: seconds that an engine takes to end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKENS = 8
K = "num_speculative_tokens"


def option(name: str, default: str = "") -> str:
    arguments = sys.argv[1:]
    return arguments[arguments.index(name) + 1] if name in arguments else default


def serve() -> None:
    k = json.loads(option("--speculative-config", "{}")).get(K, 0)
    fails = json.loads(os.environ.get("STAND_IN_FAILS", "{}")).get(str(k))
    if fails == "start":
        sys.exit("ValueError: no such draft")
    counted = {"benchmarks": 0, "requests": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            texts = {
                "/version": json.dumps({"version": "9.9"}),
                "/metrics": f"vllm:prefix_cache_queries_total {10.0 * counted['requests']}\n"
                "vllm:prefix_cache_hits_total 0.0\n",
            }
            self.answer(texts.get(self.path, "{}"))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            counted["benchmarks"] += 1
            counted["requests"] += body["requests"]
            if fails == "serve" and counted["benchmarks"] > 3:
                print("CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)
                os._exit(3)
            time.sleep(float(os.environ.get("STAND_IN_SLOW", "0")))
            length = f"SpecDecoding metrics: Mean acceptance length: {1 + counted['benchmarks'] / 100}"
            print(f"INFO {time.strftime('%m-%d %H:%M:%S')} [metrics.py:1] {length}", file=sys.stderr, flush=True)
            self.answer(json.dumps({"k": k}))

        def answer(self, text: str) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class's name
            pass

    def end(*_: object) -> None:
        time.sleep(float(os.environ.get("STAND_IN_STAYS", "0")))
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    print("Loading weights", file=sys.stderr, flush=True)
    if folder := os.environ.get("STAND_IN_PIDS"):
        (Path(folder) / f"{os.getpid()}-{k}").touch()
    ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler).serve_forever()


def bench() -> None:
    if "--help" in sys.argv:
        print("usage: vllm bench serve")
        sys.exit(0)
    load, requests, seed = (int(option(name)) for name in ("--max-concurrency", "--num-prompts", "--seed"))
    start = time.perf_counter()
    body = json.dumps({"requests": requests}).encode()
    try:
        k = json.load(urllib.request.urlopen(f"{option('--base-url')}/v1/completions", body, timeout=60))["k"]
        error = ""
    except (OSError, urllib.error.URLError):
        k, error = 0, "aiohttp.client_exceptions.ServerDisconnectedError: gone"
    rate = 100 * load * (1 + 0.3 * k) * (1 + 0.001 * (seed % 7 if seed < 2**30 else 0))
    latency = TOKENS * load / rate
    good = 0 if error else requests
    inputs = [5] * requests
    if option("--dataset-name") == "timed_trace":
        inputs = [json.loads(line)["input_length"] for line in Path(option("--dataset-path")).read_text().splitlines()]
    result = {
        "max_concurrency": load, "duration": requests * TOKENS / rate, "completed": good, "failed": requests - good,
        "total_input_tokens": sum(inputs) if good else 0, "total_output_tokens": TOKENS * good, "num_prompts": requests,
        "input_lens": inputs, "output_lens": [TOKENS if good else 0] * requests,
        "ttfts": [latency / TOKENS if good else 0.0] * requests,
        "itls": [[latency / TOKENS] * (TOKENS - 1) if good else []] * requests,
        "latencies": [latency if good else 0.0] * requests, "start_times": [start] * requests,
        "generated_texts": ["a secret answer"] * requests, "errors": [error] * requests,
    }  # fmt: skip
    (Path(option("--result-dir")) / option("--result-filename")).write_text(json.dumps(result))


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else bench()
