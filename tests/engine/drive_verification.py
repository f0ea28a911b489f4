"""Runs in the engine's environment: vLLM's own AdaptiveVerificationManager and executor, as the plugin drives them.

No engine on a CPU has one (it needs the V2 runner and CUDA graphs), but its choice of a budget is numpy on the host:
the manager is built with what that reads, everything on a device left out. Two ranks stand behind vLLM's own
MultiprocExecutor, whose queues are lists here. JSON on stdout, last line. In: the seed of the random changes.
"""

from __future__ import annotations

import json
import random
import sys
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import torch
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc
from vllm.v1.worker.gpu.spec_decode import adaptive_verification as av

from paceline_engine import estimate, verification, worker
from paceline_engine.protocol import Cost, Verification, VerificationPolicy

K, REQUESTS, TOKENS, LIMIT, GRAPHS = 5, 64, 512, 300, 256
DRAFT = [(size, 1.0 + 0.01 * size) for size in (1, 2, 4, 8, 16, 32, 64)]
VERIFY = [(size, 8.0 + 0.03 * size) for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512)]
av.get_tp_group = lambda: SimpleNamespace(broadcast_object=lambda curves, src: curves)


def manager() -> Any:
    made = av.AdaptiveVerificationManager.__new__(av.AdaptiveVerificationManager)
    confidences = np.random.default_rng(7).uniform(0.0, 1.0, (REQUESTS, K)).astype(np.float32)
    confidences[::5] = 0.0
    made.req_states = SimpleNamespace(
        num_speculative_steps=K,
        max_num_reqs=REQUESTS,
        max_num_batched_tokens=TOKENS,
        req_id_to_index={str(n): n for n in range(REQUESTS)},
        num_computed_tokens_np=np.full(REQUESTS, 100, dtype=np.int32),
        prefill_len=SimpleNamespace(np=np.full(REQUESTS, 50, dtype=np.int32)),
    )
    made.num_speculative_steps = K
    made.num_bonus_tokens = 1
    made._max_total_logits = LIMIT
    made._cudagraph_limit = GRAPHS
    made._stale_confidences = [SimpleNamespace(np=confidences), None]
    made._stale_idx = 0
    made._batch_budget = None
    made.set_cost_curves(DRAFT, VERIFY)
    return made


def rank() -> Any:
    return SimpleNamespace(model_runner=SimpleNamespace(adaptive_verification=manager()))


def budget(one: Any, requests: int, drafts: int) -> int:
    """Drafts that this rank verifies, by what it leaves for the device to hand out."""
    names = [str(n) for n in range(requests)]
    made = one.model_runner.adaptive_verification
    tokens = made.get_num_tokens(dict.fromkeys(names, 1 + drafts), {name: [-1] * drafts for name in names})
    chosen: int = made._batch_budget[2]
    assert tokens == requests + chosen
    return chosen


def cheap() -> dict[str, Any]:
    return {
        "draft_costs": (Cost(at=1, microseconds=500.0),),
        "verify_costs": tuple(Cost(at=at, microseconds=4000.0 + at) for at in (1, 64, 512)),
    }


def image(one: Any) -> list[Any]:
    made = one.model_runner.adaptive_verification
    return [*(table.tobytes().hex() for table in made.cost_tables), made._max_total_logits]


class Queues:
    """vLLM's executor over two ranks in this process, that do what is in the queue when its replies are read."""

    def __init__(self) -> None:
        self.ranks = [rank(), rank()]
        self.order: list[str] = []
        self._sent: deque[Any] = deque()
        self._replies: list[deque[Any]] = [deque(), deque()]
        self.executor = MultiprocExecutor.__new__(MultiprocExecutor)
        self.executor.__dict__ |= {
            "is_failed": False,
            "rpc_broadcast_mq": SimpleNamespace(enqueue=self._sent.append, shutdown=lambda: None),
            "response_mqs": [SimpleNamespace(dequeue=partial(self._read, at), shutdown=lambda: None) for at in (0, 1)],
            "futures_queue": deque(),
            "vllm_config": SimpleNamespace(parallel_config=SimpleNamespace(enable_fault_tolerance=False)),
            "shutting_down": True,
        }

    def _read(self, at: int, timeout: float | None) -> Any:
        while not self._replies[at]:
            method, args, kwargs, only = self._sent.popleft()
            for number, one in enumerate(self.ranks):
                found = partial(cloudpickle.loads(method), one)(*args, **kwargs)
                if only in {None, number}:
                    self._replies[number].append((WorkerProc.ResponseStatus.SUCCESS, found))
        return self._replies[at].popleft()

    def send(self, number: int, requests: int, drafts: int) -> Any:
        """A step of the engine: nothing waits for it."""
        future = self.executor.collective_rpc(budget, args=(requests, drafts), non_block=True)
        future.add_done_callback(lambda _: self.order.append(f"step {number}"))
        return future


def changes(seed: int) -> Any:
    dice = random.Random(seed)
    for _ in range(200):
        mode = dice.choice([None, *Verification])
        cap = dice.randrange(0, 200) if mode is Verification.CAPPED else None
        costs = cheap() if dice.random() < 0.3 else {}
        policy = VerificationPolicy(mode=mode, cap=cap, **costs) if mode else None
        yield policy, dice.randrange(1, REQUESTS + 1), dice.randrange(1, K + 1)


def by_policy() -> dict[str, Any]:
    """Budgets of full steps under each kind of policy, beside what they are decided from."""
    one = rank()
    booted, pristine = image(one), image(rank())
    sizes = (1, 8, 40, 49, 50, 64)
    policies = {
        "booted": None,
        "all": VerificationPolicy(mode=Verification.ALL),
        "capped": VerificationPolicy(mode=Verification.CAPPED, cap=20),
        "cheap": VerificationPolicy(mode=Verification.ADAPTIVE, **cheap()),
        "again": None,
    }
    told = {}
    for name, policy in policies.items():
        report = worker.verify(one, policy)
        assert not report.error, report.error
        told[name] = [budget(one, n, K) for n in sizes]
    counted = worker.report(one)
    made = one.model_runner.adaptive_verification
    return {
        "sizes": sizes,
        "budgets": told,
        "drafted": counted.drafted,
        "verified": counted.verified,
        "restored": image(one) == booted == pristine,
        "confidences": made._stale_confidences[0].np.tolist(),
        "tables": [table.tolist() for table in made.cost_tables],
    }


def unknown() -> dict[str, Any]:
    """Budgets of a full step while the estimate of one of its requests is no number, and once it is one again."""
    made = manager()
    estimator = SimpleNamespace(
        slope=torch.full((1,), 0.5), intercepts=torch.full((K,), -0.2), info=torch.zeros(K, 3), grad=torch.zeros(K, 2),
        counts=torch.zeros(K), features=torch.ones(REQUESTS, K), predictions=torch.full((REQUESTS, K), 0.3),
    )  # fmt: skip
    runner = SimpleNamespace(adaptive_verification=made, speculator=SimpleNamespace(acceptance_estimator=estimator))
    one = SimpleNamespace(model_runner=runner)
    worker.report(one)
    whole = made._stale_confidences[0].np.copy()
    told: dict[str, Any] = {"known": budget(one, 40, K)}
    for mode in Verification:
        report = worker.verify(one, VerificationPolicy(mode=mode, cap=20 if mode is Verification.CAPPED else None))
        assert not report.error, report.error
        made._stale_confidences[0].np[3, 2] = np.nan
        told[str(mode)] = budget(one, 40, K)
        made._stale_confidences[0].np[:] = whole
    worker.verify(one, None)
    for values in vars(estimator).values():
        values.fill_(float("nan"))
    for _ in range(estimate.REST_STEPS):
        made._stale_confidences[0].np[3, 2] = np.nan
        told["at all"] = budget(one, 40, K)
    told["numbers"] = [bool(torch.isfinite(values).all()) for values in vars(estimator).values()]
    told["start"] = [round(float(values[0]), 6) for values in (estimator.slope, estimator.intercepts)]
    made._stale_confidences[0].np[:] = whole
    told["again"] = budget(one, 40, K)
    made._stale_confidences[0].np[50, 0] = np.nan
    told["of another"] = budget(one, 40, K)
    alone = rank()
    made = alone.model_runner.adaptive_verification
    made._stale_confidences[0].np[3, 2] = np.nan
    made.cost_tables = (made.cost_tables[0], np.linspace(2.0, 1.0, len(made.cost_tables[1])))
    told["vllm"] = budget(alone, 40, K)
    return told


def under_load(seed: int) -> dict[str, Any]:
    """200 changes with two steps in flight all the while."""
    queues = Queues()
    booted = image(queues.ranks[0])
    found = verification.inspect(queues.executor, (K,), REQUESTS)
    modes: list[str] = []
    control = verification.VerificationControl(queues.executor, on_mode=lambda mode: modes.append(str(mode)))
    in_flight: deque[Any] = deque()
    steps = []
    for number, (policy, requests, drafts) in enumerate(changes(seed)):
        control.ask(policy, number + 1)
        control.act()
        in_flight.append(queues.send(number, requests, drafts))
        if len(in_flight) > 1:
            in_flight.popleft().result()
        queues.order.append(f"generation {control.state.generation}")
        steps.append(
            {
                "mode": str(policy.mode) if policy else None,
                "cap": policy.cap if policy else None,
                "costs": bool(policy and policy.draft_costs),
                "drafts": requests * drafts,
                "most": min(requests * drafts, LIMIT - requests),
            }
        )
        steps[-1]["future"] = in_flight[-1]
    for step in steps:
        step["budgets"] = step.pop("future").result()
    control.ask(None, 201)
    control.act()
    queues.send(200, 8, K).result()
    return {
        "found": found.adaptive and not found.absent,
        "steps": steps,
        "order": queues.order[:7],
        "state": control.state.model_dump(),
        "modes": len(modes),
        "restored": image(queues.ranks[0]) == image(queues.ranks[1]) == booted,
    }


if __name__ == "__main__":
    json.dump({"by_policy": by_policy(), "unknown": unknown(), "under_load": under_load(int(sys.argv[1]))}, sys.stdout)
