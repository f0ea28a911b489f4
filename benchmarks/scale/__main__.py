"""Run the trials, keep the result, print one JSON line, which is the last, whatever happened.

usage: python -m benchmarks.scale N [--points N ...] [--seconds N]
Without --points, N/100, N/10 and N servings (ten at least), each on a control plane of its own, the fewest first. All
of it takes --seconds at most: where they are not enough, the line says how many servings had converged by then, and
parts of the measurement are left out. The exponents are fitted over all results that are kept, of N servings or fewer.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import resource
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.scale.measure import exponent
from benchmarks.scale.trial import Found, Plan, run
from paceline_operator.calm import patience
from tests.harness.binaries import ensure_built

ENDING_SECONDS = 60.0
"""For what ends a run: processes, and a look through all logs for secrets."""
LEAST_SECONDS = 240.0
"""With less left, a run would not show anything."""
RESULTS = Path(__file__).resolve().parents[1] / "results" / "scale"
GOALS = {
    "converge_seconds": 120.0,
    "converge_operator_cpu_seconds": 60.0,
    "rss_mb": 250.0,
    "cores_steady": 1.0,
    "idle_writes": 0,
    "loop_lag_p99_seconds": 10.0,
    "cpu_exponent": 1.05,
    "rss_exponent": 1.05,
}


def main() -> None:
    """Run, keep, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("servings", type=int)
    parser.add_argument("--points", type=int, nargs="*", help="numbers of servings to run; else N/100, N/10 and N")
    parser.add_argument("--seconds", type=float, default=1500.0, help="for all of it, at most")
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds
    ensure_built()
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # an engine is a socket
    points = sorted(asked.points or {max(10, asked.servings // share) for share in (100, 10, 1)})
    RESULTS.mkdir(parents=True, exist_ok=True)
    for point in points:
        keep = partial(_keep, RESULTS / f"{point}.json", _environment())
        keep({"servings": point})
        if time.monotonic() + LEAST_SECONDS > until:
            keep({"servings": point, "error": "not run: no time was left for it"})
            continue
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            try:
                # Behind the numbers of the last minute comes what waited to be told with others.
                plan = Plan(rest=Plan.rest + patience(point), until=until - ENDING_SECONDS)
                run(point, plan, Path(folder) / "plane", keep)
            except Exception as error:  # what was found before stays, and the line is printed
                traceback.print_exc()
                keep(_kept(RESULTS / f"{point}.json") | {"error": repr(error)[:500]})
    print(json.dumps(line(max(points))))


def _keep(path: Path, environment: dict[str, Any], found: Found) -> None:
    """With the load of the machine as it is now, beside that of before."""
    path.write_text(
        json.dumps({**found, "environment": environment | {"load_average_after": _load()}}, indent=2) + "\n"
    )


def _kept(path: Path) -> Found:
    found: Found = json.loads(path.read_text())
    return {name: value for name, value in found.items() if name != "environment"}


def line(servings: int) -> dict[str, Any]:
    """What the committed results say of `servings`, and of all that were run with fewer."""
    runs = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    runs = sorted((one for one in runs if one["servings"] <= servings), key=lambda one: int(one["servings"]))
    last, steady = runs[-1], [one for one in runs if one.get("converge_seconds")]
    return {
        "servings": last["servings"],
        "converged": last.get("converged", 0),
        "converge_seconds": last.get("converge_seconds"),
        "converge_waited_seconds": last.get("converge_waited_seconds"),
        "converge_operator_cpu_seconds": last.get("converge_operator_cpu_seconds"),
        "error": last.get("error"),
        "left_out": last.get("left_out", []),
        "rss_mb": last.get("rss_mb"),
        "cores_steady": last.get("steady_cores"),
        "idle_writes": last.get("idle", {}).get("writes"),
        "loop_lag_p99_seconds": last.get("steady_lag", {}).get("p99_seconds"),
        "cpu_exponent": exponent([(one["servings"], one.get("steady_cores", 0)) for one in steady]),
        "rss_exponent": exponent([(one["servings"], one.get("rss_mb", 0)) for one in steady]),
        "goals": GOALS,
    }


def _environment() -> dict[str, Any]:
    models = [row for row in Path("/proc/cpuinfo").read_text().splitlines() if row.startswith("model name")]
    return {
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "cpus": len(models),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "load_average": _load(),
        "note": "operator, harness, API server, etcd and controllers share these processors",
    }


def _load() -> list[float]:
    return list(map(float, Path("/proc/loadavg").read_text().split()[:3]))


if __name__ == "__main__":
    main()
