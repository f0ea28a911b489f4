"""A closed-loop load, run inside the node's network: `load.py URL MODEL CONCURRENCY TOKENS` until standard input
ends.

Its last words are JSON: requests that were answered, and what went wrong with the others.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import urllib.request

TIMEOUT_SECONDS = 120.0


def body(model: str, tokens: int, source: random.Random) -> bytes:
    """Numbers without a rule, to be continued: every digit was seen, so drafts are made in each step and fail."""
    prompt = ", ".join(str(source.randrange(100, 1000)) for _ in range(24)) + ","
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0}
    return json.dumps(asked).encode()


def main() -> None:
    """Command line."""
    url, model, concurrency, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    over = threading.Event()
    answered: list[int] = []
    failures: list[str] = []

    def client(seed: int) -> None:
        source = random.Random(seed)
        while not over.is_set():
            request = urllib.request.Request(url, body(model, tokens, source), {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                    answered.append(json.load(answer)["usage"]["completion_tokens"])
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")
                over.wait(0.5)

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(concurrency)]
    for each in clients:
        each.start()
    sys.stdin.read()
    over.set()
    for each in clients:
        each.join()
    print(json.dumps({"answered": len(answered), "tokens": sum(answered), "failures": failures}))


if __name__ == "__main__":
    main()
