"""Task sets: the one that ships, and the loaders for one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

SHIPPED: Final = ("facts",)


def shipped_file(name: str, kind: Literal["tasks", "corpus"]) -> str:
    """The path behind a built-in name; any other text is a path already and comes back as it is."""
    return str(Path(__file__).parent / f"{name}_{kind}.jsonl") if name in SHIPPED else name
