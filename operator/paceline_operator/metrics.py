"""What the operator says about itself, in Prometheus' words. docs/reference lists the names.

One registry for the process; label names are constants and known label values start at zero, so that a rate over a
series that has not happened yet is 0, not absent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

from paceline_operator.api.conditions import Reason

LABEL_REASON = "reason"
LABEL_RESULT = "result"
LABEL_KIND = "kind"
LABEL_VERB = "verb"
LABEL_CODE = "code"
LABEL_PART = "part"

RESULT_OK = "ok"
RESULT_ERROR = "error"

RECONCILE_SECONDS = Histogram(
    "paceline_reconcile_duration_seconds",
    "Seconds that one pass over one object took. Labeled by result.",
    [LABEL_RESULT],
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120),
)
RECONCILE_AGE = Gauge(
    "paceline_reconcile_overdue_seconds",
    "Seconds by which the most overdue object is late: running passes count from their start. 0 when nothing is late.",
)
OBJECTS = Gauge("paceline_objects", "Objects that this process looks after. 0 unless it is the leader.")
LOOP_TASKS = Gauge(
    "paceline_event_loop_tasks",
    "Tasks of the event loop. One for each object and a few more for watches: it does not grow with time.",
)
LEADER = Gauge("paceline_leader", "1 while this process holds the Lease.")
API_WRITES = Counter(
    "paceline_api_writes_total",
    "Requests to the Kubernetes API that change something. Labeled by kind, verb and HTTP code (0: no answer).",
    [LABEL_KIND, LABEL_VERB, LABEL_CODE],
)
API_READS = Counter(
    "paceline_api_reads_total",
    "Requests to the Kubernetes API that read, watches left out. Labeled by kind and HTTP code (0: no answer).",
    [LABEL_KIND, LABEL_CODE],
)
DECISIONS = Counter("paceline_decisions_total", "Changes of the k in force. Labeled by reason.", [LABEL_REASON])
ROLLOUTS = Counter(
    "paceline_rollouts_total", "Steps of rollouts: started, promoted, taken back. Labeled by reason.", [LABEL_REASON]
)
HELD_SECONDS = Counter(
    "paceline_held_seconds_total",
    "Seconds for which k held because what it needs was missing, of all servings together. Labeled by reason.",
    [LABEL_REASON],
)
TUNER_ERRORS = Counter(
    "paceline_tuner_errors_total",
    "Parts of a decision that failed and were left out: defects, each in the log. Labeled by part.",
    [LABEL_PART],
)
SCALINGS = Counter("paceline_scalings_total", "Changes of replicas by mode Builtin. Labeled by reason.", [LABEL_REASON])
FAULTS = Counter("paceline_engine_faults_total", "Engines that ended or stood still. Labeled by kind.", [LABEL_KIND])
REMEDIES = Counter(
    "paceline_remedies_total", "Steps of the breaker and the ladder of remedies. Labeled by reason.", [LABEL_REASON]
)
PUSH_SECONDS = Histogram(
    "paceline_push_duration_seconds",
    "Seconds that pushing a policy to one engine pod took. Labeled by result.",
    [LABEL_RESULT],
    buckets=(0.005, 0.02, 0.1, 0.3, 1, 3, 10),
)

PARTS = (
    "learn", "compare", "verify", "account", "decide", "verification", "ttft", "table", "bursts", "view", "told",
)  # fmt: skip
"""Of a decision, as tuning.decide names those that fail."""
for _part in PARTS:
    TUNER_ERRORS.labels(_part)
for _reason in (
    Reason.LOAD,
    Reason.ACCEPTANCE,
    Reason.COST,
    Reason.TPOT_LIMIT,
    Reason.TTFT_LIMIT,
    Reason.BASELINE,
    Reason.ADAPTIVE_VERIFICATION,
    Reason.MANUAL,
):
    DECISIONS.labels(_reason)
for _reason in (
    Reason.NO_PODS,
    Reason.POD_NOT_ANSWERING,
    Reason.PLUGIN_ABSENT,
    Reason.TOKEN_REFUSED,
    Reason.ENGINE_SERIES_MISSING,
    Reason.METRICS_STALE,
    Reason.MALFORMED_ANSWER,
    Reason.ENGINE_WARMING_UP,
):
    HELD_SECONDS.labels(_reason)
for _reason in (
    Reason.CANARY_STARTED,
    Reason.CANARY_PROMOTED,
    Reason.CANARY_UNJUDGED,
    Reason.CANARY_NOT_READY,
    Reason.CRASH_LOOP,
    Reason.ROLLING_OUT,
    Reason.GOODPUT_LOST,
    Reason.TPOT_INCREASED,
    Reason.TTFT_INCREASED,
    Reason.REQUESTS_FAILED,
    Reason.OUTPUT_CONTRACT,
):
    ROLLOUTS.labels(_reason)
for _reason in (Reason.ABOVE_TARGET, Reason.BELOW_TARGET, Reason.AT_MINIMUM, Reason.AT_MAXIMUM):
    SCALINGS.labels(_reason)
for _kind in ("Crash", "OutOfMemory", "Hang", "NeverReady", "Evicted"):
    FAULTS.labels(_kind)
for _reason in (
    Reason.BREAKER_OPEN,
    Reason.REMEDY_FAILED,
    Reason.STABLE_UNDER_CHANGE,
    Reason.REMEDIES_SPENT,
    Reason.REMEDY_LIFTED,
    Reason.ENGINE_REPLACED,
):
    REMEDIES.labels(_reason)
for _result in (RESULT_OK, RESULT_ERROR):
    PUSH_SECONDS.labels(_result)
    RECONCILE_SECONDS.labels(_result)


def watch_fleet(overdue: Callable[[], float], objects: Callable[[], int]) -> None:
    """Let gauges ask the fleet, and the loop that runs now, at scrape time instead of being kept up to date."""
    loop = asyncio.get_running_loop()
    LOOP_TASKS.set_function(lambda: len(asyncio.all_tasks(loop)))
    RECONCILE_AGE.set_function(overdue)
    OBJECTS.set_function(objects)
