"""Characters that nobody sees: an answer of nothing else is not an answer, and no grader counts them."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_IGNORED: Final = re.compile(  # what Unicode calls ignorable where it is shown, besides its category Cf
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def without_control(text: str) -> str:
    """The text without characters that control and format it; white space stays."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))


def without_ignored(text: str) -> str:
    """The text without characters that Unicode calls ignorable, such as fillers and variation selectors."""
    return text if text.isascii() else _IGNORED.sub("", text)
