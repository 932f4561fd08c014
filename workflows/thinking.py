"""Replies of models that think before they speak: `<think>…</think>` and then what counts.

Thoughts are told by their marks: think, thinking, thought(s), reason, reasoning and scratchpad as tags in any
case of letters, `[THINK]`, `◁think▷`, `<|begin_of_thought|>`. They may hold others, and anything else, an
answer's tags too. Thoughts that never end leave nothing behind them: no answer, and nobody sees them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from workflows.parsers import Parsed, Parser, ParserHooks, invalid, read_reply

_MARK: Final = re.compile(
    r"<\s*(?P<close>/?)\s*(?:\w+:)?(?P<tag>think|thinking|thoughts?|reason|reasoning|scratchpad)\s*>"
    r"|\[\s*(?P<close2>/?)\s*(?P<tag2>think)\s*\]"
    r"|◁\s*(?P<close3>/?)\s*(?P<tag3>think)\s*▷"
    r"|<\|(?P<close4>begin|end)_of_(?P<tag4>thought)\|>",
    re.IGNORECASE,
)


def after_thinking(text: str) -> str:
    """What a reply says outside its thoughts; the whole text where nothing marks a thought.

    A chat template may open the first thought itself, so all before a mark that only closes is a thought.
    A thought that is opened and never closed reaches to the end of the text.
    """
    said: list[str] = []
    within: list[str] = []  # the names of the thoughts that are open here
    end, marked = 0, False
    for mark in _MARK.finditer(text):
        marked = True
        closes, name = _read(mark)
        if not closes:
            if not within:
                said.append(text[end : mark.start()])
            within.append(name)
        elif name in within:
            while within.pop() != name:
                pass
        elif not within:
            said.clear()
        end = mark.end()
    if not within:
        said.append(text[end:])
    return "".join(said).strip() if marked else text


def _read(mark: re.Match[str]) -> tuple[bool, str]:
    """Whether a mark closes a thought, and of which name."""
    close, name = next((c, n) for c, n in zip(mark.groups()[::2], mark.groups()[1::2], strict=True) if n)
    return (close or "").lower() in ("/", "end"), name.lower()


@dataclass(frozen=True, slots=True)
class AfterThinking(ParserHooks):
    """`parser` on what is said outside the thoughts, which keep no format and are shown to no other role.

    A reply of thoughts alone is invalid, and its lenient reading is empty: nothing in it is an answer.
    """

    parser: Parser

    def parse(self, text: str) -> Parsed:
        said = after_thinking(text)
        return _without_thoughts(text, said, self.parser.parse(said))

    def parse_for(self, text: str, variables: Mapping[str, Any]) -> Parsed:
        said = after_thinking(text)
        return _without_thoughts(text, said, read_reply(self.parser, said, variables))


def _without_thoughts(text: str, said: str, parsed: Parsed) -> Parsed:
    if said or not text.strip() or parsed.valid:
        return parsed
    return invalid("thoughts alone, which never end", "" if parsed.lenient is None else parsed.lenient)
