"""Is a live object what an apply of ours would make of it? Pure: two JSON objects in, the first differing field out.

Only fields that we set count: what others add (defaults, sidecars, annotations) is theirs. Three questions: does every
field we would set have our value; do we still hold a field (metadata.managedFields) that we would not set now; and did
somebody add to a map that is one value (a selector)? Whoever changes such a map holds all of it from then on, so it is
one that has more than we set, and of which we hold nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline_operator import naming

_IDENTITIES = ("uid", "mountPath", "name", "containerPort", "port")
"""Keys by which Kubernetes merges lists of objects, in the order in which they are looked for."""
_VOLATILE = ("managedFields", "resourceVersion", "generation")


def difference(desired: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Path of the first field that an apply of `desired` would change in `live`; None where there is none."""
    held = _held(live)
    fields = _WHOLE if held is None else held
    ours = _below(fields, "metadata")
    for name in ("labels", "annotations", "ownerReferences"):
        wanted = desired["metadata"].get(name)
        if wanted and (path := _differs(wanted, live["metadata"].get(name), f"metadata.{name}", _below(ours, name))):
            return path
    for name, wanted in desired.items():
        if name in ("apiVersion", "kind", "metadata"):
            continue
        if path := _differs(wanted, live.get(name), name, _below(fields, name)):
            return path
    return "metadata.managedFields" if held is None else _dropped(held, desired, "")


def digest(body: Mapping[str, Any]) -> str:
    """Of all that an apply decides: status and what the server counts up by itself left out."""
    kept = {name: value for name, value in body.items() if name != "status"}
    kept["metadata"] = {name: value for name, value in body["metadata"].items() if name not in _VOLATILE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _differs(wanted: Any, actual: Any, path: str, held: Mapping[str, Any] | None) -> str | None:
    """`held`: what we hold of it (FieldsV1); _WHOLE where that is not told, None where it is nothing."""
    if isinstance(wanted, Mapping):
        if not isinstance(actual, Mapping) or (held is None and wanted and actual.keys() - wanted.keys()):
            return path
        pairs = ((_differs(v, actual.get(k), f"{path}.{k}", _below(held, k))) for k, v in wanted.items())
        return next(filter(None, pairs), None)
    if isinstance(wanted, list) and wanted and all(isinstance(item, Mapping) for item in wanted):
        return _list_differs(wanted, actual, path)
    return None if wanted == actual else path


def _list_differs(wanted: Sequence[Mapping[str, Any]], actual: Any, path: str) -> str | None:
    if not isinstance(actual, list):
        return path
    key = next((k for k in _IDENTITIES if _tells_apart(k, wanted)), None)
    if key is None:  # not merged by a key: one value, in its order
        if len(wanted) != len(actual):
            return path
        pairs = [(item, other, str(i)) for i, (item, other) in enumerate(zip(wanted, actual, strict=True))]
    else:
        by_key = {item.get(key): item for item in actual if isinstance(item, Mapping)}
        pairs = [(item, by_key.get(item[key]), str(item[key])) for item in wanted]
    return next((p for item, other, at in pairs if (p := _differs(item, other, f"{path}[{at}]", _WHOLE))), None)


def _below(held: Mapping[str, Any] | None, name: str) -> Mapping[str, Any] | None:
    """What we hold of a field of something; all of it where that is held as one value."""
    return held if held is None or not held else held.get(f"f:{name}")


def _tells_apart(key: str, items: Sequence[Mapping[str, Any]]) -> bool:
    values = [item.get(key) for item in items]
    return all(isinstance(value, str | int) for value in values) and len(set(values)) == len(values)


def _held(live: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The fields that our applies hold in `live`; None where nothing was ever applied by us."""
    for entry in live["metadata"].get("managedFields") or []:
        whose = (entry.get("manager"), entry.get("operation"), entry.get("subresource", ""))
        if whose == (naming.FIELD_MANAGER, "Apply", ""):
            return dict(entry.get("fieldsV1") or {})
    return None


def _dropped(held: Mapping[str, Any], desired: Any, path: str) -> str | None:
    """First path of `held` (the server's FieldsV1 notation) that `desired` does not set."""
    for notation, below in held.items():
        if notation == ".":
            continue
        mark, _, text = notation.partition(":")
        at = f"{path}.{text}".lstrip(".")
        if mark == "f":
            found = desired.get(text, _ABSENT) if isinstance(desired, Mapping) else _ABSENT
        elif mark == "k":
            keys = json.loads(text)
            items = desired if isinstance(desired, list) else []
            # The server completes keys with defaults (protocol TCP): a key that an item leaves out agrees.
            found = next((i for i in items if all(i.get(k, v) == v for k, v in keys.items())), _ABSENT)
        elif mark == "v":  # a member of a set
            found = text if json.loads(text) in (desired or []) else _ABSENT
        else:  # an item of an atomic list: compared as a whole
            continue
        if found is _ABSENT:
            return at
        if below and (dropped := _dropped(below, found, at)):
            return dropped
    return None


_ABSENT = object()
_WHOLE: Mapping[str, Any] = {}
