"""What becomes of drafts: accepted and drafted tokens per configured k and position, forgotten exponentially.

A request's step at k gives 1 + (accepted drafts) tokens: the acceptance length. Each k has counts of its own, since
the same position is not accepted alike under every k (MTP position 0: 84 % at k=1, 76 % at k=8, vllm#48892; public
Llama-3.1-8B EAGLE traces: 70 % at k=1, 66 % at k=7). But the drafts of a small k are the head of those of a large one:
so the counts of all ks are pooled by position, and a k's own departure from the pool is a factor learnt from steps of
the same moments. That factor hardly depends on the traffic; the pool follows it. So when traffic changes, the k in
force moves the estimates of all others, and no k is judged by old traffic against new.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add, mul
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline_engine.protocol import AcceptanceCell, Verification
from paceline_operator.api.speculation import Method
from paceline_operator.tuning.values import amended

Array: TypeAlias = npt.NDArray[np.float64]
Window: TypeAlias = Mapping[int, Sequence[float]]
"""Counts of a window alone, as in `Acceptance.counts`: rows by ladder position, of the ks that it has."""

HALF_LIFE_SECONDS = 120.0
"""Of the pooled counts: traffic mixes change over minutes."""
OWN_HALF_LIFE_SECONDS = 3600.0
"""Of a k's departure from the pool: a property of drafter and method."""
MEMORY_REQUEST_STEPS = 50_000.0
"""More would only make the memory long: 50,000 give the length to 0.3 %."""
MIN_REQUEST_STEPS = 32.0
"""Below this a k's acceptance is unknown."""
CLUSTERING = 1.5
"""Variance of an accepted count over that of independent draws: the steps of one request resemble each other (request
acceptance lengths spread by 10 to 20 % in the public traces)."""
DEPARTURE, DEPARTURE_DOUBLINGS = 0.03, 3.0
"""Prior standard deviation of a k's log departure from the pool, and the doublings of k over which departures resemble
each other. Measured in the public EAGLE traces: 0.7 to 4.6 %, neighbouring ks within 1 % but once."""
BLOCK_DEPARTURE = 0.2
"""The same for drafts made as a block, whose content may depend on the block: each k by itself."""
BLOCK_METHODS = frozenset({Method.DFLASH, Method.DSPARK})
CUSUM_ALLOWANCE, CUSUM_LIMIT = 0.5, 5.0
"""Of the two-sided cumulative sum of standardised surprises (Page 1954): one window 5.5 deviations off, or ten windows
one deviation off, is another traffic."""
KEPT_AFTER_CHANGE = 0.02
"""Share of the old counts that is kept when traffic has changed: intervals widen to what the new windows support."""


@dataclass(frozen=True)
class Acceptance:
    """Counts by ladder position (rows); the ladder descends."""

    ladder: tuple[int, ...]
    nested: bool
    counts: Array
    """Columns: request-steps, drafts, then drafted and then accepted by draft position. Forgotten fast."""
    own_counts: Array
    """Columns: request-steps of each k, the tokens they gave, and what the pool of their moment expected. Forgotten
    slowly: what `known` rests on."""
    since_change: Array
    """Request-steps of each k since traffic changed last."""
    windows: float = 0.0
    """Effective number of windows in the pooled counts."""
    drift: float = 0.05**2
    """Variance of a window's log tokens beyond counting noise: how far a window's traffic is from the mix."""
    high: float = 0.0
    low: float = 0.0
    """The two cumulative sums."""
    changes: int = 0
    """Changes of traffic detected so far."""
    lengths: Lengths | None = None
    """What follows from the counts; None before the first."""

    @property
    def request_steps(self) -> Array:
        """By k."""
        return self.counts[:, 0]

    @property
    def drafts(self) -> Array:
        """Of these, those with at least one draft token."""
        return self.counts[:, 1]


@dataclass(frozen=True)
class Lengths:
    """Acceptance length of each ladder k, in logarithms, with the covariance between ks (what they share cancels in a
    comparison)."""

    log: Array
    covariance: Array
    known: npt.NDArray[np.bool_]
    ladder: tuple[int, ...]
    counts: Array
    """What these follow from."""
    pooled: Sequence[float]
    """Survival by position, as all ks say together."""

    @property
    def survival(self) -> Array:
        """Row k, column i: share of request-steps whose draft was accepted up to position i + 1."""
        steps, width = self.counts[:, :1], len(self.pooled)
        own = self.counts[:, 2 + width :] / np.maximum(steps, 1.0)
        found: Array = np.where(steps >= MIN_REQUEST_STEPS, own, _reach(self.ladder) * np.asarray(self.pooled))
        return found


def empty(ladder: tuple[int, ...], method: Method) -> Acceptance:
    """Nothing measured yet."""
    rows, columns = len(ladder), max(1, ladder[0])
    return Acceptance(
        ladder=ladder,
        nested=method not in BLOCK_METHODS,
        counts=np.zeros((rows, 2 + 2 * columns)),
        own_counts=np.zeros((rows, 3)),
        since_change=np.zeros(rows),
    )


def learn(past: Acceptance, cells: Iterable[AcceptanceCell], seconds: float) -> Acceptance:
    """`past`, `seconds` older, and the counts of a window added.

    Cells of ks outside the ladder are left out, and drafts that adaptive verification picked: what it admits is
    accepted more often than what it does not.
    """
    now, window = _decayed(past, seconds), _window(past, cells)
    return _added(_tested(now, window), window) if window else now


def lent(past: Acceptance, survival: Mapping[int, Sequence[float]], request_steps: float) -> Acceptance:
    """`past` and, of each k that has no counts of its own, so many request-steps with this survival by position."""
    window, width = dict[int, list[float]](), (past.counts.shape[1] - 2) // 2
    for row, k in enumerate(past.ladder):
        if k and k in survival and not past.own_counts[row, 0]:
            depth = min(k, len(survival[k]))
            accepted = [request_steps * share for share in survival[k][:depth]]
            blank = [0.0] * (width - depth)
            window[row] = [*[request_steps] * (2 + depth), *blank, *accepted, *blank]
    return _added(past, window) if window and request_steps else past


def _added(past: Acceptance, window: Window) -> Acceptance:
    counts, windows = past.counts.copy(), past.windows + 1
    for at, row in window.items():
        counts[at] += row
    pool = _pooled(past.ladder, counts, past.drift, windows)
    own, since, start = past.own_counts.copy(), past.since_change.copy(), 2 + len(pool.survival)
    for at, row in window.items():
        steps = row[0]
        own[at, 0] += steps
        own[at, 1] += steps + sum(row[start:])
        own[at, 2] += steps * pool.lengths[at]
        since[at] += steps
    return amended(
        past,
        counts=counts,
        windows=windows,
        own_counts=own,
        since_change=since,
        lengths=_lengths(past.ladder, past.nested, counts, own, pool),
    )


def lengths(acceptance: Acceptance) -> Lengths:
    """Acceptance length of every ladder k: the pool's, times the k's own departure as far as it is known."""
    if acceptance.lengths is not None:
        return acceptance.lengths
    pool = _pooled(acceptance.ladder, acceptance.counts, acceptance.drift, acceptance.windows)
    return _lengths(acceptance.ladder, acceptance.nested, acceptance.counts, acceptance.own_counts, pool)


def firing_rates(acceptance: Acceptance) -> list[float | None]:
    """For each ladder k, the share of request-steps that had a draft at all; None below the minimum count."""
    rows = zip(acceptance.ladder, acceptance.counts[:, :2].tolist(), strict=True)
    return [min(1.0, drafts / steps) if k and steps >= MIN_REQUEST_STEPS else None for k, (steps, drafts) in rows]


def _decayed(past: Acceptance, seconds: float) -> Acceptance:
    keep = 0.5 ** (seconds / HALF_LIFE_SECONDS)
    slow = 0.5 ** (seconds / OWN_HALF_LIFE_SECONDS)
    # Each k by itself: the k in force must not push those out that only bursts tell of.
    kept = (past.counts[:, 0] * keep).tolist()
    rows = [keep if one <= MEMORY_REQUEST_STEPS else keep * (MEMORY_REQUEST_STEPS / one) for one in kept]
    counts = past.counts * np.asarray(rows)[:, None]
    return amended(past, counts=counts, windows=past.windows * keep, own_counts=past.own_counts * slow)


def _window(past: Acceptance, cells: Iterable[AcceptanceCell]) -> dict[int, list[int]]:
    """Counts of a window alone; empty where there are none."""
    places, width = _places(past.ladder), (past.counts.shape[1] - 2) // 2
    rows: dict[int, list[int]] = {}
    for cell in cells:
        k, at = cell.k, places.get(cell.k)
        if at is None or (k and cell.verification is not Verification.ALL):
            continue
        drafted, accepted = cell.drafted[:k], cell.accepted[:k]
        depth = min(len(drafted), len(accepted))
        blank = [0] * (width - depth)
        row = [cell.request_steps, cell.drafts, *drafted[:depth], *blank, *accepted[:depth], *blank]
        rows[at] = list(map(add, rows[at], row)) if at in rows else row
    return rows if any(row[0] for row in rows.values()) else {}


@lru_cache(maxsize=64)
def _places(ladder: tuple[int, ...]) -> Mapping[int, int]:
    """Ladder position of each k."""
    return {k: row for row, k in enumerate(ladder)}


@lru_cache(maxsize=64)
def _reach(ladder: tuple[int, ...]) -> Array:
    """1 where a ladder k (row) drafts at a position (column)."""
    found: Array = (np.asarray(ladder)[:, None] > np.arange(max(1, ladder[0]))[None, :]).astype(float)
    return found


class _Pool(NamedTuple):
    """What all ks say together."""

    lengths: list[float]
    """By k."""
    spreads: list[float]
    """Variance of the accepted drafts of one request-step, by k."""
    gradient: Array
    """Of the log length by the log conditionals: by k and position."""
    variance: Array
    """Of the log conditionals."""
    survival: list[float]
    """By position."""


def _pooled(ladder: tuple[int, ...], counts: Array, drift: float, windows: float) -> _Pool:
    """From the chance that position i is accepted given that i - 1 was (any draft at all, for the first). An unseen
    position borrows its predecessor's, with a weight of one observation."""
    places, accepted = _places(ladder), counts[:, 2 + (counts.shape[1] - 2) // 2 :]
    hits, by_k = np.add.reduce(accepted).tolist(), accepted.tolist()
    steps = counts[:, 0].tolist()
    trial = sum(steps) - (steps[places[0]] if 0 in places else 0.0)
    doubt = drift / max(1.0, windows)
    chance, alive, length, spread = 0.5, 1.0, 1.0, 0.0
    survival, variance, before, lengths, spreads = [], [], [], [1.0], [0.0]
    for position, hit in enumerate(hits):
        if position:
            # Those that reach this position: all that were accepted before it, but the drafts that ended there.
            trial = hits[position - 1] - (by_k[places[position]][position - 1] if position in places else 0.0)
        chance = (hit + chance) / (trial + 1.0)
        chance = 0.999 if chance > 0.999 else chance if chance > 1e-4 else 1e-4
        variance.append(CLUSTERING * (1 - chance) / (chance * (trial + 1.0)) + doubt)
        doubt, alive = 0.0, alive * chance
        survival.append(alive)
        before.append(length)
        length += alive
        spread += (2 * position + 1) * alive
        lengths.append(length)
        spreads.append(max(0.0, spread - (length - 1) ** 2))
    mean = [lengths[k] for k in ladder]
    own = np.asarray(mean)[:, None]
    gradient = np.maximum(own - np.asarray(before), 0.0) / own
    return _Pool(mean, [spreads[k] for k in ladder], gradient, np.asarray(variance), survival)


def _lengths(ladder: tuple[int, ...], nested: bool, counts: Array, own_counts: Array, pool: _Pool) -> Lengths:
    prior, off, most = _departures(ladder, nested)
    rows = zip(own_counts.tolist(), pool.lengths, pool.spreads, strict=True)
    noise, ratios, known = [], [], []
    for (steps, tokens, expected), length, spread in rows:
        noise.append(CLUSTERING * (spread + 0.01) / ((steps if steps > 1e-9 else 1e-9) * length**2))
        ratios.append(math.log((tokens + 1.0) / (expected + 1.0)))
        known.append(steps >= MIN_REQUEST_STEPS)
    noisy = prior.copy()
    noisy.reshape(-1)[:: off.size + 1] += noise
    weight = np.linalg.solve(noisy, prior)
    covariance = (pool.gradient * pool.variance).dot(pool.gradient.T)
    covariance += prior
    covariance -= prior.dot(weight)
    log = np.log(pool.lengths)
    log += np.asarray(ratios).dot(weight)
    return Lengths(
        log=np.minimum(np.maximum(log, 0.0), most),
        covariance=covariance,
        known=np.asarray(known) | off,
        ladder=ladder,
        counts=counts,
        pooled=pool.survival,
    )


@lru_cache(maxsize=64)
def _departures(ladder: tuple[int, ...], nested: bool) -> tuple[Array, npt.NDArray[np.bool_], Array]:
    """Prior covariance of the ks' log departures from the pool; which k is 0; the largest log lengths."""
    ks = np.asarray(ladder, float)
    off = ks == 0
    doublings = np.log2(np.maximum(ks, 1.0))
    alike = np.exp(-np.abs(doublings[:, None] - doublings[None, :]) / DEPARTURE_DOUBLINGS)
    prior = DEPARTURE**2 * alike if nested else BLOCK_DEPARTURE**2 * np.eye(ks.size)
    return prior * ~(off[:, None] | off[None, :]), off, np.log1p(ks)


@lru_cache(maxsize=64)
def _moments(width: int) -> Array:
    """Of accepted drafts by position: their sum, and that of the squares of how many each request-step had."""
    return np.stack([np.ones(width), 2.0 * np.arange(width) + 1.0], axis=1)


def _tested(past: Acceptance, window: Window) -> Acceptance:
    """`past` with its memory shortened if the window is of another traffic; its drift learnt if not."""
    totals = past.counts[:, 0].tolist()
    if sum(totals) < MIN_REQUEST_STEPS:
        return past
    length, start = lengths(past), 2 + (past.counts.shape[1] - 2) // 2
    odd = range(1, 2 * start, 2)
    logs, moments = length.log.tolist(), (past.counts[:, start:] @ _moments(start - 2)).tolist()
    covariance = length.covariance.item
    expected = seen = noise = memory = 0.0
    weights: list[tuple[int, float]] = []
    for at, row in window.items():
        steps, accepted, (mean, spread) = row[0], row[start:], moments[at]
        seen += (given := sum(accepted))
        weight, total = steps * math.exp(logs[at]), max(totals[at] + steps, 1.0)
        expected += weight - steps
        mean, spread = (mean + given) / total, (spread + sum(map(mul, accepted, odd))) / total
        noise += steps * (max(spread - mean**2, 0.0) + 0.001)
        memory += weight * (weight * covariance(at, at) + 2 * sum(one * covariance(at, by) for by, one in weights))
        weights.append((at, weight))
    noise = CLUSTERING * noise + 1.0
    surprise = seen - expected
    score = surprise / math.sqrt(noise + memory + past.drift * expected**2)
    high = max(0.0, past.high + score - CUSUM_ALLOWANCE)
    low = max(0.0, past.low - score - CUSUM_ALLOWANCE)
    if max(high, low) > CUSUM_LIMIT:
        return amended(
            past,
            counts=past.counts * KEPT_AFTER_CHANGE,
            windows=past.windows * KEPT_AFTER_CHANGE,
            since_change=np.zeros_like(past.since_change),
            changes=past.changes + 1,
            high=0.0,
            low=0.0,
        )
    excess = (surprise**2 - noise - memory) / max(expected, 1.0) ** 2
    drift = past.drift + 0.05 * (min(excess, 0.25**2) - past.drift)
    return amended(past, high=high, low=low, drift=min(0.25**2, max(0.02**2, drift)))
