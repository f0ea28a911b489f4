"""Models read from a hub: by range, a few kilobytes of files of any size, and every refusal has its word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline_engine.preflight import gather, models
from paceline_engine.preflight.asked import Asked, Source
from paceline_engine.preflight.check import Level
from paceline_engine.preflight.headers import Tensor
from tests.fakehub import Hub, Repository
from tests.harness.model_files import facts, header, tokenizer

DATA_BYTES = 8 * 2**20
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

NAMES = tuple(f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 1))


def shard(*found: Tensor) -> bytes:
    first, data = header(found)
    return first + bytes(data)


def repository() -> Repository:
    rows = DATA_BYTES // 2 // 1024
    files = {
        "config.json": json.dumps(facts("qwen3-0.6b") | {"num_hidden_layers": 2}).encode(),
        "tokenizer.json": json.dumps(tokenizer("qwen")).encode(),
        SHARDS[0]: shard(Tensor("model.layers.0.mlp.up_proj.weight", "BF16", (rows, 1024))),
        SHARDS[1]: shard(Tensor("model.layers.1.mlp.up_proj.weight", "BF16", (rows, 1024))),
        gather.INDEX: json.dumps({"weight_map": dict(zip(NAMES, SHARDS, strict=True))}).encode(),
        "onnx/model.onnx": b"",
    }
    return Repository(files, lfs=frozenset(SHARDS))


@pytest.fixture
def hub() -> Iterator[Hub]:
    found = Hub({"owner/name": repository()}, elsewhere=True).start()
    yield found
    found.stop()


def model(hub: Hub, source: str = "hf://owner/name", **environment: str) -> gather.Model:
    return gather.model("target", Source(source=source), {"HF_ENDPOINT": hub.url, **environment})


def test_headers_come_by_range_and_weights_do_not(hub: Hub) -> None:
    found = model(hub)
    assert [one.name for one in found.tensors] == [f"model.layers.{n}.mlp.up_proj.weight" for n in (0, 1)]
    assert found.weight_bytes > 2 * DATA_BYTES
    assert found.config is not None
    assert found.vocabulary is not None
    assert not found.problems
    assert hub.asked["bytes"] < 2 * gather.FIRST_BYTES + 2**16


def test_tensors_that_the_index_alone_has_are_doubted_and_stop_nothing(hub: Hub) -> None:
    assert not model(hub).doubt
    files = dict(zip((*NAMES, "lm_head.weight"), (*SHARDS, SHARDS[0]), strict=True))
    hub.repositories["owner/name"].files[gather.INDEX] = json.dumps({"weight_map": files}).encode()
    found = model(hub)
    assert "tensors that no file has: 1, the first is lm_head.weight" in found.doubt
    asked = Asked(target=Source(source="hf://owner/name"))
    (check,) = [one for one in models.checks(asked, found, None) if one.name == "target-weights"]
    assert (check.level, "lm_head.weight" in check.reason) == (Level.WARN, True)


def test_a_header_that_is_longer_than_the_first_bytes_is_read_on(hub: Hub) -> None:
    many = [Tensor(f"{'x' * 200}.{n}", "U8", (1,)) for n in range(2000)]
    hub.repositories["owner/name"].files[SHARDS[0]] = shard(*many)
    found = model(hub)
    assert len(found.tensors) == 2001
    assert not found.problems


def test_a_server_without_ranges_still_tells_short_headers(hub: Hub) -> None:
    hub.repositories["owner/name"].ranges = False
    assert len(model(hub).tensors) == 2


@pytest.mark.parametrize(
    ("source", "word"), [("hf://owner/other", "TokenMissing"), ("hf://owner/name", "TokenMissing")]
)
def test_what_cannot_be_had_fails_with_its_word(hub: Hub, source: str, word: str) -> None:
    hub.repositories["owner/name"].gated = "secret"
    found = model(hub, source)
    assert found.gone.startswith(word)
    check = next(iter(models.checks(Asked(target=Source(source=source)), found, None)))
    assert check.level is Level.FAIL


def test_a_token_opens_it_and_the_storage_elsewhere_never_sees_it(hub: Hub) -> None:
    hub.repositories["owner/name"].gated = "secret"
    assert model(hub, HF_TOKEN="secret").tensors
    storage = hub.storage.removeprefix("http://")
    assert {shown for host, shown in hub.authorized if host == storage} == {""}


def test_a_hub_that_does_not_answer_is_no_failure(hub: Hub) -> None:
    hub.stop()
    found = model(hub)
    assert found.unread
    first = next(iter(models.checks(Asked(target=Source(source="hf://owner/name")), found, None)))
    assert (first.name, first.level) == ("target-config", Level.SKIP)


def test_a_listing_that_is_none_is_no_failure(hub: Hub) -> None:
    hub.repositories["owner/name"].listing = b"<html>"
    assert model(hub).unread


def test_what_is_on_the_claim_already_is_read_there(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(facts("qwen3-8b")))
    found = gather.model("target", Source(source="hf://owner/name", path=str(tmp_path)), {"HF_ENDPOINT": hub.url})
    assert found.config is not None
    assert found.config.layers == 36
    assert not hub.asked


def test_sources_that_cannot_be_read_ahead_say_so() -> None:
    assert "s3" in gather.model("target", Source(source="s3://bucket/model"), {}).unread


def test_a_hub_that_the_engine_does_not_ask_is_not_asked(hub: Hub) -> None:
    for variable in ("HF_HUB_OFFLINE", "VLLM_USE_MODELSCOPE"):
        found = model(hub, "hf://nobody/nothing", **{variable: "True"})
        assert (found.gone, variable in found.unread) == ("", True)
    assert not hub.asked
    assert model(hub, HF_HUB_OFFLINE="0").config is not None


@pytest.mark.parametrize("file", ["params.json", "model-Q4_K_M.gguf"])
def test_a_format_that_vllm_reads_and_we_do_not_is_no_failure(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("{}")
    found = gather.model("target", Source(source=str(tmp_path)), {})
    assert file in found.unread
    assert not [
        check for check in models.checks(Asked(target=Source(source="x")), found, None) if check.level is Level.FAIL
    ]


def test_control_tokens_beyond_the_rows_are_told_and_stop_nothing(tmp_path: Path) -> None:
    whole = tokenizer("qwen")
    rows = max(whole["model"]["vocab"].values()) + 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    for size, level in ((rows, Level.WARN), (rows - 1, Level.FAIL)):
        (tmp_path / "config.json").write_text(json.dumps(facts("qwen3-0.6b") | {"vocab_size": size}))
        found = gather.model("target", Source(source=str(tmp_path)), {})
        asked = Asked(target=Source(source="x"))
        (check,) = [one for one in models.checks(asked, found, None) if one.name == "target-tokenizer"]
        assert check.level is level
