"""A proposal of the operator's own through whole passes: told, carried out by a canary where asked, remembered."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from paceline_operator.clock import rfc3339
from paceline_operator.tuning import decide
from paceline_operator.tuning.model import Interval, Restarts, Step
from tests.unit.test_reconcile_rollout import BEFORE, Stage

APPLY = {**BEFORE, "rollout": {**BEFORE["rollout"], "proposals": "Apply"}}
START_SECONDS = 90.0


class Started(Stage):
    """Pods that took a minute and a half from start to ready."""

    def _placed(self) -> None:
        super()._placed()
        begun = rfc3339(self.clock.now() - timedelta(seconds=START_SECONDS))
        for track in ("stable", "canary"):
            for pod in self.pods(track):
                if pod["status"]["phase"] == "Running":
                    pod["status"].setdefault("startTime", begun)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Engines without a drafter gave more, for sure."""
    real = decide.step

    def found(*arguments: Any, **named: Any) -> Step:
        better = Interval(0.85, 0.84, 0.86)
        return replace(real(*arguments, **named), restarts=Restarts(without_drafter=better))

    monkeypatch.setattr(decide, "step", found)
    return Started(tmp_path)


def command(stage: Started, name: str = "demo") -> str:
    return " ".join(stage.kube.find("Deployment", name)["spec"]["template"]["spec"]["containers"][0]["args"])


async def test_by_default_it_is_told_once_and_nothing_is_restarted(stage: Started) -> None:
    stage.apply(BEFORE)
    await stage.go(8)
    (told,) = stage.status["proposals"]
    assert (told["reason"], told["restartSeconds"], told["gainPermille"]) == ("NoDrafter", 90, 176)
    assert told["gainLowPermille"] == 163
    assert told["changes"] == [{"path": "speculation.enabled", "value": "false"}]
    assert len(stage.events("NoDrafter")) == 1
    assert list(stage.deployments()) == ["demo"]
    assert "--speculative-config" in command(stage)
    assert [record["visits"] for record in stage.status["boots"]] == [1]
    stage.writes()
    await stage.go(4)
    assert ("APPLY", "Deployment") not in stage.writes()


async def test_where_asked_it_goes_through_a_canary_and_the_boot_before_is_remembered(stage: Started) -> None:
    stage.apply(APPLY)
    await stage.go(8)
    await stage.until("Canary")
    assert "--speculative-config" not in command(stage, "demo-canary")
    assert "--speculative-config" in command(stage)
    assert stage.status["rollout"]["own"] is True
    await stage.until("Steady")
    await stage.go(3)
    assert "--speculative-config" not in command(stage)
    now, before = stage.status["boots"]
    assert {"path": "speculation.enabled", "value": "false"} in now["fields"]
    assert {"path": "speculation.enabled", "value": "true"} in before["fields"]
    assert (before["leftAt"], "leftAt" in now) == (now["since"], False)
    assert stage.status["proposals"] == [], "there is no drafter any more"
    (applied,) = stage.status["rollout"]["applied"]
    assert applied["reason"] == "NoDrafter"
    assert stage.kube.find("SpeculativeServing", "demo")["spec"] == APPLY, "the user's spec is never written"


async def test_a_user_who_writes_the_field_has_the_last_word(stage: Started) -> None:
    off = {**BEFORE, "speculation": {"method": "ngram", "enabled": False}}
    stage.apply(off)
    await stage.go(6)
    assert "--speculative-config" not in command(stage)
    assert stage.status.get("proposals", []) == []
