"""What a reader of files left out, and where: named, and no reason to stop."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

LARGEST_FILE = 64 * 1024 * 1024
"""Bytes. A published table has a few KB."""


@dataclass(frozen=True)
class Note:
    """Something in a file that is not used, or cannot be."""

    file: str
    line: int | None
    """From 1; None = the whole file."""
    reason: str
    more: int = 0
    """Further lines of the same file with the same reason."""

    def __str__(self) -> str:
        where = "" if self.line is None else f":{self.line}"
        more = f" (and {self.more} more line{'s' if self.more > 1 else ''})" if self.more else ""
        return f"{self.file}{where}: {self.reason}{more}"


class UnreadableError(Exception):
    """A file that cannot be read at all; the note says why."""

    def __init__(self, note: Note) -> None:
        super().__init__(str(note))
        self.note = note


def folded(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Notes of the same file and reason as one: the first, and how many more there are."""
    first: dict[tuple[str, str], Note] = {}
    for note in notes:
        past = first.setdefault((note.file, note.reason), note)
        if past is not note:
            first[note.file, note.reason] = replace(past, more=past.more + 1)
    return tuple(first.values())


def text_of(path: Path) -> str:
    """Content of a text file, without a byte order mark. Raises UnreadableError."""
    name = str(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UnreadableError(Note(name, None, f"larger than {LARGEST_FILE // 1024 // 1024} MB"))
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableError(Note(name, None, f"cannot be read: {error.strerror or error}")) from None
    if b"\0" in content:
        raise UnreadableError(Note(name, content[: content.index(b"\0")].count(b"\n") + 1, "binary, not text"))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UnreadableError(Note(name, line, f"not UTF-8 (byte {content[error.start]:#04x})")) from None


DELIMITERS = ",;\t"
COMMENT = "#"


class Sheet:
    """A CSV file: its header, and its rows as mappings with their first line; what cannot be a row becomes a note.

    Values are between commas, or between whichever of semicolons and tabs the header has more of. Lines that begin with
    # are none.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.notes: list[Note] = []
        lines = (line for line in text.splitlines() if line.strip() and not line.startswith(COMMENT))
        header = next(lines, "")
        delimiter = max(DELIMITERS, key=header.count)
        self._reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        first = next(self._records(), (1, []))
        self.columns = tuple(column.strip().lower() for column in first[1])

    @classmethod
    def open(cls, path: Path) -> Sheet:
        """Raises UnreadableError."""
        sheet = cls(str(path), text_of(path))
        if not sheet.columns:
            raise UnreadableError(Note(str(path), 1, "empty"))
        return sheet

    def rows(self) -> Iterator[tuple[int, Mapping[str, str]]]:
        """(line, value by column), stripped; a column that a row does not reach is blank."""
        width, line = len(self.columns), 0
        for line, values in self._records():
            if any(value.strip() for value in values[width:]):
                self.notes.append(
                    Note(self.name, line, f"{len(values)} values under {width} columns: a value without quotes?")
                )
                continue
            padded = [value.strip() for value in values[:width]] + [""] * (width - len(values))
            row: dict[str, str] = {}
            for column, value in zip(self.columns, padded, strict=True):
                row.setdefault(column, value)
            yield line, row
        if not line:
            self.notes.append(Note(self.name, None, "a header without rows"))

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        while True:
            line = self._reader.line_num + 1
            try:
                values = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                self.notes.append(Note(self.name, line, f"not CSV: {error}"))
                continue
            if any(value.strip() for value in values) and not values[0].startswith(COMMENT):
                yield line, values
