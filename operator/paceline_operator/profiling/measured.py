"""A SpeculationProfile from an experiment's results, for engines whose key is known.

Of the serving as it stands (its k at boot is the key's) and of the baseline, which has no drafter. Variants with
another k at boot, method or engine have another key: they are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import stdev

from paceline_engine.protocol import load_bucket
from paceline_operator.api.experiment import BASELINE, SERVING
from paceline_operator.api.learned import AcceptanceRow, CostRow, NoDrafterRow, ProfileKey
from paceline_operator.api.profiles import ProfileSpec
from paceline_operator.clock import rfc3339
from paceline_operator.experiment import taint
from paceline_operator.experiment.results import VariantResult, Window

MILLION = 1e6
LONGEST = 600_000_000
"""Microseconds of a step that a row can say."""
ENGINE = "vllm"


def profile_of(results: Sequence[VariantResult], key: ProfileKey, workload: str) -> ProfileSpec | str:
    """Of windows that nothing taints, `results` as of a folder, the baseline first; else why there is none."""
    by_name = {one.variant: one for one in results}
    serving = by_name.get(SERVING)
    if serving is None:
        return f"the experiment has no results of the variant {SERVING}"
    if wrong := "; ".join(_differing(serving, key)):
        return f"the experiment was made under another key: {wrong}"
    marked = taint.of_all(results)
    windows = _clean(serving, marked)
    rows = [row for load, found in _by_load(windows) if (row := _cost(load, found, key.max_tokens))]
    if not rows:
        return "no window of the serving is clean and tells its acceptance"
    off = _by_load(_clean(by_name[BASELINE], marked)) if BASELINE in by_name else []
    return ProfileSpec(
        key=key,
        measured_at=rfc3339(datetime.fromtimestamp(max(window.ended_at for window in windows), UTC)),
        workload=workload,
        cost=rows,
        no_drafter=[plain for load, found in off if (plain := _no_drafter(load, found))],
        acceptance=list(_acceptance(windows, key.max_tokens)),
    )


def _differing(result: VariantResult, key: ProfileKey) -> Iterator[str]:
    """Of what result files tell of a key."""
    methods = result.methods
    engine = methods.versions.get(ENGINE, "unknown")
    gpu = key.gpu.removeprefix("CPU ")
    if not (methods.gpu == gpu or methods.gpu.startswith(f"{gpu},")):
        yield f"gpu is {methods.gpu} in the experiment and {key.gpu} in the engines"
    if engine != key.engine_version:
        yield f"engineVersion is {engine} in the experiment and {key.engine_version} in the engines"
    if result.k != key.max_tokens:
        yield f"maxTokens is {result.k} in the experiment and {key.max_tokens} in the engines"


def _clean(result: VariantResult, marked: Mapping[tuple[str, int, int], tuple[taint.Taint, ...]]) -> list[Window]:
    return [one for one in result.windows if taint.clean(marked[result.variant, one.load, one.round])]


def _by_load(windows: Iterable[Window]) -> list[tuple[int, list[Window]]]:
    found: dict[int, list[Window]] = {}
    for window in windows:
        found.setdefault(load_bucket(window.load), []).append(window)
    return sorted(found.items())


def _steps(windows: Iterable[Window]) -> tuple[float, float]:
    """(steps, decode seconds). A request's step gives a token and those accepted; its first token is the prefill's."""
    steps = seconds = 0.0
    for window in windows:
        rate = window.decode_tokens_per_second
        accepted = window.acceptance.accepted if window.acceptance else 0
        request_steps = window.tokens - window.requests - accepted
        if rate and request_steps > 0:
            steps += request_steps / window.load
            seconds += window.tokens / rate
    return steps, seconds


def _cost(load: int, windows: list[Window], k: int) -> CostRow | None:
    told = [window for window in windows if window.acceptance]
    steps, seconds = _steps(told)
    if steps < 1:
        return None
    means = [spent / count for count, spent in (_steps([window]) for window in told) if count >= 1]
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return CostRow(
        k=k,
        from_requests=load,
        step_microseconds=_micros(seconds / steps),
        deviation_microseconds=min(round(MILLION * error), LONGEST),
        steps=round(steps),
    )


def _micros(seconds: float) -> int:
    return min(max(1, round(MILLION * seconds)), LONGEST)


def _no_drafter(load: int, windows: list[Window]) -> NoDrafterRow | None:
    steps, seconds = _steps(windows)
    if steps < 1:
        return None
    return NoDrafterRow(from_requests=load, step_microseconds=_micros(seconds / steps), steps=round(steps))


def _acceptance(windows: Iterable[Window], k: int) -> Iterator[AcceptanceRow]:
    request_steps = drafts = 0
    accepted = [0.0] * k
    for window in windows:
        found = window.acceptance
        if found is None or not found.by_position:
            continue
        request_steps += max(found.drafts, window.tokens - window.requests - found.accepted)
        drafts += found.drafts
        for at, share in enumerate(found.by_position[:k]):
            accepted[at] += share * found.drafts
    if drafts:
        falling = [min(drafts, round(min(accepted[: at + 1]))) for at in range(k)]
        yield AcceptanceRow(k=k, request_steps=request_steps, drafts=drafts, drafted=[drafts] * k, accepted=falling)
