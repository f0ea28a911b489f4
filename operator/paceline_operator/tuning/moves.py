"""When a load's k changes, and what is to blame: the latch, the confirmation, the counterfactual, the sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline_operator.api.conditions import Reason
from paceline_operator.tuning.acceptance import Array
from paceline_operator.tuning.baseline import THIN_WINDOWS, Running, bounds
from paceline_operator.tuning.goodput import Scores, goodput
from paceline_operator.tuning.guard import Ttft
from paceline_operator.tuning.model import BucketView, Interval, Settings
from paceline_operator.tuning.solve import CONFIRMATIONS, STANDARD_ERRORS, Choice, choose
from paceline_operator.tuning.values import amended

SURE_BANDS = 2.0
"""Tie bands by which a guess may be wrong without a second window: what it took to observe the load were several."""
FIRST_WINDOWS = 6
"""Windows after a load was first observed in which its first move corrects a guess in any case."""
RESTLESS_HALF_LIFE_SECONDS = 1800.0
HELD_SECONDS, LONGEST_HELD_SECONDS = 600.0, 7200.0
"""For which k stays 0 after it fell below its baseline; doubled each time."""
NOBODY = (-1, 0)
"""No k is asked for."""


@dataclass(frozen=True)
class Decided:
    """One observed load bucket: the k that mode Auto has there. Once observed, always observed."""

    k: int
    log_length: Array
    log_step: Array
    """Length and step time of each ladder k when this k was chosen (or the bucket first observed)."""
    moved: float
    """When, in the caller's seconds."""
    pending: tuple[int, int] = NOBODY
    """The k that recent windows ask for, and how many in a row did."""
    restless: float = 0.0
    """Changes of k here up to then, each halving every half hour."""
    windows: int = 0
    """Windows with evidence since then, counted up to FIRST_WINDOWS + 1."""
    turned: bool = False
    """Whether traffic or cost changed since then."""
    reason: Reason = Reason.INCUMBENT
    message: str = ""


@dataclass(frozen=True)
class Move:
    """A confirmed change of one load's k."""

    load: int
    from_k: int
    to_k: int
    reason: Reason
    message: str


def observed(scores: Scores) -> bool:
    """Whether every ladder k has its minimum count at this load."""
    return bool(scores.known.all())


def first(scores: Scores, entry: int, now: float) -> Decided:
    """A bucket on leaving Observing, with the table's `entry` as incumbent."""
    message = f"k {entry} is in force at {_requests(scores.load)}: it was there before, and no other is better for sure"
    return Decided(entry, scores.log_length, scores.log_step, now, message=message)


def advance(
    past: Decided,
    scores: Scores,
    settings: Settings,
    decided_before: bool,
    now: float,
    changed: bool,
    bounds: tuple[int, int] | None = None,
) -> tuple[Decided, Move | None]:
    """One more window of evidence: confirm, move, or stay. `changed`: it brought another traffic, or another cost.
    `bounds`: the ks between which the table would fall with the load."""
    past = amended(past, turned=True) if changed and not past.turned else past
    windows = min(past.windows, FIRST_WINDOWS) + 1
    restless = past.restless * 0.5 ** (max(0.0, now - past.moved) / RESTLESS_HALF_LIFE_SECONDS)
    choice = choose(scores, past.k, settings.min_gain, restless, settings.tpot_limit_seconds, bounds)
    if choice.k == past.k:
        quiet = past.pending == NOBODY and past.windows == windows
        return past if quiet else amended(past, pending=NOBODY, windows=windows), None
    count = past.pending[1] + 1 if past.pending[0] == choice.k else 1
    guess = (
        past.windows == 0
        and past.reason is Reason.INCUMBENT
        and not past.turned
        and choice.gain > SURE_BANDS * choice.band > 0
    )
    if count < CONFIRMATIONS and not guess:
        return amended(past, pending=(choice.k, count), windows=windows), None
    reason = _blame(past, scores, choice, decided_before)
    message = _sentence(past, scores, choice, reason, settings, "two windows in a row" if count > 1 else "by far")
    decided = Decided(
        k=choice.k,
        log_length=scores.log_length,
        log_step=scores.log_step,
        moved=now,
        restless=restless + 1,
        reason=reason,
        message=message,
    )
    return decided, Move(scores.load, past.k, choice.k, reason, message)


def below_baseline(past: Decided | None, running: Running | None, load: int, now: float) -> tuple[Decided, Move] | None:
    """A move to k=0 where bursts at k=0 gave more than the k in force, whatever the model says of it."""
    found = bounds(running)
    if past is None or running is None or found is None or past.k == 0 or past.k != running.k:
        return None
    mean, half = found
    if mean + half >= 0 or running.count < THIN_WINDOWS:
        return None
    ratio, upper = math.exp(mean), math.exp(mean + half)
    message = (
        f"k {past.k} → 0 at {_requests(load)}: it gave {ratio:.3f} of k=0 in the same engines, at most "
        f"{upper:.3f}, in {running.count} windows with both"
    )
    decided = amended(past, k=0, moved=now, pending=NOBODY, windows=0, reason=Reason.BASELINE, message=message)
    return decided, Move(load, past.k, 0, Reason.BASELINE, message)


def guarded(ttft: Ttft, limit: float | None, load: int, from_k: int, to_k: int) -> str:
    """Why the guard on the time to first token changed the k in force."""
    head = f"k {from_k} → {to_k} at {_requests(load)}"
    if to_k > from_k:
        return f"{head}: the time to first token has been clear of its limit for {ttft.wait:.0f} s"
    breach = f"the time to first token is {ttft.worst:.2f} s (p95), the limit {limit or 0.0:.2f} s"
    return f"{head}: {breach}, two windows in a row"


def followed(view: BucketView | None, from_load: int, to_load: int, from_k: int, to_k: int) -> str:
    """Why the k in force changed without a move of the table at this load: another load, another entry."""
    head = f"k {from_k} → {to_k} at {_requests(to_load)}"
    if from_load != to_load:
        head = f"k {from_k} → {to_k} as load went from {_requests(from_load)} to {_requests(to_load)}"
    found = {candidate.k: candidate for candidate in view.candidates} if view else {}
    ends = (found.get(to_k), found.get(from_k))
    if ends[0] is None or ends[1] is None or ends[0].borrowed or ends[1].borrowed:
        return f"{head}: the table's entry; this load is not observed yet"
    there, here = ends[0].goodput, ends[1].goodput
    told = f"{_spread(there)} tok/s against {_spread(here)} ({there.value / here.value - 1:+.0%})"
    return f"{head}: {told}, two windows in a row"


def dragged(move: Move, load: int, from_k: int, to_k: int) -> str:
    """Why the k of a load that is not observed changed with a move beside it."""
    return f"k {from_k} → {to_k} at {_requests(load)}, not observed yet, as at a load beside it: {move.message}"


def _blame(past: Decided, scores: Scores, choice: Choice, decided_before: bool) -> Reason:
    """Counterfactuals: would the move still pay with the old acceptance, or with the old cost?

    Where both are the old ones still, as far as one can tell, the k that the load was first observed with was a wrong
    guess, and it took until now to be sure. `decided_before`: that k was no guess, but decided by an earlier process.
    """
    if choice.limited:
        return Reason.TPOT_LIMIT
    new, old = scores.ladder.index(choice.k), scores.ladder.index(past.k)
    length_then, length_now = (float(log[new] - log[old]) for log in (past.log_length, scores.log_length))
    step_then, step_now = (float(log[new] - log[old]) for log in (past.log_step, scores.log_step))
    untouched = not decided_before and past.reason is Reason.INCUMBENT and not past.turned
    gain, error = scores.gain(choice.k, past.k)
    # What was known then was known less well than now.
    same = abs(gain - (length_then - step_then)) <= 2 * STANDARD_ERRORS * error
    if untouched and (past.windows < FIRST_WINDOWS or length_then > step_then or same):
        return Reason.LOAD
    by_cost, by_acceptance = length_then - step_now > 0, length_now - step_then > 0
    if by_cost != by_acceptance:
        return Reason.COST if by_cost else Reason.ACCEPTANCE
    return Reason.COST if step_then - step_now > length_now - length_then else Reason.ACCEPTANCE


def _sentence(past: Decided, scores: Scores, choice: Choice, reason: Reason, settings: Settings, sure: str) -> str:
    head = f"k {past.k} → {choice.k} at {_requests(scores.load)}: {_against(scores, choice.k, past.k)}"
    row = scores.ladder.index(past.k) if past.k > choice.k else scores.ladder.index(choice.k)
    blamed = scores.ladder[row]
    if reason is Reason.TPOT_LIMIT:
        limit = (settings.tpot_limit_seconds or 0.0) * 1000
        slow = 1000 * scores.requests / math.exp(scores.log_goodput[scores.ladder.index(past.k)])
        breach = f"k {past.k} takes {slow:.1f} ms a token, the limit is {limit:.0f} ms"
        return f"{head} ({choice.gain:+.0%}); {breach}, two windows in a row"
    rule = f"{head} ({choice.gain:+.0%}, tie band {choice.band:.1%}), {sure}"
    if reason is Reason.ACCEPTANCE:
        then, now = math.exp(past.log_length[row]), math.exp(scores.log_length[row])
        return f"{rule}; acceptance length of k {blamed} was {then:.2f}, is {now:.2f}"
    if reason is Reason.COST:
        then, now = 1000 * math.exp(past.log_step[row]), 1000 * math.exp(scores.log_step[row])
        return f"{rule}; a step of k {blamed} took {then:.1f} ms, takes {now:.1f} ms"
    return f"{rule}; the k before was a guess for this load"


def _against(scores: Scores, to_k: int, from_k: int) -> str:
    return f"{_spread(goodput(scores, to_k))} tok/s against {_spread(goodput(scores, from_k))}"


def _spread(found: Interval) -> str:
    return f"{_number(found.value)} ± {_number((found.high - found.low) / 2)}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _requests(load: int) -> str:
    return f"{load} request{'' if load == 1 else 's'}"
