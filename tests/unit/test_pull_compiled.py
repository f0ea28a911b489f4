"""Compiled code on the volume: apart by engine version and GPU, and only what may be shared."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from paceline_engine.pull import compiled


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"vllm": "0.33.0+cu129"}[name])
    for number in (0, 1):
        folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t NVIDIA H200\nIRQ: 1\n")
    return tmp_path / "gpus"


def test_the_key_tells_version_and_gpu(proc: Path, tmp_path: Path) -> None:
    assert compiled.key(proc) == "0.33.0+cu129-NVIDIA-H200"
    assert compiled.key(tmp_path / "none") == "0.33.0+cu129-unknown"


def test_two_pods_share_what_they_compile_and_nothing_else(proc: Path, tmp_path: Path) -> None:
    root, homes = tmp_path / "claim", [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        compiled.link(root, home, proc)
    (homes[0] / "vllm/torch_compile_cache/x").write_text("1")
    (homes[0] / "vllm/gpu_p2p_access_cache").write_text("of this node")
    assert (homes[1] / "vllm/torch_compile_cache/x").read_text() == "1"
    assert not (homes[1] / "vllm/gpu_p2p_access_cache").exists()
    compiled.link(root, homes[0], proc)
    assert (homes[0] / "vllm/torch_compile_cache/x").read_text() == "1"


def test_a_folder_that_is_in_use_stays(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "home/triton").mkdir(parents=True)
    (tmp_path / "home/triton/kernel").write_text("1")
    compiled.link(tmp_path / "claim", tmp_path / "home", proc)
    assert (tmp_path / "home/triton/kernel").read_text() == "1"
