"""What is said of a machine: drivers, kernels, versions; and the program around all checks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline_engine.preflight import __main__ as program
from paceline_engine.preflight import machine, tiny
from paceline_engine.preflight.asked import Asked, Source
from paceline_engine.preflight.check import FAILED_STATUS, Check, Level, Report, passed, timed
from paceline_engine.preflight.machine import Gpu, Machine
from tests.harness.model_files import facts, lay

H200 = Gpu("NVIDIA H200", (9, 0), 150 * 10**9, 149 * 10**9)
T4 = Gpu("Tesla T4", (7, 5), 16 * 10**9, 15 * 10**9)
VERSIONS = {"vllm": "0.33.0", "torch": "2.11.0", "transformers": "5.0.0", "triton": "3.6.0"}
GOOD = Machine((H200,), "", "13.0", "13.0", ("sm_80", "sm_90", "sm_100"), VERSIONS)
TARGET = Source(source="/model")


def found(asked: Asked | None = None, **changed: Any) -> dict[str, Check]:
    seen = Machine(**{**GOOD.__dict__, **changed})
    return {check.name: check for check in machine.checks(asked or Asked(target=TARGET, vllm="0.33"), seen)}


def test_a_good_machine_passes() -> None:
    assert {check.level for check in found().values()} == {Level.PASS}


def test_without_a_wish_for_a_gpu_there_is_nothing_to_look_at() -> None:
    checks = found(Asked(target=TARGET, gpu=False), gpus=(), error="")
    assert [(checks[name].level, checks[name].reason) for name in ("driver", "kernel")] == [
        (Level.SKIP, "no GPU asked for")
    ] * 2
    assert checks["versions"].level is Level.PASS


@pytest.mark.parametrize(
    ("changed", "name", "level", "says"),
    [
        ({"gpus": (), "error": "RuntimeError: driver too old"}, "driver", Level.FAIL, "driver too old"),
        ({"gpus": (H200, T4)}, "driver", Level.WARN, "several kinds"),
        ({"gpus": (H200, H200)}, "driver", Level.PASS, "2 x NVIDIA H200, CUDA 13.0 in the driver, 139.7 GiB each"),
        ({"gpus": (Gpu("X", (9, 0), 1, 1, "CUDA error: Xid 79"),)}, "kernel", Level.FAIL, "Xid"),
        ({"gpus": (Gpu("X", (12, 0), 1, 1, "no kernel image"),)}, "kernel", Level.FAIL, "sm_80, sm_90"),
        ({"gpus": (Gpu("X", (9, 0), 1, 1, "3 of 262144 sums are wrong"),)}, "kernel", Level.FAIL, "wrong"),
        ({"versions": {"torch": "2"}}, "versions", Level.FAIL, "no vLLM"),
        ({"versions": {"vllm": "0.33.0", "torch": "2"}}, "versions", Level.FAIL, "no Triton"),
        ({"versions": {**VERSIONS, "vllm": "0.31.2+cu130"}}, "versions", Level.WARN, "0.31"),
        ({"driver": "12.4"}, "versions", Level.FAIL, "CUDA 13.0"),
        ({"driver": "13.2"}, "versions", Level.PASS, "vllm"),
        ({"driver": ""}, "versions", Level.PASS, "vllm"),
    ],
)
def test_what_is_wrong_with_a_machine_is_found(changed: Any, name: str, level: Level, says: str) -> None:
    check = found(**changed)[name]
    assert check.level is level
    assert says in check.reason
    assert (check.remedy != "") is (level in (Level.WARN, Level.FAIL))


@pytest.mark.parametrize(
    ("asked", "gpu", "level", "says"),
    [
        ({"dtype": "bfloat16"}, T4, Level.FAIL, "bfloat16"),
        ({"dtype": "bfloat16"}, H200, Level.PASS, "vllm"),
        ({"target": Source(source="/m", quantization="fp8")}, T4, Level.WARN, "no fp8"),
        ({"target": Source(source="/m", quantization="modelopt_fp4")}, H200, Level.WARN, "no fp4"),
        ({"target": Source(source="/m", quantization="fp8")}, H200, Level.PASS, "vllm"),
    ],
)
def test_types_of_numbers_that_a_gpu_lacks(asked: Any, gpu: Gpu, level: Level, says: str) -> None:
    check = found(Asked(**{"target": TARGET, "vllm": "0.33", **asked}), gpus=(gpu,))["versions"]
    assert (check.level, says in check.reason) == (level, True)


def test_as_many_gpus_as_the_pod_needs() -> None:
    asked = Asked(target=TARGET, tensor_parallel=4, pipeline_parallel=2, nodes=2)
    assert found(asked, gpus=(H200,) * 2)["driver"].level is Level.FAIL
    assert found(asked, gpus=(H200,) * 4)["driver"].level is Level.PASS


def test_seconds_are_those_that_passed() -> None:
    ticks = iter([10.0, 11.5, 11.5, 14.0, 14.0])
    checks = list(timed([passed("a", "x"), passed("b", "y")], lambda: next(ticks)))
    assert [check.seconds for check in checks] == [1.5, 2.5]


def program_on(root: Path, model: dict[str, Any], *flags: str) -> tuple[int, Report]:
    lay(root, {"test/model": model})
    log = root / "termination-log"
    log.touch()
    source = Source(source="hf://test/model", path=str(root / "test/model"))
    asked = Asked(target=source, gpu=False, method="ngram", max_tokens=2, max_model_len=1024, dtype="float32")
    arguments = ["--asked", asked.model_dump_json(by_alias=True, exclude_defaults=True), *flags]
    status = program.main(arguments, {"PACELINE_TERMINATION_LOG": str(log)})
    return status, Report.model_validate_json(log.read_text())


def test_the_program_tells_a_failed_check_to_the_kubelet_and_ends_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_version", lambda name: VERSIONS[name])
    status, report = program_on(tmp_path, {"of": "qwen3-0.6b", "tokens": "qwen", "weights": "cut"})
    assert (status, report.level) == (FAILED_STATUS, Level.FAIL)
    assert report.checks[0].name == "target-weights"


def test_the_program_stops_at_a_machine_that_cannot_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_version", lambda name: "")
    status, report = program_on(tmp_path, {"of": "qwen3-0.6b", "tokens": "qwen"})
    assert status == FAILED_STATUS
    assert {check.name for check in report.checks} == {"driver", "kernel", "versions"}


def test_elsewhere_models_alone_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_version", lambda name: "")
    status, report = program_on(tmp_path, {"of": "qwen3-0.6b", "tokens": "qwen"}, program.NO_MACHINE)
    assert status == 0
    assert "driver" not in {check.name for check in report.checks}


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "gpt-oss-120b", "qwen3-235b-a22b"])
def test_a_tiny_model_is_of_the_same_kind(name: str) -> None:
    whole = facts(name)
    small = tiny.shrunk(whole)
    assert small["architectures"] == whole["architectures"]
    assert small["hidden_size"] == whole["hidden_size"]
    assert small["num_hidden_layers"] == tiny.LAYERS == len(small.get("layer_types", range(tiny.LAYERS)))
    experts = small.get("n_routed_experts", small.get("num_experts", small.get("num_local_experts", 0)))
    assert experts <= tiny.EXPERTS
    assert small.get("num_experts_per_tok", 0) <= 4
    assert whole == facts(name)


def test_a_head_reads_layers_that_the_tiny_target_has() -> None:
    head = tiny._fitted(facts("gpt-oss-120b-eagle3"), tiny.shrunk(facts("gpt-oss-120b")))
    read = head["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert read == sorted(set(read))
    assert max(read) < tiny.LAYERS


def test_a_tiny_engine_has_method_quantization_and_graphs_of_the_whole_one() -> None:
    target = Source(source="/m", quantization="fp8")
    sizes = [1, 2, 4, 8, 64, 512]
    asked = Asked(target=target, method="eagle3", max_tokens=3, ladder=[0, 3], capture_sizes=sizes, max_model_len=32768)
    made = tiny.arguments(asked, Path("/t"), Path("/d"))
    assert made["speculative_config"] == {"method": "eagle3", "num_speculative_tokens": 3, "model": "/d"}
    assert made["compilation_config"] == {"cudagraph_capture_sizes": [1, 2, 4, 8]}
    assert (made["quantization"], made["enforce_eager"], made["load_format"]) == ("fp8", False, "dummy")
    assert json.dumps(made)


def test_a_machine_without_torch_or_driver_is_told_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    seen = machine.look(Asked(target=TARGET))
    assert seen.gpus == ()
    assert "torch" in seen.error
    assert next(iter(machine.checks(Asked(target=TARGET), seen))).level is Level.FAIL


class Matrix(list[float]):
    """As much of a tensor as one product needs; each operation hands the values on."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def __mod__(self, other: int) -> Matrix:
        return self

    def __matmul__(self, other: Matrix) -> Matrix:
        return self


def test_a_kernel_that_ends_with_a_fault_is_the_devices_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nXid 31")

    cuda = SimpleNamespace(
        get_arch_list=lambda: ["sm_90"],
        device_count=lambda: 1,
        is_available=lambda: True,
        get_device_properties=lambda _: SimpleNamespace(name="X", major=9, minor=0),
        mem_get_info=lambda _: (1, 2),
        synchronize=fault,
    )
    torch = SimpleNamespace(
        version=SimpleNamespace(cuda="13.0"), cuda=cuda,
        bfloat16="b", float16="h", arange=lambda _: Matrix(),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    seen = machine.look(Asked(target=TARGET))
    assert (seen.cuda, seen.gpus[0].bytes) == ("13.0", 2)
    assert "illegal memory access was encountered Xid 31" in seen.gpus[0].error
    kernel = {check.name: check for check in machine.checks(Asked(target=TARGET), seen)}["kernel"]
    assert (kernel.level, "GPU 0 (X, sm_90)" in kernel.reason) == (Level.FAIL, True)


@pytest.mark.parametrize(("number", "version"), [(13010, "13.1"), (12040, "12.4"), (0, "")])
def test_the_drivers_version_is_asked_of_its_library(
    number: int, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(place: Any) -> int:
        place._obj.value = number
        return 0

    monkeypatch.setattr(machine.ctypes, "CDLL", lambda _: SimpleNamespace(cuDriverGetVersion=tell))
    assert machine._driver() == version


def test_where_there_is_no_driver_there_is_no_version() -> None:
    assert machine._driver() == "" or machine._driver()[0].isdigit()
