"""What a run counted, phase by phase: sums of the engines' own samples, and goodputs straight from them.

Nothing of the tuner's beliefs is in here, so the report can be held against the decisions. A goodput is tokens that
came out of decode-only steps over the seconds they took, with the steps of one reading as a cluster: whatever else the
machine does meanwhile is common to them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline_engine.protocol import Samples
from paceline_operator.tuning.model import Interval

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""97.5 % quantiles of Student's t for 1 to 10 degrees of freedom; 2.2 to 1.96 beyond, taken as 2.1."""
STUDENT_BEYOND = 2.1
LEAST_SECONDS = 1e-3
"""Less decode time than this measures nothing: a step of the fastest engine takes longer."""


@dataclass(frozen=True)
class Cluster:
    """Decode-only steps of one reading."""

    tokens: float = 0.0
    seconds: float = 0.0
    steps: int = 0


@dataclass
class Position:
    """What became of the draft tokens at one position, over all ks that reach it."""

    request_steps: int = 0
    arrived: int = 0
    """Drafts accepted up to the position before; at the first, drafts."""
    drafts: int = 0
    accepted: int = 0

    @property
    def survival(self) -> float | None:
        """Share of drafts accepted up to here."""
        return self.accepted / self.drafts if self.drafts else None

    @property
    def conditional(self) -> float | None:
        """Share accepted here of those accepted up to the position before."""
        return self.accepted / self.arrived if self.arrived else None

    @property
    def marginal(self) -> float | None:
        """Tokens that this position adds to a request's step."""
        return self.accepted / self.request_steps if self.request_steps else None


@dataclass
class Tally:
    """Sums over the readings of a phase."""

    seconds: float = 0.0
    """Wall time."""
    tokens: int = 0
    """Generated, by the engines' own counters."""
    steps_by_k: Counter[int] = field(default_factory=Counter)
    """Steps by the k that the table put in force: no probe bursts."""
    probe_steps_by_k: Counter[int] = field(default_factory=Counter)
    positions: defaultdict[int, Position] = field(default_factory=lambda: defaultdict(Position))
    request_steps: int = 0
    drafts: int = 0
    clusters: defaultdict[tuple[int, int], list[Cluster]] = field(default_factory=lambda: defaultdict(list))
    """(load, k) -> decode-only steps at it, a cluster a reading; probe bursts are in it."""
    table_clusters: defaultdict[int, list[Cluster]] = field(default_factory=lambda: defaultdict(list))
    """Load -> decode-only steps at the k in force there."""
    table_emitted: int = 0
    table_request_steps: int = 0

    def add(self, samples: Samples) -> None:
        """Count one engine's samples since its last reading."""
        self.steps_by_k.update(samples.steps_by_k)
        self.probe_steps_by_k.update(samples.probe_steps_by_k)
        by_cell: defaultdict[tuple[int, int], list[Cluster]] = defaultdict(list)
        by_load: defaultdict[int, list[Cluster]] = defaultdict(list)
        for cell in samples.cells:
            if cell.prompt:
                continue
            cluster = Cluster(cell.emitted, cell.seconds, cell.steps)
            by_cell[cell.load, cell.k_drafted].append(cluster)
            if not cell.probe:
                by_load[cell.load].append(cluster)
                self.table_emitted += cell.emitted
                self.table_request_steps += cell.request_steps
        for place, parts in by_cell.items():
            self.clusters[place].append(_sum(parts))
        for load, parts in by_load.items():
            self.table_clusters[load].append(_sum(parts))
        for counts in samples.acceptance:
            if counts.k == 0:
                continue
            self.request_steps += counts.request_steps
            self.drafts += counts.drafts
            arrived = counts.drafts
            for at, accepted in enumerate(counts.accepted[: counts.k], start=1):
                position = self.positions[at]
                position.request_steps += counts.request_steps
                position.drafts += counts.drafts
                position.arrived += arrived
                position.accepted += accepted
                arrived = accepted

    def merge(self, other: Tally) -> None:
        """Add the sums of `other`."""
        self.seconds += other.seconds
        self.tokens += other.tokens
        self.steps_by_k.update(other.steps_by_k)
        self.probe_steps_by_k.update(other.probe_steps_by_k)
        self.request_steps += other.request_steps
        self.drafts += other.drafts
        self.table_emitted += other.table_emitted
        self.table_request_steps += other.table_request_steps
        for at, position in other.positions.items():
            mine = self.positions[at]
            mine.request_steps += position.request_steps
            mine.drafts += position.drafts
            mine.arrived += position.arrived
            mine.accepted += position.accepted
        for place, clusters in other.clusters.items():
            self.clusters[place] += clusters
        for load, clusters in other.table_clusters.items():
            self.table_clusters[load] += clusters

    @property
    def firing_rate(self) -> float | None:
        """Share of request-steps under a k above 0 that had a draft at all."""
        return self.drafts / self.request_steps if self.request_steps else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a request got per decode-only step at the k in force."""
        return self.table_emitted / self.table_request_steps if self.table_request_steps else None

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens over wall time, prompts' computation included."""
        return self.tokens / self.seconds if self.seconds else None

    def load(self) -> int | None:
        """Load bucket of most of the decode time."""
        seconds = {load: sum(part.seconds for part in parts) for load, parts in self.table_clusters.items()}
        return max(seconds, key=lambda load: seconds[load]) if seconds else None

    def sweep(self, load: int) -> dict[int, tuple[Interval, int]]:
        """k -> goodput measured at `load` (tokens/s, 95 % interval), and the steps it rests on."""
        found = {k: self.clusters[at, k] for at, k in sorted(self.clusters) if at == load}
        return {
            k: (goodput, sum(part.steps for part in parts))
            for k, parts in found.items()
            if (goodput := ratio(parts)) is not None
        }

    def ratio_to_k0(self) -> Interval | None:
        """Goodput in force over that of k=0, at the same loads: the time the same tokens would have taken at k=0.

        Loads without k=0 steps are left out. None where there is no other.
        """
        there = needed = variance = 0.0
        for load, parts in self.table_clusters.items():
            base, own = ratio(self.clusters.get((load, 0), [])), ratio(parts)
            if base is None or own is None:
                continue
            seconds = sum(part.seconds for part in parts)
            time_at_k0 = seconds * own.value / base.value
            spread = sum((math.log(one.high / one.low) / 2) ** 2 for one in (own, base))
            there += seconds
            needed += time_at_k0
            variance += time_at_k0**2 * spread
        if there <= 0:
            return None
        half = math.sqrt(variance) / needed
        value = needed / there
        return Interval(value, value * math.exp(-half), value * math.exp(half))


def ratio(parts: Sequence[Cluster]) -> Interval | None:
    """Tokens per second with its 95 % interval; None under two clusters, which tell nothing of the spread.

    The variance of a ratio of sums by linearisation (Cochran, Sampling Techniques, 1977, 6.3), in logarithms.
    """
    tokens, seconds, count = sum(p.tokens for p in parts), sum(p.seconds for p in parts), len(parts)
    if count < 2 or tokens <= 0 or seconds < LEAST_SECONDS:
        return None
    variance = sum((p.tokens / tokens - p.seconds / seconds) ** 2 for p in parts) * count / (count - 1)
    quantile = STUDENT[count - 2] if count - 2 < len(STUDENT) else STUDENT_BEYOND
    half = min(quantile * math.sqrt(variance), 10.0)
    value = tokens / seconds
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def _sum(parts: Iterable[Cluster]) -> Cluster:
    listed = list(parts)
    return Cluster(sum(p.tokens for p in listed), sum(p.seconds for p in listed), sum(p.steps for p in listed))
