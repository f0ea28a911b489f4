"""`paceline experiment run --local` as a process, over a stand-in for vLLM: whatever happens, what was measured stays,
what is missing is said with its reason, and no process is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from paceline_operator.experiment import results
from paceline_operator.experiment.results import VariantResult
from tests.harness.processes import wait_until

PACELINE = Path(sys.prefix) / "bin" / "paceline"
STAND_IN = Path(__file__).with_name("stand_in_trial.py")
SECRET = "the prompt that nobody may read"
FILE = f"""
apiVersion: paceline.dev/v1alpha1
kind: SpeculationExperiment
metadata: {{name: standing-in}}
spec:
  servingRef: {{name: small}}
  variants: [{{name: k2, change: {{maxTokens: 2}}}}]
  load: {{concurrency: [1, 4], prompts: {{configMap: {{name: texts, key: prompts.jsonl}}}}, outputTokens: 8}}
  duration: {{seconds: 10}}
  repetitions: 2
  budgetGpuMinutes: 60
---
apiVersion: paceline.dev/v1alpha1
kind: SpeculativeServing
metadata: {{name: small}}
spec:
  model: {{source: /models/some-model}}
  engine: {{device: CPU, maxNumSeqs: 8, startupTimeoutSeconds: 60}}
  speculation: {{method: ngram, maxTokens: 4}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: texts}}
data:
  prompts.jsonl: |
    {{"prompt": "{SECRET}"}}
"""
SECONDS = 180
"""Far more than it takes, 10: a machine that is busy with other tests is no failure."""
WINDOWS = {"baseline": 4, "serving": 4, "k2": 4}


class Runs:
    """Runs of one experiment into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        (folder / "pids").mkdir()
        self.vllm = folder / "vllm"
        self.vllm.write_text(f"#!{sys.executable}\n" + STAND_IN.read_text())
        self.vllm.chmod(0o755)
        self.file = folder / "experiment.yaml"
        self.file.write_text(FILE)
        self.output = folder / "output.txt"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        variables = {
            "PACELINE_ENGINE": str(self.vllm),
            "PACELINE_CACHE": str(self.folder / "cache"),
            "STAND_IN_PIDS": str(self.folder / "pids"),
            "TMPDIR": str(self.folder),
        }
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [PACELINE, "experiment", "run", "-f", self.file, "--local", "-o", self.out, "--no-tty", *arguments],
                env=os.environ | variables | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.process

    def run(self, *arguments: str, **environment: str) -> int:
        return self.start(*arguments, **environment).wait(SECONDS)

    def text(self) -> str:
        return self.output.read_text()

    def found(self) -> dict[str, VariantResult]:
        return {one.variant: one for one in results.folder(self.out)}

    def windows(self) -> dict[str, int]:
        return {name: len(one.windows) for name, one in self.found().items()}

    def alive(self) -> list[int]:
        pids = [int(file.name.partition("-")[0]) for file in (self.folder / "pids").iterdir()]
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    if made.process and made.process.poll() is None:
        made.process.kill()
    for pid in made.alive():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """One that was measured to its end."""
    made = Runs(tmp_path_factory.mktemp("whole"))
    assert made.run() == 0, made.text()
    return made


@pytest.fixture
def copy(runs: Runs, whole: Runs) -> Runs:
    """Another that has all its results."""
    shutil.copytree(whole.out, runs.out)
    return runs


def test_it_measures_all_and_reports(whole: Runs) -> None:
    runs = whole
    assert runs.windows() == WINDOWS
    assert runs.alive() == []
    found = runs.found()
    assert [(one.k, one.missing) for one in found.values()] == [(0, ()), (2, ()), (4, ())]
    assert {one.methods.versions["vllm"] for one in found.values()} == {"9.9"}
    seeds = Counter((window.round, window.load, window.seed) for one in found.values() for window in one.windows)
    assert set(seeds.values()) == {3}, "all variants of a round get the same prompts"
    requests = {(window.load, window.requests) for one in found.values() for window in one.windows}
    assert requests == {(1, 125), (4, 500)}, "ten seconds of the baseline, for all of them"
    assert all(window.warmed and window.prefix_cache_hit_rate == 0 for one in found.values() for window in one.windows)
    order = [
        line.rpartition(": ")[2]
        for line in runs.text().splitlines()
        if line.startswith("round") and "tok/s" not in line
    ]
    assert order == ["baseline", "serving", "k2", "k2", "serving", "baseline"]
    assert "better" in runs.text()
    assert (runs.out / "report" / "report.html").exists()
    arguments = " ".join(found["k2"].methods.arguments)
    assert "--jit-monitor-verbose" in arguments
    assert "num_speculative_tokens_per_batch_size" not in arguments
    assert "--speculative-config" not in " ".join(found["baseline"].methods.arguments)


def test_no_text_of_prompt_or_answer_is_kept(whole: Runs) -> None:
    runs = whole
    texts = [file.read_bytes() for file in runs.out.rglob("*") if file.is_file()]
    assert len(texts) > 8
    assert not [text for text in texts if SECRET.encode() in text or b"secret answer" in text]
    assert list(runs.folder.glob("paceline-*")) == []
    kinds = [document["kind"] for document in yaml.safe_load_all((runs.out / "experiment.yaml").read_text())]
    assert sorted(kinds) == ["SpeculationExperiment", "SpeculativeServing"]


def test_run_again_it_has_nothing_to_do(copy: Runs) -> None:
    assert copy.run() == 0, copy.text()
    assert list((copy.folder / "pids").iterdir()) == []
    assert "12 of 12 windows measured" in copy.text()


@pytest.mark.parametrize("keep", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_variant_that_never_starts_does_not_end_the_rest(runs: Runs, keep: bool) -> None:
    assert runs.run(*["--keep"] * keep, STAND_IN_FAILS='{"4": "start"}') == 1, runs.text()
    assert runs.windows() == WINDOWS | {"serving": 0}
    missing = runs.found()["serving"].missing
    assert {text.partition(":")[0] for text in missing} <= {"round 1, loads 1, 4", "round 2, loads 1, 4"} | {
        "rounds 1, 2, loads 1, 4"
    }
    assert all("ended with status 1 before it was ready" in text and "no such draft" in text for text in missing)
    assert "missing of serving: round" in runs.text()
    assert "Traceback" not in runs.text()


@pytest.mark.parametrize("keep", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_variant_that_crashes_does_not_end_the_rest(runs: Runs, keep: bool) -> None:
    assert runs.run(*["--keep"] * keep, STAND_IN_FAILS='{"2": "serve"}') == (1 if keep else 0), runs.text()
    found = runs.found()
    # Two shapes are warmed up and one is measured before it crashes; a new engine does so again.
    assert {name: len(one.windows) for name, one in found.items()} == WINDOWS | {"k2": 2 if keep else 4}
    good, bad, *_ = found["k2"].windows
    assert (good.fault_seconds, good.errors) == (None, {})
    assert bad.fault_seconds is not None
    assert bad.errors == {"ServerDisconnectedError": bad.errors["ServerDisconnectedError"]}
    assert bad.requests == 0
    assert "illegal memory access" in runs.text()
    assert found["k2"].missing == (("round 2, loads 1, 4: its engine ended in an earlier round",) if keep else ())
    lengths = Counter(one.length for one in found["serving"].lengths)
    assert len(lengths) > 3
    assert set(lengths.values()) == {1 if keep else 2}, "one engine counts on, a new one begins anew"
    assert runs.alive() == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_cancelled_it_reports_what_there_is_and_what_is_missing(runs: Runs, number: signal.Signals) -> None:
    process = runs.start(STAND_IN_SLOW="0.3")
    wait_until(lambda: "round 1, serving at 1:" in runs.text(), "a window", timeout_seconds=SECONDS)
    command = [PACELINE, "experiment", "run", "-f", runs.file, "--local", "-o", runs.out]
    variables = {"PACELINE_ENGINE": str(runs.vllm), "PACELINE_CACHE": str(runs.folder / "cache")}
    second = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=SECONDS)
    assert (second.returncode, "another run measures into it" in second.stderr) == (2, True), second.stderr
    process.send_signal(number)
    assert process.wait(SECONDS) == 1, runs.text()
    assert runs.alive() == []
    assert runs.windows()["baseline"] == 2
    assert f"cancelled: {number.name}" in " ".join(runs.found()["k2"].missing)
    assert (runs.out / "report" / "report.html").exists()
    assert "Traceback" not in runs.text()


def test_cancelled_while_its_last_engine_ends_it_waits_for_it(runs: Runs) -> None:
    process = runs.start(STAND_IN_STAYS="3")
    wait_until(
        lambda: len(re.findall(r"round \d, \w+ at \d:", runs.text())) == sum(WINDOWS.values()),
        "the last window",
        timeout_seconds=SECONDS,
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 0, runs.text()
    assert runs.alive() == []
    assert "Traceback" not in runs.text()
    assert "Exception ignored" not in runs.text()
    assert "closed" not in runs.text()


def test_killed_it_leaves_results_and_the_next_run_goes_on(runs: Runs) -> None:
    process = runs.start(STAND_IN_SLOW="0.3")
    wait_until(lambda: "round 1, serving at 1:" in runs.text(), "a window", timeout_seconds=SECONDS)
    process.kill()
    process.wait(SECONDS)
    wait_until(lambda: not runs.alive(), "the end of every engine", timeout_seconds=SECONDS)
    wait_until(lambda: not list(runs.folder.glob("paceline-*")), "the end of every text", timeout_seconds=SECONDS)
    before = runs.found()
    assert len(before["baseline"].windows) == 2
    assert "round 2, loads 1, 4: not reached" in before["baseline"].missing
    assert runs.run() == 0, runs.text()
    after = runs.found()
    assert {name: len(one.windows) for name, one in after.items()} == WINDOWS
    assert after["baseline"].windows[:2] == before["baseline"].windows
    assert after["serving"].windows[0] == before["serving"].windows[0]
    assert after["baseline"].methods.load["resumed"]
    assert "resumed" not in before["baseline"].methods.load
    assert Counter(one.length for one in after["serving"].lengths)[1.01] == 3, "the killed engine's log is told once"


def test_it_waits_for_the_memory_and_names_who_holds_it(runs: Runs) -> None:
    smi = runs.folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!{sys.executable}\n" + STAND_IN.with_name("stand_in_smi.py").read_text())
    smi.chmod(0o755)
    runs.file.write_text(FILE.replace("device: CPU", "device: GPU"))
    assert runs.run(PATH=f"{smi.parent}:{os.environ['PATH']}") == 0, runs.text()
    assert runs.windows() == WINDOWS
    held = re.search(r"waiting for GPU memory: process (\d+) of .* holds 1000 MiB, one of our own", runs.text())
    assert held is not None, runs.text()
    assert [*(runs.folder / "pids").glob(f"{held[1]}-*")]
    found = runs.found()["serving"]
    assert {window.memory_bytes for window in found.windows} == {1000 * 2**20}
    assert found.methods.gpu == "Stand-in PCI_BUS_ID"
    assert found.methods.versions["driver"] == "580.1"


def test_another_experiment_does_not_mix_with_what_is_there(copy: Runs) -> None:
    copy.file.write_text(FILE.replace("maxTokens: 2", "maxTokens: 3"))
    assert copy.run() == 2
    assert "another experiment" in copy.text()
    assert "-o" in copy.text()
    assert "Traceback" not in copy.text()
    assert copy.found()["k2"].k == 2


def test_the_budget_ends_it_and_says_so(copy: Runs) -> None:
    """As if an hour had been spent on the first round."""
    for file in copy.out.glob("*.json"):
        written = json.loads(file.read_text())
        written["windows"] = [one for one in written["windows"] if one["round"] == 0]
        written["methods"]["load"]["gpuMinutes"] = "61"
        file.write_text(json.dumps(written))
    assert copy.run() == 1, copy.text()
    assert copy.windows() == {"baseline": 2, "serving": 2, "k2": 2}
    assert "spec.budgetGpuMinutes 60: 61.0 are spent" in copy.found()["k2"].missing[0]
