"""A scheduler of the same shape as vLLM's, on a clock of its own, that drives the plugin's hooks as vLLM would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from paceline_engine.protocol import Samples
from paceline_engine.steps import StepHooks
from tests.unit.engine_parts import MAX_K, Parts


class Engine:
    """Schedules what it is told, in vLLM's own order of calls, on a clock of its own. In seconds and requests."""

    def __init__(self, *, live: bool = True, lag: int = 1, stats: bool = False) -> None:
        """`stats`: count drafts, as vLLM does without --disable-log-stats."""
        self.log_stats = stats
        self.now = 0.0
        self.parts = Parts()
        self.failures: list[Exception] = []
        self.hooks = StepHooks(
            self.parts.policy,
            self.parts.digest,
            live=live,
            lag=lag,
            counted=stats,
            on_failure=self.failures.append,
            clock=lambda: self.now,
        )
        self.cut: dict[str, int] = {}
        """Tokens that are left of those of a request that stops, as vLLM cuts them."""
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.finished_req_ids: set[str] = set()
        self.dynamic_sd_lookup: Any = self.parts.policy

    def admit(self, name: str, prompt: int) -> None:
        request = SimpleNamespace(
            request_id=name, num_tokens=prompt, num_computed_tokens=0, num_output_placeholders=0, drafts=0
        )
        self.requests[name] = request
        self.running.append(request)

    def finish(self, name: str) -> None:
        self.running.remove(self.requests.pop(name))
        self.finished_req_ids.add(name)

    def schedule(self, chunks: dict[str, int] | None = None, resumed: tuple[str, ...] = ()) -> Any:
        """A step of the named prompt chunks (tokens) and of every request that decodes."""
        if not self.hooks.in_flight:
            self.hooks.begin()
        output = self.compose(chunks or {}, resumed)
        self.hooks.scheduled(self, output)
        self.finished_req_ids = set()
        for name, tokens in output.num_scheduled_tokens.items():
            self.requests[name].num_computed_tokens += tokens
        return output

    def compose(self, chunks: dict[str, int], resumed: tuple[str, ...]) -> Any:
        """What vLLM would put into its SchedulerOutput, as far as the hooks read it."""
        decoding = [r for r in self.running if r.request_id not in chunks and r.num_computed_tokens + 1 >= r.num_tokens]
        scheduled = chunks | {r.request_id: 1 + r.drafts for r in decoding}
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name) for name in chunks if not self.requests[name].num_computed_tokens
            ],
            scheduled_cached_reqs=SimpleNamespace(
                resumed_req_ids=set(resumed), num_computed_tokens=[r.num_computed_tokens for r in decoding]
            ),
            scheduled_spec_decode_tokens={r.request_id: [7] * r.drafts for r in decoding if r.drafts},
            num_invalid_spec_tokens=None,
            num_spec_tokens_to_schedule=self.dynamic_sd_lookup[len(scheduled)] if scheduled else MAX_K,
        )

    def complete(self, output: Any, accepted: dict[str, int] | None = None, finished: str = "") -> None:
        """Its tokens are there; each request then drafts what was asked."""
        sampled: list[list[int]] = []
        for name in output.num_scheduled_tokens:
            request = self.requests.get(name)
            done = request is None or request.num_computed_tokens >= request.num_tokens
            sampled.append([1] * (1 + (accepted or {}).get(name, 0)) if done else [])
        result = SimpleNamespace(
            sampled_token_ids=sampled, req_id_to_index={name: at for at, name in enumerate(output.num_scheduled_tokens)}
        )
        if not self.hooks.counted:
            self.hooks.completed(self, output, result)
        outputs = {0: SimpleNamespace(outputs=[], scheduler_stats=None), 1: self.count(output, result)}
        for name, tokens in zip(output.num_scheduled_tokens, sampled, strict=True):
            if tokens and (request := self.requests.get(name)):
                request.num_computed_tokens -= len(output.scheduled_spec_decode_tokens.get(name, ())) + 1 - len(tokens)
                request.num_tokens += len(tokens)
                request.drafts = output.num_spec_tokens_to_schedule
        for name, kept in self.cut.items():
            del sampled[result.req_id_to_index[name]][kept:]
        if finished:
            self.finish(finished)
        self.hooks.applied(self, output, result, outputs)

    def count(self, output: Any, result: Any) -> Any:
        """What vLLM tells a front end, with the statistics of its own loop over the requests."""
        stats = None
        for name, draft in output.scheduled_spec_decode_tokens.items():
            got = result.sampled_token_ids[result.req_id_to_index[name]]
            if not (self.log_stats and got and name in self.requests):
                continue
            if stats is None:
                stats = SimpleNamespace(
                    num_draft_tokens_per_pos=[0] * MAX_K,
                    num_accepted_tokens_per_pos=[0] * MAX_K,
                    num_accepted_tokens=0,
                )
            stats.num_accepted_tokens += len(got) - 1
            for at in range(len(draft) - (output.num_invalid_spec_tokens or {}).get(name, 0)):
                stats.num_draft_tokens_per_pos[at] += 1
            for at in range(len(got) - 1):
                stats.num_accepted_tokens_per_pos[at] += 1
        told = [
            SimpleNamespace(request_id=name, new_token_ids=result.sampled_token_ids[at])
            for name, at in result.req_id_to_index.items()
            if name in self.requests and result.sampled_token_ids[at]
        ]
        return SimpleNamespace(
            outputs=told, scheduler_stats=SimpleNamespace(spec_decoding_stats=stats) if self.log_stats else None
        )

    def step(self, seconds: float = 0.01, **how: Any) -> Any:
        """One synchronous step."""
        output = self.schedule(how.pop("chunks", None))
        self.now += seconds
        self.complete(output, **how)
        return output

    def samples(self) -> Samples:
        self.now += 1.0
        self.parts.digest.run()
        assert not self.parts.digest.failures
        self.parts.recorder.tick(self.now, idle=False)
        assert not self.failures
        return self.parts.history.since(None, self.parts.gauges())
