"""The scaling part of a pass: engines that the tuner reads, one write through /scale, and what status tells of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline_operator import act, demand, naming, scale
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.clients.kube import ConflictError, ForbiddenError
from paceline_operator.clock import FakeClock, rfc3339
from paceline_operator.firsttokens import FirstTokens
from paceline_operator.memory import Remembered
from paceline_operator.plan import Absence, Observation
from paceline_operator.retune import Retuned
from paceline_operator.tuning import decide
from paceline_operator.tuning.model import Memory, Step
from paceline_operator.verdicts import merge
from tests.fakes import FakeKube, Object
from tests.unit.simulated import POOR, SimulatedEngine, fixed

LADDER, SEQUENCES = [5, 3, 1, 0], 64
BUILTIN: Object = {"mode": "Builtin", "maxReplicas": 6, "targetRunningRequests": 8}
INTERVAL = 10
MANUAL: Object = {"intervalSeconds": INTERVAL, "mode": "Manual", "table": [{"fromRequests": 1, "k": 0}]}
"""A k that scaling does not wait for."""


class Scene:
    """The serving `demo`, its pods as simulated engines under `total` requests that they share evenly."""

    def __init__(self, autoscaling: Object = BUILTIN, *, total: int = 4, replicas: int = 1, **spec: Any) -> None:
        self.kube, self.clock, self.memory, self.tuner = FakeKube(), FakeClock(seconds=1000.0), Remembered(), Memory()
        self.spec: Object = {
            "model": {"source": "hf://owner/target"},
            "speculation": {"method": "eagle3", "draft": {"source": "hf://owner/draft"}, "maxTokens": 5},
            "engine": {"maxNumSeqs": SEQUENCES},
            "replicas": replicas,
            "tuning": {"ladder": LADDER, "intervalSeconds": INTERVAL},
            "autoscaling": autoscaling,
            **spec,
        }
        meta = {"name": "demo", "namespace": "team"}
        body = {"apiVersion": naming.API_VERSION, "kind": naming.KIND_SERVING, "metadata": meta, "spec": self.spec}
        self.kube.put(body)
        self.total, self.ready, self.frozen, self.absent = total, True, "", dict[str, Absence]()
        self.children: dict[tuple[str, str], Object] = {}
        self.engines: dict[str, SimulatedEngine] = {}
        self.status = ServingStatus()
        self.report = act.Report()
        self.step: Step | None = None

    @property
    def raw(self) -> Object:
        return self.kube.find(naming.KIND_SERVING, "demo")

    @property
    def replicas(self) -> int:
        return int(self.raw["spec"]["replicas"])

    async def run(self, passes: int = 1, *, measured: bool = True) -> None:
        for _ in range(passes):
            await self._pass(measured)

    async def _pass(self, measured: bool) -> None:
        serving = SpeculativeServing.model_validate(self.raw)
        settings = decide.settings_of(serving.spec)
        names = [f"demo-{index}" for index in range(self.replicas)]
        for index, name in enumerate(names):
            rng = np.random.default_rng(index)
            made = SimulatedEngine(seconds, fixed(POOR), settings.boot_table, settings.ladder, rng, boot_id=name)
            engine = self.engines.setdefault(name, made)
            engine.requests = min(SEQUENCES, self.total // len(names))
        self.engines = {name: self.engines[name] for name in names}
        self.clock.advance(INTERVAL)
        answers = [engine.answer(INTERVAL, name) for name, engine in self.engines.items()] if measured else []
        step = None
        if measured:
            now = self.clock.monotonic()
            step = decide.step(settings, self.tuner, answers, known_generation=0, now=now)
            self.tuner, self.step = step.memory, step
            for name in step.push_to:
                assert step.policy is not None
                self.engines[name].push(step.policy)
        pods = tuple(pod(name, ready=self.ready) for name in names)
        look = Observation(pods=pods, children=self.children, missing_secrets={}, absent=self.absent)
        self.report = act.Report()
        scaled = await scale.scale(
            self.kube,  # type: ignore[arg-type]
            self.clock,
            self.memory,
            self.raw,
            serving.spec,
            self.status,
            look,
            Retuned(INTERVAL, answers, step=step),
            self.frozen,
            self.report,
        )
        before = [one for one in self.status.conditions if one.type not in scaled.withdrawn]
        conditions = merge(before, scaled.verdicts, 1, rfc3339(self.clock.now()))
        self.status = self.status.model_copy(update={**scaled.fields, "conditions": conditions})

    @property
    def active(self) -> tuple[str, str]:
        """Status and reason of ScalingActive."""
        (found,) = [one for one in self.status.conditions if one.type == "ScalingActive"]
        return found.status, found.reason

    @property
    def told(self) -> list[Reason]:
        return [event.reason for event in self.report.events]

    def writes(self) -> int:
        return len(self.kube.writes)


def seconds(requests: int, k: int) -> float:
    """Poor drafts that cost: k=0 is best at every load."""
    return 0.01 * (1 + 0.5 * k) * (1 + requests / 64)


def pod(name: str, *, ready: bool) -> Object:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {"metadata": {"name": name}, "status": {"phase": "Running", "conditions": [condition]}}


async def test_more_requests_bring_more_pods_by_one_write_and_status_says_why() -> None:
    scene = Scene(total=20, tuning=MANUAL)
    await scene.run()
    assert (scene.replicas, scene.writes()) == (3, 1)
    assert scene.told == [Reason.ABOVE_TARGET]
    assert scene.status.scaling is not None
    assert (scene.status.scaling.desired_replicas, scene.status.scaling.writer) == (3, naming.FIELD_MANAGER)
    assert scene.active == ("True", "AboveTarget")
    await scene.run()
    assert scene.active == ("True", "WithinTarget")
    before = scene.status
    await scene.run(20)
    assert (scene.status, scene.writes()) == (before, 1), "nothing changes, nothing is written"


async def test_k_is_turned_off_before_pods_are_bought() -> None:
    """Measured in mode Observe, k=0 is better; then the load comes and the mode is Auto: k first, pods after."""
    scene = Scene(total=16, replicas=2, tuning={"ladder": LADDER, "mode": "Observe", "probing": {"mode": "Enabled"}})
    await scene.run(40)
    assert scene.step is not None
    assert scene.step.recommended_table is not None
    assert (scene.step.table[8], scene.step.recommended_table[8], scene.replicas) == (5, 0, 2)
    scene.raw["spec"]["tuning"] = {"ladder": LADDER, "mode": "Auto"}
    scene.total = 23
    await scene.run()
    assert (scene.step.table[8], scene.replicas, scene.active) == (0, 2, ("True", "BetterKFirst"))
    assert scene.engines["demo-0"].table[8] == 0
    await scene.run()
    assert (scene.replicas, scene.active) == (3, ("True", "AboveTarget"))


async def test_where_k_cannot_be_changed_pods_do_not_wait_for_it() -> None:
    scene = Scene(total=16, replicas=2, tuning={"ladder": LADDER, "mode": "Observe", "probing": {"mode": "Enabled"}})
    await scene.run(40)
    scene.total = 23
    await scene.run()
    assert scene.replicas == 3


async def test_a_limit_of_the_time_per_token_alone_scales_by_what_was_measured() -> None:
    """At 32 requests a pod no k meets 13 ms; at 8 and 16 one does."""
    scene = Scene({"mode": "Builtin", "maxReplicas": 6}, total=8, slo={"tpotMilliseconds": 13})
    await scene.run(60)
    scene.total = 16
    await scene.run(60)
    assert scene.replicas == 1
    scene.total = 32
    await scene.run(60)
    assert scene.replicas == 2
    assert scene.active == ("True", "WithinTarget")
    scene.total = 8
    await scene.run(60)
    assert scene.replicas == 1


async def test_only_ks_that_were_measured_at_the_load_count() -> None:
    scene = Scene(total=8)
    await scene.run()
    assert scene.step is not None
    spec = SpeculativeServing.model_validate(scene.raw).spec
    known = demand.seen(scene.raw, spec, [pod("demo-0", ready=True)], scene.step, [], "")
    assert [pace.k for pace in known.paces] == [5], "what the others give is borrowed"
    assert (known.load, known.k, known.measuring, known.requests) == (8, 5, True, None)
    await scene.run(10)
    known = demand.seen(scene.raw, spec, [pod("demo-0", ready=True)], scene.step, [], "")
    assert [pace.k for pace in known.paces] == LADDER
    assert not known.measuring


async def test_without_numbers_replicas_hold_and_the_reason_is_the_metrics() -> None:
    scene = Scene(total=8)
    await scene.run(2)
    scene.status = scene.status.model_copy(update={"scaling": None})
    await scene.run(1, measured=False)
    assert (scene.active, scene.writes()) == (("False", "NoPods"), 0)
    scene.raw["spec"]["autoscaling"] = {**BUILTIN, "minReplicas": 3}
    await scene.run(1, measured=False)
    assert (scene.replicas, scene.active) == (3, ("True", "AtMinimum")), "bounds need no numbers"


@pytest.mark.parametrize(
    ("manager", "subresource"), [("kube-controller-manager", "scale"), ("kubectl", "scale"), ("kubectl-edit", "")]
)
async def test_a_foreign_writer_is_reported_once_and_not_fought(manager: str, subresource: str) -> None:
    scene = Scene(total=20, tuning=MANUAL)
    await scene.run(2)
    assert scene.writes() == 1
    scene.kube.scaled("demo", 5, manager, subresource=subresource, at="" if subresource else "2026-01-01T00:00:00Z")
    await scene.run()
    assert scene.told == [Reason.FOREIGN_REPLICAS_WRITER]
    assert scene.active == ("False", "ForeignReplicasWriter")
    assert scene.status.scaling is not None
    assert (scene.status.scaling.foreign_writer, scene.status.scaling.desired_replicas) == (manager, 3)
    before = scene.status
    scene.total = 100
    await scene.run(40)
    assert (scene.replicas, scene.writes(), scene.told) == (5, 1, [])
    assert scene.status == before


async def test_switching_off_and_on_again_takes_replicas_over() -> None:
    scene = Scene(total=20, tuning=MANUAL)
    await scene.run()
    scene.kube.scaled("demo", 5, "kubectl")
    await scene.run()
    scene.raw["spec"]["autoscaling"] = {**BUILTIN, "mode": "Disabled"}
    await scene.run()
    assert scene.status.conditions == []
    assert scene.status.scaling is None
    scene.raw["spec"]["autoscaling"] = BUILTIN
    await scene.run(40)
    assert scene.replicas == 3


async def test_a_serving_that_was_never_scaled_is_told_nothing() -> None:
    scene = Scene({"mode": "Disabled"})
    await scene.run(2)
    assert (scene.status, scene.writes()) == (ServingStatus(), 0)


async def test_a_wavering_load_is_no_stream_of_writes() -> None:
    scene = Scene(total=24, replicas=4)
    seen = set()
    for index in range(24):
        scene.total = 24 if index % 2 else 31
        await scene.run()
        assert scene.status.scaling is not None
        seen.add((scene.status.scaling.at, scene.status.scaling.reason))
    assert scene.replicas == 4
    assert len(seen) <= 1 + 240 / scale.TOLD_SECONDS


async def test_a_rollout_freezes_and_a_refusal_is_an_error_of_the_pass() -> None:
    scene = Scene(total=40, tuning=MANUAL)
    scene.frozen = "a canary is judged"
    await scene.run()
    assert (scene.active, scene.writes()) == (("True", "Frozen"), 0)
    scene.frozen = ""
    scene.kube.refuse[("SCALE", naming.KIND_SERVING)] = ForbiddenError(403, "Forbidden", "no")
    await scene.run()
    assert [str(error) for error in scene.report.errors] == ["no (Forbidden, HTTP 403)"]
    assert (scene.replicas, scene.told) == (1, [])


async def test_a_write_that_came_in_between_is_left_to_the_next_pass() -> None:
    scene = Scene(total=40, tuning=MANUAL)
    scene.kube.refuse[("SCALE", naming.KIND_SERVING)] = ConflictError(409, "Conflict", "it changed")
    await scene.run()
    assert (scene.replicas, scene.report.errors, scene.told) == (1, [], [])
    scene.kube.refuse.clear()
    await scene.run()
    assert scene.replicas == 5


async def test_k_rests_while_pods_come_by_scaling_and_latencies_are_read_anew() -> None:
    scene = Scene()
    pods = tuple(pod(f"demo-{index}", ready=True) for index in range(2))
    seen = FirstTokens({}, 1.0)
    scene.memory.first_tokens = seen

    def settling(count: int) -> bool:
        look = Observation(pods=pods[:count], children=None, missing_secrets={})
        return scale.settling(scene.memory, scene.clock, scene.raw, look, INTERVAL)

    assert not settling(1)
    scene.kube.scaled("demo", 2, naming.FIELD_MANAGER)
    assert settling(1)
    scene.clock.advance(2 * INTERVAL)
    assert not settling(1), "a model loads for long"
    scene.memory.first_tokens = seen
    assert settling(2)
    assert scene.memory.first_tokens == FirstTokens()
    scene.clock.advance(2 * INTERVAL)
    assert not settling(2)


KEDA: Object = {
    "mode": "KEDA",
    "maxReplicas": 6,
    "targetRunningRequests": 8,
    "keda": {"serverAddress": "http://prometheus:9090"},
}


async def test_keda_is_told_as_it_tells_itself_and_its_writes_are_welcome() -> None:
    scene = Scene(KEDA)
    scene.absent = {"ScaledObject": Absence(Reason.KIND_NOT_SERVED, "the cluster has no scaledobjects.keda.sh")}
    await scene.run()
    assert scene.active == ("False", "KindNotServed")
    scene.absent = {}
    await scene.run()
    assert scene.active == ("Unknown", "ScaledObjectNotReady")
    ready = {"type": "Ready", "status": "False", "message": "no Prometheus"}
    scene.children = {("ScaledObject", "demo"): {"status": {"conditions": [ready]}}}
    await scene.run()
    assert scene.active == ("False", "ScaledObjectNotReady")
    ready["status"] = "True"
    scene.kube.scaled("demo", 4, "keda")
    await scene.run()
    assert scene.active == ("True", "ScaledObjectReady")
    assert scene.status.scaling is not None
    assert (scene.status.scaling.desired_replicas, scene.status.scaling.writer) == (4, "keda")
    assert scene.writes() == 0
