"""A closed-loop load, run inside the node's network: `load.py URL MODEL CONCURRENCY` until standard input ends.

Its last words are JSON: requests that were answered, and what went wrong with the others.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import urllib.request

WORDS = (
    "river",
    "lamp",
    "market",
    "copper",
    "window",
    "song",
    "garden",
    "letter",
    "engine",
    "winter",
    "bread",
    "stone",
)
TOKENS = 64
TIMEOUT_SECONDS = 120.0


def body(model: str, source: random.Random) -> bytes:
    """A prompt nobody sent before; sampled at temperature 1, so that prompt lookup fires and fails."""
    prompt = " ".join(source.choices(WORDS, k=24))
    return json.dumps(
        {"model": model, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0}
    ).encode()


def main() -> None:
    """Command line."""
    url, model, concurrency = sys.argv[1], sys.argv[2], int(sys.argv[3])
    over = threading.Event()
    answered: list[int] = []
    failures: list[str] = []

    def client(seed: int) -> None:
        source = random.Random(seed)
        while not over.is_set():
            request = urllib.request.Request(url, body(model, source), {"Content-Type": "application/json"})
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
