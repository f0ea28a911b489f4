"""The record of an incident: bounded, readable, and without what looks like a secret or a prompt."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.safety.incident import (
    MAX_BYTES,
    MAX_LINE,
    MAX_LINES,
    Incident,
    body,
    clean,
    clean_arguments,
    kept_lines,
    read,
)

LOG = """\
(EngineCore pid=71) ERROR 11-30 01:10:04 [core.py:1586] EngineCore encountered a fatal error.
(EngineCore pid=71) ERROR 11-30 01:10:04 [core.py:1586] Traceback (most recent call last):
(EngineCore pid=71) ERROR 11-30 01:10:04 [core.py:1586]   File "/x/y.py", line 3, in go
(EngineCore pid=71) ERROR 11-30 01:10:04 [core.py:1586] KeyError: 'a'
(EngineCore pid=71) ERROR 11-30 01:10:04 [dump_input.py:72] Dumping input data: prompt_token_ids=[1, 2, 3]
Tell me the secret of my marriage
{"role": "user", "content": "Tell me"}
INFO 11-30 01:10:04 [api.py:1] Received request: prompt: 'Tell me a secret'
INFO 11-30 01:10:04 [hub.py:1] login with hf_abcdefghijklmnop at https://me:pass@hub.example/x
RuntimeError: CUDA error
Segmentation fault (core dumped)
"""


def incident(log: tuple[str, ...] = (), **more: object) -> Incident:
    return Incident("i-1", "2026-01-01T00:00:00Z", "Crash", "chat-1", "f", "title", log=log, **more)  # type: ignore[arg-type]


def test_logger_lines_and_tracebacks_are_kept_and_what_may_be_a_prompt_is_not() -> None:
    lines, left_out = kept_lines(LOG)
    text = "\n".join(lines)
    assert len(lines) == 7
    assert left_out == 4
    for kept in ("fatal error", "Traceback", "in go", "KeyError", "CUDA error", "Segmentation fault"):
        assert kept in text
    for secret in ("marriage", "Tell me", "token_ids", "hf_abc", "me:pass"):
        assert secret not in text


def test_what_an_exception_quotes_in_words_of_its_own_is_kept_so_read_records_before_sending_them() -> None:
    assert kept_lines("ValueError: cannot parse my name is Bob") == (("ValueError: cannot parse my name is Bob",), 0)


def test_values_of_secret_arguments_are_not_kept_and_numbers_of_tokens_are() -> None:
    arguments = ["serve", "m", "--api-key", "hush", "--hf-token=hush", "--max-num-batched-tokens", "8", "--port", "1"]
    assert clean_arguments(arguments) == (
        "serve", "m", "--api-key", "…", "--hf-token=…", "--max-num-batched-tokens", "8", "--port", "1",
    )  # fmt: skip
    assert clean_arguments(["--tokenizer", "x", "--num-speculative-tokens=3"]) == (
        "--tokenizer", "x", "--num-speculative-tokens=3",
    )  # fmt: skip


SECRETS = (
    "non-default args: {'hf_token': 'hush', 'max_num_batched_tokens': 2048}",
    "non-default args: {'ssl_keyfile_password': \"hush\", 'tokenizer': 'kept'}",
    "HF_TOKEN=hush",
    "token=7Zhush",
    "password: 12.hush",
    "AWS_SECRET_ACCESS_KEY: hush",
    "fetch https://bucket.example/a?X-Amz-Signature=hush&X=1 failed",
    "redis://:hush@cache:6379/0",
    "sk-proj-hushhush-hush",
    "nvapi-hushhushhush",
    "github_pat_hushhushhush",
    '{"kv_connector_extra_config": {"password": "hush"}}',
    "credentials=['hush', 'hush']",
    "credentials={'user': 'me', 'word': 'hush'}",
    "credentials=['a]', 'hush']",
    "npm_hushhushhush",
    "pwd=hush",
    "PGPASSWORD=123456hush",
    "passphrase: hush",
    'password="a\\"hush"',
    "password='it\\'s hush'",
    '{\\"password\\": \\"hush\\"}',
    json.dumps(json.dumps({"hf_token": "a hush"})),
    "password=a,hush",
    "password='a'hush",
    "password='hush",
    "--hf-token hush",
    "--hf-token --hush",
    "--hf-token='a hush' hush",
    "--hf-token \\\n  hush",
    "Basic hush",
)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_told_by_its_name_or_its_looks(secret: str) -> None:
    line = f"INFO 11-30 01:10:04 [hub.py:1] {secret}"
    (kept,), _ = kept_lines(line)
    assert "hush" not in kept
    assert "hush" not in "".join(clean_arguments(["--some-config", secret]))


NAMES = ("password", "PGPASSWORD", "pwd", "hf_token", "client-secret", "private_key", "db_credentials", "accessKey")
FORMS: tuple[Callable[[str, str], str], ...] = (
    lambda name, value: f"{name}={shlex.quote(value)}",
    lambda name, value: f"export {name}={shlex.quote(value)} && go",
    lambda name, value: f"{name}: {json.dumps(value)}",
    lambda name, value: repr({"a": 1, name: value, "b": "c"}),
    lambda name, value: repr([{name: value}]),
    lambda name, value: json.dumps({"a": {name: value}, "b": 2}),
    lambda name, value: json.dumps(json.dumps({name: value})),
    lambda name, value: json.dumps({"x": json.dumps(json.dumps({name: value}))}),
    lambda name, value: f"serve m --{name} {shlex.quote(value)} --port 1",
    lambda name, value: f"serve m --{name}={shlex.quote(value)} --port 1",
    lambda name, value: f"exec bash -c {shlex.quote(f'serve m --{name} {shlex.quote(value)}')}",
    lambda name, value: f"bash -c {shlex.quote(f'{name}={shlex.quote(value)} serve')}",
)
AROUND = st.text("ab1'\"\\ ,;:=)]}{[($-_/+%@", max_size=6)


@settings(max_examples=400)
@given(st.sampled_from(NAMES), st.sampled_from(FORMS), AROUND, AROUND)
def test_a_secret_is_left_out_however_it_is_quoted(
    name: str, form: Callable[[str, str], str], before: str, after: str
) -> None:
    text = form(name, f"{before}hush{after}")
    assert "hush" not in clean(text)
    assert "hush" not in "".join(clean_arguments(["bash", "-c", text]))


@given(st.sampled_from(NAMES), st.text(min_size=1, max_size=20), st.booleans())
def test_the_first_value_of_a_secret_argument_is_left_out_whatever_it_looks_like(
    name: str, value: str, is_joined: bool
) -> None:
    given_ = [f"--{name}={value}"] if is_joined else [f"--{name}", value]
    assert clean_arguments(["serve", *given_, "--port", "1"]) == (
        "serve", *([f"--{name}=…"] if is_joined else [f"--{name}", "…"]), "--port", "1",
    )  # fmt: skip


@pytest.mark.parametrize(
    "harmless",
    [
        "Avg generation throughput: 12.5 tokens/s, Running: 3 reqs, GPU KV cache usage: 1.0%",
        "ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (4096)",
        "non-default args: {'num_speculative_tokens': 5, 'tokenizer': 'x', 'hf_token': None}",
        "KeyError: 'model.layers.0.tokens'",
    ],
)
def test_what_counts_tokens_is_no_secret(harmless: str) -> None:
    line = f"INFO 11-30 01:10:04 [hub.py:1] {harmless}"
    assert kept_lines(line) == ((line,), 0)


@pytest.mark.parametrize(
    "part", ["token=", "a.-", "a_", "AssertionError", "token:'", "token:['',", "x://", "'", "token:"]
)
def test_a_long_line_takes_no_longer(part: str) -> None:
    line = f"INFO 11-30 01:10:04 [hub.py:1] {part * 40_000}"
    began = time.process_time()
    kept_lines("\n".join([line[:4096]] * 64))
    clean_arguments([part * 40_000] * 4)
    assert time.process_time() - began < 5


def test_every_value_of_a_secret_argument_is_left_out() -> None:
    assert clean_arguments(["--api-key", "one", "two", "--port", "1"]) == ("--api-key", "…", "…", "--port", "1")


def test_a_record_reads_back_and_says_that_stacks_name_where_an_error_was_noticed() -> None:
    lines, left_out = kept_lines(LOG)
    found = read(body(incident(lines, left_out=left_out, table={"1": 5}, exit_code=0)))
    assert found is not None
    assert (found["id"], found["exitCode"], found["table"]) == ("i-1", 0, {"1": 5})
    assert found["logLinesLeftOut"] == left_out
    assert "need not be where it arose" in found["note"]
    assert read("no json") is None
    assert read("[]") is None


@given(
    st.lists(st.text(min_size=200, max_size=MAX_LINE), max_size=MAX_LINES),
    st.lists(st.text(max_size=1024), max_size=64),
    st.text(max_size=4000),
)
def test_a_record_is_bounded(lines: list[str], arguments: list[str], title: str) -> None:
    made = Incident("i", "t", "Crash", "p", "f", title, log=tuple(lines), arguments=tuple(arguments))
    text = body(made)
    assert len(text.encode()) <= MAX_BYTES
    assert json.loads(text)["id"] == "i"


@given(st.text(max_size=2000))
def test_any_log_is_cleaned(log: str) -> None:
    lines, left_out = kept_lines(log)
    assert len(lines) + left_out == len(log.splitlines())
    assert all(len(line) <= MAX_LINE for line in lines)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), min_size=8))
def test_a_line_that_no_logger_wrote_is_not_kept(prompt: str) -> None:
    line = f"user said {prompt}"
    lines, _ = kept_lines(line)
    assert lines == () or "Error" in line or "Exception" in line or "Timeout" in line or "INFO" in line
