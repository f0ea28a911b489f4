"""Whether speculation can pay for a workload, and what a million tokens cost with it and without. Pure.

Speculation makes decoding faster and nothing else: where a request spends the share p of its time in prefill,
decoding s times faster makes the whole 1 / (p + (1 - p) / s) times faster (Amdahl's law).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from paceline_operator.api.status import ServingStatus

TYPICAL = 1.6
"""Times that decoding is faster, where nothing was measured: of structured reasoning in a public talk about Blackwell
GPUs (2026-10). A point of reference, no promise: docs/preflight.md has measured pairs, some below 1."""
LEAST_GAIN = 0.05
"""Below it a gain is not worth a drafter's memory and another thing to watch: paceline's own rule."""
HOT = 1.0
"""Temperature above which drafts are mostly refused: a sampled token is seldom the draft's."""
STRUCTURED = 0.5
"""Share of code, JSON, SQL and the like from which a workload counts as structured: such tokens are accepted most."""
HOUR = 3600.0


class Verdict(StrEnum):
    """Whether it pays."""

    PAYS = "pays"
    MAY_PAY = "may pay"
    HARDLY = "hardly pays"
    CANNOT = "cannot pay"


@dataclass(frozen=True)
class Workload:
    """What is known of the requests; None: not known."""

    prefill_share: float | None = None
    """Of a request's time in an engine without speculation, 0..1."""
    ttft_milliseconds: float | None = None
    tpot_milliseconds: float | None = None
    output_tokens: float | None = None
    """Mean of an answer. With the two times it tells the share of prefill where that is not known."""
    temperature: float | None = None
    structured_share: float | None = None
    """Of answers that are code, JSON or the like, 0..1."""

    @property
    def prefill(self) -> float | None:
        """Share of time."""
        if self.prefill_share is not None:
            return self.prefill_share
        times = self.ttft_milliseconds, self.tpot_milliseconds, self.output_tokens
        if any(one is None for one in times) or not self.ttft_milliseconds:
            return None
        decoding = (self.tpot_milliseconds or 0.0) * max(0.0, (self.output_tokens or 0.0) - 1)
        return self.ttft_milliseconds / (self.ttft_milliseconds + decoding)


@dataclass(frozen=True)
class Price:
    """Of one engine."""

    per_gpu_hour: float
    gpus: int
    tokens_per_second: float
    """That the engine gives with speculation, while it decodes."""


@dataclass(frozen=True)
class Cost:
    """Of a million output tokens, in the price's currency. None: the ratio was not measured."""

    with_speculation: float
    without: float | None


@dataclass(frozen=True)
class Advice:
    """The verdict, its number, and why."""

    verdict: Verdict
    times: float
    """That the whole is faster; below 1 slower."""
    measured: bool
    reasons: tuple[str, ...]
    cost: Cost | None = None


def overall(decode_ratio: float, prefill: float) -> float:
    """Times that a request is faster, of decoding `decode_ratio` times faster."""
    return 1.0 / (prefill + (1.0 - prefill) / decode_ratio)


def advise(workload: Workload, decode_ratio: float | None = None, price: Price | None = None) -> Advice:
    """`decode_ratio`: measured goodput of decoding over that of engines without speculation."""
    share = workload.prefill
    prefill = 0.0 if share is None else min(1.0, max(0.0, share))
    measured = decode_ratio is not None and decode_ratio > 0
    ratio = decode_ratio if measured and decode_ratio else TYPICAL
    times = overall(ratio, prefill)
    reasons = [*_about_time(share, ratio, times, measured=measured), *_about_text(workload)]
    return Advice(
        _verdict(times, prefill, workload, measured=measured),
        times,
        measured,
        tuple(reasons),
        _cost(price, decode_ratio, prefill),
    )


def _verdict(times: float, prefill: float, workload: Workload, *, measured: bool) -> Verdict:
    # Decoding in no time at all would leave the prefill.
    if prefill >= 1.0 / (1.0 + LEAST_GAIN):
        return Verdict.CANNOT
    if times < 1.0 + LEAST_GAIN:
        return Verdict.CANNOT if measured and times < 1.0 else Verdict.HARDLY
    if measured:
        return Verdict.PAYS
    hot = workload.temperature is not None and workload.temperature > HOT
    return Verdict.HARDLY if hot and not _is_structured(workload) else Verdict.MAY_PAY


def _about_time(share: float | None, ratio: float, times: float, *, measured: bool) -> list[str]:
    source = "measured here" if measured else "a point of reference, not measured here"
    told = [f"decoding {ratio:.2f} times as fast ({source})"]
    if share is None:
        return [*told, "the share of prefill is not known: all time is taken for decoding"]
    return [*told, f"{share:.0%} of the time is prefill, which stays: the whole is {times:.2f} times as fast"]


def _about_text(workload: Workload) -> list[str]:
    told = []
    if workload.temperature is not None and workload.temperature > HOT:
        told.append(f"temperature {workload.temperature:g}: drafts are refused more often than at {HOT:g} and below")
    if _is_structured(workload):
        told.append(
            f"{workload.structured_share:.0%} of the answers are structured: drafts of such text are accepted most"
        )
    return told


def _is_structured(workload: Workload) -> bool:
    return workload.structured_share is not None and workload.structured_share >= STRUCTURED


def _cost(price: Price | None, decode_ratio: float | None, prefill: float) -> Cost | None:
    if price is None or price.tokens_per_second <= 0:
        return None
    if prefill >= 1.0:
        return None
    decoding = price.per_gpu_hour * price.gpus / HOUR / price.tokens_per_second * 1e6
    slower = decoding * (decode_ratio or 1.0)
    stays = slower * prefill / (1.0 - prefill)
    return Cost(decoding + stays, slower + stays if decode_ratio else None)


def of_status(status: ServingStatus, workload: Workload, gpu_hour: float | None, gpus: int) -> Advice:
    """With what was measured: the ratio to engines without a drafter, else to k=0 in the same ones; tokens a second of
    one engine at the present load."""
    permille = status.ratio_to_no_drafter_permille or status.ratio_to_k0_permille
    load = status.load_requests or 0
    bucket = max(
        (one for one in status.buckets if one.from_requests <= load), key=lambda one: one.from_requests, default=None
    )
    rows = [row for row in bucket.candidates if row.k == bucket.k] if bucket else []
    speed = rows[0].goodput_milli_tokens_per_second / 1000 if rows else 0.0
    price = Price(gpu_hour, gpus, speed) if gpu_hour is not None else None
    found = advise(workload, permille / 1000 if permille else None, price)
    more = []
    if permille and not status.ratio_to_no_drafter_permille:
        more.append(
            "that is against k=0 in engines that hold a drafter all the same: without one they are a little faster"
        )
    if price and not speed:
        more.append("no cost is told: the k in force was not measured at the present load")
    return replace(found, reasons=(*found.reasons, *more))


def text(advice: Advice) -> str:
    """For people."""
    lines = [f"speculation {advice.verdict} for this workload: {'; '.join(advice.reasons)}"]
    if advice.cost:
        without = "" if advice.cost.without is None else f", {advice.cost.without:.2f} without it"
        lines.append(f"a million output tokens cost {advice.cost.with_speculation:.2f} with speculation{without}")
    return "\n".join(lines)
