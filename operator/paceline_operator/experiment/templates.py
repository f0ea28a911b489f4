"""Experiments that others have needed before, as files to fill in. The first line of each says what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

FOLDER = files(__package__) / "templates"
SUFFIX = ".yaml"


def titles() -> Mapping[str, str]:
    """Name -> what it tells."""
    names = sorted(one.name.removesuffix(SUFFIX) for one in FOLDER.iterdir() if one.name.endswith(SUFFIX))
    return {name: text(name).partition("\n")[0].removeprefix("# ") for name in names}


def text(name: str) -> str:
    """Raises KeyError for a name that is none."""
    file = next((one for one in FOLDER.iterdir() if one.name == f"{name}{SUFFIX}"), None)
    if file is None:
        raise KeyError(name)
    return file.read_text(encoding="utf-8")
