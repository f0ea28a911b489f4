"""Prompts that are made: recorded lengths stay, talks go on as often as asked for, what a file holds wrong is told."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.trial import making
from paceline_engine.trial.facts import ResultError
from paceline_engine.trial.making import BETWEEN, CHUNK, MOST_TURNS, Making, Row, Source, Turn

PROFILE = b"input_tokens,output_tokens,count\n64,16,3\n200,32,1\n"
SHAPES = {(64, 16), (200, 32)}


def turns(how: Making, count: int, load: int, seed: int = 1, content: bytes = PROFILE) -> list[Turn]:
    return list(making.turns(how, content, count, load, random.Random(seed)))


def lines(how: Making, content: bytes, count: int, load: int, seed: int = 1) -> list[dict[str, Any]]:
    return [json.loads(line) for line in making.made(how, content, count, load, seed).splitlines()]


def test_a_profile_is_read() -> None:
    assert making.rows(PROFILE) == (Row(64, 16, 3), Row(200, 32, 1))
    assert making.rows(PROFILE.replace(b"\n", b"\r\n") + b"\r\n", longest=232) == (Row(64, 16, 3), Row(200, 32, 1))
    assert making.rows(b"\xef\xbb\xbf" + PROFILE) == making.rows(PROFILE), "as a spreadsheet saves it"


def test_a_talk_of_texts_ends_before_the_longest_context() -> None:
    content = json.dumps({"prompt": "word " * 300}).encode()
    how = Making(source=Source.TEXTS, output_tokens=100, multi_turn_percent=100, longest=1100)
    found = [line["prompt"] for line in lines(how, content, 40, 4)]
    assert {len(one) // 1500 for one in found} == {1}, "two are 3,002 characters, and there is room for 3,000"
    wider = how.model_copy(update={"longest": 1200})
    assert {len(one) // 1500 for one in [line["prompt"] for line in lines(wider, content, 40, 4)]} == {1, 2}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "line 1 is not input_tokens,output_tokens,count"),
        (b"64,16,3\n", "line 1 is not"),
        (b"input_tokens,output_tokens,count\n", "has no lengths"),
        (PROFILE + b"1,2\n", "line 4 has 2 values in place of 3"),
        (PROFILE + b"0,2,1\n", "line 4: input_tokens is no whole number from 1 to 1048576"),
        (PROFILE + b"1,2.5,1\n", "line 4: output_tokens is no whole number"),
        (PROFILE + b"1,1,-1\n", "line 4: count is no whole number"),
        (PROFILE + b"1000,25,1\n", "line 4: 1000 + 25 tokens are more than maxModelLen 1024"),
        (PROFILE + 10_000 * b"1,1,1\n", "10002 rows: 10000 are taken"),
        (b"\xff", "no CSV"),
        (PROFILE + b'"', "no CSV"),
    ],
)
def test_a_mistake_in_a_profile_is_told_with_its_line(content: bytes, said: str) -> None:
    with pytest.raises(ResultError, match=re.escape(said)):
        making.rows(content, longest=1024)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda some: PROFILE + some))
def test_any_bytes_are_a_profile_or_a_mistake(content: bytes) -> None:
    try:
        found = making.rows(content)
    except ResultError:
        return
    assert all(min(row) >= 1 for row in found)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda some: b'{"prompt": "a"}\n' + some))
def test_any_bytes_are_texts_or_a_mistake(content: bytes) -> None:
    try:
        assert all(making.texts(content))
    except ResultError:
        return


def test_recorded_lengths_come_as_often_as_recorded() -> None:
    for percent in (0, 60):
        found = turns(Making(source=Source.LENGTHS, multi_turn_percent=percent), 4000, 8)
        shapes = Counter((one.input_tokens, one.output_tokens) for one in found)
        assert shapes.keys() == SHAPES
        assert shapes[64, 16] / 4000 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("source", [Source.LENGTHS, Source.RANDOM])
@pytest.mark.parametrize("percent", [0, 30, 100])
def test_requests_go_on_as_often_as_asked_for(source: Source, percent: int) -> None:
    found = turns(Making(source=source, input_tokens=50, output_tokens=9, multi_turn_percent=percent), 4000, 8)
    later = found[8:]
    share = sum(one.number > 0 for one in later) / len(later)
    ended = 1 / MOST_TURNS if percent == 100 else 0.3**MOST_TURNS
    assert share == pytest.approx(percent / 100 - ended * (percent > 0), abs=0.03)
    assert all(one.number == 0 for one in found[:8])


@given(
    st.builds(
        Making,
        source=st.sampled_from([Source.LENGTHS, Source.RANDOM]),
        input_tokens=st.integers(1, 300),
        range_percent=st.integers(0, 100),
        output_tokens=st.integers(1, 50),
        multi_turn_percent=st.integers(0, 100),
        longest=st.sampled_from([0, 1024]),
    ),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
)
def test_a_later_turn_begins_with_the_one_before(how: Making, load: int, seed: int) -> None:
    found = turns(how, 24, load, seed)
    made = lines(how, PROFILE, 24, load, seed)
    assert made == lines(how, PROFILE, 24, load, seed), "all variants get the same"
    for at, (turn, line) in enumerate(zip(found, made, strict=True)):
        ids = line["hash_ids"]
        assert (len(ids) - 1) * CHUNK < line["input_length"] == turn.input_tokens <= len(ids) * CHUNK
        assert line["output_length"] == turn.output_tokens
        assert how.longest == 0 or turn.input_tokens + turn.output_tokens <= how.longest
        if how.source is Source.LENGTHS:
            assert (turn.input_tokens, turn.output_tokens) in SHAPES
        shared = [other for other in range(at) if {*made[other]["hash_ids"]} & {*ids}]
        if turn.number == 0:
            assert shared == []
            continue
        before = found[at - load]
        assert (before.talk, before.number) == (turn.talk, turn.number - 1)
        assert list(takewhile(lambda pair: pair[0] == pair[1], zip(ids, made[at - load]["hash_ids"], strict=False)))
        if how.source is Source.RANDOM:
            assert turn.input_tokens > before.input_tokens + before.output_tokens


@given(st.integers(0, 2**32 - 2), st.integers(0, 2**32 - 2))
def test_other_seeds_have_no_token_in_common(one: int, other: int) -> None:
    how = Making(source=Source.RANDOM, input_tokens=40, multi_turn_percent=50)
    ids = [{number for line in lines(how, b"", 20, 4, seed) for number in line["hash_ids"]} for seed in (one, other)]
    assert one == other or not ids[0] & ids[1]


@given(
    st.lists(st.text(min_size=1), min_size=1, max_size=5), st.integers(0, 100), st.integers(1, 4), st.integers(0, 99)
)
def test_texts_of_a_talk_stand_one_behind_the_other(own: list[str], percent: int, load: int, seed: int) -> None:
    content = "".join(f"{json.dumps({'prompt': one, 'more': 1})}\n" for one in own).encode()
    how = Making(source=Source.TEXTS, multi_turn_percent=percent)
    found = [line["prompt"] for line in lines(how, content, 40, load, seed)]
    for at, prompt in enumerate(found):
        begun = at < load or percent == 0
        assert prompt in own if begun else any(prompt == one or prompt.endswith(f"{BETWEEN}{one}") for one in own)
        if prompt not in own:
            assert prompt.startswith(f"{found[at - load]}{BETWEEN}")
    if percent == 100:
        assert found[load].startswith(f"{found[0]}{BETWEEN}")
    assert percent or Counter(found).keys() <= {*own}


def test_what_is_made_is_where_the_arguments_say(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    how = Making(source=Source.LENGTHS)
    found = making.written(how, PROFILE, path, 10, 2, 7)
    assert found == [
        "--dataset-name",
        "timed_trace",
        "--timed-trace-chunk-hash-size",
        "16",
        "--dataset-path",
        str(path),
    ]
    assert path.read_bytes() == making.made(how, PROFILE, 10, 2, 7)
    found = making.written(how.model_copy(update={"source": Source.TEXTS}), b'{"prompt": "a"}', path, 3, 2, 7)
    assert found[:5] == ["--dataset-name", "custom", "--disable-shuffle", "--custom-output-len", "1"]
    assert making.written(None, b"", tmp_path / "none", 1, 1, 1) == []
    assert not (tmp_path / "none").exists()
