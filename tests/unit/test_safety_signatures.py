"""Crashes by name: each signature by a log as vLLM, CUDA or Kubernetes writes it; others by a stable fingerprint."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.safety.signatures import (
    UNKNOWN,
    Death,
    Remedy,
    fingerprint,
    last_exception,
    library,
    name,
    upgrade,
)

PREFIX = "(EngineCore pid=71) ERROR 11-30 01:10:04 [core.py:1586] "
ILLEGAL = (
    f"{PREFIX}EngineCore encountered a fatal error.\n{PREFIX}Traceback (most recent call last):\n"
    f'{PREFIX}  File "/usr/lib/vllm/v1/worker/gpu/adaptive_verification.py", line 210, in record_confidences\n'
    f"{PREFIX}torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
)


@pytest.mark.parametrize(
    ("death", "expected"),
    [
        (Death(ILLEGAL, adaptive_verification=True), "adaptive-verification-illegal-access"),
        (Death(ILLEGAL), "illegal-access"),
        (Death("RuntimeError: CUDA error: device-side assert triggered"), "device-assert"),
        (Death("CUDA error: uncorrectable ECC error encountered"), "device-lost"),
        (Death("RuntimeError: CUDA error: no kernel image is available for execution on the device"), "no-kernel"),
        (Death("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"), "nccl"),
        (Death("ncclUnhandledCudaError: Call to CUDA function failed."), "nccl"),
        (Death(f"{ILLEGAL}RuntimeError: NCCL error: unhandled cuda error"), "illegal-access"),
        (Death("RuntimeError: NCCL error: unhandled system error\nWorker proc VllmWorker-0 died unexpectedly"), "nccl"),
        (
            Death(
                "huggingface_hub.errors.GatedRepoError: 401 Client Error.\n\nCannot access gated repo for url https://x"
            ),
            "gated",
        ),
        (Death("GatedRepoError: 401\nOSError: [Errno 28] No space left on device"), "disk-full"),
        (Death("OSError: You are trying to access a gated repo.\nMake sure to have access to it"), "gated"),
        (Death("ValueError: No available memory for the cache blocks. Try increasing"), "gpu-memory-at-boot"),
        (Death("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"), "gpu-memory"),
        (Death(reason="OOMKilled", exit_code=137), "host-memory"),
        (Death("OSError: [Errno 28] No space left on device: '/var/cache/paceline/x'"), "disk-full"),
        (
            Death(message='Usage of EmptyDir volume "cache" exceeds the limit "1Gi". ', reason="Evicted"),
            "storage-limit",
        ),
        (Death(message="The node was low on resource: ephemeral-storage. ", reason="Evicted"), "storage-limit"),
        (
            Death("RuntimeError: x", message="The node was low on resource: memory. ", reason="Evicted", exit_code=137),
            "evicted",
        ),
        (
            Death(
                "OSError: [Errno 28] No space left on device\n"
                "RuntimeError: CUDA error: an illegal memory access was encountered"
            ),
            "illegal-access",
        ),
        (Death("OSError: [Errno 98] Address already in use"), "port-taken"),
        (Death("safetensors_rust.SafetensorError: Error while deserializing header: invalid"), "weights-corrupt"),
        (
            Death("ValueError: Target and draft model should have the same vocabulary size. Target model"),
            "vocabulary",
        ),
        (Death("TimeoutError: RPC call to execute_model timed out."), "executor-timeout"),
        (Death(f"{PREFIX}Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down"), "worker-died"),
    ],
)
def test_a_known_crash_has_its_name_and_its_source(death: Death, expected: str) -> None:
    found = name(death)
    assert (found.id, found.fingerprint) == (expected, expected)
    assert found.source.startswith("https://")
    assert found.known


LONG = (
    "a.",
    "a",
    "Error",
    "Error:",
    "a.Error ",
    "AssertionError ",
    "AssertionError\n",
    "x\n",
    'File "',
    'File "a/',
    "0x",
    ".",
    "Worker proc ",
)


@pytest.mark.parametrize("part", [*LONG, "AssertionError num ", "Free memory on device ", "RPC call to ", "'"])
@pytest.mark.parametrize("before", ["", 'File "', "AssertionError"])
def test_whatever_an_engine_logs_is_named_soon(part: str, before: str) -> None:
    began = time.process_time()
    assert name(Death(before + part * (300_000 // len(part)), reason="Error", exit_code=1)).title
    assert time.process_time() - began < 5


def test_every_signature_is_reached_and_stands_once() -> None:
    ids = [signature.id for signature in library()]
    assert len(set(ids)) == len(ids)
    assert ids.index("adaptive-verification-illegal-access") < ids.index("illegal-access")
    assert all(remedy is not Remedy.AS_IT_WAS for signature in library() for remedy in signature.remedies)


def test_remedies_of_the_illegal_access_with_adaptive_verification_come_in_the_published_order() -> None:
    assert name(Death(ILLEGAL, adaptive_verification=True)).remedies == (
        Remedy.WITHOUT_ADAPTIVE_VERIFICATION,
        Remedy.FEWER_TOKENS,
        Remedy.DECODE_ONLY_GRAPHS,
        Remedy.WITHOUT_SPECULATION,
    )


@pytest.mark.parametrize("log", ["no kernel image is available for execution on the device", "GatedRepoError: 401"])
def test_what_no_boot_configuration_helps_has_no_rung(log: str) -> None:
    assert name(Death(f"RuntimeError: {log}")).remedies == ()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.32", "an upgrade is proposed: vLLM after 0.32.0 mends"),
        ("0.31", "an upgrade is proposed"),
        ("", "an upgrade is proposed"),
        ("0.33", "does not cover this model's path, or this is another fault"),
        ("1.0", "does not cover this model's path"),
    ],
)
def test_an_upgrade_is_proposed_where_a_fix_is_known_and_the_engine_has_it_not(version: str, said: str) -> None:
    found = upgrade("adaptive-verification-illegal-access", version)
    assert said in found
    assert "/pull/59986" in found
    assert upgrade("device-assert", version) == upgrade("0123456789ab", version) == ""


def test_the_versions_that_a_crash_was_reported_of_are_said() -> None:
    assert name(Death(ILLEGAL, adaptive_verification=True)).known.endswith("Reported of vLLM 0.32.0.")
    assert "Reported of" not in name(Death(ILLEGAL)).known


def test_an_unknown_crash_keeps_its_fingerprint_over_what_differs_between_two_of_a_kind() -> None:
    one = "File \"/a/b/x.py\", line 3, in go\nKeyError: 'req-1a2b3c4d' at 0x7f00 after 17"
    other = "File \"/c/x.py\", line 9, in go\nKeyError: 'req-99887766' at 0x7fff after 3"
    third = "File \"/c/x.py\", line 9, in stop\nKeyError: 'req-99887766' at 0x7fff after 3"
    assert name(Death(one)).id == UNKNOWN
    assert name(Death(one)).fingerprint == name(Death(other)).fingerprint != name(Death(third)).fingerprint
    assert "KeyError" in name(Death(one)).title


def test_an_engine_that_exits_0_and_says_nothing_is_told_as_that() -> None:
    found = name(Death(reason="Completed", exit_code=0))
    assert found.title == "ended with Completed, exit code 0, and logged no exception"
    assert found.fingerprint == name(Death(reason="Completed", exit_code=0)).fingerprint
    assert found.fingerprint != name(Death(reason="Error", exit_code=139)).fingerprint


@given(st.text(max_size=3000), st.text(max_size=200), st.sampled_from(["", "Error", "Completed", "Évil"]))
def test_any_log_has_a_name(log: str, message: str, reason: str) -> None:
    death = Death(log, message, reason, 1)
    found = name(death)
    assert found.title
    assert found == name(death)
    assert len(fingerprint(death)) == 12
    assert len(last_exception(log)) <= 300


REAL = """\
(APIServer pid=1) WARNING 11-30 08:05:02 [system_utils.py:255] This can cause errors like `OSError: [Errno 24] Too many open files`
(EngineCore pid=71) ERROR 11-30 08:06:04 [core.py:1586] Traceback (most recent call last):
(EngineCore pid=71) ERROR 11-30 08:06:04 [core.py:1586]   File "/x/sampler.py", line 3, in sample
(EngineCore pid=71) ERROR 11-30 08:06:04 [core.py:1586] NotImplementedError: Synthetic acceptance
(APIServer pid=1) ERROR 11-30 08:06:05 [async_llm.py:7]   File "/x/async_llm.py", line {line}, in {frame}
(APIServer pid=1) ERROR 11-30 08:06:05 [async_llm.py:7] vllm.v1.engine.exceptions.EngineDeadError: See stack trace (above)
"""  # noqa: E501


def test_what_ended_the_engine_is_named_and_not_what_followed_or_might_have_come() -> None:
    one, other = (Death(REAL.format(line=line, frame=frame)) for line, frame in ((1, "generate"), (2, "abort")))
    assert name(one).title == "NotImplementedError: Synthetic acceptance"
    assert fingerprint(one) == fingerprint(other)
    warned = Death(REAL.splitlines()[0], reason="Completed", exit_code=0)
    assert name(warned).title == "ended with Completed, exit code 0, and logged no exception"
    alone = Death(REAL.splitlines()[-1])
    assert "EngineDeadError" in name(alone).title


BOOT = """\
(EngineCore pid=71) ERROR 11-30 08:06:04 [core.py:1586]   File "/x/{module}.py", line 3, in {function}
(EngineCore pid=71) ERROR 11-30 08:06:04 [core.py:1586] {error}
{worker}(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/x/core_client.py", line 9, in __init__
(APIServer pid=1)   File "/x/utils.py", line 1432, in wait_for_engine_startup
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
WORKER = (
    '(EngineCore pid=71)   File "/x/multiproc_executor.py", line 790, in wait_for_ready\n'
    "(EngineCore pid=71) Exception: WorkerProc initialization failed due to an exception in a background process.\n"
)


@pytest.mark.parametrize("worker", ["", WORKER])
def test_failed_boots_are_told_apart_by_what_the_engine_said_before_the_api_server(worker: str) -> None:
    one = Death(BOOT.format(module="eagle", function="load", error="ValueError: no head", worker=worker))
    other = Death(BOOT.format(module="sampler", function="warm", error="KeyError: 'x'", worker=worker))
    assert (name(one).title, name(other).title) == ("ValueError: no head", "KeyError: 'x'")
    assert fingerprint(one) != fingerprint(other)
    alone = Death(BOOT.format(module="x", function="x", error="", worker=""))
    assert "Engine core initialization failed" in name(alone).title
