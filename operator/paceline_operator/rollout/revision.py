"""Which stored template is the one that is asked for, and which are kept. Pure.

A template is kept as it was rendered first. The same spec rendered otherwise (by another version of the operator) is no
change: pods keep the stored template until the user, or the operator on its own account, wants another spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline_operator.resources.revision import Revision
from paceline_operator.rollout.diff import Boot, changed

KEPT = 3
"""Revisions that nothing refers to any more, kept to be looked at and to be gone back to."""
KEY_FIELD = "(token key)"
"""Named in place of a field where the operator's key was rotated: pods mount the Secret of another version."""


def changes(revision: Revision, boot: Boot, key_version: str) -> tuple[str, ...]:
    """Fields that a spec has otherwise; empty: this template is what is asked for."""
    fields = changed(dict(revision.boot), boot)
    return (*fields, KEY_FIELD) if key_version != revision.key_version else fields


def find(revisions: Iterable[Revision], boot: Boot, key_version: str, prefer: str = "") -> Revision | None:
    """The stored template for a spec: that called `prefer` (the one that runs) before others, then the newest."""
    fitting = [revision for revision in revisions if not changes(revision, boot, key_version)]
    return max(fitting, key=lambda revision: (revision.name == prefer, revision.number), default=None)


def next_number(revisions: Iterable[Revision]) -> int:
    """One above all."""
    return 1 + max((revision.number for revision in revisions), default=0)


def kept(revisions: Sequence[Revision], used: Iterable[str]) -> tuple[Revision, ...]:
    """Those that something refers to, and the newest few of the others, in their order."""
    needed = set(used)
    rest = sorted((r for r in revisions if r.name not in needed), key=lambda r: r.number)[-KEPT:]
    stay = needed | {revision.name for revision in rest}
    return tuple(revision for revision in revisions if revision.name in stay)
