"""The control protocol between operator and engine plugin: wire types, load buckets, token derivation.

The one module that both sides import. It knows pydantic and the standard library, never torch, vllm or kubernetes.
JSON on the wire is camelCase. Unknown fields are ignored when read, so that a newer peer does not break an older one.
"""

from __future__ import annotations

import hashlib
import hmac
from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, StrictInt, model_validator
from pydantic.alias_generators import to_camel

PROTOCOL_VERSION = 1
CONTROL_PORT = 8765
ENV_TOKEN_DIRECTORY = "PACELINE_TOKEN_DIR"  # noqa: S105 a variable name
"""Folder of the files below. Without a token in it the control port stays shut and the engine runs as booted."""
ENV_CONTROL_PORT = "PACELINE_CONTROL_PORT"
ENV_CONTROL_HOST = "PACELINE_CONTROL_HOST"
TOKEN_FILE_CURRENT = "current"  # noqa: S105 a file name
TOKEN_FILE_PREVIOUS = "previous"  # noqa: S105 a file name
MAX_BODY_BYTES = 256 * 1024
"""A table of 4,097 one-digit ks is 12 KB; anything near this limit is not a policy."""

LOAD_EDGES: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Lower edges of the load buckets, in sampling requests. About two a doubling: step cost is a staircase in tokens, and
a bucket wider than a third hides a step of it."""
CONTEXT_EDGES: tuple[int, ...] = (0, 8192, 32768)
"""Lower edges of the context buckets, in mean context tokens a request. Below 8k attention does not move the best k."""
PROMPT_EDGES: tuple[int, ...] = (0, 1, 256, 1024, 4096)
"""Lower edges of the buckets of prompt tokens computed in a step; the first holds steps without any. Four times as wide
as they begin, so that steps of one prompt and of several are apart: their difference is the price of a prompt token."""
LAUNCHED = 2
"""In place of such an edge: a step without prompts, while which one that has some was launched. No plugin that does not
tell these apart has cells of it, and who does not know it takes it for an edge below."""
HISTOGRAM_BASE = 1.05
"""Ratio of neighbouring edges of the step-time histogram: a quantile read from it is within 2.5 % of the true one."""
MAX_K = 64
MAX_PROBE_SHARE = 0.5
"""Upper bound of (settle + burst) / interval that a plugin accepts, whoever asks."""


def load_bucket(requests: int) -> int:
    """Lower edge of the load bucket that holds `requests` (>= 1); 0 for an idle engine."""
    return LOAD_EDGES[bisect_right(LOAD_EDGES, requests) - 1] if requests >= 1 else 0


def context_bucket(tokens: float) -> int:
    """Lower edge of the context bucket that holds `tokens` mean context a request (>= 0)."""
    return CONTEXT_EDGES[max(0, bisect_right(CONTEXT_EDGES, tokens) - 1)]


def prompt_bucket(tokens: int) -> int:
    """Lower edge of the bucket that holds a step's prompt `tokens` (>= 0)."""
    return PROMPT_EDGES[max(0, bisect_right(PROMPT_EDGES, tokens) - 1)]


def derive_token(master_key: bytes, serving_uid: str, key_version: str) -> str:
    """Bearer token of one serving: hex HMAC-SHA256 of its UID and the key version under the operator's master key."""
    return hmac.new(master_key, f"paceline/{serving_uid}/{key_version}".encode(), hashlib.sha256).hexdigest()


class Wire(BaseModel):
    """Base of all wire types: frozen, camelCase, tolerant of unknown fields, no NaN or infinity."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", allow_inf_nan=False
    )


Count = Annotated[int, Field(ge=0, le=2**53)]
"""Up to what a double holds exactly: arithmetic goes on in doubles."""
Seconds = Annotated[float, Field(ge=0, le=1e10)]
"""Up to three centuries: squares and sums of them stay finite."""
K = Annotated[StrictInt, Field(ge=0, le=MAX_K)]
T = TypeVar("T")
MAX_COUNTS = 2048
"""Entries of a mapping or of a list of ks: a histogram, the largest, has a thousand."""


def _few(value: object) -> object:
    if isinstance(value, dict | list) and len(value) > MAX_COUNTS:
        raise ValueError(f"has more than {MAX_COUNTS} entries")
    return value


# A peer that sends a million bad entries must not get a million errors made: rows are read up to the first one, and
# where all are told, or a mapping is read, which cannot stop early, the entries are counted before.
Row = Annotated[tuple[T, ...], FailFast()]
Counts = Annotated[dict[T, Count], BeforeValidator(_few)]


class Feature(Wire):
    """A capability: there, or absent with the reason in words a person can act on."""

    supported: bool
    reason: str = ""


class Verification(StrEnum):
    """How many of the drafts are verified, in an engine that booted with adaptive verification (AV).

    AV trims verification, never drafting. An engine that booted without it verifies all and has one way only.
    """

    ALL = "All"
    """Every draft: AV is booted and idle. Its variable-length graphs stay, so this is not the same as AV absent."""
    ADAPTIVE = "Adaptive"
    """As many as pay by the engine's own estimate of survival and its step costs."""
    CAPPED = "Capped"
    """The same with an upper bound of verified draft tokens a step."""


class VerificationFeature(Feature):
    """Live control of AV."""

    present: bool = False
    """AV was booted."""
    modes: Row[Verification] = (Verification.ALL,)
    """What can be asked for without a restart; the first is what the engine booted with."""
    repriceable: bool = False
    """Step costs can be replaced while it runs."""
    ranks: Count = 1
    """Worker processes that must apply a change at the same step."""


class Identity(Wire):
    """What the numbers of this engine hold for; empty where the engine cannot tell."""

    gpu: str = ""
    """Product name as the driver gives it; on a CPU `CPU` and the processor's name."""
    tensor_parallel_size: Count = 0
    """0 = not told."""
    graph_mode: str = ""
    """vLLM's cudagraph mode in force."""
    max_capture_size: Count = 0
    """Largest captured graph, tokens; 0 = none."""
    model_digest: str = ""
    """`sha256:...` of what tells the target's weights from others."""
    draft_digest: str = ""
    """The same of the draft's; empty where it has no weights of its own."""


class Capabilities(Wire):
    """What this engine process can do, probed from its live objects at load."""

    live_k: Feature
    adaptive_verification: VerificationFeature
    max_k: Count
    """Boot num_speculative_tokens: the largest k that can be pushed."""
    ladder: Row[int]
    """The ks the boot schedule names (graphs exist for these), descending."""
    max_num_seqs: Count
    method: str
    runner: str
    """`V1` or `V2` model runner."""
    attention_backend: str = ""
    api_servers: Count = 1
    graph_requests: Counts[int] = Field(default_factory=dict)
    """k -> the most requests whose decode step of k + 1 tokens each replays a full graph; absent ks never do. Empty
    where the engine captures none."""
    metrics: Feature = Feature(supported=False)
    """`paceline_` series on the serving port's /metrics; absent with the reason where the operator has to export."""
    identity: Identity = Identity()


class Probe(Wire):
    """Bursts that keep the estimates of other ks alive.

    Every `interval_steps` decode steps, the next k of `ks` is in force for `settle_steps` (not counted) and then for
    `burst_steps` (counted).
    """

    ks: Annotated[tuple[K, ...], Field(min_length=1, max_length=MAX_K), BeforeValidator(_few)]
    settle_steps: Annotated[StrictInt, Field(ge=1, le=64)] = 2
    burst_steps: Annotated[StrictInt, Field(ge=8, le=256)] = 8
    interval_steps: Annotated[StrictInt, Field(ge=20, le=1_000_000)] = 200


class Cost(Wire):
    """One point of a step-cost curve."""

    at: Annotated[StrictInt, Field(ge=0, le=1_000_000)]
    """Requests (drafting) or tokens (verification)."""
    microseconds: Annotated[float, Field(gt=0, le=1e9)]


Curve = Annotated[tuple[Cost, ...], Field(max_length=256), FailFast()]


class VerificationPolicy(Wire):
    """How to verify from the next step on, on all ranks."""

    mode: Verification
    cap: Annotated[StrictInt, Field(ge=0, le=1_000_000)] | None = None
    """Draft tokens verified a step at most, over all requests; with Capped, and only then."""
    draft_costs: Curve = ()
    verify_costs: Curve = ()
    """Measured curves in place of those the engine profiled at start; empty = those it profiled."""

    @model_validator(mode="after")
    def _consistent(self) -> VerificationPolicy:
        if (self.cap is None) == (self.mode is Verification.CAPPED):
            raise ValueError(f"cap goes with mode {Verification.CAPPED} and with no other")
        if bool(self.draft_costs) != bool(self.verify_costs):
            raise ValueError("draftCosts and verifyCosts go together")
        for name, curve in (("draftCosts", self.draft_costs), ("verifyCosts", self.verify_costs)):
            if any(a.at >= b.at for a, b in pairwise(curve)):
                raise ValueError(f"{name} must ascend in `at`")
        return self


class Policy(Wire):
    """Body of `PUT /policy`. `table[n]` is the k to draft when n requests will sample; its length is max_num_seqs + 1.

    `dwell_steps`: consecutive steps that must agree on another k before it is taken (hysteresis inside the engine).
    """

    generation: Annotated[StrictInt, Field(ge=1, le=2**53)]
    table: Annotated[tuple[K, ...], Field(min_length=2, max_length=65_537), FailFast()]
    probe: Probe | None = None
    dwell_steps: Annotated[StrictInt, Field(ge=1, le=256)] = 4
    adaptive_verification: VerificationPolicy | None = None
    """None: as the engine booted. Refused (422) where the engine cannot."""


class PolicyAck(Wire):
    """Answer to an accepted policy: the generation now in force."""

    generation: int
    applied: bool
    """False when the step loop has not yet taken it (it will before its next step)."""


class ProtocolError(Wire):
    """Body of every answer that is not 2xx."""

    reason: str
    """Unauthorized, NotFound, TooLarge, Malformed, OlderGeneration, GenerationConflict, Invalid, NotReady, TooMany."""
    message: str


class VerificationState(Wire):
    """What AV does in this engine; counts are since boot, from the first rank."""

    mode: Verification
    cap: Count | None = None
    generation: Count = 0
    """Of the policy that asked for it; 0 = as booted."""
    ranks: Count = 0
    """Ranks that have applied it."""
    drafted: Count = 0
    verified: Count = 0
    """Draft tokens that were there to verify, and those that were."""
    starved: bool = False
    """Drafts are paid for while (almost) none is verified: the estimate sees no labels and will not recover."""
    error: str = ""
    """Why the last change was not applied."""


class State(Wire):
    """Answer of `GET /state`."""

    protocol_version: int = PROTOCOL_VERSION
    plugin_version: str
    engine_version: str
    boot_id: str
    """Random per engine process: another id means counters and policy started anew."""
    uptime_seconds: Seconds
    capabilities: Capabilities
    generation: Count
    """Generation of the policy in force; 0 = the boot schedule."""
    table: Row[int]
    """Table in force: what the next step reads, also in an idle engine."""
    k_in_force: int | None
    """k of the last step; None before the first."""
    steps_by_k: Counts[int]
    """Steps that drafted k because the table said so, since boot."""
    probe_steps_by_k: Counts[int]
    """Steps that drafted k because a probe burst said so, since boot."""
    policy_errors: Count
    lost_windows: Count = 0
    """Windows of samples that readers were told they had lost, since boot."""
    probe: Probe | None = None
    """Bursts of the policy in force, as it was pushed: what a restarted operator compares before it pushes again."""
    adaptive_verification: VerificationState | None = None
    """None: AV was not booted."""


class Gauges(Wire):
    """Load of the engine now, and token counters since boot."""

    running: Count
    waiting: Count
    kv_cache_usage: Annotated[float, Field(ge=0, le=1)]
    prompt_tokens: Count
    """Computed: a cached prefix is not in it, a prompt computed again after preemption is in it twice."""
    generation_tokens: Count


class CostCell(Wire):
    """Steps in which requests decoded, with the same load, context and prompt bucket, k drafted and k verified."""

    load: Count
    """Lower edge of the load bucket (see LOAD_EDGES)."""
    context: Count
    k_drafted: Count
    k_verified: Count
    """Draft tokens verified per request, rounded: below k_drafted where drafts did not fire or were cut short."""
    probe: bool
    verification: Verification = Verification.ALL
    steps: Count
    request_steps: Count
    """Sum over steps of the requests that sampled: request_steps / steps is the mean load inside the bucket."""
    emitted: Count
    """Tokens that came out of these steps (accepted + bonus)."""
    seconds: Seconds
    seconds_squared: Annotated[float, Field(ge=0, le=1e20)]
    prompt: Count = 0
    """Lower edge of the bucket of prompt tokens (see PROMPT_EDGES): 0 = decode-only steps. Others are mixed: what they
    took is the cost of their prompts, too; LAUNCHED: of those in the step after."""
    prompt_tokens: Count = 0
    """Sum over steps of the prompt tokens computed in them."""
    first_tokens: Count = 0
    """Of the request-steps, those that ended a prompt: nothing was drafted for them, and each emitted one token."""
    histogram: Counts[int]
    """Steps by floor(log(microseconds) / log(HISTOGRAM_BASE))."""


class AcceptanceCell(Wire):
    """What became of the drafts that were made under one configured k, in all steps that sampled."""

    k: Count
    load: Count
    verification: Verification = Verification.ALL
    request_steps: Count
    """Requests x steps that sampled with this k configured: the denominator of tokens a step. A request's first token
    does not count: nothing could be drafted for it."""
    drafts: Count
    """Of these, those that had at least one draft token: drafts / request_steps is the firing rate."""
    drafted: Row[Count]
    """Draft tokens verified at position 1..k."""
    accepted: Row[Count]
    """Draft tokens accepted at position 1..k."""


class Samples(Wire):
    """Answer of `GET /samples?cursor=`: everything since the cursor, nothing twice."""

    boot_id: str
    cursor: str
    """Hand this back next time."""
    reset: bool
    """The cursor was of another engine process (or absent): this is everything since boot."""
    lost_windows: Count
    """Windows folded into the since-boot sum before this cursor read them (a slow reader): not in this answer."""
    from_seconds: Seconds
    to_seconds: Seconds
    """Engine uptime covered."""
    cells: Row[CostCell]
    acceptance: Row[AcceptanceCell]
    excluded_steps: Counts[str]
    """Steps in no cost cell, by why: prefill (nobody decoded, or tokens that are neither drafts nor of a known prompt),
    idle (the first after a pause), settling (the start of a probe burst), transition (another k or another way of
    verifying than a step before), stalled (far longer than its cell's steps before it), undrafted (k was not drafted,
    no request could use it), crowded (too many cells), missed (nobody counted steps for too long)."""
    steps_by_k: Counts[int]
    """Completed steps by the k they drafted because the table said so, since the cursor."""
    probe_steps_by_k: Counts[int]
    """The same for probe bursts, settling steps included."""
    gauges: Gauges


class Reading(State):
    """Answer of `GET /state?samples=CURSOR`: both in one exchange."""

    samples: Samples | None = None
    """None in the answer of a plugin that knows `/samples` alone."""


def expand(rows: Sequence[tuple[int, int]], max_num_seqs: int) -> tuple[int, ...]:
    """Dense table of max_num_seqs + 1 entries from rows (from_requests ascending, first 1, k).

    Rows are the way tables are shown. Raises ValueError where the rows do not start at 1 or do not ascend.
    """
    starts = [start for start, _ in rows]
    if not rows or starts[0] != 1 or any(a >= b for a, b in pairwise(starts)):
        raise ValueError(f"table rows must start at 1 request and ascend, got {starts}")
    ks = [k for _, k in rows]
    return tuple(ks[max(0, bisect_right(starts, n) - 1)] for n in range(max_num_seqs + 1))


def compress(table: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Rows (from_requests, k) of a dense table; inverse of `expand`. Entry 0 (no request samples) is not looked at."""
    rows: list[tuple[int, int]] = []
    for n, k in enumerate(table[1:], start=1):
        if not rows or rows[-1][1] != k:
            rows.append((n, k))
    return tuple(rows)
