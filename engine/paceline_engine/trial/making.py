"""Prompts that `vllm bench serve` is given a file of for each run: of recorded lengths, and of talks of several turns.

In a closed loop of n requests the request n places further on is about when its client would speak again. So request i
goes on with the talk of request i - n, with the chance that was asked for; else it begins one. No answer of the engine
is in a later turn: `vllm bench serve` sends what was written before.

Lengths become lines of its dataset `timed_trace` (0.32, 0.33): a number stands for each 16 random tokens, equal numbers
for equal tokens. A talk is a line of such numbers, and each of its turns begins with what the turn before had.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from paceline_engine.protocol import Wire
from paceline_engine.trial.facts import ResultError

CHUNK = 16
"""Tokens of one number: vLLM's default, and that of its prefix cache's blocks."""
STREAM = 2**24 // CHUNK
"""Numbers of one talk: for the longest context that the API takes."""
MOST_TURNS = 8
"""Of a talk, where nothing else ends it."""
MOST_ROWS = 10_000
MOST_INPUT, MOST_OUTPUT, MOST_COUNT = 1_048_576, 65_536, 10**9
COLUMNS = ("input_tokens", "output_tokens", "count")
HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Environment of `vllm bench serve`: tokens are of the hash of a number's text, which differs between processes."""
FILE = "made.jsonl"
"""vLLM wants the suffix."""
BETWEEN = "\n\n"
"""Between the texts of a talk's turns."""
CHARACTERS = 3
"""Of a talk of texts for each token that there is room for: English has some four a token."""

Percent = Annotated[int, Field(ge=0, le=100)]
Tokens = Annotated[int, Field(ge=1, le=MOST_INPUT)]


class Source(StrEnum):
    """What prompts are made of."""

    RANDOM = "random"
    LENGTHS = "lengths"
    TEXTS = "texts"


class Making(Wire):
    """How prompts are made."""

    source: Source
    input_tokens: Tokens = 1
    """Of random prompts: the mean of what each turn adds."""
    range_percent: Percent = 0
    output_tokens: Annotated[int, Field(ge=1, le=MOST_OUTPUT)] = 1
    """Of random prompts and texts."""
    multi_turn_percent: Percent = 0
    longest: Annotated[int, Field(ge=0)] = 0
    """Tokens that the engine takes of prompt and answer together; 0: not known."""


class Row(NamedTuple):
    """Requests of one shape."""

    input_tokens: int
    output_tokens: int
    requests: int


class Turn(NamedTuple):
    """One request."""

    talk: int
    number: int
    """In its talk, from 0."""
    input_tokens: int
    output_tokens: int


def rows(content: bytes, longest: int = 0) -> tuple[Row, ...]:
    """A length profile: CSV with COLUMNS. Raises ResultError, with the line."""
    try:
        lines = list(csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True))
    except (UnicodeDecodeError, csv.Error):
        raise ResultError("the length profile is no CSV") from None
    if not lines or tuple(one.strip() for one in lines[0]) != COLUMNS:
        raise ResultError(f"the length profile: line 1 is not {','.join(COLUMNS)}")
    found = [_row(line, number, longest) for number, line in enumerate(lines[1:], start=2) if line]
    if not found:
        raise ResultError("the length profile has no lengths")
    if len(found) > MOST_ROWS:
        raise ResultError(f"the length profile has {len(found)} rows: {MOST_ROWS} are taken; put like lengths together")
    return tuple(found)


def _row(line: Sequence[str], number: int, longest: int) -> Row:
    where, most = f"the length profile: line {number}", (MOST_INPUT, MOST_OUTPUT, MOST_COUNT)
    if len(line) != len(COLUMNS):
        raise ResultError(f"{where} has {len(line)} values in place of {len(COLUMNS)}")
    values = [
        int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else 0 for text in map(str.strip, line)
    ]
    for name, value, limit in zip(COLUMNS, values, most, strict=True):
        if not 1 <= value <= limit:
            raise ResultError(f"{where}: {name} is no whole number from 1 to {limit}")
    found = Row(*values)
    if longest and found.input_tokens + found.output_tokens > longest:
        total = f"{found.input_tokens} + {found.output_tokens}"
        raise ResultError(f"{where}: {total} tokens are more than maxModelLen {longest}")
    return found


def texts(content: bytes) -> tuple[str, ...]:
    """A dataset: a JSON object with `prompt` in each line. Raises ResultError, with the line."""
    found: list[str] = []
    for number, line in enumerate((one for one in content.split(b"\n") if one.strip()), start=1):
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, LookupError, TypeError, RecursionError):
            prompt = None
        if not isinstance(prompt, str) or not prompt:
            raise ResultError(f'line {number} is no JSON object with a text under "prompt"')
        found.append(prompt)
    if not found:
        raise ResultError("no prompt is in it")
    return tuple(found)


def made(making: Making, content: bytes, count: int, load: int, seed: int) -> bytes:
    """The file of `count` requests, `load` of them in flight; `content`: of the profile or dataset. The same arguments
    make the same file. Raises ResultError."""
    rng = random.Random(seed)  # noqa: S311 the same prompts for all variants
    lines: Iterator[dict[str, object]]
    if making.source is Source.TEXTS:
        lines = ({"prompt": one} for one in _talked(making, texts(content), count, load, rng))
    else:
        lines = (_timed(turn, seed) for turn in turns(making, content, count, load, rng))
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def arguments(making: Making, path: str) -> list[str]:
    """Of `vllm bench serve`, for the file that was made."""
    if making.source is Source.TEXTS:
        found = ["--dataset-name", "custom", "--disable-shuffle", "--custom-output-len", str(making.output_tokens)]
    else:
        found = ["--dataset-name", "timed_trace", "--timed-trace-chunk-hash-size", str(CHUNK)]
    return [*found, "--dataset-path", path]


def written(making: Making | None, content: bytes, path: Path, count: int, load: int, seed: int) -> list[str]:
    """What was made is at `path`; arguments for it, none where nothing is to be made. Raises ResultError."""
    if making is None:
        return []
    path.write_bytes(made(making, content, count, load, seed))
    return arguments(making, str(path))


def turns(making: Making, content: bytes, count: int, load: int, rng: random.Random) -> Iterator[Turn]:
    """Of random prompts each turn adds its own to what was said, and a talk that would be too long is not gone on with.
    Recorded lengths are of whole prompts: a turn begins with as much of its talk as its own length holds."""
    recorded = rows(content, making.longest) if making.source is Source.LENGTHS else ()
    weights = list(accumulate(row.requests for row in recorded))
    found: list[Turn] = []
    for at in range(count):
        before = found[at - load] if at >= load and _goes_on(making, rng) else None
        if before and before.number + 1 >= MOST_TURNS:
            before = None
        if recorded:
            tokens, answer, _ = rng.choices(recorded, cum_weights=weights)[0]
        else:
            spread = making.input_tokens * making.range_percent // 100
            tokens, answer = max(1, making.input_tokens + rng.randint(-spread, spread)), making.output_tokens
            longer = before.input_tokens + before.output_tokens + tokens if before else 0
            before = before if longer + answer <= (making.longest or longer + answer) else None
            tokens = longer if before else tokens
        found.append(Turn(before.talk, before.number + 1, tokens, answer) if before else Turn(at, 0, tokens, answer))
        yield found[-1]


def _goes_on(making: Making, rng: random.Random) -> bool:
    return rng.random() * 100 < making.multi_turn_percent


def _timed(turn: Turn, seed: int) -> dict[str, object]:
    first = (seed * 10**7 + turn.talk) * STREAM
    ids = list(range(first, first - (-turn.input_tokens // CHUNK)))
    return {"timestamp": 0, "input_length": turn.input_tokens, "output_length": turn.output_tokens, "hash_ids": ids}


def _talked(making: Making, prompts: Sequence[str], count: int, load: int, rng: random.Random) -> Iterator[str]:
    order = list(prompts)
    rng.shuffle(order)
    found: list[tuple[str, int]] = []
    for at in range(count):
        own = order[at % len(order)]
        before, number = found[at - load] if at >= load and _goes_on(making, rng) else ("", MOST_TURNS)
        room = CHARACTERS * (making.longest - making.output_tokens) if making.longest else inf
        if len(before) + len(BETWEEN) + len(own) > room:
            number = MOST_TURNS
        found.append((f"{before}{BETWEEN}{own}", number + 1) if number + 1 < MOST_TURNS else (own, 0))
        yield found[-1][0]
