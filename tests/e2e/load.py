"""A closed-loop load inside the node's network until standard input ends: `load.py URL MODEL CONCURRENCY [TOKENS]`.

With TOKENS, answers are that long and of digits alone. Its last words are JSON: requests that were answered, and what
went wrong with the others.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import urllib.request
from typing import Any

TOKENS = 64
TIMEOUT_SECONDS = 120.0


def body(model: str, source: random.Random) -> dict[str, Any]:
    """Numbers without a rule, to be continued: every digit was seen, so drafts are made in many steps and fail."""
    prompt = ", ".join(str(source.randrange(100, 1000)) for _ in range(24)) + ","
    return {"model": model, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0}


def only(digits: list[int], tokens: int, source: random.Random) -> dict[str, Any]:
    """What makes it so in every step: nothing but digits, by chance."""
    prompt = "".join(source.choice("0123456789") for _ in range(48))
    return {"prompt": prompt, "max_tokens": tokens, "allowed_token_ids": digits, "temperature": 2.0}


def digits_of(url: str, model: str) -> list[int]:
    """Tokens of the ten digits."""
    asked = {"model": model, "prompt": "0123456789", "add_special_tokens": False}
    return list(post(url.replace("/v1/completions", "/tokenize"), asked)["tokens"])


def post(url: str, asked: dict[str, Any]) -> Any:
    """The answer to JSON."""
    request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        return json.load(answer)


def main() -> None:
    """Command line."""
    url, model, concurrency, *rest = sys.argv[1:]
    tokens = int(rest[0]) if rest else 0
    digits = digits_of(url, model) if tokens else []
    over = threading.Event()
    answered: list[int] = []
    failures: list[str] = []

    def client(seed: int) -> None:
        source = random.Random(seed)
        while not over.is_set():
            try:
                asked = body(model, source) | (only(digits, tokens, source) if tokens else {})
                answered.append(post(url, asked)["usage"]["completion_tokens"])
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")
                over.wait(0.5)

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(int(concurrency))]
    for each in clients:
        each.start()
    sys.stdin.read()
    over.set()
    for each in clients:
        each.join()
    print(json.dumps({"answered": len(answered), "tokens": sum(answered), "failures": failures}))


if __name__ == "__main__":
    main()
