"""Workers and executors of the same shape as vLLM's: what the engine core's half of the plugin calls into."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np

from paceline_engine.protocol import Cost, Verification, VerificationPolicy

REQUESTS = 8
TOKENS = 64
DRAFT_TABLE = np.linspace(1.0, 2.0, REQUESTS + 1)
VERIFY_TABLE = 5.0 + np.arange(TOKENS + 1) * 0.4
LIMIT = 40


class Manager:
    """The budget rule of vLLM's AdaptiveVerificationManager over given chances of survival."""

    num_bonus_tokens = 1

    def __init__(self, survival: float = 0.5) -> None:
        self.survival = survival
        self.cost_tables: Any = (DRAFT_TABLE, VERIFY_TABLE)
        self._max_total_logits = LIMIT
        self.broadcasts = 0

    def get_num_tokens(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        drafts = [len(draft_tokens.get(request, ())) for request in num_tokens_per_req]
        requests, others = len(drafts), sum(num_tokens_per_req.values()) - sum(drafts)
        scores = np.sort([self.survival ** (at + 1) for count in drafts for at in range(count)])[::-1]
        most = min(sum(drafts), max(0, self._max_total_logits - requests * self.num_bonus_tokens))
        draft_ms, verify_ms = self.cost_tables
        gained = requests + np.concatenate(([0.0], np.cumsum(scores[:most])))
        return others + int(np.argmax(gained / (draft_ms[requests] + verify_ms[others : others + most + 1])))

    def set_cost_curves(self, draft: list[tuple[int, float]], verify: list[tuple[int, float]]) -> None:
        self.broadcasts += 1
        self.cost_tables = tuple(
            np.interp(np.arange(size + 1), *np.asarray(curve, dtype=float).T)
            for size, curve in ((REQUESTS, draft), (TOKENS, verify))
        )


def worker(manager: Any = None, **runner: Any) -> Any:
    """A worker whose model runner has this manager."""
    return SimpleNamespace(model_runner=SimpleNamespace(adaptive_verification=manager, **runner))


class UniProcExecutor:
    """One worker in the engine's own process: a call is done when it returns."""

    def __init__(self, *workers: Any) -> None:
        self.workers = workers or (worker(Manager()),)
        self.calls: list[str] = []
        self.vllm_config: Any = None

    def collective_rpc(
        self,
        method: Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        *,
        non_block: bool = False,
    ) -> Any:
        self.calls.append(method.__name__)
        replies = [method(one, *args) for one in self.workers]
        if not non_block:
            return replies
        future: Future[Any] = Future()
        future.set_result(replies)
        return future


class MultiprocExecutor:
    """Ranks behind one ordered queue: what is called happens when they get to it, and is known when it is read."""

    def __init__(self, *workers: Any) -> None:
        self.workers = workers or (worker(Manager()), worker(Manager()))
        self.queue: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.vllm_config: Any = None

    def collective_rpc(
        self,
        method: Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        *,
        non_block: bool = False,
        unique_reply_rank: int | None = None,
    ) -> Any:
        future: Future[Any] = Future()
        self.queue.append((lambda: [method(one, *args) for one in self.workers], future))
        if non_block:
            return future
        self.run()
        replies = future.result()
        return replies if unique_reply_rank is None else replies[unique_reply_rank]

    def run(self) -> None:
        """The ranks work off their queue."""
        while self.queue:
            act, future = self.queue.popleft()
            try:
                future.set_result(act())
            except Exception as error:
                future.set_exception(error)


def step(one: Any, requests: int, drafts: int) -> int:
    """Drafts that this worker verifies in a step of `requests` with `drafts` each."""
    names = [str(n) for n in range(requests)]
    tokens: int = one.model_runner.adaptive_verification.get_num_tokens(
        dict.fromkeys(names, 1 + drafts), {name: [-1] * drafts for name in names} if drafts else {}
    )
    return tokens - requests


def asked(mode: Verification, cap: int | None = None, cheap: bool = False) -> VerificationPolicy:
    """A policy's word; `cheap`: with costs under which everything pays."""
    draft = (Cost(at=1, microseconds=1000.0),) if cheap else ()
    verify = (Cost(at=1, microseconds=9000.0), Cost(at=TOKENS, microseconds=9000.0 + TOKENS)) if cheap else ()
    return VerificationPolicy(mode=mode, cap=cap, draft_costs=draft, verify_costs=verify)
