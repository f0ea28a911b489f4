"""Files of models come from anybody: whatever is in them is a fact or a reason, never a traceback."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.preflight import config, gather, headers, models, vocabulary
from paceline_engine.preflight.asked import Asked, Source
from paceline_engine.preflight.headers import MalformedError, Tensor
from paceline_engine.preflight.model import Model
from tests.harness.model_files import facts, header

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
NAMES = st.sampled_from(sorted(facts("gpt-oss-120b") | facts("deepseek-v3") | facts("qwen3-8b-dspark")))
CONFIGS = st.dictionaries(NAMES | st.text(max_size=8), JSON, max_size=12)
TENSORS = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
        st.sampled_from(sorted(headers.BITS)),
        st.lists(st.integers(0, 64), max_size=4).map(tuple),
    ).map(lambda parts: Tensor(*parts)),
    max_size=8,
    unique_by=lambda one: one.name,
)
DEEP = b"[" * 100_000


@given(TENSORS)
def test_a_header_that_is_whole_is_read_back(found: list[Tensor]) -> None:
    first, data = header(found)
    count = headers.length(first, len(first) + data)
    assert sorted(headers.parse(first[8 : 8 + count], data)) == sorted(found)


@given(TENSORS.filter(bool), st.integers(1, 1000))
def test_a_file_that_is_shorter_or_longer_than_its_tensors_is_damaged(found: list[Tensor], more: int) -> None:
    first, data = header(found)
    for wrong in (data + more, data - more):
        with pytest.raises(MalformedError, match="cut off or damaged"):
            headers.parse(first[8:], wrong)


@given(st.binary(max_size=64), st.none() | st.integers(0, 2**63))
def test_any_first_bytes_are_a_length_or_a_reason(first: bytes, size: int | None) -> None:
    with suppress(MalformedError):
        found = headers.length(first, size)
        assert 2 <= found <= headers.MAX_HEADER_BYTES
        assert size is None or found <= size - 8


@pytest.mark.parametrize("claimed", [0, 1, headers.MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_length_that_cannot_be_is_refused_before_anything_is_read(claimed: int) -> None:
    with pytest.raises(MalformedError, match="no safetensors file"):
        headers.length(struct.pack("<Q", claimed) + b"{}")


@given(JSON | st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_any_json_as_a_header_is_tensors_or_a_reason(value: Any) -> None:
    with suppress(MalformedError):
        assert all(one.bytes >= 0 for one in headers.parse(json.dumps(value).encode()))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 7]},
        {"dtype": "F16", "shape": [2, -2], "data_offsets": [0, 8]},
        {"dtype": "F16", "shape": [2**53, 2], "data_offsets": [0, 8]},
        {"dtype": "F16", "shape": [True, 4], "data_offsets": [0, 8]},
        {"dtype": "F17", "shape": [2, 2], "data_offsets": [0, 8]},
        {"dtype": "F16", "shape": [2, 2], "data_offsets": [8, 16]},
        {"dtype": "F16", "shape": [2, 2], "data_offsets": [8, 0]},
        {"dtype": "F16", "shape": [2, 2]},
        [],
        None,
    ],
)
def test_a_tensor_that_cannot_be_is_named(entry: Any) -> None:
    with pytest.raises(MalformedError, match="weight"):
        headers.parse(json.dumps({"weight": entry}).encode())


def test_tensors_that_lie_over_each_other_are_refused() -> None:
    one = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
    with pytest.raises(MalformedError, match="begins at 0, the one before ends at 8"):
        headers.parse(json.dumps({"a": one, "b": one}).encode())


@pytest.mark.parametrize("parse", [headers.parse, config.parse, lambda text: vocabulary.parse("tokenizer.json", text)])
@pytest.mark.parametrize("text", [DEEP, b'{"a":' * 50_000, b"\xff\xfe", b"", b"nul", b"[]", b"7"])
def test_nested_and_broken_json_has_a_reason(parse: Any, text: bytes) -> None:
    with pytest.raises(MalformedError):
        parse(text)


METHODS = ("eagle", "eagle3", "mtp", "draft_model", "ngram", "suffix", "dflash", "dspark", "")


@given(CONFIGS, st.sampled_from(METHODS))
def test_any_configuration_is_taken_and_judged(value: dict[str, Any], method: str) -> None:
    found = config.parse(json.dumps(value).encode())
    assert 0 <= found.longest < 2**81
    draft = Model("draft", "/draft", config.of(facts("qwen3-8b-eagle3") | value))
    asked = Asked(target=Source(source="/target"), method=method, max_tokens=4, tensor_parallel=2)
    checks = list(models.checks(asked, Model("target", "/target", found), draft, 2**37))
    assert all(one.reason and one.name for one in checks)


@given(CONFIGS)
def test_a_text_model_within_another_goes_first(value: dict[str, Any]) -> None:
    inner = {**facts("qwen3-8b"), "max_position_embeddings": 77}
    found = config.of({**value, "text_config": inner})
    assert (found.positions, found.hidden, found.layers) == (77, inner["hidden_size"], inner["num_hidden_layers"])


@given(st.sampled_from(vocabulary.FILES), JSON)
def test_any_tokenizer_file_is_a_vocabulary_or_a_reason(file: str, value: Any) -> None:
    for text in (json.dumps(value), json.dumps({"model": {"vocab": value}, "added_tokens": value})):
        with suppress(MalformedError):
            assert vocabulary.parse(file, text.encode()).size >= 0


@given(st.dictionaries(st.text(max_size=4), st.integers(0, 50), max_size=8))
def test_a_vocabulary_differs_from_itself_in_nothing(ids: dict[str, int]) -> None:
    unique = {text: number for number, text in enumerate(ids)}
    assert vocabulary.differing(unique, dict(reversed(unique.items()))) == (0, "")


def test_ids_that_changed_places_are_counted() -> None:
    count, first = vocabulary.differing({" there ": 0, "b": 1, "c": 2}, {"b here": 0, "a": 1, "c": 2, "d": 3})
    assert (count, first) == (3, "0 is ' there ' in the target and 'b here' in the draft")


@given(
    st.dictionaries(
        st.sampled_from(["config.json", "tokenizer.json", gather.INDEX, "model.safetensors", "x.safetensors"]),
        st.binary(max_size=200),
    )
)
def test_any_folder_is_a_model_or_problems(tmp_path_factory: Any, files: dict[str, bytes]) -> None:
    folder: Path = tmp_path_factory.mktemp("model")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    found = gather.model("target", Source(source=str(folder)), {})
    assert found.config is not None or found.problems or "config.json" not in files
    assert list(models.checks(Asked(target=Source(source=str(folder))), found, None))
