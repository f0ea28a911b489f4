"""The tuner's part of docs/h200.md: the closed loop, and what steps with prompts take. Read by report.py.

The words around the figures tell of the newest run and of those before it: they are read again with each new run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from page import NOT_MEASURED, PICTURE, number, read, table

BEFORE = ("2026-12-01-loops-2", "2026-12-01-loops", "2026-11-30-loops")
"""Folders of the closed loops before, the newest first; the second with a lost estimate of survival."""
RATIO_GOAL = 0.97
DRIFT_GOAL_PCT = 2
FULL, BELOW = 256, 192
"""The load of a full engine, and the grid's load below, by which steps of fewer requests are counted."""
SEEN = "8"
"""The load whose decision is told, as it rests on a false estimate."""


def closed_loop() -> list[str]:
    """The tuner against hindsight."""
    found = read("closed_loop")
    if "by_load" not in found:
        return [
            "## The closed loop", "",
            "Not scored here: the run ended between the way up (`closed_loop_raw.json`) and the way down. An "
            "earlier version of the tuner was measured whole: "
            "[2026-11-29](../benchmarks/results/h200/2026-11-29/README.md).", "",
        ]  # fmt: skip
    body = []
    for load, at in found["by_load"].items():
        down = at.get("down", {})
        best = at["best_fixed_k"]
        body.append(
            [
                load, number(down.get("table_k"), 0), number(down.get("tok_s"), 0), number(down.get("whole_tok_s"), 0),
                str(best), number(at["fixed_tok_s"][str(best)], 0), number(at.get("ratio_to_best"), 3),
                number(at.get("ratio_to_best_beside"), 3),
                number(at.get("off_tok_s"), 0), number(at.get("ratio_to_off")),
                number(at["up"]["tok_s"] / at["fixed_tok_s"][str(best)], 3) if "up" in at else NOT_MEASURED,
            ]
        )  # fmt: skip
    head = (
        "requests", "k chosen", "tokens/s, last 15 s", "whole visit", "best fixed k", "its tokens/s", "ratio",
        "ratio to it beside", "no drafter", "ratio", "on the way up: ratio to the best fixed k",
    )  # fmt: skip
    reached = [load for load, at in found["by_load"].items() if at.get("ratio_to_best", 0) >= RATIO_GOAL]
    lines = [
        "## The closed loop", "",
        "The operator's tuner at an interval of 2 s drives one engine up and down over the loads; scored on the last "
        "15 s of each downward visit, against every k pinned for 2 × 3 s on the way up and the drafter-less engine "
        "beside. The best of seven noisy windows is itself a little lucky, and minutes lie between; \"beside\" is the "
        "same k pinned anew, right before and after the visit. On the way up the tuner meets each load for the first "
        "time.", "",
        f"![tokens per second by load]({PICTURE})", "", *table(head, body),
        f"- Lowest ratio to the best fixed k of a load: {number(found['ratio_to_oracle'], 3)}. {RATIO_GOAL} was "
        f"wanted of all, and is reached at {' and '.join(reached) or 'no'} requests.",
        f"- The best single k in hindsight is {found['best_fixed_k']}; at its worst load it reaches "
        f"{number(found['worst_load_of_best_fixed'], 3)} of the best there.",
        f"- Lowest ratio to the engine without a drafter: {number(found['min_ratio_to_off'], 3)}.",
        f"- Drift of the reference cell over the run: {number(found['drift_pct'])} %; at most {DRIFT_GOAL_PCT} % was "
        "wanted.",
        f"- {len(found['decisions'] or [])} decisions.",
    ]  # fmt: skip
    lucky = found["by_load"].get("1", {}).get("ratio_to_best_without_luck")
    if lucky is not None:
        lines.append(f"- At 1 request, with every step at its expected acceptance, the ratio is {number(lucky, 3)}.")
    raw = read("closed_loop_raw")
    lines += ["", *_full(found, raw), *_luck(found, raw), *_estimate(found, raw)]
    adaptive = found.get("tuner_with_av")
    if adaptive:
        body = [
            [
                load, number(at["table_k"], 0), str((at["verification"] or {}).get("mode")), number(at["tok_s"], 0),
                number(at["ratio_to_tuner_without_av"]), number(at["ratio_to_best_fixed_way"]),
            ]
            for load, at in adaptive["by_load"].items()
        ]  # fmt: skip
        lines += [
            "The tuner where AV is booted and it may switch it (an engine of its own, same loads, shorter visits):", "",
            *table(("requests", "k", "AV", "tokens/s", "over the tuner without AV", "over the best pinned way"), body),
            f"Drift of the reference cell: {number(adaptive['drift_pct'])} %.", "",
            *_survival(),
        ]  # fmt: skip
    return lines


def _link(run: str) -> str:
    """To what a run before gave."""
    return f"[result](../benchmarks/results/h200/{run}/closed_loop.json)"


def _ms(windows: Sequence[Mapping[str, Any]]) -> float:
    """Of a step, over all windows."""
    return float(1000 * sum(w["seconds"] for w in windows) / sum(w["steps"] for w in windows))


def _speeds(windows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Tokens per second of each window."""
    return [w["tokens"] / w["seconds"] for w in windows]


def _believed(made: Mapping[str, Any]) -> dict[int, float]:
    """Milliseconds of a step by k, as the decision had them."""
    return {one["k"]: 1000 * one["step_seconds"]["value"] for one in made["evidence"]["candidates"]}


def _full(found: Mapping[str, Any], raw: Mapping[str, Any]) -> list[str]:
    """Which k the tuner took at a full engine, and what it believed of the steps there."""
    made = [one for one in found["decisions"] or [] if one["load"] == FULL]
    if not made:
        return []
    at = found["by_load"][str(FULL)]
    k, best = at["down"]["table_k"], at["best_fixed_k"]
    believed, windows = _believed(made[-1]), raw["fixed"][str(FULL)]
    before = [(run, read(f"{run}/closed_loop")) for run in BEFORE[:2]]
    told = [
        f"k={one['by_load'][str(FULL)]['down']['table_k']} (lowest ratio of all loads "
        f"{number(one['ratio_to_oracle'], 3)}, drift {number(one['drift_pct'])} %, {_link(run)})"
        for run, one in before
    ]
    return [
        f"At {FULL} requests the tuner took k={k}; best was k={best}. In the two runs before it took "
        f"{' and '.join(told)}. In the newest run it took what prompts come with a token from the steps of all loads, "
        f"which was to mend that and did not. In its last decision there the tuner believed that a step of k={k} takes "
        f"{number(believed[k], 1)} ms and one of k={best} {number(believed[best], 1)}; in the fixed windows they took "
        f"{number(_ms(windows[str(k)]), 1)} and {number(_ms(windows[str(best)]), 1)}. Why: "
        "[steps with prompts](#steps-with-prompts).", "",
    ]  # fmt: skip


def _luck(found: Mapping[str, Any], raw: Mapping[str, Any]) -> list[str]:
    """How far two windows of the same k differ, and a best k that was not as good on the way down."""
    windows = {k: sorted(_speeds(ws), reverse=True) for k, ws in raw["fixed"][str(FULL)].items()}
    apart = sorted(windows, key=lambda k: windows[k][0] / windows[k][-1], reverse=True)[:2]
    told = [
        f"k={k} {' and '.join(number(speed, 0) for speed in windows[k])} tokens/s, "
        f"{number(100 * (windows[k][0] / windows[k][-1] - 1), 0)} % apart"
        for k in apart
    ]
    lines = [
        f"The fixed windows are noisy. At {FULL} requests two windows of 3 s of the same k gave, where they differ the "
        f"most: {'; '.join(told)}. So a part of the ratio is the luck of the best of seven ks.",
    ]  # fmt: skip
    beside = {load: at["ratio_to_best_beside"] for load, at in found["by_load"].items() if "ratio_to_best_beside" in at}
    if beside:
        load = max(beside, key=lambda load: beside[load])
        best = str(found["by_load"][load]["best_fixed_k"])
        before, after = _speeds(raw["beside"][load][best])
        lines[0] += (
            f" At {load} requests k={best} was the best on the way up with "
            f"{number(found['by_load'][load]['fixed_tok_s'][best], 0)} tokens/s; on the way down it gave "
            f"{number(before, 0)} before the tuner's visit and {number(after, 0)} after it, and the tuner "
            f"{number(found['by_load'][load]['down']['tok_s'], 0)}."
        )
    return [*lines, ""]


def _estimate(found: Mapping[str, Any], raw: Mapping[str, Any]) -> list[str]:
    """A decision by steps that were too fast."""
    made = next((one for one in found["decisions"] or [] if str(one["load"]) == SEEN), None)
    band = re.search(r"tie band ([\d.]+)%", made["message"]) if made else None
    if made is None or band is None:
        return []
    at, k = found["by_load"][SEEN], made["to"]
    best, fixed = at["best_fixed_k"], at["fixed_tok_s"]
    steps = next(one["steps"] for one in made["evidence"]["candidates"] if one["k"] == k)
    return [
        f"At {SEEN} requests the tuner went to k={k} by an estimate of {number(_believed(made)[k])} ms a step, from "
        f"{steps} steps just after the load had risen; in the fixed windows of that load it took "
        f"{number(_ms(raw['fixed'][SEEN][str(k)]))} ms, and "
        f"{number(_ms(raw['fixed']['1'][str(k)]))} at 1 request. So these steps were measured too short. It stayed: by "
        f"the fixed windows k={best} gives {number(100 * (fixed[str(best)] / fixed[str(k)] - 1), 1)} % more, and the "
        f"tie band was {band[1]} % at that decision.", "",
    ]  # fmt: skip


def _survival() -> list[str]:
    """What became of vLLM's estimate of survival, by the reference cells, and what runs before gave."""
    last, broke, earlier = BEFORE
    first, end = read("closed_loop_verification_raw")["reference"]
    drifted = read(f"{last}/closed_loop")["tuner_with_av"]["drift_pct"]

    def span(run: str) -> str:
        whole = read(f"{run}/closed_loop")["tuner_with_av"]["by_load"].values()
        ratios = [at["ratio_to_tuner_without_av"] for at in whole]
        return f"{number(min(ratios))} to {number(max(ratios))} of itself without ({_link(run)})"

    return [
        f"The reference cell is slower at the start of this stage, as in the run before (drift {number(drifted)} %): a "
        f"step takes {number(_ms([first]), 1)} ms at the start and {number(_ms([end]), 1)} at the end. Why is not "
        f"known. Its tokens a step are {number(first['tokens'] / first['steps'] / first['load'])} and "
        f"{number(end['tokens'] / end['steps'] / end['load'])}, so its drafts were verified. In a run before "
        f"({_link(broke)}) vLLM's estimate of survival had become no number (NaN), by all that the counts tell: its "
        "manager verified one draft of the whole batch in a step, in mode All too, and the tuner went to k=0 and 1. "
        "Since then the plugin verifies all drafts in such steps and begins the estimate anew.", "",
        f"In the run before, the tuner with AV reached {span(last)}, in one of the day before {span(earlier)}.", "",
    ]  # fmt: skip


def mixed() -> list[str]:
    """What steps with prompts take, by the turns of the loop and by the plugin's cells of the same steps."""
    found = read("mixed")
    at = found.get("by_load", {}).get(str(FULL))
    if not at:
        return []
    ks = sorted(at, key=int)
    turns = {k: _turns(at[k]["steps"]) for k in ks}
    cells = {k: {(b, p): _cells(at[k]["cells"], b, p) for b in (FULL, BELOW) for p in (0, 1)} for k in ks}
    ways = ((False, False), (True, False), (False, True), (True, True))
    by_turn = [[k, *(_mean(turns[k].get(way, [])) for way in ways)] for k in ks]
    by_full = {k: _emitted(one for one in at[k]["cells"] if one["load"] == FULL) for k in ks}
    whole = {k: 1e6 * sum(one[1] for one in at[k]["steps"]) / sum(one[0] for one in at[k]["steps"]) for k in ks}
    by_cell = [
        [
            k, *(f"{number(ms, 1)} ({steps})" if steps else NOT_MEASURED for steps, ms in cells[k].values()),
            number(by_full[k], 0), number(whole[k], 0),
        ]
        for k in ks
    ]  # fmt: skip
    at_once, quiet = (_mean(turns["0"][way]).split()[0] for way in ((True, False), (False, False)))
    short = cells["0"][BELOW, 0][1], cells["0"][FULL, 1][1]
    fewest = min(len(one) for one in turns[ks[-1]].values())
    ladder = ", ".join(map(str, found["engine"]["capabilities"]["ladder"]))
    return [
        "## Steps with prompts", "",
        f"Every turn of the closed loop was written down with each k pinned for 3 s, in an engine of its own with the "
        f"ladder {ladder}; at {FULL} requests only, as time ran out. Requests end and others come. With asynchronous "
        "scheduling a turn launches a step and waits for the one before. Mean ms of a turn (how many), by whether "
        "a request came one turn before it and two turns before it:", "",
        *table(("k", "none", "one turn before", "two turns before", "both"), by_turn),
        "At k=0 and 1 it is the request of one turn before that counts (at k=0 "
        f"{at_once} ms in place of {quiet}): the launch of a step with prompts takes long on the host, and that "
        "lengthens the completion of the step before it, which is still on the GPU. At k=2 and 3 the GPU takes longer "
        "than the launch and hides it; there the request of two turns before counts, as the prompts' tokens lengthen "
        f"their own step. At k={ks[-1]} the turns are too few to tell (down to {fewest}).", "",
        "The plugin's cells of the same steps, mean ms of a step (how many), by load and by whether it counted the "
        f"step as one with prompts; then tokens/s, by the cells of {FULL} requests and of all turns:", "",
        *table(
            (
                "k", f"{FULL}, without", f"{FULL}, with", f"{BELOW} and more, without", f"{BELOW} and more, with",
                f"tokens/s by the steps at {FULL}", "tokens/s of all",
            ),
            by_cell,
        ),
        f"So samples up to now put the launch's time on the wrong step: at k=0 one of {FULL - 1} requests without "
        f"prompts takes {number(short[0], 0)} ms and one of {FULL} with prompts {number(short[1], 0)}. The step that "
        "pays is one of fewer requests, as those that ended are followed in the next. Judged by its steps at "
        f"{FULL} requests a k gives more than it does: "
        f"{', '.join(f'k={k} by {number(100 * (by_full[k] / whole[k] - 1), 0)} %' for k in ks[:3])}. So the tuner "
        f"believed steps at {FULL} requests too cheap for k=0 and 1, and that is why k=1 won there in the closed loop"
        f"{_margin()}. Which k is best there this recording cannot tell: it has one window of each k, and over all "
        f"turns k={max(whole, key=lambda k: whole[k])} gave the most.", "",
        "The plugin now counts a step as one with prompts if the step launched before it completed carries them, and "
        "takes the load from the last few steps; a run with that is still to come.", "",
    ]  # fmt: skip


def _margin() -> str:
    """By how much k=1 was believed better than the best fixed k, in the last decision at a full engine."""
    found = read("closed_loop")
    made = [one for one in found.get("decisions") or [] if one["load"] == FULL]
    if not made:
        return ""
    goodput = {one["k"]: one["goodput"]["value"] for one in made[-1]["evidence"]["candidates"]}
    best = found["by_load"][str(FULL)]["best_fixed_k"]
    return f", by {number(100 * (goodput[1] / goodput[best] - 1), 0)} % over k={best}"


def _emitted(cells: Iterable[Mapping[str, Any]]) -> float:
    """Tokens per second of these steps."""
    here = list(cells)
    return float(sum(one["emitted"] for one in here) / sum(one["seconds"] for one in here))


def _turns(steps: Sequence[Sequence[int]]) -> dict[tuple[bool, bool], list[int]]:
    """Microseconds of turns, by whether a request came one turn before and two turns before."""
    found: dict[tuple[bool, bool], list[int]] = {}
    for (*_, earlier), (*_, before), (took, *_) in zip(steps, steps[1:], steps[2:], strict=False):
        found.setdefault((before > 0, earlier > 0), []).append(took)
    return found


def _mean(turns: Sequence[int]) -> str:
    """Milliseconds, and of how many."""
    return f"{number(sum(turns) / len(turns) / 1000, 1)} ({len(turns)})" if turns else NOT_MEASURED


def _cells(cells: Sequence[Mapping[str, Any]], load: int, prompt: int) -> tuple[int, float | None]:
    """Steps and their mean milliseconds."""
    here = [one for one in cells if one["load"] == load and bool(one["prompt"]) == bool(prompt)]
    steps = sum(one["steps"] for one in here)
    return steps, 1000 * sum(one["seconds"] for one in here) / steps if steps else None
