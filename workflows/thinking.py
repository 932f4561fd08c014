"""Replies of models that think before they speak: `…</think>` and then what counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from workflows.parsers import Parsed, Parser, ParserHooks, read_reply

_END: Final = "</think>"


def after_thinking(text: str) -> str:
    """What follows the first `</think>`; the whole text where there is none.

    A chat template may open the tag itself, so the reply need not hold it.
    """
    _, ended, rest = text.partition(_END)
    return rest.strip() if ended else text


@dataclass(frozen=True, slots=True)
class AfterThinking(ParserHooks):
    """`parser` on what follows the thoughts, which keep no format and are shown to no other role."""

    parser: Parser

    def parse(self, text: str) -> Parsed:
        return self.parser.parse(after_thinking(text))

    def parse_for(self, text: str, variables: Mapping[str, Any]) -> Parsed:
        return read_reply(self.parser, after_thinking(text), variables)
