"""The machine: driver and devices, one kernel on each, versions. `look` asks it, `checks` judges what it said."""

from __future__ import annotations

import ctypes
import importlib.metadata
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.check import Check, failed, passed, skipped, warned

NO_GPU = "no GPU asked for"
SIDE = 512
"""Of the square matrices that are multiplied: whole numbers up to 3 give sums below 2**13, exact in every type here."""
LEAST_16_BITS = (8, 0)
"""Compute capability from which bfloat16 is computed in hardware (Ampere)."""
LEAST_FP8 = (8, 9)
"""For fp8 (Ada, Hopper); older ones compute it in 16 bits."""
LEAST_FP4 = (10, 0)
"""For nvfp4 and mxfp4 (Blackwell)."""
PACKAGES = ("vllm", "torch", "transformers", "triton")


@dataclass(frozen=True)
class Gpu:
    """One device. Bytes of memory; the error of its kernel is empty where it computed right."""

    name: str
    capability: tuple[int, int]
    bytes: int
    free: int
    error: str = ""


@dataclass(frozen=True)
class Machine:
    """What was found. Empty texts: not there, or not said."""

    gpus: tuple[Gpu, ...] = ()
    error: str = ""
    """Why there are no devices, in the driver's words."""
    cuda: str = ""
    """Version that torch was built with."""
    driver: str = ""
    """Newest version of CUDA that the driver serves."""
    built_for: tuple[str, ...] = ()
    """Architectures that torch has kernels of: sm_90, compute_90, ..."""
    versions: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Of `driver` and `kernel`."""


def look(asked: Asked, clock: Callable[[], float] = time.monotonic) -> Machine:
    """Ask this machine. Imports torch where a GPU is asked for, and nothing of vLLM. Never raises."""
    versions = {name: found for name in PACKAGES if (found := _version(name))}
    if not asked.gpu:
        return Machine(versions=versions)
    begun = clock()
    try:
        import torch

        cuda = str(torch.version.cuda or torch.version.hip or "")
        driver = _driver()
        built_for = tuple(torch.cuda.get_arch_list())
        count = torch.cuda.device_count()
        gpus = [_gpu(torch, index) for index in range(count)] if torch.cuda.is_available() else []
        reason = "" if gpus else _reason(torch)
    except Exception as error:  # whatever torch or the driver raise is the answer
        seconds = {"driver": clock() - begun}
        return Machine(error=_said(error), versions=versions, seconds=seconds)
    asked_driver = clock()
    gpus = [_tried(torch, index, one) for index, one in enumerate(gpus)]
    seconds = {"driver": asked_driver - begun, "kernel": clock() - asked_driver}
    return Machine(tuple(gpus), reason, cuda, driver, built_for, versions, seconds)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _driver() -> str:
    """By the driver's own library: torch does not hand the number on."""
    number = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}" if number.value else ""


def _reason(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:  # this is asked for its words
        return _said(error)
    return "the driver shows no device"


def _gpu(torch: Any, index: int) -> Gpu:
    facts = torch.cuda.get_device_properties(index)
    free, whole = torch.cuda.mem_get_info(index)
    return Gpu(str(facts.name), (int(facts.major), int(facts.minor)), int(whole), int(free))


def _tried(torch: Any, index: int, gpu: Gpu) -> Gpu:
    """A product of matrices in the type that engines compute in, against the exact one."""
    try:
        kind = torch.bfloat16 if gpu.capability >= LEAST_16_BITS else torch.float16
        left = (torch.arange(SIDE * SIDE) % 4).reshape(SIDE, SIDE)
        right = (torch.arange(SIDE * SIDE) % 3).reshape(SIDE, SIDE)
        device = f"cuda:{index}"
        there = (left.to(device, kind) @ right.to(device, kind)).float().cpu()
        exact = left.float() @ right.float()
        torch.cuda.synchronize(index)
        # Sums of up to 2**12 keep eight bits in bfloat16: the last one may be rounded.
        wrong = int(((there - exact).abs() > exact.abs() / 128).sum())
        return gpu if not wrong else _with(gpu, f"{wrong} of {SIDE * SIDE} sums are wrong")
    except Exception as error:  # the fault of a broken device or of a missing kernel is the answer
        return _with(gpu, _said(error))


def _with(gpu: Gpu, error: str) -> Gpu:
    return Gpu(gpu.name, gpu.capability, gpu.bytes, gpu.free, error)


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


def checks(asked: Asked, machine: Machine) -> Iterator[Check]:
    """`driver`, `kernel`, `versions`, in this order: the first that fails says why the others cannot tell more."""
    for check in (_driver_check(asked, machine), _kernel(asked, machine), _versions(asked, machine)):
        yield check.model_copy(update={"seconds": round(machine.seconds.get(check.name, 0.0), 3)})


def _driver_check(asked: Asked, machine: Machine) -> Check:
    name = "driver"
    if not asked.gpu:
        return skipped(name, NO_GPU)
    if not machine.gpus:
        remedy = "look at the node's driver and device plugin, and that the pod asks for nvidia.com/gpu"
        return failed(name, f"no GPU can be used: {machine.error or 'none is there'}", remedy)
    if len(machine.gpus) < asked.gpus:
        reason = f"{asked.gpus} GPUs are needed in a pod and {len(machine.gpus)} are there"
        return failed(name, reason, "ask for as many in spec.engine.resources as tensor x pipeline parallel sizes")
    kinds = sorted({one.name for one in machine.gpus})
    shown = f"{len(machine.gpus)} x {', '.join(kinds)}, CUDA {machine.driver or 'unknown'} in the driver"
    if len(kinds) > 1:
        return warned(name, f"{shown}: of several kinds", "the slowest and smallest sets the pace: use one kind")
    return passed(name, f"{shown}, {machine.gpus[0].bytes / 2**30:.1f} GiB each")


def _kernel(asked: Asked, machine: Machine) -> Check:
    name = "kernel"
    if not asked.gpu:
        return skipped(name, NO_GPU)
    if not machine.gpus:
        return skipped(name, "there is no device to run one on")
    broken = [(index, one) for index, one in enumerate(machine.gpus) if one.error]
    if broken:
        index, gpu = broken[0]
        capability = "".join(map(str, gpu.capability))
        reason = f"a product of matrices on GPU {index} ({gpu.name}, sm_{capability}) failed: {gpu.error}"
        if machine.built_for and f"sm_{capability}" not in machine.built_for:
            built = f"torch has kernels for {', '.join(machine.built_for)} alone"
            return failed(name, f"{reason}; {built}", "use an image whose torch is built for this GPU")
        return failed(name, reason, "restart the node or take the GPU out of service; look for Xid in its kernel log")
    return passed(name, f"a product of matrices is right on {len(machine.gpus)} GPU{'s' * (len(machine.gpus) > 1)}")


def _versions(asked: Asked, machine: Machine) -> Check:
    name, found = "versions", machine.versions
    shown = ", ".join(f"{package} {found[package]}" for package in PACKAGES if package in found)
    if "vllm" not in found:
        return failed(name, f"there is no vLLM in this image ({shown})", "set spec.engine.image to an image of vLLM")
    have = minor(found["vllm"])
    if asked.vllm and have != asked.vllm:
        reason = f"the image has vLLM {found['vllm']}, the spec was judged by {asked.vllm}"
        return warned(name, reason, f"set spec.engine.vllmVersion to {have}, so that the right rules hold")
    if asked.gpu and "triton" not in found:
        return failed(name, f"there is no Triton, which vLLM's kernels are made with ({shown})", "use vLLM's GPU image")
    if machine.gpus and machine.cuda and machine.driver and _major(machine.cuda) > _major(machine.driver):
        reason = f"torch was built with CUDA {machine.cuda}, the node's driver serves CUDA {machine.driver}"
        return failed(name, reason, "update the driver, or use an image for an older CUDA")
    return _by_capability(asked, machine, shown) or passed(name, shown)


def minor(version: str) -> str:
    """`major.minor` of a version; empty where there is none."""
    return ".".join(version.split("+")[0].split(".")[:2])


def _by_capability(asked: Asked, machine: Machine, shown: str) -> Check | None:
    """Types of numbers that this GPU computes in."""
    if not machine.gpus:
        return None
    least = min(one.capability for one in machine.gpus)
    number = ".".join(map(str, least))
    if asked.dtype == "bfloat16" and least < LEAST_16_BITS:
        reason = f"spec.engine.dtype is bfloat16, which a GPU of compute capability {number} does not compute"
        return failed("versions", reason, "set it to float16")
    kind = asked.target.quantization
    for words, needs, types in ((("fp8",), LEAST_FP8, "fp8"), (("nvfp4", "fp4"), LEAST_FP4, "fp4")):
        if any(word in kind for word in words) and least < needs:
            reason = f"{shown}; a GPU of compute capability {number} has no {types}: weights are expanded at each step"
            return warned("versions", reason, "it saves memory and no time; quantization of integers may be faster")
    return None


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0
