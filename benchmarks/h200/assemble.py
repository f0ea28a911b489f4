"""From what a session measured to the figures that are quoted: plugin.json and closed_loop.json.

Usage: assemble.py SESSION_FOLDER [benchmarks/results/h200]. Copies the session's own files there, logs aside, over
those of earlier sessions, so that every stage is the newest of its kind, and adds the two. What was never measured is
null.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scale import SCALE

RESULTS = Path(__file__).resolve().parents[1] / "results" / "h200"
KEPT = (".json", ".csv")
EXPECTED = {k: 1 + sum(SCALE.rates[:k]) for k in SCALE.ladder}
"""Tokens of a request's step under the synthetic rates."""


def read(folder: Path, name: str) -> dict[str, Any]:
    """`name`.json; empty where the session has none."""
    path = folder / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def rate(windows: Sequence[Mapping[str, Any]]) -> float:
    """Tokens per second over all windows."""
    return float(sum(w["tokens"] for w in windows) / sum(w["seconds"] for w in windows))


def without_luck(windows: Sequence[Mapping[str, Any]]) -> float:
    """The same at one request, had every step accepted exactly what the synthetic rates promise.

    One request draws some hundred drafts in a window, so luck alone moves its tokens by 1-2 %.
    """
    tokens = 0.0
    for w in windows:
        steps = sum(w["k"].values())
        decode = max(0.0, 1 - w["started"] / steps) if steps else 0.0
        tokens += w["started"] + decode * sum(n * EXPECTED[int(k)] for k, n in w["k"].items())
    return tokens / float(sum(w["seconds"] for w in windows))


def plugin(folder: Path) -> dict[str, Any]:
    """The plugin's speed, cost and truth."""
    lane, retune = read(folder, "lane_plugin"), read(folder, "retune")
    overhead, samples = read(folder, "overhead").get("by_load", {}), read(folder, "samples")
    return {
        "environment": lane.get("engines", {}).get("main"),
        "retune_ms": retune.get("retune_ms"),
        "changes": retune.get("changes"),
        "failed_requests": retune.get("failed_requests"),
        "finished_requests": retune.get("finished_requests"),
        "longest_step_ms": retune.get("longest_step_ms"),
        "overhead_pct": {load: at.get("plugin_over_none") for load, at in overhead.items()} or None,
        "control_thread_pct": {load: at.get("plugin_over_no_thread") for load, at in overhead.items()} or None,
        "hook_us": {load: at["hook_us"] for load, at in overhead.items()} or None,
        "schedule_pct": {
            load: {name: value for name, value in at.items() if name != "k0_over_no_drafter"}
            for load, at in read(folder, "boots").get("by_load", {}).items()
            if len(at) > 1
        }
        or None,
        "k0_over_no_drafter_pct": {
            load: at["k0_over_no_drafter"] for load, at in read(folder, "boots").get("by_load", {}).items()
        }
        or None,
        "cost_error_pct_max": samples.get("cost_error_pct_max"),
        "acceptance_error_points_max": samples.get("acceptance_error_points_max"),
        "steps_off_full_graph": samples.get("steps_off_full_graph"),
    }


def closed_loop(folder: Path) -> dict[str, Any]:
    """The tuner against every fixed k, the drafter-less engine, and itself with adaptive verification."""
    raw = read(folder, "closed_loop_raw")
    if not raw.get("down"):  # nothing to score
        return {}
    by_load: dict[str, Any] = {}
    for load, ks in raw["fixed"].items():
        fixed = {k: rate(windows) for k, windows in ks.items()}
        best = max(fixed, key=lambda k: fixed[k])
        at: dict[str, Any] = {"fixed_tok_s": fixed, "best_fixed_k": int(best)}
        if load in raw["off"]:
            at["off_tok_s"] = rate(raw["off"][load])
        for way in ("up", "down"):
            if load in raw[way]:
                seen = raw[way][load]
                at[way] = {
                    "tok_s": rate([seen["scored"]]), "whole_tok_s": rate([seen["first"], seen["scored"]]),
                    "table_k": seen["table_k"], "steps_by_k": seen["scored"]["k"],
                }  # fmt: skip
        if "down" in at:
            at["ratio_to_best"] = at["down"]["tok_s"] / fixed[best]
            if beside := raw.get("beside", {}).get(load):
                at["ratio_to_best_beside"] = at["down"]["tok_s"] / max(rate(windows) for windows in beside.values())
            at["ratio_to_off"] = at["down"]["tok_s"] / at["off_tok_s"] if "off_tok_s" in at else None
            if load == "1":
                exact = {k: without_luck(windows) for k, windows in ks.items()}
                at["ratio_to_best_without_luck"] = without_luck([raw["down"][load]["scored"]]) / max(exact.values())
        by_load[load] = at
    ratios = [at["ratio_to_best"] for at in by_load.values() if "ratio_to_best" in at]
    to_off = [at["ratio_to_off"] for at in by_load.values() if at.get("ratio_to_off")]
    shares = {
        k: [at["fixed_tok_s"][k] / max(at["fixed_tok_s"].values()) for at in by_load.values()]
        for k in next(iter(raw["fixed"].values()))
    }
    hindsight = max(shares, key=lambda k: sum(shares[k]))
    return {
        "environment": raw["engine"],
        "loads_measured": {way: list(raw[way]) for way in ("up", "down")},
        "ratio_to_oracle": min(ratios) if ratios else None,
        "best_fixed_k": int(hindsight),
        "worst_load_of_best_fixed": min(shares[hindsight]),
        "min_ratio_to_off": min(to_off) if to_off else None,
        "drift_pct": drift(raw),
        "tuner_with_av": with_verification(folder, by_load),
        "by_load": by_load,
        "decisions": raw.get("decisions"),
        "pass_ms": raw.get("pass_ms"),
    }


def drift(raw: Mapping[str, Any]) -> float | None:
    """Percent by which the reference cell at the end differs from the one at the start."""
    cells = raw.get("reference", [])
    return 100 * (rate([cells[-1]]) / rate([cells[0]]) - 1) if len(cells) > 1 else None


def with_verification(folder: Path, without: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tuner where AV is booted: per load, beside some fixed ways there and the tuner where it is not booted."""
    raw = read(folder, "closed_loop_verification_raw")
    if not raw.get("down"):
        return None
    by_load = {}
    for load, seen in raw["down"].items():
        mine = rate([seen["scored"]])
        other = without.get(load, {}).get("down", {}).get("tok_s")
        fixed = {way: rate([window]) for way, window in raw["fixed"].get(load, {}).items()}
        by_load[load] = {
            "tok_s": mine, "table_k": seen["table_k"], "verification": seen["verification"], "fixed_tok_s": fixed,
            "ratio_to_best_fixed_way": mine / max(fixed.values()) if fixed else None,
            "ratio_to_tuner_without_av": mine / other if other else None,
        }  # fmt: skip
    return {
        "environment": raw["engine"], "by_load": by_load, "drift_pct": drift(raw), "decisions": raw.get("decisions")
    }  # fmt: skip


def merge_lanes(session: Path, results: Path) -> None:
    """Engines and stages of the session's lanes into those that are there; a stage stands once, where it ran last."""
    new = {path.name: json.loads(path.read_text()) for path in sorted(session.glob("lane_*.json"))}
    ran = {stage for lane in new.values() for stage in lane["stages"]}
    for path in sorted({results / name for name in new} | set(results.glob("lane_*.json"))):
        lane = json.loads(path.read_text()) if path.exists() else {"engines": {}, "stages": {}}
        stages = {name: stage for name, stage in lane["stages"].items() if name not in ran}
        more = new.get(path.name, {"engines": {}, "stages": {}})
        lane |= {"engines": lane["engines"] | more["engines"], "stages": stages | more["stages"]}
        path.write_text(json.dumps(lane, indent=1) + "\n")


def main() -> None:
    """Copy and add."""
    session = Path(sys.argv[1])
    results = Path(sys.argv[2]) if len(sys.argv) > 2 else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    for path in sorted(session.iterdir()):
        if path.suffix in KEPT and not path.name.startswith((".", "lane_")):
            shutil.copyfile(path, results / path.name)
    merge_lanes(session, results)
    for name, found in (("plugin", plugin(results)), ("closed_loop", closed_loop(results))):
        if found:
            (results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
