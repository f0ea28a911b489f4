"""Pods that mean harm, beside a serving that is well: the operator reads that one on time, stays small, goes nowhere
else, and says of each bad one what is wrong."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from tests.cluster.decoding import Decoding
from tests.cluster.operators import KEY, Operator, Place
from tests.cluster.stand_ins import SPEC, control, pod_of, run_pod, token
from tests.harness.objects import merged
from tests.security import hostile

pytestmark = pytest.mark.cluster

PERIOD_SECONDS = 2
LATE_SECONDS = 2.0 * PERIOD_SECONDS
"""A reading of the serving that is well may come a period late, on a machine that other suites share."""
WATCHED_SECONDS = 9.0
MAX_RSS_MIB, MAX_GROWTH_MIB = 250.0, 80.0
WELL, METADATA = "127.62.1.1", "127.62.1.254"
TUNED = merged(SPEC, {"tuning": {"intervalSeconds": PERIOD_SECONDS}})
REASONS = {"MalformedAnswer", "PodNotAnswering", "EngineSeriesMissing", "PluginAbsent", "EngineWarmingUp"}


def rss_mib(operator: Operator) -> float:
    status = Path(f"/proc/{operator.daemon.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


def gaps(readings: list[float], since: float) -> list[float]:
    """Seconds between two readings after `since`."""
    return [later - earlier for earlier, later in pairwise(at for at in readings if at >= since)]


def test_bad_pods_delay_no_other_and_lead_nowhere(place: Place, operator: Operator) -> None:
    met: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    answers = {
        **hostile.KINDS,
        "redirect": hostile.redirect(f"http://{METADATA}:8000/latest/meta-data/"),
        "million": None,
    }
    addresses = {name: f"127.62.2.{number}" for number, name in enumerate(answers, 1)}
    place.serve("well", **TUNED)
    place.serve("bad", **merged(TUNED, {"replicas": len(answers)}))
    place.serve("metrics", **merged(TUNED, {"replicas": 2, "slo": {"ttftP95Milliseconds": 500}}))
    decoding = Decoding()
    with ExitStack() as stack:
        stack.enter_context(hostile.listening(METADATA, naming.SERVING_PORT, hostile.garbage, elsewhere))
        secret = token(place, f"well-token-{key_version(KEY.encode())}")
        stack.enter_context(control(WELL, decoding, (secret,)))  # type: ignore[arg-type]
        run_pod(place, pod_of(place, "well"), WELL)
        place.condition("well", "MetricsAvailable", "MetricsFound")
        before = rss_mib(operator)
        for name, answer in answers.items():
            address = addresses[name]
            stack.enter_context(hostile.engine(address, answer, answer or hostile.million, met))
        for pod, address in zip(pods(place, "bad", len(answers)), addresses.values(), strict=True):
            run_pod(place, pod, address)
        for number, pod in enumerate(pods(place, "metrics", 2)):  # a sound control port, and a page without end
            address = f"127.62.3.{number + 1}"
            secret = token(place, f"metrics-token-{key_version(KEY.encode())}")
            stack.enter_context(control(address, Decoding(), (secret,)))  # type: ignore[arg-type]
            stack.enter_context(
                hostile.listening(address, naming.SERVING_PORT, (hostile.huge, hostile.million)[number], met)
            )
            run_pod(place, pod, address)
        begun = time.time()
        place.wait("every bad pod to be asked", lambda: set(addresses.values()) <= set(met))
        highest = before
        while time.time() - begun < WATCHED_SECONDS:
            highest = max(highest, rss_mib(operator))
            assert operator.healthy()
            time.sleep(0.1)
        late = [gap for gap in gaps(decoding.read, begun) if gap > PERIOD_SECONDS + LATE_SECONDS]
        seen = gaps(decoding.read, begun)
        print(f"readings {len(seen)}, longest gap {max(seen):.2f} s, RSS {before:.0f} to {highest:.0f} MiB")
        print(f"{sum(met.values())} bad answers of {len(met)} addresses")
        assert not late
        assert len(seen) >= WATCHED_SECONDS / PERIOD_SECONDS / 2
        assert highest < min(MAX_RSS_MIB, before + MAX_GROWTH_MIB)
        assert not elsewhere, "a redirect was followed"
        bad = place.conditions("bad")["MetricsAvailable"]
        assert bad["status"] == "False"
        assert bad["reason"] in REASONS
        assert len(bad["message"]) < 4096
        assert place.conditions("well")["MetricsAvailable"]["reason"] == "MetricsFound"


def pods(place: Place, serving: str, number: int) -> list[str]:
    """Names of the serving's pods, once there are so many."""

    def found() -> list[str] | None:
        mine = [p for p in place.list("Pod") if p["metadata"]["labels"].get(naming.LABEL_SERVING) == serving]
        return sorted(str(p["metadata"]["name"]) for p in mine) if len(mine) == number else None

    return list(place.wait(f"{number} pods of {serving}", found))
