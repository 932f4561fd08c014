"""Replies of models that think before they speak: `…</think>` and then what counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from workflows.parsers import Parsed, Parser

_END: Final = "</think>"


def after_thinking(text: str) -> str:
    """What follows the first `</think>`; the whole text where there is none.

    A chat template may open the tag itself, so the reply need not hold it.
    """
    _, ended, rest = text.partition(_END)
    return rest.strip() if ended else text


@dataclass(frozen=True, slots=True)
class AfterThinking:
    """`parser` on what follows the thoughts, which keep no format and are shown to no other role."""

    parser: Parser

    def parse(self, text: str) -> Parsed:
        return self.parser.parse(after_thinking(text))
