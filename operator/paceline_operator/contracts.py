"""The output contract between rollouts, where it is asked for: at a low rate, one speculating pod beside a plain one.

Speculation that changes what comes out is not seen in any count: an answer is held to the contract, never to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline_operator import events
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clock import Clock
from paceline_operator.memory import Remembered
from paceline_operator.plan import Object, Target
from paceline_operator.rollout.canary import ONCE, wilson
from paceline_operator.rollout.contract import ASKED, Answers, counted, keeps, request
from paceline_operator.verdicts import is_plain, is_ready


async def asked(
    client: EngineClient,
    clock: Clock,
    memory: Remembered,
    serving: SpeculativeServing,
    targets: Sequence[Target],
    pods: Sequence[Object],
) -> tuple[events.Event, ...]:
    """One question to each side where it is due, and what is to be told. No answer is none, and not a broken one."""
    every, contract = serving.spec.safety.contract_every_seconds, serving.spec.rollout.canary.output_contract
    ready = {pod["metadata"]["name"]: is_plain(pod) for pod in pods if is_ready(pod)}
    sides = [next((one for one in targets if ready.get(one.pod) is plain), None) for plain in (False, True)]
    due = memory.contract_at is None or clock.monotonic() - memory.contract_at >= (every or 0)
    if every is None or contract is None or not due or None in sides:
        return ()
    memory.contract_at = clock.monotonic()
    found = []
    for past, target in zip(memory.contract, sides, strict=True):
        assert target is not None
        body = request(contract, serving.spec.model.served_name or serving.metadata.name)
        answer = await client.complete(target.serving_url, body)
        found.append(counted(past, keeps(contract, answer)) if answer is not None else past)
    speculating, plain = found
    memory.contract = (speculating, plain)
    if min(speculating.given, plain.given) < ASKED:
        return ()
    memory.contract = (Answers(), Answers())
    if wilson(speculating.broken, speculating.given, ONCE).low <= wilson(plain.broken, plain.given, ONCE).high:
        return ()
    text = (
        f"{speculating.broken} of {speculating.given} answers of speculating pods broke rollout.canary.outputContract, "
        f"{plain.broken} of {plain.given} of plain pods did"
    )
    return (events.Event(events.WARNING, Reason.OUTPUT_CONTRACT, text),)
