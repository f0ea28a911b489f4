"""Where weights lie on the volume. Pure, and known to the operator too: it tells vLLM the path.

weights/<source>/snapshots/<revision>/   files of one commit, complete and verified; never changed afterwards
weights/<source>/refs/<revision asked>   symbolic link to the commit that it meant when it was asked for first
weights/<source>/partial/<revision>/     on its way
compiled/<engine>-<gpu>/                 what that engine compiled on that kind of GPU
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from urllib.parse import quote

DOWNLOADED = ("hf", "s3")
"""Schemes of sources that are copied onto the volume."""
DEFAULT_REVISION = {"hf": "main", "s3": "latest"}
COMPILED = "compiled"
MANIFEST = ".paceline.json"
"""In a snapshot: what it consists of. A file of that name in a source, e.g. in a copy of a snapshot, is not taken."""


def folder(source: str) -> PurePosixPath:
    """Of a source, from the volume's root. The hash tells `a/b-c` from `a-b/c`."""
    scheme, _, rest = source.partition("://")
    readable = quote(rest.strip("/").replace("/", "--"), safe="")[:96]
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    return PurePosixPath("weights", f"{scheme}--{readable}-{digest}")


def weights(source: str, revision: str | None) -> PurePosixPath:
    """The link that an engine reads weights through, from the volume's root."""
    scheme = source.partition("://")[0]
    return folder(source) / "refs" / quote(revision or DEFAULT_REVISION[scheme], safe="")
