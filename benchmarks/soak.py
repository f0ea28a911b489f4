"""`make soak`: ten minutes of a real CPU engine under load whose policy changes every second. One JSON line.

Fails where a request failed, a sample was lost or repeated, or the engine core's memory grew in the second half of the
run by more than MAX_GROWTH_MIB. (The first half is not judged: the KV cache's pages become resident as they are used.)

    python -m benchmarks.soak [seconds]
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.engine.engines import MODEL, RealEngine
from tests.engine.soaking import lost, soak

SECONDS = 600.0
SEED = 20
MAX_GROWTH_MIB = 16.0
RESULTS = Path(__file__).parent / "results" / "cpu"


def growth(memory: list[dict[str, Any]]) -> float:
    """MiB between the medians of the third and the last quarter."""
    sizes = [look["rss_kib"] / 1024 for look in memory]
    half, last = len(sizes) // 2, len(sizes) * 3 // 4
    third, fourth = sorted(sizes[half:last]), sorted(sizes[last:])
    return fourth[len(fourth) // 2] - third[len(third) // 2] if third and fourth else 0.0


def main() -> int:
    """Run, print, keep; exit status 1 where something is wrong."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory() as folder:
        engine = RealEngine(Path(folder), multiprocessing=True)
        try:
            result = soak(engine.wait_ready(), seconds, SEED)
            version = engine.state().engine_version
        finally:
            engine.stop()
    grown = growth(result["memory"])
    problems = lost(result) + result["failures"]
    if grown > MAX_GROWTH_MIB:
        problems.append(f"memory grew by {grown:.1f} MiB in the second half")
    where = {"vllm": version, "model": MODEL, **environment()}
    line = json.dumps({"environment": where, "memory_growth_mib": grown, "problems": problems, **result})
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "soak.json").write_text(f"{line}\n")
    print(line)
    return 1 if problems else 0


def environment() -> dict[str, str]:
    """What of a machine a result depends on, and the day."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"python": platform.python_version(), "cpu": _cpu(), "day": day}


def _cpu() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{len(models)} x {models[0].partition(':')[2].strip()}" if models else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
