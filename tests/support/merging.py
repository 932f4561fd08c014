"""Settings as nested mappings, one laid over another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with `above` on top, tables joined key by key."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        tables = isinstance(value, Mapping) and isinstance(under, Mapping)
        result[key] = merged(under, value) if tables else value
    return result
