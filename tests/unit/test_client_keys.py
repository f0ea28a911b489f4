"""Master keys: parsed or refused without being shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import derive_token
from paceline_operator.clients.keys import MIN_KEY_BYTES, KeyFile, KeyRing, key_version, parse

ONE, TWO = b"1" * MIN_KEY_BYTES, b"2" * MIN_KEY_BYTES


@pytest.mark.parametrize("content", [ONE, ONE + b"\n", b"\n" + ONE + b" \r\n\n"])
def test_one_key(content: bytes) -> None:
    assert parse(content) == KeyRing(ONE)


def test_two_keys_are_current_and_previous() -> None:
    assert parse(ONE + b"\n" + TWO) == KeyRing(ONE, TWO)


@given(st.binary(max_size=200))
def test_anything_else_is_refused_without_being_shown(content: bytes) -> None:
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    good = 1 <= len(lines) <= 2 and all(len(line) >= MIN_KEY_BYTES for line in lines)
    if good:
        assert parse(content).current == lines[0]
        return
    with pytest.raises(ValueError, match=r"key") as refusal:
        parse(content)
    assert not any(len(line) > 3 and line.decode("latin-1") in str(refusal.value) for line in lines)


def test_keys_are_in_no_repr() -> None:
    ring = KeyRing(ONE, TWO)
    assert "1111" not in repr(ring)
    tokens = ring.tokens("uid")
    assert tokens.current not in repr(tokens)


def test_tokens_follow_from_key_uid_and_version() -> None:
    ring = KeyRing(ONE, TWO)
    tokens = ring.tokens("uid")
    assert tokens.key_version == key_version(ONE)
    assert tokens.current == derive_token(ONE, "uid", key_version(ONE)) == ring.token_of("uid", key_version(ONE))
    assert tokens.previous == derive_token(TWO, "uid", key_version(TWO)) == ring.token_of("uid", key_version(TWO))
    assert ring.token_of("uid", "unknown") == tokens.current
    assert ring.tokens("other").current != tokens.current


def test_a_file_is_read_anew_and_its_last_good_content_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with pytest.raises(OSError, match="keys"):
        KeyFile(file)
    file.write_bytes(b"short")
    with pytest.raises(ValueError, match=f"shorter than {MIN_KEY_BYTES} bytes"):
        KeyFile(file)
    file.write_bytes(ONE)
    keys = KeyFile(file)
    file.write_bytes(TWO + b"\n" + ONE)
    assert keys.ring() == KeyRing(TWO, ONE)
    file.write_bytes(b"")
    assert keys.ring() == KeyRing(TWO, ONE)
    file.unlink()
    assert keys.ring() == KeyRing(TWO, ONE)
