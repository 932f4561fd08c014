"""Which tasks are there? Those that ship, and loaders for one's own; nothing of what a task is for."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

FOLDER: Final = Path(__file__).parent
SHIPPED: Final = ("facts", "arithmetic", "functions", "reading", "reading_chains")
_WITH_CORPUS: Final = ("facts",)


def shipped_file(name: str, kind: Literal["tasks", "corpus"]) -> str:
    """The path behind a built-in name; any other text is a path already and comes back as it is."""
    known = SHIPPED if kind == "tasks" else _WITH_CORPUS
    return str(FOLDER / f"{name}_{kind}.jsonl") if name in known else name
