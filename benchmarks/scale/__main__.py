"""Run the trials, keep the result, print one JSON line.

usage: python -m benchmarks.scale N [--points N ...]
Without --points, N/100, N/10 and N servings (ten at least), each on a control plane of its own. The exponents are
fitted over all results that are kept, of N servings or fewer.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.scale.measure import exponent
from benchmarks.scale.trial import Found, Plan, run
from tests.harness.binaries import ensure_built

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
    asked = parser.parse_args()
    ensure_built()
    points = asked.points or sorted({max(10, asked.servings // share) for share in (100, 10, 1)})
    RESULTS.mkdir(parents=True, exist_ok=True)
    for point in points:
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            run(point, Plan(), Path(folder) / "plane", partial(_keep, RESULTS / f"{point}.json", _environment()))
    print(json.dumps(line(asked.servings)))


def _keep(path: Path, environment: dict[str, Any], found: Found) -> None:
    path.write_text(json.dumps({"environment": environment, **found}, indent=2) + "\n")


def line(servings: int) -> dict[str, Any]:
    """What the committed results say of `servings`, and of all that were run with fewer."""
    runs = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    runs = sorted((one for one in runs if one["servings"] <= servings), key=lambda one: int(one["servings"]))
    last = runs[-1]
    return {
        "servings": last["servings"],
        "converge_seconds": last["converge_seconds"],
        "converge_operator_cpu_seconds": last["converge_operator_cpu_seconds"],
        "rss_mb": last.get("rss_mb"),
        "cores_steady": last.get("steady_cores"),
        "idle_writes": last.get("idle", {}).get("writes"),
        "loop_lag_p99_seconds": last.get("steady_lag", {}).get("p99_seconds"),
        "cpu_exponent": exponent([(one["servings"], one.get("steady_cores", 0)) for one in runs]),
        "rss_exponent": exponent([(one["servings"], one.get("rss_mb", 0)) for one in runs]),
        "goals": GOALS,
    }


def _environment() -> dict[str, Any]:
    models = [row for row in Path("/proc/cpuinfo").read_text().splitlines() if row.startswith("model name")]
    return {
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "cpus": len(models),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "load_average": list(map(float, Path("/proc/loadavg").read_text().split()[:3])),
        "note": "operator, harness, API server, etcd and controllers share these processors",
    }


if __name__ == "__main__":
    main()
