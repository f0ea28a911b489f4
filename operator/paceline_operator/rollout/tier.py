"""How k reaches pods that no table can be pushed to: vLLM's own schedule or one k, by a restart; and the way back from
no drafter at all.

Which tier a pod is in follows from what its engine can do, pass by pass (tuning/engines.py): Live, Restart, Off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest

from paceline_engine.protocol import compress
from paceline_operator.api.status_boots import BootRecord

NARROWEST = 2
"""A row of a boot schedule reaches to this many times its start: each edge inside the load's daily range costs, for the
engine has no hysteresis (vllm#49548: 232 tokens/s with a fixed k, 24 to 157 where the load crossed an edge)."""
FIRST_WAIT = timedelta(hours=1)
LONGEST_WAIT = timedelta(hours=24)
"""Until a boot that was left may be gone back to: twice as long with each visit."""


def translated(table: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Rows (from scheduled requests, k) of a boot schedule, for a dense `table` by sampling requests.

    vLLM looks up the number of all scheduled requests, prompt chunks included: at least as many as sample, so a step
    with prompts gets the k of a larger load, never of a smaller one. The rows descend, for a k that rises with the load
    would do the opposite; and none is so narrow that the load crosses it all the time: it takes the smaller k.
    """
    lowest = table[1]
    falling = [lowest := min(lowest, k) for k in table[1:]]
    rows = list(compress((falling[0], *falling)))
    kept: list[tuple[int, int]] = []
    begins = 1
    for (_, k), following in zip_longest(rows, rows[1:]):
        if following is not None and following[0] < NARROWEST * begins:
            continue
        kept.append((begins, k))
        begins = following[0] if following is not None else begins
    return tuple(kept)


def fixed(goodput: Mapping[int, Mapping[int, float]], shares: Mapping[int, float]) -> int | None:
    """The one k that gives most tokens over the time that each load has, of those known at all of these loads.

    `goodput`: load bucket -> k -> tokens a second. None where no k is known at every load that there is.
    """
    loads = [load for load, share in shares.items() if share > 0]
    if not loads or not all(load in goodput for load in loads):
        return None
    ks = set.intersection(*(set(goodput[load]) for load in loads))
    return max(ks, key=lambda k: (sum(shares[load] * goodput[load][k] for load in loads), -k), default=None)


def may_return(record: BootRecord, now: datetime) -> bool:
    """Whether a boot that was left may be gone back to: hysteresis and a budget of its own, beside the day's restarts.

    An hour after it was left, two after it was left twice, and so on up to a day.
    """
    if record.left_at is None:
        return False
    wait = min(FIRST_WAIT * 2 ** min(record.visits - 1, 10), LONGEST_WAIT)
    return bool(now - datetime.fromisoformat(record.left_at) >= wait)
