"""Names of other programs' agents, tools and models as names of steps, roles and models."""

from __future__ import annotations

import hashlib
import re
from typing import Final

IMPORTED: Final = "imported"  # the model of turns whose trace names none
LONGEST: Final = 56


def identifier(name: str) -> str:
    """A name of letters, digits and `_` that begins with a letter: `browser.search` → `browser_search`.

    Where letters of other scripts are lost, or the end of a long name, a hash keeps names apart.
    """
    word = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not word[:1].isalpha():
        word = f"n{word}"
    if not name.isascii() or len(word) > LONGEST:
        word = f"{word[:LONGEST]}_{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}"
    return word


def model_name(name: str | None) -> str:
    """An id of a model as settings have it."""
    if not name:
        return IMPORTED
    word = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return word[:64] if word[0].isalnum() else f"m{word}"[:64]
