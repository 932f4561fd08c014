"""Values as JSON holds them, and what differs between two of them, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pipeline.store.manifest import input_hashes
from stages.tables.parquet import TableRef

BUDGETS: Final = frozenset(
    {
        *("max_failed_share", "call_attempts", "backoff_seconds", "grace_seconds"),
        *("call_timeout_seconds", "tool_timeout_seconds", "episode_timeout_seconds"),
        *("init_timeout_seconds", "update_timeout_seconds"),
    }
)
"""Keys of fingerprints that say how long and how often something is tried, and not what comes out: work
that another budget began is gone on with."""


def without_budgets(value: Any) -> Any:
    """A fingerprint, or a part of one, without what is a budget in it."""
    if not isinstance(value, dict):
        return value
    return {key: without_budgets(each) for key, each in value.items() if key not in BUDGETS}


def dump(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True)


def plain(value: Any) -> Any:
    """What `value` is after a trip through JSON, for comparison with what was stored."""
    return json.loads(json.dumps(value))


def to_mark(fingerprint: Mapping[str, Any], inputs: Mapping[str, TableRef]) -> str:
    return dump({"settings": fingerprint, "inputs": input_hashes(inputs)})


def from_mark(text: str) -> dict[str, Any]:
    mark: dict[str, Any] = json.loads(text)
    return mark


def differences(before: Any, now: Any, path: str = "", limit: int = 6) -> str:
    """`key: before → now` for every leaf that differs, the first few of them."""
    found = list(different(before, now, path))
    shown = [f"{k}: {_said(b)} → {_said(n)}" for k, b, n in found[:limit]]
    return "; ".join(shown) + (f"; and {len(found) - limit} more" if len(found) > limit else "")


def _said(value: Any) -> str:
    """A value in a message; of tables in lists, such as [[rewards]], what is set."""
    if isinstance(value, list):
        return f"[{', '.join(map(_said, value))}]"
    if isinstance(value, dict):
        entries = [f"{key} = {_said(each)}" for key, each in value.items() if each not in (None, {})]
        return f"{{{', '.join(entries)}}}"
    return repr(value)


def different(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """`(key, before, now)` of every leaf that differs; a list is a leaf."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from different(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    elif before != now:
        yield path, before, now
