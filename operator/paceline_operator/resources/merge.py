"""User overrides over rendered fields, in the spirit of Kubernetes' strategic merge but without its schema.

Maps merge key by key and null removes a key. Lists of named things merge item by item, new ones last; of volumes and
variables, which are one thing or another (emptyDir or persistentVolumeClaim), an item replaces its namesake. Any other
list, and any scalar, is replaced.
"""

from __future__ import annotations

from typing import Any

from paceline_operator.api.engine import identified

IDENTITY = {"volumeMounts": "mountPath"}
"""Key that tells the items of a list apart, by the list's field; `name` elsewhere. A volume may be mounted twice."""
UNIONS = frozenset({"env", "volumes"})
"""Lists whose items hold one of several kinds: two kinds in one item would be refused."""


def merge(base: Any, override: Any, *, field: str = "") -> Any:
    """`override` laid over `base`, the value of `field`; neither is changed.

    merge(a, {}) == a for maps without nulls, and merge(merge(a, b), b) == merge(a, b).
    """
    if isinstance(override, dict):
        return _merge_maps(base if isinstance(base, dict) else {}, override)
    if isinstance(override, list):
        key = IDENTITY.get(field, "name")
        if not identified(override, key):
            return [merge(None, item) for item in override]
        items = base if identified(base, key) else []
        return _merge_items(items, override, key, whole=field in UNIONS)
    return override


def _merge_maps(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in override.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(base.get(key), value, field=key)
    return merged


def _merge_items(
    base: list[dict[str, Any]], override: list[dict[str, Any]], key: str, *, whole: bool
) -> list[dict[str, Any]]:
    merged = {item[key]: item for item in base}
    for item in override:
        merged[item[key]] = _merge_maps({} if whole else merged.get(item[key], {}), item)
    return list(merged.values())
