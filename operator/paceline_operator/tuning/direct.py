"""Tokens per request-step of engines that tell nothing of drafts: what came out of the steps of each (load, k).

Such a k has no acceptance by position and lends nothing to others; its goodput is tokens over seconds of its own cells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline_engine.protocol import AcceptanceCell, CostCell, Verification
from paceline_operator.tuning.acceptance import HALF_LIFE_SECONDS, MIN_REQUEST_STEPS, Array
from paceline_operator.tuning.values import amended

PRIOR_DEVIATION, PRIOR_WINDOWS = 0.05, 2.0
"""Log deviation of a window's tokens per request-step before it was seen, and the windows that this counts as."""


@dataclass(frozen=True)
class Direct:
    """Sums by load position (rows) and ladder position (columns), forgotten; nothing of ks that acceptance tells of."""

    loads: tuple[int, ...]
    ladder: tuple[int, ...]
    request_steps: Array
    tokens: Array
    windows: Array
    logs: Array
    squares: Array
    """Of the windows' log tokens per request-step, and of its square."""
    ever: Array
    """Request-steps without forgetting: what `known` rests on."""
    told: npt.NDArray[np.bool_]
    """Ladder ks whose drafts were told of."""


def empty(loads: tuple[int, ...], ladder: tuple[int, ...]) -> Direct:
    """Nothing measured yet; of k=0 all is known."""
    request_steps, tokens, windows, logs, squares, ever = np.zeros((6, len(loads), len(ladder)))
    told = np.asarray([k == 0 for k in ladder])
    return Direct(loads, ladder, request_steps, tokens, windows, logs, squares, ever, told)


@lru_cache(maxsize=64)
def _all_told(loads: tuple[int, ...], ladder: tuple[int, ...]) -> Direct:
    """Where acceptance tells of every k, which stays so, no sum is read any more: one for all servings."""
    return amended(empty(loads, ladder), told=np.ones(len(ladder), np.bool_))


def learn(
    past: Direct,
    cells: Iterable[CostCell],
    drafts: Iterable[AcceptanceCell],
    seconds: float,
    every_mode: bool = False,
) -> Direct:
    """`past`, `seconds` older, and a window added; `every_mode`: under adaptive verification too."""
    told = past.told.tolist()
    if False in told:
        fates = {cell.k for cell in drafts if cell.request_steps and cell.verification is Verification.ALL}
        past = amended(past, told=past.told | np.asarray([k in fates for k in past.ladder]))
        told = past.told.tolist()
    if False not in told:
        return _all_told(past.loads, past.ladder)
    # Of a load that is away, the last of it stays.
    least = np.minimum(1.0, MIN_REQUEST_STEPS / np.maximum(past.request_steps, 1e-9))
    keep = np.maximum(0.5 ** (seconds / HALF_LIFE_SECONDS), least)
    names = ("request_steps", "tokens", "windows", "logs", "squares")
    now = amended(past, ever=past.ever.copy(), **{name: getattr(past, name) * keep for name in names})
    sums: dict[tuple[int, int], list[int]] = {}
    for cell in cells:
        counts = every_mode or cell.verification is Verification.ALL
        if counts and cell.load in past.loads and cell.k_drafted in past.ladder:
            total = sums.setdefault((past.loads.index(cell.load), past.ladder.index(cell.k_drafted)), [0, 0])
            total[0] += cell.request_steps - cell.first_tokens
            total[1] += max(0, cell.emitted - cell.first_tokens)
    for at, (request_steps, tokens) in sums.items():
        if request_steps and tokens and not past.told[at[1]]:
            log = float(np.log(tokens / request_steps))
            for array, value in zip(
                (now.request_steps, now.tokens, now.windows, now.logs, now.squares, now.ever),
                (request_steps, tokens, 1.0, log, log * log, request_steps),
                strict=True,
            ):
                array[at] += value
    return now


def lengths(direct: Direct) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """By load and ladder position: log tokens per request-step, its variance, and whether it is known at all."""
    known = (direct.ever >= MIN_REQUEST_STEPS) & ~direct.told
    log = np.log(np.maximum(direct.tokens, 1e-9) / np.maximum(direct.request_steps, 1e-9))
    windows = np.maximum(direct.windows, 1e-9)
    spread = np.maximum(direct.squares - direct.logs**2 / windows, 0.0)
    variance = (PRIOR_WINDOWS * PRIOR_DEVIATION**2 + spread) / (PRIOR_WINDOWS + direct.windows)
    return log, variance / np.maximum(direct.windows, 0.1), known
