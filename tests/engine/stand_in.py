"""A stand-in for the `vllm` command, where what is tested is the process and not the engine.

Answers /health, /metrics and /v1/completions; starts a helper that leaves its session, as daemons do; ignores SIGTERM
with STAND_IN_STUBBORN, and ends by itself on POST /die. With STAND_IN_BROKEN it says why and ends at once; with
STAND_IN_WAITS it binds its port only once that file is there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HELPER = "import time\nwhile True: time.sleep(3600)"


class Handler(BaseHTTPRequestHandler):
    def _answer(self, body: str, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        self._answer("vllm:num_requests_running 1\n" if self.path == "/metrics" else "{}", "text/plain")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/die":
            os._exit(3)
        self._answer(json.dumps({"usage": {"completion_tokens": 7}}))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class's name
        pass


def main() -> None:
    if os.environ.get("STAND_IN_BROKEN"):
        print("ValueError: no such model", file=sys.stderr)
        sys.exit(1)
    if os.environ.get("STAND_IN_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen([sys.executable, "-c", HELPER], start_new_session=True)
    if folder := os.environ.get("STAND_IN_PIDS"):
        (Path(folder) / str(os.getpid())).touch()
        (Path(folder) / str(helper.pid)).touch()
    arguments = sys.argv[1:]
    print(" ".join(arguments), file=sys.stderr, flush=True)
    host, port = arguments[arguments.index("--host") + 1], int(arguments[arguments.index("--port") + 1])
    while (awaited := os.environ.get("STAND_IN_WAITS")) and not Path(awaited).exists():
        time.sleep(0.05)
    ThreadingHTTPServer((host, port), Handler).serve_forever()


if __name__ == "__main__":
    main()
