"""What runs in the worker processes: a look at their live objects, their graphs within reach, and adaptive verification
(AV) as it was asked for.

The engine core calls these functions in every rank through vLLM's `Executor.collective_rpc`, which takes callables and
pickles these by name: nothing of a worker is patched, the package only has to be importable there. They never raise: a
rank that fails where another answers would leave a reply unread, and every later call would read the wrong one.

vLLM's manager (0.32 and 0.33: v1/worker/gpu/spec_decode/adaptive_verification.py) chooses in every step how many of
the scheduled drafts are verified: the first maximum of (sampling requests + survival of the best b drafts) /
(draft_ms[requests] + verify_ms[other tokens + b]) over b, at most `_max_total_logits` - requests x bonus tokens. All of
that is on the host, so nothing in here waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from paceline_engine import graphs
from paceline_engine.estimate import Estimate
from paceline_engine.protocol import Cost, Verification, VerificationPolicy

SEAM = ("get_num_tokens", "set_cost_curves", "cost_tables", "num_bonus_tokens", "_max_total_logits")
"""What is needed of the manager."""
NAME_LENGTH = 128
WARM_REQUESTS = (1, 2, 8)
"""torch.compile makes code of its own for one request, and from the second size on for any."""
_OURS = "_paceline"
"""Where the manager keeps our half of it."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Findings:
    """What a worker has."""

    attention_backend: str = ""
    graph_requests: dict[int, int] = field(default_factory=dict)
    """As in Capabilities."""
    adaptive: bool = False
    """AV is at work."""
    absent: str = ""
    """Why AV cannot be controlled though it is at work."""
    device: str = ""
    """As Identity's gpu; so are the next two."""
    graph_mode: str = ""
    max_capture_size: int = 0


@dataclass(frozen=True)
class Report:
    """What one rank does, and its counts since boot."""

    mode: Verification
    drafted: int = 0
    verified: int = 0
    error: str = ""
    """Why the change was not applied."""


def inspect(worker: Any, ks: tuple[int, ...], max_requests: int) -> Findings:
    """Look at what cannot be seen from the engine core: each part by itself, empty where it is of another shape.

    Before that, put every full graph within reach of the steps it fits. Called before the first request.
    """
    _or_empty(lambda: graphs.offer(worker.model_runner), 0)
    try:
        adaptive, absent = _manager(worker) is not None, ""
    except Exception as error:
        adaptive, absent = False, _text(error)
    if adaptive:
        try:
            _trim(worker)
        except Exception as error:
            absent = _text(error)
        _or_empty(lambda: warm(_manager(worker)), None)
    return Findings(
        attention_backend=_or_empty(lambda: _backends(worker.model_runner), ""),
        graph_requests=_or_empty(lambda: _graphs(worker.model_runner, ks, max_requests), {}),
        adaptive=adaptive,
        absent=absent,
        device=_or_empty(lambda: _device(worker), ""),
        graph_mode=_or_empty(lambda: str(_compilation(worker).cudagraph_mode.name), ""),
        max_capture_size=_or_empty(lambda: _largest(_compilation(worker)), 0),
    )


def warm(manager: Any) -> None:
    """Compile now what the first step that verifies fewer drafts than it has would compile while requests wait: 3 s on
    an H200 with vLLM 0.33. Raises what is raised where the manager is of another shape."""
    import torch
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification

    steps = int(manager.num_speculative_steps)
    chances, drafts = manager._confidence_probs, manager._batch_draft_capacity
    with torch.inference_mode():  # as the runner's own steps: else it is compiled once more
        for requests in WARM_REQUESTS:
            if requests * steps > 1 and requests <= len(drafts):
                places = torch.arange(requests, dtype=torch.int64, device=chances.device)
                adaptive_verification._assign_draft_token_budget_compiled(
                    chances, places, drafts[:requests].fill_(steps), max(1, requests * steps // 2), steps
                )


def verify(worker: Any, policy: VerificationPolicy | None) -> Report:
    """Verify by `policy` from the next step on; None: as the engine booted."""
    return _reported(worker, lambda trim: trim.apply(policy))


def report(worker: Any) -> Report:
    """The same without a change."""
    return _reported(worker, Trim.report)


class Trim:
    """One rank's AV manager in our hands: how much of the drafts it verifies, and how much that was."""

    def __init__(self, manager: Any, estimator: Any = None) -> None:
        """Raises AttributeError where the manager is of another shape, ValueError where it has no costs yet."""
        if missing := [name for name in SEAM if not hasattr(manager, name)]:
            raise AttributeError(f"{type(manager).__name__} has no {', '.join(missing)}")
        if manager.cost_tables is None:
            raise ValueError("the engine has not measured its step costs")
        self._manager = manager
        self._choose = manager.get_num_tokens
        self._tables = manager.cost_tables
        self._limit = int(manager._max_total_logits)
        self._bonus = int(manager.num_bonus_tokens)
        self._estimate = Estimate(manager, estimator)
        self._policy: VerificationPolicy | None = None
        self._cap: int | None = None
        self._drafted = 0
        self._verified = 0
        manager.get_num_tokens = self.get_num_tokens

    def get_num_tokens(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        """The manager's own choice of this step's tokens (drafts it verifies included), bounded and counted.

        `_max_total_logits` bounds requests and drafts together, so the bound of drafts alone moves with the requests.
        It is never raised: what the engine booted with is what its sampler can hold.
        """
        if self._cap is not None:
            room = len(num_tokens_per_req) * self._bonus + self._cap
            self._manager._max_total_logits = min(self._limit, room)
        tables = self._manager.cost_tables
        if self._estimate.lost(num_tokens_per_req):
            self._manager.cost_tables = _all_pay(tables)
        try:
            tokens: int = self._choose(num_tokens_per_req, draft_tokens)
        finally:
            self._manager.cost_tables = tables
        drafted = sum(map(len, draft_tokens.values()))
        self._drafted += drafted
        self._verified += tokens - sum(num_tokens_per_req.values()) + drafted
        return tokens

    def apply(self, policy: VerificationPolicy | None) -> Report:
        """Nothing has changed where it raises: everything that can fail comes first.

        New curves are broadcast to the tensor-parallel group by vLLM itself, so all its ranks must come here.
        """
        if policy == self._policy:
            return self.report()
        tables = self._tables
        if policy is not None and policy.draft_costs:
            self._manager.set_cost_curves(_points(policy.draft_costs), _points(policy.verify_costs))
            tables = self._manager.cost_tables
        if policy is not None and policy.mode is Verification.ALL:
            tables = _all_pay(tables)
        self._manager.cost_tables = tables
        self._manager._max_total_logits = self._limit
        self._cap = policy.cap if policy is not None else None
        self._policy = policy
        return self.report()

    def report(self) -> Report:
        """The mode in force, and the counts."""
        mode = self._policy.mode if self._policy is not None else Verification.ADAPTIVE
        return Report(mode, self._drafted, self._verified)


def _manager(worker: Any) -> Any:
    return getattr(worker.model_runner, "adaptive_verification", None)


def _trim(worker: Any) -> Trim:
    manager = _manager(worker)
    if manager is None:
        raise ValueError("there is no adaptive verification in this worker")
    ours: Trim | None = getattr(manager, _OURS, None)
    if ours is None:
        speculator = getattr(worker.model_runner, "speculator", None)
        ours = Trim(manager, getattr(speculator, "acceptance_estimator", None))
        setattr(manager, _OURS, ours)
    return ours


def _reported(worker: Any, act: Callable[[Trim], Report]) -> Report:
    as_it_is = Report(Verification.ADAPTIVE)
    try:
        trim = _trim(worker)
        as_it_is = trim.report()
        return act(trim)
    except Exception as error:
        return replace(as_it_is, error=_text(error))


def _all_pay(tables: Any) -> Any:
    """Cost tables under which every further draft pays, whatever its chance: more tokens cost less.

    A constant one is not enough: it leaves drafts out whose survival is lost in the rounding of the sum.
    """
    import numpy as np

    return tables[0], np.linspace(2.0, 1.0, len(tables[1]))


def _points(curve: Iterable[Cost]) -> list[tuple[int, float]]:
    """(size, milliseconds), as vLLM keeps them."""
    return [(cost.at, cost.microseconds / 1000) for cost in curve]


def _device(worker: Any) -> str:
    if worker.device.type == "cpu":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
        return f"CPU {model}".strip()[:NAME_LENGTH]
    import torch

    return str(torch.cuda.get_device_name(worker.device))[:NAME_LENGTH]


def _compilation(worker: Any) -> Any:
    return worker.model_runner.vllm_config.compilation_config


def _largest(compilation: Any) -> int:
    """The runner may have found in its start that there is nothing to capture."""
    if compilation.cudagraph_mode.name == "NONE":
        return 0
    return int(compilation.max_cudagraph_capture_size or 0)


def _backends(runner: Any) -> str:
    names = (group.backend.get_name() for groups in runner.attn_groups for group in groups)
    return ", ".join(dict.fromkeys(names))


def _graphs(runner: Any, ks: tuple[int, ...], max_requests: int) -> dict[int, int]:
    """For each k the most requests for which the runner itself would replay a full graph, by asking it."""
    replays = _replays_v2(runner) if hasattr(runner, "cudagraph_manager") else _replays_v1(runner)
    return {
        k: requests
        for k in ks
        if (requests := next((n for n in range(max_requests, 0, -1) if replays(n, k + 1)), None)) is not None
    }


def _replays_v2(runner: Any) -> Callable[[int, int], bool]:
    manager = runner.cudagraph_manager
    if manager is None:
        return lambda requests, tokens: False

    def replays(requests: int, tokens: int) -> bool:
        found = manager.dispatch(requests, requests * tokens, tokens, 0, max_query_len=tokens)
        return bool(found.cg_mode.name == "FULL")

    return replays


def _replays_v1(runner: Any) -> Callable[[int, int], bool]:
    dispatcher = runner.cudagraph_dispatcher

    def replays(requests: int, tokens: int) -> bool:
        mode, _ = dispatcher.dispatch(requests * tokens, uniform_decode=tokens == dispatcher.uniform_decode_query_len)
        return bool(mode.name == "FULL")

    return replays


def _or_empty(look: Callable[[], _T], empty: _T) -> _T:
    try:
        return look()
    except Exception:  # another runner: then it is not known
        return empty


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
