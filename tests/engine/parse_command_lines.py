"""Runs in the engine's environment: parses command lines with vLLM's own parser. JSON in on stdin, JSON out on stdout.

In:  {"commands": [["vllm", "serve", ...], ...]}.
Out: {"version": "0.32.0", "parsed": [{argument: value, ...} or {"error": text}, ...], "options": [...],
"speculative_fields": [...], "lookups": [the engine's own dense table of each command, or null],
"values": {field of the spec: [values that vLLM knows]}}.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import fields
from typing import Any

from vllm.config import SpeculativeConfig
from vllm.entrypoints.cli.serve import cmd_init
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.version import __version__


def main() -> None:
    parser = FlexibleArgumentParser()
    serve = cmd_init()[0].subparser_init(parser.add_subparsers(dest="subparser"))
    commands = json.load(sys.stdin)["commands"]
    parsed = [parse(parser, command) for command in commands]
    choices = {option: action.choices for action in serve._actions for option in action.option_strings}
    answer = {
        "version": __version__,
        "parsed": parsed,
        "options": sorted(option for action in serve._actions for option in action.option_strings),
        "speculative_fields": [field.name for field in fields(SpeculativeConfig)],
        "lookups": [lookup(arguments) for arguments in parsed],
        "values": {
            "engine.quantization": sorted(QUANTIZATION_METHODS),
            "engine.kvCacheDtype": sorted(choices["--kv-cache-dtype"]),
            "engine.lora.maxLoraRank": sorted(choices["--max-lora-rank"]),
        },
    }
    json.dump(answer, sys.stdout, default=repr)


def parse(parser: Any, command: list[str]) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return dict(vars(parser.parse_args(command[1:])))
    except (SystemExit, ValueError) as refusal:
        return {"error": f"{refusal}: {said.getvalue()[-2000:]}"}


def lookup(arguments: dict[str, Any]) -> list[int] | None:
    config = arguments.get("speculative_config") or {}
    rows = config.get("num_speculative_tokens_per_batch_size")
    if rows is None:
        return None
    return list(build_dynamic_sd_schedule_lookup(rows, arguments["max_num_seqs"], config["num_speculative_tokens"]))


if __name__ == "__main__":
    main()
