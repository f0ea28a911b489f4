"""Two readings of engines' /metrics -> a length profile of the requests that ended in between. Pure.

vLLM counts prompts and answers by length apart, in buckets of edges 1, 2, 5, 10 ... So pairs are made as if answers did
not depend on prompts, and within buckets lengths are put where their mean is the one that was counted. A pair that
no request can be is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from prometheus_client.parser import text_string_to_metric_families

from paceline_engine.trial.facts import ResultError
from paceline_engine.trial.making import COLUMNS, MOST_COUNT, MOST_INPUT, MOST_OUTPUT, Row

PROMPTS, ANSWERS = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
"""vllm/v1/metrics/loggers.py, 0.32 and 0.33."""
MOST = 1e12
MOST_EDGES = 1000
"""vLLM has three for each power of ten."""


@dataclass(frozen=True)
class _Histogram:
    counts: Mapping[float, float]
    """Upper edge, tokens -> requests up to it."""
    tokens: float


def between(readings: Iterable[tuple[str, str]], longest: int = 0) -> tuple[Row, ...]:
    """`readings`: of each engine, before and after. `longest`: tokens that prompt and answer may have together; 0: any
    number. Raises ResultError."""
    apart = [(_read(before), _read(after)) for before, after in readings]
    prompts, answers = (
        _lengths([(one[name], other[name]) for one, other in apart], name) for name in (PROMPTS, ANSWERS)
    )
    most = max((one * other for _, one in prompts for _, other in answers), default=0.0)
    scale = min(1.0, MOST_COUNT / most) if most else 0.0
    found = [
        Row(min(prompt, MOST_INPUT), min(answer, MOST_OUTPUT), round(scale * one * other))
        for prompt, one in prompts
        for answer, other in answers
    ]
    rows = tuple(row for row in found if row.requests)
    if not rows:
        raise ResultError("no request ended between the two readings")
    rows = tuple(row for row in rows if not longest or row.input_tokens + row.output_tokens <= longest)
    if not rows:
        raise ResultError(f"no pair of what was counted has {longest} tokens at most")
    return rows


def written(rows: Sequence[Row]) -> str:
    """As `spec.load.prompts.lengths` takes it."""
    return "".join(f"{','.join(map(str, line))}\n" for line in (COLUMNS, *rows))


def _lengths(readings: Sequence[tuple[_Histogram, _Histogram]], name: str) -> list[tuple[int, float]]:
    """Length and requests of each bucket that has any."""
    counts: dict[float, float] = {}
    tokens = 0.0
    for before, after in readings:
        tokens += _risen(after.tokens - before.tokens)
        for edge, count in after.counts.items():
            counts[edge] = counts.get(edge, 0.0) + _risen(count - before.counts.get(edge, 0.0))
    edges = sorted(counts)
    buckets: list[tuple[float, float, float]] = []
    for low, high in pairwise([0.0, *edges]):
        many = _risen(counts[high] - counts.get(low, 0.0), f"{name}: counts do not rise with their edges")
        if many:
            buckets.append((low + 1, high if high < MOST else 2 * low + 1, many))
    least = sum(many * low for low, _, many in buckets)
    room = sum(many * (high - low) for low, high, many in buckets)
    share = min(1.0, max(0.0, (tokens - least) / room)) if room > 0 else 0.0
    return [(max(1, round(low + share * (high - low))), many) for low, high, many in buckets]


def _risen(value: float, wrong: str = "a counter fell between the two readings: an engine restarted") -> float:
    if value < 0:
        raise ResultError(f"/metrics: {wrong}")
    return value


def _read(text: str) -> Mapping[str, _Histogram]:
    found: dict[str, _Histogram] = {}
    try:
        for family in text_string_to_metric_families(text):
            if family.name in (PROMPTS, ANSWERS):
                found[family.name] = _histogram(family.samples)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # what the parser raises on garbage
        raise ResultError(f"/metrics: not Prometheus text: {str(error)[:200]}") from None
    if missing := [name for name in (PROMPTS, ANSWERS) if name not in found]:
        raise ResultError(f"/metrics has no {missing[0]}: is it an engine's?")
    return found


def _histogram(samples: Iterable[object]) -> _Histogram:
    """Summed over all labels but the edge."""
    counts: dict[float, float] = {}
    tokens = 0.0
    for sample in samples:
        name, labels, value = sample.name, sample.labels, sample.value  # type: ignore[attr-defined]
        if not 0 <= value < MOST:
            raise ValueError(f"{name} is {value}")
        if name.endswith("_sum"):
            tokens += value
        elif name.endswith("_bucket"):
            edge = float(labels["le"])
            if not (0 < edge < MOST or edge == inf):
                raise ValueError(f"{name} has the edge {edge}")
            if len(counts) > MOST_EDGES:
                raise ValueError(f"{name} has more than {MOST_EDGES} edges")
            counts[edge] = counts.get(edge, 0.0) + value
    return _Histogram(counts, tokens)
