"""What is kept of an incident: enough to understand it, bounded, and without what looks like a secret or a prompt.
Pure.

Log lines are taken by what they are, not by what they are not: lines of a traceback, of a logger, and of the engine's
own dump are kept without long quoted values; anything else, which may be a prompt, is left out and counted. What an
exception or a plugin's logger quotes in words of its own cannot be told from the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_LINES = 200
MAX_LINE = 400
LOOKED_AT = 4096
"""Characters of a line that are cleaned: a bound on the time that patterns take."""
MAX_BYTES = 48 * 1024
"""Of one record: ten of them fit into a ConfigMap, which takes 1 MiB at most, with room to spare."""
MAX_RECORDS = 10
NOTE = (
    "CUDA reports errors after the call that caused them: the frames of this stack are where it was noticed, and need "
    "not be where it arose."
)
_LOGGED = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]+:\d+\]")
"""vLLM's log format."""
_PREFIX = re.compile(r"^(\(\w[^)]*\)\s*)?")
_TRACE = re.compile(
    r"^\s*(Traceback \(most recent call last\):|File \"[^\"]+\", line \d+, in \S+|"
    r"(\w+\.)*\w*(Error|Exception|Timeout)\b.*)$"
)
_BARE = re.compile(r"^\s*(Aborted|Segmentation fault|Killed|Fatal Python error: .*|Current thread .*|Thread 0x.*)")
_SENSITIVE = re.compile(r"prompt|messages?['\"]|content['\"]|token_ids|Bearer|authorization|api[-_]?key", re.IGNORECASE)
_SECRET = re.compile(
    r"\b(hf_\w{8,}|(?:sk|nvapi|glpat|xox[a-z])-[\w-]{8,}|gh[a-z]_\w{8,}|(?:github|dckr)_pat_[\w-]{8,}|npm_\w{8,}|"
    r"pypi-[\w-]{16,}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w.-]+|[A-Fa-f0-9]{32,}|A[KS]IA\w{12,})\b"
)
_URL_USER = re.compile(r"(\b\w{1,32}://)[^/@\s]+@")
_URL_QUERY = re.compile(r"(\b\w{1,32}://[^\s?'\"]+\?)[^\s'\"]+")
"""Signatures and tokens are there."""
_SCHEME = re.compile(r"(?i)\b(bearer|basic|authorization['\"]?\s{0,4}[:=])\s.*", re.DOTALL)
_QUOTE = r"""'[^'\\]*(?:'|\\.*|$)|"[^"\\]*(?:"|\\.*|$)"""
"""What is quoted, as Python, JSON and shells do it. Where there is a backslash, or one quote quotes another, nobody
knows where it ends: then to the end."""
_VALUE = rf"""(?:'".*|"'.*|{_QUOTE}|\\.*|[^\s,;)}}\]'"\\]|[,;)}}\]]+(?=[^\s,;)}}\]'"]))+"""
_LIST = rf"""[\[{{(](?!\d)(?:{_QUOTE}|[^\]}})'"])*[\]}})]?"""
_NOTHING = r"None\b|null\b|True\b|False\b|true\b|false\b"
_SAID = r"""\w{0,32}(?:\\{0,16}['"])?\s{0,4}[:=]\s{0,4}"""
_KEYED = re.compile(
    rf"(?is)((?:api[_-]?key|(?:access|private)[_-]?key|secret|passw|passphrase|pwd|credential){_SAID})"
    rf"(?!{_NOTHING})(?:{_LIST}|{_VALUE})"
)
_COUNT = r"""\[\d|\d+(?:\.\d+)?[,;)}\]]*(?:[\s'"]|$)"""
_TOKEN = re.compile(rf"(?is)(token(?!iz|s){_SAID})(?!{_NOTHING}|{_COUNT})(?:{_LIST}|{_VALUE})")
"""A value whose name tells of a secret; numbers of tokens are counts."""
_QUOTED = re.compile(r"'[^']{24,}'|\"[^\"]{24,}\"")
"""Longer than names of files' last parts, options and types are."""
_OPTION = re.compile(
    rf"(?is)(--[\w-]*(?:key|token|secret|passw|pwd|credential)[\w-]*)(=|[\s\\]+)"
    rf"(?:{_VALUE}|[^\s])(?:\s+(?!-)(?:{_VALUE}|[^\s]))*"
)
"""With all its values, the first of which may look like an option."""
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])?")
"""ECMA-48: control sequences, strings of the operating system's, and what has two characters."""
_NAME_SECRET = re.compile(r"(?i)key|token|secret|passw|pwd|credential")


@dataclass(frozen=True)
class Incident:
    """One record."""

    id: str
    at: str
    """RFC 3339."""
    kind: str
    pod: str
    fingerprint: str
    title: str
    engine_version: str = ""
    exit_code: int | None = None
    reason: str = ""
    restarts: int = 0
    lived_seconds: float | None = None
    arguments: tuple[str, ...] = ()
    table: Mapping[str, int] | None = None
    """k by number of requests, as it was in force."""
    load: int | None = None
    generation: int | None = None
    action: str = ""
    log: tuple[str, ...] = ()
    left_out: int = 0
    """Log lines that were not kept."""


def kept_lines(log: str) -> tuple[tuple[str, ...], int]:
    """(the last lines worth keeping, cleaned, at most MAX_LINES of MAX_LINE characters; how many were left out)."""
    lines = log.splitlines()
    kept = [clean(line) for line in lines if _worth(line)]
    last = tuple(line[:MAX_LINE] for line in kept[-MAX_LINES:])
    return last, len(lines) - len(last)


def printable(text: str) -> str:
    """One line of `text` that does nothing to a terminal."""
    return "".join(one if one.isprintable() else " " for one in _ESCAPE.sub("", text))


def clean(text: str) -> str:
    """`text` without what looks like a secret, a user in an address, or a long quoted value."""
    return _QUOTED.sub("'…'", _unnamed(printable(text[:LOOKED_AT])))


def _unnamed(text: str) -> str:
    """Without secrets that can be told by what they look like, or by their name."""
    text = _URL_QUERY.sub(r"\1…", _URL_USER.sub(r"\1…@", _SECRET.sub("…", _SCHEME.sub(r"\1 …", text))))
    text = _OPTION.sub(lambda one: one[0] if _counts(one[1]) else f"{one[1]}{one[2]}…", text)
    return _TOKEN.sub(r"\1…", _KEYED.sub(r"\1…", text))


def clean_title(text: str) -> str:
    """An exception's line; its name alone where the rest may be a prompt."""
    return text.partition(":")[0] if _SENSITIVE.search(text) else clean(text)


def clean_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """A command line without the values of arguments that name a key, a token, a secret or a password."""
    cleaned: list[str] = []
    hide = is_first = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide and (is_first or not argument.startswith("--")):  # each of its values: --api-key takes several
            cleaned.append("…")
            is_first = False
            continue
        secret = argument.startswith("--") and bool(_NAME_SECRET.search(name)) and not _counts(name)
        hide = is_first = secret and not equals
        cleaned.append(f"{name}=…" if secret and equals else _unnamed(argument[:LOOKED_AT]))
    return tuple(cleaned)


def body(incident: Incident) -> str:
    """The record as JSON of at most MAX_BYTES: log lines go first where it is longer, oldest first, then arguments."""
    lines, arguments = list(incident.log), list(incident.arguments)
    while True:
        found = {
            "id": incident.id, "at": incident.at, "kind": incident.kind, "pod": incident.pod,
            "fingerprint": incident.fingerprint, "title": clean_title(incident.title)[:MAX_LINE],
            "engineVersion": incident.engine_version, "exitCode": incident.exit_code, "reason": incident.reason,
            "restarts": incident.restarts, "livedSeconds": incident.lived_seconds, "load": incident.load,
            "generation": incident.generation, "table": dict(incident.table) if incident.table else None,
            "action": incident.action[:MAX_LINE], "arguments": arguments, "log": lines,
            "logLinesLeftOut": incident.left_out + len(incident.log) - len(lines), "note": NOTE,
        }  # fmt: skip
        text = json.dumps({k: v for k, v in found.items() if v is not None}, ensure_ascii=False, indent=1)
        if len(text.encode()) <= MAX_BYTES:
            return text
        if lines:
            lines = lines[max(1, len(lines) // 8) :]
        elif arguments:
            arguments = arguments[: len(arguments) // 2]
        else:
            return json.dumps({"id": incident.id, "at": incident.at, "kind": incident.kind})


def kept(stored: Mapping[str, Any], fresh: Mapping[str, str]) -> dict[str, str]:
    """Data of the ConfigMap with `fresh` records in it: the newest, by their names, which begin with the time."""
    whole = {name: text for name, text in stored.items() if isinstance(text, str) and read(text)} | dict(fresh)
    return {name: whole[name] for name in sorted(whole)[-MAX_RECORDS:]}


def read(text: str) -> dict[str, Any] | None:
    """A stored record; None where it is none of ours."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("id"), str) else None


def _worth(line: str) -> bool:
    if _SENSITIVE.search(line):
        return False
    bare = _LOGGED.sub("", _PREFIX.sub("", line, count=1), count=1).strip()
    return bool(_LOGGED.search(line) or _TRACE.match(bare) or _BARE.match(bare))


def _counts(name: str) -> bool:
    """Options about numbers of tokens, which are no secrets."""
    return bool(re.search(r"tokens|num-|max-|-len\b|tokenizer", name))
