"""A workload that the API refuses whenever it is tried: it is told once, and nothing is written because time passed."""

from __future__ import annotations

import json

import pytest

from paceline_operator.clients.kube import InvalidError
from tests.world import SPEC, World


async def test_a_workload_that_is_refused_again_and_again_is_told_once(world: World) -> None:
    await world.serving.run(full=True)
    refused = InvalidError(422, "Invalid", "spec.template.labels: not a label")
    world.kube.refuse[("APPLY", "Deployment")] = refused
    world.apply({**SPEC, "engine": {"podTemplate": {"metadata": {"labels": {"a": "not a label"}}}}})
    seen = []
    for _ in range(4):
        with pytest.raises(InvalidError):
            await world.serving.run(full=True)
        seen.append((json.dumps(world.status, sort_keys=True), len(world.events("RollingOut"))))
        world.clock.advance(3600)
    assert world.condition("Progressing") == ("False", "ApplyFailed")
    assert seen[0][1] == 1
    assert set(seen) == {seen[0]}
    world.kube.refuse.clear()
    world.apply(SPEC)
    await world.serving.run(full=True)
    assert world.condition("Progressing")[1] != "ApplyFailed"
