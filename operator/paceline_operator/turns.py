"""Whose turn it is where more is due than can be done at once: a queue with two ranks. Pure, but for what it keeps."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Generic, TypeVar

K = TypeVar("K")
_Place = tuple[float, bool, int]
"""(due, whether it was not passed over, number)"""


class Turns(Generic[K]):
    """Of one sort of passes: so many at once, and of those that wait the longest overdue first.

    Keys are of two ranks, those that come and those that rest. One that rests may be told to have patience: then it is
    due so much later. With every patience that is shorter than some limit, nobody waits for longer than by that limit.
    """

    def __init__(self, free: int) -> None:
        self.free = free
        self.begun_at = 0.0
        """When one began last, or all did (monotonic)."""
        self._queues: dict[bool, list[tuple[_Place, K]]] = {True: [], False: []}
        """Of those that come, and of those that rest. What was said last of a key holds, those before are skipped."""
        self._places: dict[K, tuple[_Place, bool]] = {}
        self._numbers = itertools.count()

    def ask(self, key: K, due: float, *, comes: bool, passed_over: bool) -> None:
        """A turn as of `due` (monotonic), in place of the one asked for before; none where that is infinite.

        Of those that are due at the same time, who was `passed_over` is first.
        """
        if due == math.inf:
            self._places.pop(key, None)
            return
        place, was = self._places.get(key, ((math.nan, False, 0), comes))
        if place[0] != due or was is not comes:
            place = due, not passed_over, next(self._numbers)
            self._places[key] = place, comes
            heapq.heappush(self._queues[comes], (place, key))

    def first_due(self, *, comes: bool) -> float:
        """Since or from when the first of a rank waits, whether a turn is free or not; infinity where nobody asks."""
        queue = self._queues[comes]
        while queue and self._places.get(queue[0][1]) != (queue[0][0], comes):
            heapq.heappop(queue)
        return queue[0][0][0] if queue else math.inf

    def next_due(self, patience: float) -> float:
        """When the next turn may be taken, where those that rest have `patience` (seconds); infinity where nobody asks,
        or none is free."""
        return self._next(patience)[0] if self.free else math.inf

    def take(self, patience: float) -> K:
        """Whose turn it is: of that key, no other is asked for any more."""
        _, _, comes = self._next(patience)
        _, key = heapq.heappop(self._queues[comes])
        del self._places[key]
        return key

    def clear(self) -> None:
        """Nobody asks."""
        for queue in self._queues.values():
            queue.clear()
        self._places.clear()

    def _next(self, patience: float) -> tuple[float, tuple[bool, int], bool]:
        """When the first is due, what decides between two at the same time, and of which rank it is."""
        found = []
        for comes, queue in self._queues.items():
            due = self.first_due(comes=comes) + (0.0 if comes else patience)
            found.append((due, queue[0][0][1:] if queue else (True, 0), comes))
        return min(found)
