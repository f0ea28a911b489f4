"""The command line of `vllm bench serve` (0.32, 0.33) for one load, and how its prompts are made. Pure."""

from __future__ import annotations

from paceline_engine.trial.making import Making, Source
from paceline_operator.api.experiment import Load

TALKS = "multiTurnPercent"
"""In the methods of results, where there are any."""
WIDEST = 0.99
"""vLLM wants a range below 1."""


def making(load: Load, longest: int | None) -> Making | None:
    """How prompts are made that vllm bench serve has no dataset for; None where it has. `longest`: maxModelLen."""
    prompts, shape = load.prompts, load.prompts.random
    if not prompts.lengths and not load.multi_turn_percent:
        return None
    source = Source.LENGTHS if prompts.lengths else Source.RANDOM if shape else Source.TEXTS
    random = {"input_tokens": shape.input_tokens, "range_percent": shape.range_percent} if shape else {}
    return Making(
        source=source,
        output_tokens=load.output_tokens,
        multi_turn_percent=load.multi_turn_percent,
        longest=longest or 0,
        **random,
    )


def shared(load: Load, *, url: str, model: str, tokenizer: str, dataset: str | None, trust: bool = False) -> list[str]:
    """Arguments of `vllm` that all runs of an experiment share.

    `model` is the served name, `tokenizer` what the engine was given as model, `dataset` a .jsonl file. Prompts that
    are made have arguments of their own.
    """
    found = ["bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url]
    found += ["--model", model, "--tokenizer", tokenizer, *(["--trust-remote-code"] if trust else [])]
    found += ["--temperature", f"{load.temperature_milli / 1000:g}", "--disable-tqdm", "--ready-check-timeout-sec", "0"]
    if making(load, None):
        return found
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
    return found


def described(load: Load, dataset: str | None) -> dict[str, str]:
    """For the report's methods; no text of a prompt. `dataset` says which file, if it is one."""
    shape = load.prompts.random
    prompts = dataset or "none"
    if shape:
        prompts = f"random tokens, {shape.input_tokens} ±{shape.range_percent} %"
    if load.prompts.lengths:
        prompts = f"random tokens, lengths as recorded in {prompts}"
    answers = f"{load.output_tokens} {'exactly' if shape else 'at most'}"
    found = {
        "prompts": prompts,
        "outputTokens": "exactly as recorded" if load.prompts.lengths else answers,
        "temperature": f"{load.temperature_milli / 1000:g}",
        "seed": str(load.seed),
    }
    if load.multi_turn_percent:
        found[TALKS] = f"{load.multi_turn_percent}, the first requests of each window apart"
    return found
