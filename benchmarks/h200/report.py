"""docs/h200.md from the result files: every figure on that page is read here, none is typed.

Usage: python benchmarks/h200/report.py (`--check`: exit status 1 where the page differs). The picture: picture.py.

Long because it is the page: one function a section, in the page's order, with the words around each figure. What is
about the tuner is in report_loop.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from page import NOT_MEASURED, PAGE, interval, number, read, rows, table
from report_loop import closed_loop, mixed
from scale import SCALE

LANES = ("loop", "plugin", "ranks", "text", "steps", "single")
LONGER = ("2026-11-29-hooks", "2026-11-30", "2026-11-30-late", "2026-12-01")
"""Folders of runs before the hooks were as short, each on another host; the last with a part of what made them so."""
HOOK_GOAL_US = 25
AS_SHORT = ("2026-12-01-loops-2", "2026-12-01-loops")
"""Folders of runs with hooks as short, the newest first."""
ENDS = "2026-12-01-ends"
"""The folder of the samples' run with ends of steps as they are now."""


def environment() -> list[str]:
    """What was measured on."""
    lanes = [read(f"lane_{name}") for name in LANES]
    engines = [facts for lane in lanes for facts in lane.get("engines", {}).values() if "vllm" in facts]
    main = next(iter(engines), None)
    if main is None:
        return []
    boots = sorted(facts["boot_seconds"] for facts in engines)
    return [
        f"{main.get('gpu')}, vLLM {main['vllm']}, torch {main['torch']}, {main['runner']} runner, {main['scheduler']}, "
        f"{main['cudagraph_mode']} graphs. 8B Llama shape with a one-layer EAGLE draft, dummy weights, bfloat16, "
        f"synthetic acceptance; `max_num_seqs` {main['max_num_seqs']}. {len(engines)} engines booted in "
        f"{boots[0]:.0f} to {boots[-1]:.0f} s, several on a GPU at once; only one of a GPU is driven at a time.",
        "",
    ]


def stages() -> list[str]:
    """What ran, and what did not and why."""
    newest: dict[str, Any] = {}
    for lane in LANES:
        newest |= read(f"lane_{lane}").get("stages", {})
    body = [
        [f"`{name}`", stage["outcome"].splitlines()[-1][:160].replace("|", "/"), number(stage["seconds"], 0)]
        for name, stage in newest.items()
    ]
    failed = [
        f"- engine `{name}` did not boot: {facts['failure']}"
        for lane in LANES
        for name, facts in read(f"lane_{lane}").get("engines", {}).items()
        if "failure" in facts
    ]
    if not body:
        return []
    return [
        "## What was run", "",
        "In several runs; each stage stands with its newest run. Cells of a stage that was ended are missing.", "",
        *table(("stage", "outcome", "s"), body), *failed, *([""] if failed else []),
    ]  # fmt: skip


def changes() -> list[str]:
    """Live changes of k, of verification, and over two ranks."""
    body = []
    for title, found in (
        ("k", read("retune")),
        ("k and verification", read("verification_switches")),
        ("the same, tensor parallel", read("tensor_parallel")),
    ):
        if not found:
            continue
        applied = found.get("verification_applied_ms") or {}
        body.append(
            [
                title, number(found["changes"], 0), number(found["requests"], 0),
                " / ".join(number(found["retune_ms"].get(q), 0) for q in ("p50", "p99", "max")),
                " / ".join(number(applied.get(q), 0) for q in ("p50", "p99", "max")) if applied else NOT_MEASURED,
                number(found["finished_requests"], 0), number(found["failed_requests"], 0),
                number(found["longest_step_ms"], 0),
            ]
        )  # fmt: skip
    if not body:
        return []
    head = (
        "what changes", "changes", "requests", "PUT to first step, ms p50 / p99 / max",
        "verification in force on all ranks, ms", "finished", "failed", "longest step, ms",
    )  # fmt: skip
    lines = ["## Changes under load", "", "Pushed by another process every 0.2 s.", "", *table(head, body)]
    agreement = read("tensor_parallel").get("agreement")
    if agreement:
        lines += [
            f"Tensor parallel: {agreement['ranks']} ranks wrote down {agreement['steps']} steps. The same k in every "
            f"step: {agreement['same_k_in_every_step']}; every change of verification in front of the same step: "
            f"{agreement['same_step_for_every_change']} ({agreement['changes_of_verification']} changes).",
            "",
        ]
    return lines


def costs() -> list[str]:
    """What the plugin, its thread, a schedule and an idle drafter cost."""
    boots = read("boots").get("by_load", {})
    lines: list[str] = []
    overhead = read("overhead").get("by_load", {})
    if overhead:
        body = [
            [
                load, interval(at.get("plugin_over_none")), interval(at.get("plugin_over_no_thread")),
                interval(at.get("hooks_over_none")), hooks(at),
            ]
            for load, at in overhead.items()
        ]  # fmt: skip
        head = ("requests", "plugin, %", "its thread alone, %", "its hooks alone, %", "hooks of a step, µs p50 / p99")
        lines += [
            "## What the plugin costs", "",
            f"Step time with over step time without, in percent, 95 % interval over rounds; k={read('overhead')['k']} "
            "in one engine whose plugin is taken out and put back between windows of identical fresh requests. The "
            "thread is polled once a second from outside, and compared with no server and no thread at all.",
            "", *table(head, body), *hook_goal(), *before(),
        ]  # fmt: skip
    if boots:
        names = {
            "schedule_over_static1": "schedule over static k, boot 1", "schedule_over_static2": "boot 2",
            "plugin_over_static1": "plugin and schedule over static k, boot 1",
            "static2_over_static1": "static boot 2 over boot 1", "k0_over_no_drafter": "k=0 over no drafter",
        }  # fmt: skip
        body = [
            [load, *(interval(at.get(name)) for name in names)]
            for load, at in sorted(boots.items(), key=lambda one: int(one[0]))
        ]
        lines += [
            "## What a schedule costs, and a drafter that drafts nothing", "",
            f"Step time, percent; static k={read('boots')['k']}: engines of their own without plugin and schedule.",
            "", *table(("requests", *names.values()), body),
        ]  # fmt: skip
    return lines


def hooks(at: Mapping[str, Any]) -> str:
    """Microseconds of a step, p50 / p99."""
    return " / ".join(number(at["hook_us"][q], 0) for q in ("p50", "p99"))


def before() -> list[str]:
    """What longer hooks took."""
    loads = list(read("overhead")["by_load"])
    body = []
    for run in LONGER:
        found = read(f"{run}/overhead").get("by_load", {})
        told = [
            f"{interval(found[load].get('plugin_over_none'))}, {hooks(found[load])}" if load in found else NOT_MEASURED
            for load in loads
        ]
        body += [[run, *told]] if found else []
    head = ("run", *(f"{load} request{'s'[: int(load) > 1]}: plugin, %; hooks, µs" for load in loads))
    return ["With longer hooks, on other hosts; some runs ended before their last load:", "", *table(head, body)]


def hook_goal() -> list[str]:
    """What was wanted of the hooks, and what each host showed."""
    now, *then = (
        number(run["256"]["hook_us"]["p99"], 0)
        for folder in ("", *(f"{run}/" for run in LONGER))
        if "256" in (run := read(f"{folder}overhead").get("by_load", {}))
    )
    same = [
        f"{number(read(f'{run}/overhead')['by_load']['256']['hook_us']['p99'], 0)} "
        f"([result](../benchmarks/results/h200/{run}/overhead.json))"
        for run in AS_SHORT
    ]
    return [
        f"Of the hooks of a step at 256 requests {HOOK_GOAL_US} µs were wanted as p99, by the clock. It is {now} µs; "
        f"in two runs before, hooks as short took {' and '.join(same)}. Longer ones took {' and '.join(then)} on other "
        "hosts: between two steps a processor forgets them, and how long it takes to fetch them again is a matter of "
        "the host too.",
        "",
    ]


def truth() -> list[str]:
    """Whether the samples are true."""
    found, cells = read("samples"), rows("sweep")
    if not found:
        return []
    ks = list(dict.fromkeys(row["k"] for row in cells))
    loads = list(dict.fromkeys(row["concurrency"] for row in cells))
    at = {(row["concurrency"], row["k"]): row for row in cells}
    cost = [
        [load, *(number(float(at[load, k]["cost_error_pct"])) if (load, k) in at else NOT_MEASURED for k in ks)]
        for load in loads
    ]
    step = [
        [load, *(number(float(at[load, k]["step_ms"])) if (load, k) in at else NOT_MEASURED for k in ks)]
        for load in loads
    ]
    points = [
        [k, number(here["drafts"], 0), number(here["largest_standard_error"]), number(max(map(abs, here["points"])))]
        for k, here in found["acceptance_by_k"].items()
    ]
    return [
        "## Are its samples true", "",
        "Step time in ms, by wall clock outside the plugin:", "", *table(("requests", *(f"k={k}" for k in ks)), step),
        f"The plugin's step time against it, error in percent (largest {number(found['cost_error_pct_max'])}):", "",
        *table(("requests", *(f"k={k}" for k in ks)), cost),
        "Acceptance by position against the synthetic rates, pooled over loads; largest distance in points:", "",
        *table(("k", "drafts", "standard error, points", "largest distance, points"), points),
        f"Full graphs: {number(found['steps_on_full_graph'], 0)} steps on one, "
        f"{number(found['steps_off_full_graph'], 0)} not.", "",
        *ends(),
    ]  # fmt: skip


def ends() -> list[str]:
    """The same where a step ends when its tokens have been applied, and whether who drew far off was the engine."""
    found, cells = read(f"{ENDS}/samples"), rows(f"{ENDS}/sweep")
    if not found:
        return []
    k = max(found["acceptance_by_k"], key=lambda k: max(map(abs, found["acceptance_by_k"][k]["points"])))
    here = [row for row in cells if row["k"] == k]
    promised, error = 1 + sum(SCALE.rates[: int(k)]), found["acceptance_by_k"][k]["largest_standard_error"]
    drafts = [int(row["drafts"]) for row in here]
    requests = [int(row["steps"]) * int(row["concurrency"]) for row in here]
    told = sum(n * float(row["plugin_tok_per_req_step"]) for n, row in zip(drafts, here, strict=True)) / sum(drafts)
    came = sum(n * float(row["tok_per_req_step"]) for n, row in zip(requests, here, strict=True)) / sum(requests)
    loads = sorted({int(row["concurrency"]) for row in cells})
    return [
        "Since then a step ends when its tokens have been applied, not when they are there. Measured again so, on "
        f"another host, at {', '.join(map(str, loads))} requests ({found['cells']} of the cells above; the run "
        f"ended before the others): step time is off by {number(found['cost_error_pct_max'])} % at most, "
        f"acceptance by {number(found['acceptance_error_points_max'])} points, at k={k}, with a standard error of "
        f"{number(error)}. Of that the engine's draws are a part: there the rates promise "
        f"{number(promised)} tokens a step, {number(came, 3)} came out, and the plugin, which counts "
        f"two thirds of the steps, says {number(told, 3)}.", "",
    ]  # fmt: skip


def sizes() -> list[str]:
    """What closer graph sizes bring, with every graph within reach."""
    before = {(row["concurrency"], row["k"]): float(row["step_ms"]) for row in rows("sweep_multiples")}
    after = {(row["concurrency"], row["k"]): float(row["step_ms"]) for row in rows("sweep")}
    if not before:
        return []
    loads, ks = (list(dict.fromkeys(at[place] for at in before)) for place in (0, 1))
    body = [[load, *(number(100 * (after[load, k] / before[load, k] - 1), 0) for k in ks)] for load in loads]
    return [
        "## What closer graph sizes bring", "",
        "Step time of the table above over that of an engine whose sizes are multiples of all k + 1, so that each step "
        "finds a full graph without the plugin's help ([why](adr/0007-graphs-within-reach.md)), in percent. Two "
        "machines: where both have a graph of the same size, the newer one is 1 to 5 % slower. 67 sizes and 315 full "
        "graphs in place of 107 and 350 were captured in 22 s in place of 39, another engine starting beside.", "",
        *table(("requests", *(f"k={k}" for k in ks)), body),
    ]  # fmt: skip


def budget() -> list[str]:
    """What preflight computes against what engines took."""
    engines = read("preflight").get("engines", {})
    body = [
        [
            name, *(f"{number(found['computed'][what], digits)} / {number(found['measured'].get(what), digits)}"
            for what, digits in (("weights_gib", 2), ("kv_tokens", 0), ("graphs_gib", 2))),
            *(number(found["ratio"].get(what), 3) for what in ("weights_gib", "kv_tokens", "graphs_gib")),
        ]
        for name, found in engines.items() if "ratio" in found
    ]  # fmt: skip
    if not body:
        return []
    head = (
        "engine", "weights, GiB", "KV cache, tokens in the bytes vLLM gave it", "graphs, GiB", "ratio of weights",
        "of KV", "of graphs",
    )  # fmt: skip
    return [
        "## What preflight computes", "",
        "Computed before the start / told by the engine in its log; `off` has no drafter, `main` all ks. What it says "
        "of graphs is a rough upper estimate.", "", *table(head, body),
    ]  # fmt: skip


def verification() -> list[str]:
    """Adaptive verification by load, and starved."""
    cells, starved = rows("verification"), read("verification_starved")
    lines: list[str] = []
    if cells:
        ways = list(dict.fromkeys((row["mode"], row["k"]) for row in cells))
        loads = list(dict.fromkeys(row["load"] for row in cells))

        def mean(load: str, way: tuple[str, str]) -> str:
            found = [float(r["tok_s"]) for r in cells if r["load"] == load and (r["mode"], r["k"]) == way]
            return number(sum(found) / len(found), 0) if found else NOT_MEASURED

        lines += [
            "## Adaptive verification", "",
            "Tokens per second, two windows each, forth and back. The estimator was started at the first synthetic "
            "rate: dummy weights have no confidence to learn from. Capped: 2 draft tokens a request. `All` against "
            "`not booted` at the same k is what AV costs by being booted.", "",
            *table(
                ("requests", *(f"{mode} k={k}" for mode, k in ways)),
                ([load, *(mean(load, way) for way in ways)] for load in loads),
            ),
        ]  # fmt: skip
    if starved:
        body = [
            [
                name.replace("_", " "), at["mode"], number(at["tok_s"], 0),
                *(number((at["state"] or {}).get(key), 0) for key in ("drafted", "verified")),
                str((at["state"] or {}).get("starved")),
            ]
            for name, at in starved.items()
        ]  # fmt: skip
        lines += [
            "The estimator from vLLM's own start on dummy weights, 64 requests; drafts are counts since boot:", "",
            *table(("state", "mode", "tokens/s", "drafted", "verified", "`starved` in GET /state"), body),
        ]  # fmt: skip
    return lines


def texts() -> list[str]:
    """Whether live changes change the text."""
    founds = [found for found in (read("text_invariant"), read("text")) if found]
    body = [
        [
            str(found["batch_invariant"]), number(found["prompts"], 0), name, number(at["changes"], 0),
            number(at["mismatches"], 0), number(at["steps"], 0), number(at["tokens"], 0),
        ]
        for found in founds
        for name, at in found["passes"].items()
    ]  # fmt: skip
    if not body:
        return []
    head = ("batch-invariant", "prompts", "pass", "pushes", "texts that differ from k0", "steps", "tokens")
    return [
        "## The text", "", "SmolLM2-135M-Instruct, real weights, ngram drafts, greedy, all prompts at once.", "",
        *table(head, body),
        *(_differences(founds[0]["passes"]) if founds[0]["batch_invariant"] else ()),
    ]  # fmt: skip


def _differences(passes: Mapping[str, Any]) -> list[str]:
    """What the differences of the batch-invariant engine come from, as far as its passes tell."""
    pairs = (passes["k0_other_order"], passes["live_other_order"]), (passes["k7"], passes["live"])
    alike = [one["first_difference"] == live["first_difference"] for one, live in pairs]
    also = [
        "as many, each first at the same token" if same else f"{live['mismatches']}, not all first at the same tokens"
        for same, (_, live) in zip(alike, pairs, strict=True)
    ]
    lines = [
        f"Batch-invariant: without any draft, another order of arrival changes {pairs[0][0]['mismatches']} texts: the "
        "setting does not make this engine blind to which requests share a step. Live changes of k in that order "
        f"change {also[0]}. In the first order k=7 changes {pairs[1][0]['mismatches']}, live changes {also[1]}.",
    ]  # fmt: skip
    if all(alike):
        lines.append(
            "So most differences come from the order, not from drafts, and changing k live adds none to those of a "
            "fixed k. What is left at k=7 was not looked into: drafts also alter which requests share a step."
        )
    return [*lines, ""]


SECTIONS: tuple[Callable[[], list[str]], ...] = (
    environment, stages, changes, costs, truth, sizes, verification, closed_loop, mixed, budget, texts
)  # fmt: skip


def page() -> str:
    """The whole page."""
    lines = [
        "# Measured on H200", "",
        "<!-- Generated by benchmarks/h200/report.py from benchmarks/results/h200. -->", "",
    ]  # fmt: skip
    for section in SECTIONS:
        lines += section()
    lines += [
        "## Reproduce", "",
        "`.venv/bin/python benchmarks/h200/plugin_folder.py PLUGIN`, put PLUGIN and `operator` on "
        "PYTHONPATH beside vLLM 0.33, `python benchmarks/h200/session.py OUT` with that Python on a machine with two "
        "GPUs (about 21 minutes), then `assemble.py OUT`, `picture.py` and `report.py` of the same "
        "folder with `.venv/bin/python`.",
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write the page, or compare it."""
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
