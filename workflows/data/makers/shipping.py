"""How the scripts that make shipped files write them, or check that they are what would be written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def write_or_check(build: Callable[[], Mapping[Path, bytes]], arguments: Sequence[str], command: str) -> int:
    """Write what `build` makes, or with `--check` compare it. Returns the exit code: 1 where it differs."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write(f"usage: {command} [--check]\n")
        return 2
    built = build()
    if not arguments:
        for path, content in built.items():
            path.write_bytes(content)
        return 0
    stale = [
        path.name for path, content in built.items() if not path.exists() or path.read_bytes() != content
    ]
    if stale:
        sys.stderr.write(f"{', '.join(stale)}: not what {command} builds; run it without --check\n")
    return 1 if stale else 0
