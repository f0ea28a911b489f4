"""What an engine says of itself: weights by content and not by where they lie, and nothing where it cannot tell."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.identity import SAMPLE_BYTES, digest, identity
from paceline_engine.protocol import Identity
from paceline_engine.worker import Findings, inspect
from tests.unit.engine_workers import worker


def weights(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.safetensors").write_bytes(content)
    return folder


def test_a_digest_is_of_the_weights_wherever_they_lie(tmp_path: Path) -> None:
    one = weights(tmp_path / "one", a=b"x" * 300_000, b=b"y")
    other = weights(tmp_path / "deep" / "other", a=b"x" * 300_000, b=b"y")
    (other / "config.json").write_text("{}")
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in one.iterdir():
        os.symlink(file, linked / file.name)
    assert digest(one) == digest(other) == digest(linked)
    assert digest(one).startswith("sha256:")
    assert len(digest(one)) == 71


@given(size=st.integers(1, 3 * SAMPLE_BYTES), at=st.floats(0, 1, exclude_max=True))
def test_another_byte_is_another_digest_in_all_that_is_read(
    tmp_path_factory: pytest.TempPathFactory, size: int, at: float
) -> None:
    """Up to three samples a file is read whole."""
    place = int(at * size)
    content = bytearray(size)
    before = digest(weights(tmp_path_factory.mktemp("w") / "a", a=bytes(content)))
    content[place] = 1
    assert digest(weights(tmp_path_factory.mktemp("w") / "a", a=bytes(content))) != before
    assert digest(weights(tmp_path_factory.mktemp("w") / "a", a=bytes(size + 1))) != before


def test_what_has_no_weights_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="0 weight files"):
        digest(tmp_path)
    with pytest.raises((OSError, ValueError)):
        digest(tmp_path / "absent")


def config(target: object, draft: object = None) -> Any:
    def model(path: object) -> Any:
        return SimpleNamespace(model=str(path), revision=None)

    speculative = SimpleNamespace(draft_model_config=model(draft)) if draft else None
    return SimpleNamespace(
        model_config=model(target),
        speculative_config=speculative,
        parallel_config=SimpleNamespace(tensor_parallel_size=2),
    )


def test_an_engine_tells_what_its_numbers_hold_for(tmp_path: Path) -> None:
    target, draft = weights(tmp_path / "target", a=b"t"), weights(tmp_path / "draft", a=b"d")
    found = Findings(device="NVIDIA H200", graph_mode="FULL_AND_PIECEWISE", max_capture_size=512)
    told = identity(config(target, draft), found)
    assert told == Identity(
        gpu="NVIDIA H200",
        tensor_parallel_size=2,
        graph_mode="FULL_AND_PIECEWISE",
        max_capture_size=512,
        model_digest=digest(target),
        draft_digest=digest(draft),
    )
    # A method without a draft model has the target's configuration in its place.
    assert identity(config(target, target), found).draft_digest == ""
    assert identity(config(tmp_path / "s3:"), Findings()) == Identity(tensor_parallel_size=2)


def test_a_worker_tells_its_device_and_its_graphs() -> None:
    def found(mode: str, largest: int | None, device: str = "cpu") -> Findings:
        compilation = SimpleNamespace(cudagraph_mode=SimpleNamespace(name=mode), max_cudagraph_capture_size=largest)
        one = worker(vllm_config=SimpleNamespace(compilation_config=compilation))
        one.device = SimpleNamespace(type=device)
        return inspect(one, (), 8)

    assert found("FULL", 512).graph_mode == "FULL"
    assert found("FULL", 512).max_capture_size == 512
    assert found("NONE", 512).max_capture_size == found("FULL", None).max_capture_size == 0
    assert found("FULL", 512).device.startswith("CPU")
    assert found("FULL", 512, "cuda").device == "", "there is no driver to ask here"
