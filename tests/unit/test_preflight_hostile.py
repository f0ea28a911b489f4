"""Folders that are no models, in whole runs: each is a check with a reason that any terminal and encoding takes."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.preflight import __main__ as command
from paceline_engine.preflight import gather, tiny
from paceline_engine.preflight.asked import Asked, Source
from paceline_engine.preflight.check import FAILED_STATUS, Level, Report, passed
from paceline_engine.preflight.headers import Tensor
from paceline_engine.pull.fetch import open_url
from paceline_engine.pull.report import Failure, PullError
from tests.harness.model_files import facts, header

TINY = [
    Tensor("model.embed_tokens.weight", "F16", (4, 4)),
    Tensor("model.layers.0.self_attn.q_proj.weight", "F16", (4, 4)),
]
ESCAPE = "\x1b]0;mine\x07"


def config(folder: Path, **change: Any) -> None:
    (folder / "config.json").write_text(json.dumps(facts("qwen3-8b", change)))


def raw(text: bytes) -> Callable[[Path], None]:
    def lay(folder: Path) -> None:
        (folder / "config.json").write_bytes(text)

    return lay


def changed(**change: Any) -> Callable[[Path], None]:
    return lambda folder: config(folder, **change)


def also(name: str, content: bytes | dict[str, Any]) -> Callable[[Path], None]:
    def lay(folder: Path) -> None:
        config(folder)
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())

    return lay


def weights(tensors: list[Tensor], **change: Any) -> Callable[[Path], None]:
    def lay(folder: Path) -> None:
        config(folder, **change)
        first, data = header(tensors)
        (folder / "model.safetensors").write_bytes(first + bytes(data))

    return lay


def linked(name: str, to: str, *, settings: bool = True) -> Callable[[Path], None]:
    def lay(folder: Path) -> None:
        if settings:
            config(folder)
        (folder / name).symlink_to(to)

    return lay


def piped(folder: Path) -> None:
    config(folder)
    os.mkfifo(folder / "model.safetensors")


def long_header(folder: Path) -> None:
    """Eight files that claim 100 MB each, and have them, as holes."""
    config(folder)
    for at in range(8):
        with (folder / f"{at}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", 100_000_000))
            file.truncate(8 + 100_000_000)


def entry(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text + bytes(2)


LIES: dict[str, tuple[Callable[[Path], None], str, Level]] = {
    "layers without end": (
        weights(TINY, num_hidden_layers=2**39, vocab_size=4, hidden_size=4), "target-weights", Level.FAIL,
    ),
    "half a character": (raw(b'{"architectures": ["\\ud800"], "hidden_size": 4, "vocab_size": 4}'), "target-config",
                         Level.PASS),
    "a terminal's words": (changed(architectures=[ESCAPE]), "target-config", Level.PASS),
    "half a character of quantization": (changed(quantization_config={"quant_method": "\ud800"}),
                                         "target-quantization", Level.PASS),
    "no numbers": (raw(b'{"architectures": ["X"], "hidden_size": NaN, "vocab_size": Infinity}'), "target-config",
                   Level.WARN),
    "a number of 5000 digits": (raw(b'{"vocab_size": ' + b"9" * 5000 + b"}"), "target-config", Level.FAIL),
    "UTF-7 and worse": (raw(b"\x80\x81{}"), "target-config", Level.FAIL),
    "nine megabytes": (raw(b" " * 9_000_000), "target-config", Level.FAIL),
    "nested": (raw(b'{"text_config":' * 3000 + b"1" + b"}" * 3000), "target-config", Level.FAIL),
    "every size at its largest": (changed(**dict.fromkeys(
        ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "num_experts", "moe_intermediate_size", "head_dim"), 2**39)),
        "target-config", Level.PASS),
    "a link to itself": (linked("config.json", "config.json", settings=False), "target-config", Level.FAIL),
    "two links to each other": (linked("a.safetensors", "a.safetensors"), "target-weights", Level.SKIP),
    "a link to the folder": (linked("model.safetensors", "."), "target-weights", Level.SKIP),
    "a link to zeros": (linked("model.safetensors", "/dev/zero"), "target-weights", Level.SKIP),
    "a pipe": (piped, "target-weights", Level.SKIP),
    "headers of 800 MB": (long_header, "target-weights", Level.SKIP),
    "a header longer than its file": (also("model.safetensors", struct.pack("<Q", 999) + b"{}"), "target-weights",
                                      Level.FAIL),
    "an empty file of weights": (also("model.safetensors", b""), "target-weights", Level.FAIL),
    "a type in half a character": (also("model.safetensors", entry(
        b'{"a": {"dtype": "\\ud800", "shape": [1], "data_offsets": [0, 2]}}')), "target-weights", Level.FAIL),
    "a name that is no text": (also(os.fsdecode(b"\xff.safetensors"), b"x"), "target-weights", Level.FAIL),
    "a name for terminals": (also(f"{ESCAPE}.safetensors", b"x"), "target-weights", Level.FAIL),
    "an index of half characters": (also(gather.INDEX, {"weight_map": {"a": "\ud800"}}), "target-weights", Level.FAIL),
    "an index of a list": (also(gather.INDEX, {"weight_map": ["a"]}), "target-weights", Level.FAIL),
    "an empty tokenizer": (also("tokenizer.json", b""), "target-tokenizer", Level.FAIL),
    "ids that are no numbers": (also("tokenizer.json", b'{"model": {"vocab": {"a": NaN}}}'), "target-tokenizer",
                                Level.FAIL),
}  # fmt: skip


@pytest.mark.parametrize("method", ["", "draft_model", "eagle3"])
@pytest.mark.parametrize("lie", LIES)
def test_what_is_no_model_is_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lie: str, method: str
) -> None:
    lay, name, level = LIES[lie]
    folder, termination = tmp_path / "model", tmp_path / "termination"
    folder.mkdir()
    termination.touch()
    lay(folder)
    source = Source(source=str(folder), path=str(folder))
    asked = Asked(target=source, draft=source if method else None, method=method, max_tokens=3)
    environment = {"PACELINE_TERMINATION_LOG": str(termination)}
    status = command.main(["--asked", asked.model_dump_json(by_alias=True), "--no-machine", "--json"], environment)
    report = Report.model_validate_json(capsys.readouterr().out)
    assert {one.name: one.level for one in report.checks}[name] is level
    assert all((one.reason + one.remedy).isprintable() for one in report.checks)
    assert status == (FAILED_STATUS if report.level is Level.FAIL else 0)
    assert Report.model_validate_json(termination.read_bytes()).level is report.level


@pytest.mark.parametrize(
    ("environment", "failure"),
    [
        ({"HF_TOKEN": "hf_quiet\nX-Other: 1"}, Failure.TOKEN_MISSING),
        ({"HF_TOKEN": "hf_quiet\u4e2d"}, Failure.TOKEN_MISSING),
        ({"HF_ENDPOINT": "http://me:quiet@127.0.0.1:1"}, Failure.DOWNLOAD_FAILED),
        ({"HF_ENDPOINT": "http://me:quiet@127.0.0.1"}, Failure.DOWNLOAD_FAILED),
        ({"HF_ENDPOINT": "ftp://me:quiet@127.0.0.1"}, Failure.DOWNLOAD_FAILED),
    ],
)
def test_a_secret_that_cannot_be_sent_is_not_told(environment: dict[str, str], failure: Failure) -> None:
    whole = {"HF_ENDPOINT": "http://127.0.0.1:1", **environment}
    found = gather.model("target", Source(source="hf://owner/name"), whole)
    assert "quiet" not in repr(found)
    assert bool(found.gone) is (failure is Failure.TOKEN_MISSING)
    with pytest.raises(PullError) as caught:
        open_url(whole["HF_ENDPOINT"], {"Authorization": f"Bearer {environment.get('HF_TOKEN', '')}"})
    assert caught.value.reason is failure
    assert "quiet" not in str(caught.value)


@pytest.mark.parametrize("target", [{"num_hidden_layers": "many"}, {"num_hidden_layers": float("inf")}, [1], "x", None])
@pytest.mark.parametrize("draft", [{"eagle_aux_hidden_state_layer_ids": [1, 2]}, {"num_target_layers": -1}, [1], None])
def test_a_tiny_model_of_anything_is_tried_or_left_out(
    monkeypatch: pytest.MonkeyPatch, target: Any, draft: Any
) -> None:
    tried = passed(tiny.NAME, "tried")
    monkeypatch.setattr(tiny, "_outcome", lambda work: tried)
    found = tiny.check(Asked(target=Source(source="/target"), method="eagle3", max_tokens=3), target, draft)
    assert found.level is (Level.PASS if isinstance(target, dict) and not isinstance(draft, list) else Level.SKIP)
