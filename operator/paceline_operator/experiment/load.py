"""The command line of `vllm bench serve` (0.32, 0.33) for one load. Pure."""

from __future__ import annotations

from paceline_operator.api.experiment import Load

WIDEST = 0.99
"""vLLM wants a range below 1."""


class LoadError(ValueError):
    """A load that `vllm bench serve` cannot make."""


def check(load: Load) -> None:
    """Raises LoadError, with the field and what to do."""
    if load.multi_turn_percent:
        raise LoadError(
            f"spec.load.multiTurnPercent is {load.multi_turn_percent}: vllm bench serve has no talks of several turns; "
            "set it to 0"
        )


def shared(load: Load, *, url: str, model: str, tokenizer: str, dataset: str | None, trust: bool = False) -> list[str]:
    """Arguments of `vllm` that all runs of an experiment share.

    `model` is the served name, `tokenizer` what the engine was given as model, `dataset` a .jsonl file.
    """
    found = ["bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url]
    found += ["--model", model, "--tokenizer", tokenizer, *(["--trust-remote-code"] if trust else [])]
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
    return found


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
