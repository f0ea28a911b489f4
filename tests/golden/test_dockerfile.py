"""The Dockerfile: its targets, and that only the wheel reaches an image."""

from __future__ import annotations

import json
import re
from pathlib import Path

from paceline_operator import naming, settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
STAGES = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))


def test_targets() -> None:
    assert {"operator", "engine", "plugin"} <= set(STAGES)


def test_bases_are_arguments() -> None:
    bases = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", TEXT, flags=re.MULTILINE))
    used = re.findall(r"^FROM (\S+)", TEXT, flags=re.MULTILINE)
    assert {base for base in used if base not in STAGES} == {f"${{{name}}}" for name in bases}
    assert bases["VLLM_IMAGE"].endswith(settings.DEFAULT_ENGINE_IMAGE)


def test_the_operator_is_process_1_and_no_file_of_the_working_directory_is_a_module() -> None:
    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", STAGES["operator"], flags=re.MULTILINE)
    assert json.loads(entrypoint)[1:] == ["-m", "paceline_operator"]
    (environment,) = re.findall(r"^ENV (.*)$", STAGES["operator"], flags=re.MULTILINE)
    assert {"PYTHONSAFEPATH=1", "USER=paceline"} <= set(environment.split())


def test_operator_and_plugin_run_as_nobody() -> None:
    for target in ("operator", "plugin"):
        assert re.findall(r"^USER (.*)$", STAGES[target], flags=re.MULTILINE) == ["65532:65532"]


def test_the_plugin_is_where_the_init_container_and_the_engine_look_for_it() -> None:
    assert "COPY --from=unpacked /plugin /plugin" in STAGES["plugin"]
    assert f"COPY --from=unpacked /plugin {naming.PLUGIN_DIRECTORY}" in STAGES["engine"]
    assert f"write_text('{naming.PLUGIN_DIRECTORY}" in STAGES["engine"]


def test_what_the_build_copies_is_all_that_it_is_given() -> None:
    ignored, *allowed = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith(("#", "**"))
    ]
    copied = [
        source
        for arguments in re.findall(r"^COPY (?!--from)(.*)$", TEXT, flags=re.MULTILINE)
        for source in arguments.split()[:-1]
    ]
    assert ignored == "*"
    assert sorted(line.removeprefix("!") for line in allowed) == sorted(copied)
    assert all((ROOT / source).exists() for source in copied)
