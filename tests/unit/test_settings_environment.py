"""The operator's environment: read, or refused by the name of the variable."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import settings

KEY = {"PACELINE_MASTER_KEY_FILE": "/keys"}


def test_defaults_need_the_key_file_alone() -> None:
    read = settings.read(KEY)
    assert (read.namespace, read.master_key_file) == ("default", Path("/keys"))
    assert read.watch_namespaces == frozenset()
    assert (read.http_port, read.lease_seconds) == (8080, 15)
    assert read.defaults.operator_namespace == "default"
    assert settings.read(KEY).identity != read.identity, "two processes are never one holder"


def test_everything_can_be_said() -> None:
    read = settings.read(
        {
            **KEY,
            "PACELINE_NAMESPACE": "home",
            "PACELINE_IDENTITY": "me",
            "PACELINE_WATCH_NAMESPACES": "a, b,,c",
            "PACELINE_HTTP_HOST": "127.0.0.1",
            "PACELINE_HTTP_PORT": "0",
            "PACELINE_LEASE_SECONDS": "30",
            "PACELINE_ENGINE_IMAGE": "gpu:1",
            "PACELINE_CPU_ENGINE_IMAGE": "cpu:1",
            "PACELINE_PLUGIN_IMAGE": "plugin:1",
            "PACELINE_LOG_FORMAT": "json",
            "PACELINE_LOG_LEVEL": "WARNING",
        }
    )
    assert read.watch_namespaces == {"a", "b", "c"}
    assert (read.log_format, read.log_level) == ("json", "WARNING")
    assert (read.namespace, read.identity, read.http_port, read.lease_seconds) == ("home", "me", 0, 30)
    images = (read.defaults.engine_image, read.defaults.cpu_engine_image, read.defaults.plugin_image)
    assert images == ("gpu:1", "cpu:1", "plugin:1")


def test_the_plugin_image_is_of_the_operators_version() -> None:
    assert settings.read({**KEY, "PACELINE_VERSION": "1.2.3"}).defaults.plugin_image.endswith(":1.2.3")


def test_the_key_file_is_asked_for_by_name() -> None:
    with pytest.raises(ValueError, match="PACELINE_MASTER_KEY_FILE is not set"):
        settings.read({})


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8))
def test_numbers_are_within_bounds_or_refused_by_name(text: str) -> None:
    try:
        low = 5 <= int(text) <= 300 if text else True
    except ValueError:
        low = False
    environment = {**KEY, "PACELINE_LEASE_SECONDS": text}
    if low:
        assert settings.read(environment).lease_seconds == (int(text) if text else 15)
    else:
        with pytest.raises(ValueError, match="PACELINE_LEASE_SECONDS is "):
            settings.read(environment)
