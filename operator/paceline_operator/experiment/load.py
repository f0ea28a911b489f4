"""The command line of `vllm bench serve` (0.32, 0.33) for one load, and how many requests it gets. Pure."""

from __future__ import annotations

import math

from paceline_operator.api.experiment import Load

WAVES = 2
"""Of a warm-up: the first waits for what is compiled, the second tells how long a request takes."""
MOST_REQUESTS = 100_000
WIDEST = 0.99
"""vLLM wants a range below 1."""
WARM_UP_SEED = 2**30
"""Apart from every measurement's: prompts of a warm-up are in the prefix cache."""


class LoadError(ValueError):
    """A load that `vllm bench serve` cannot make."""


def check(load: Load) -> None:
    """Raises LoadError, with the field and what to do."""
    if load.multi_turn_percent:
        raise LoadError(
            f"spec.load.multiTurnPercent is {load.multi_turn_percent}: vllm bench serve has no talks of several turns; "
            "set it to 0"
        )


def requests(concurrency: int, seconds: float, latency: float) -> int:
    """How many make up `seconds`, where one takes `latency` seconds: whole waves, two at least."""
    waves = round(min(seconds / latency, MOST_REQUESTS)) if latency > 0 else WAVES
    return max(WAVES * concurrency, min(waves * concurrency, MOST_REQUESTS))


def arguments(
    load: Load,
    *,
    concurrency: int,
    requests: int,
    seed: int,
    url: str,
    model: str,
    tokenizer: str,
    dataset: str | None,
    folder: str,
    name: str,
    trust: bool = False,
) -> list[str]:
    """Of `vllm`. `model` is the served name, `tokenizer` what the engine was given as model, `dataset` a .jsonl file.

    The result goes to `folder`/`name`.
    """
    found = ["bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url]
    found += ["--model", model, "--tokenizer", tokenizer, *(["--trust-remote-code"] if trust else [])]
    found += ["--num-prompts", str(requests), "--max-concurrency", str(concurrency), "--seed", str(seed)]
    found += ["--temperature", f"{load.temperature_milli / 1000:g}", "--disable-tqdm", "--ready-check-timeout-sec", "0"]
    if load.prompts.random:
        spread = min(load.prompts.random.range_percent / 100, WIDEST)
        found += ["--dataset-name", "random", "--random-input-len", str(load.prompts.random.input_tokens)]
        found += [
            "--random-output-len",
            str(load.output_tokens),
            "--random-range-ratio",
            f'{{"input": {spread:g}, "output": 0}}',
        ]
    else:
        found += ["--dataset-name", "custom", "--dataset-path", str(dataset)]
        found += ["--custom-output-len", str(load.output_tokens)]
    return [*found, "--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", name]


def warm_up_seed(load: int) -> int:
    """Of the warm-up at `load` requests."""
    return WARM_UP_SEED + load


def described(load: Load, dataset: str | None) -> dict[str, str]:
    """For the report's methods; no text of a prompt. `dataset` says which file, if it is one."""
    shape = load.prompts.random
    prompts = dataset or "none"
    if shape:
        prompts = f"random tokens, {shape.input_tokens} ±{shape.range_percent} %"
    end = "exactly" if shape else "at most"
    return {
        "prompts": prompts,
        "outputTokens": f"{load.output_tokens} {end}",
        "temperature": f"{load.temperature_milli / 1000:g}",
        "seed": str(load.seed),
    }


def wave_latency(latencies: list[float], concurrency: int) -> float:
    """Seconds of a request once everything is warm: the median of the last wave; infinite where there is none."""
    last = sorted(one for one in latencies[-concurrency:] if one > 0)
    return last[len(last) // 2] if last else math.inf
