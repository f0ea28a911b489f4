"""What engines answer, for tests of the client: good answers, and a transport that gives them."""

import gzip
import json
from typing import Any

import httpx

from paceline_engine.protocol import (
    AcceptanceCell,
    Capabilities,
    CostCell,
    Feature,
    Gauges,
    Policy,
    PolicyAck,
    Samples,
    State,
    VerificationFeature,
)
from paceline_operator.clients.answers import EngineFailure
from paceline_operator.clients.engine import EngineClient

CONTROL = "http://control.test:8765"
SERVING = "http://serving.test:8000"
TOKEN = "0123456789abcdef"
METRICS = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 2.0\nprocess_open_fds 3\n'

STATE = State(
    plugin_version="0.1.0",
    engine_version="0.32.0",
    boot_id="b1",
    uptime_seconds=3.0,
    capabilities=Capabilities(
        live_k=Feature(supported=True),
        adaptive_verification=VerificationFeature(supported=False, reason="V1 runner"),
        max_k=5,
        ladder=(5, 3, 0),
        max_num_seqs=4,
        method="ngram",
        runner="V1",
    ),
    generation=2,
    table=(5, 5, 3, 3, 0),
    k_in_force=3,
    steps_by_k={3: 10, 5: 2},
    probe_steps_by_k={0: 8},
    policy_errors=0,
)
SAMPLES = Samples(
    boot_id="b1",
    cursor="b1:7",
    reset=False,
    lost_windows=0,
    from_seconds=1.0,
    to_seconds=3.0,
    cells=(
        CostCell(
            load=2,
            context=0,
            k_drafted=3,
            k_verified=3,
            probe=False,
            steps=10,
            request_steps=20,
            emitted=41,
            seconds=0.5,
            seconds_squared=0.03,
            histogram={220: 10},
        ),
    ),
    acceptance=(AcceptanceCell(k=3, load=2, request_steps=20, drafts=12, drafted=(12, 12, 11), accepted=(9, 7, 5)),),
    excluded_steps={"prefill": 2},
    steps_by_k={3: 10},
    probe_steps_by_k={},
    gauges=Gauges(running=2, waiting=0, kv_cache_usage=0.1, prompt_tokens=100, generation_tokens=50),
)
GZIPPED = gzip.compress(STATE.model_dump_json(by_alias=True).encode())
POLICY = Policy(generation=3, table=(0, 0, 0, 0, 0))


def wire(model: Any) -> dict[str, Any]:
    return json.loads(model.model_dump_json(by_alias=True))


def answering(state: Any = None, samples: Any = None, metrics: Any = None, policy: Any = None) -> httpx.MockTransport:
    """A pod whose paths answer with a Response, raise an exception, or (None) refuse the connection."""
    answers = {"/state": state, "/samples": samples, "/metrics": metrics, "/policy": policy}

    def handle(request: httpx.Request) -> httpx.Response:
        answer = answers[request.url.path]
        if answer is None:
            raise httpx.ConnectError("Connection refused")
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, httpx.Response)
        return answer

    return httpx.MockTransport(handle)


def ok(model: Any) -> httpx.Response:
    return httpx.Response(200, json=model if isinstance(model, dict) else wire(model))


async def observe(transport: httpx.AsyncBaseTransport, cursor: str | None = "b1:6") -> Any:
    async with EngineClient(transport) as client:
        return await client.observe_engine("pod-0", CONTROL, SERVING, TOKEN, cursor)


async def push(transport: httpx.AsyncBaseTransport) -> PolicyAck | EngineFailure:
    async with EngineClient(transport) as client:
        return await client.push(CONTROL, TOKEN, POLICY)
