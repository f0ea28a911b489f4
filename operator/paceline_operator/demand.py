"""What scaling is told: the spec's terms, and what a pass of the tuner says of requests and of ks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline_engine.protocol import LOAD_EDGES
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import Tier
from paceline_operator.api.tuning import ProbingMode, TuningMode
from paceline_operator.scaling.values import Pace, Sight, Terms
from paceline_operator.tuning.model import Engine, Step
from paceline_operator.verdicts import Raw, is_ready, replicas_of

GAP_INTERVALS = 3
"""Of the tuner, without numbers, after which a window begins anew; a minute at least."""


def terms(spec: ServingSpec) -> Terms:
    """What `spec` asks of mode Builtin."""
    scaling, limit = spec.autoscaling, spec.slo.tpot_milliseconds
    return Terms(
        minimum=scaling.min_replicas,
        maximum=scaling.max_replicas or scaling.min_replicas,
        target_requests=scaling.target_running_requests,
        token_limit_seconds=limit / 1000 if limit is not None else None,
        up_window_seconds=float(scaling.behavior.scale_up.stabilization_window_seconds),
        down_window_seconds=float(scaling.behavior.scale_down.stabilization_window_seconds),
        up_step=scaling.behavior.scale_up.max_step_replicas,
        down_step=scaling.behavior.scale_down.max_step_replicas,
        patience_seconds=float(spec.engine.startup_timeout_seconds),
        gap_seconds=max(60.0, float(GAP_INTERVALS * spec.tuning.interval_seconds)),
        min_gain=spec.tuning.min_gain_percent / 100,
    )


def seen(
    raw: Raw, spec: ServingSpec, pods: Sequence[Raw], step: Step | None, engines: Sequence[Engine], frozen: str
) -> Sight:
    """What this pass knows of replicas, load and ks."""
    sight = Sight(replicas=replicas_of(raw), pods=len(pods), ready=sum(map(is_ready, pods)), frozen=frozen)
    if step is None:
        return sight
    names = {pod["metadata"]["name"] for pod in pods}
    loads = [one.samples.gauges for one in engines if one.samples is not None and one.name in names]
    known = bool(loads) and not step.holding
    steerable = spec.tuning.mode is TuningMode.AUTO and step.tier is Tier.LIVE and not frozen
    paces = {
        view.load: tuple(
            Pace(
                k=candidate.k,
                goodput=candidate.goodput.value,
                token_seconds=candidate.step_seconds.value / candidate.acceptance_length.value,
            )
            for candidate in view.candidates
            if not candidate.borrowed
        )
        for view in step.buckets
    }
    observed = {view.load for view in step.buckets if view.observed}
    table = {load: step.table[load] for load in LOAD_EDGES if load < len(step.table)}
    reachable = {
        load: [pace.token_seconds for pace in at if steerable or pace.k == table.get(load)]
        for load, at in paces.items()
    }
    return Sight(
        replicas=sight.replicas,
        pods=sight.pods,
        ready=sight.ready,
        answering=len(loads) if known else 0,
        requests=float(sum(one.running + one.waiting for one in loads)) if known else None,
        unknown=(step.metrics_reason, step.metrics_message),
        load=step.load,
        table=table,
        paces=paces.get(step.load, ()) if step.load is not None else (),
        steerable=steerable,
        measuring=steerable and spec.tuning.probing.mode is not ProbingMode.DISABLED and step.load not in observed,
        token_seconds={load: min(found) for load, found in reachable.items() if found},
        late_first_tokens=step.restarts.ttft_lowered is not None,
        frozen=frozen,
    )
