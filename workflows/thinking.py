"""Replies of models that think before they speak: `<think>…</think>` and then what counts.

Thoughts are told by their marks: think, thinking, thought(s), reason, reasoning and scratchpad as tags in any
case of letters, `[THINK]`, `◁think▷`, `<|begin_of_thought|>`. They may hold others, and anything else, an
answer's tags too. Thoughts that never end leave nothing behind them: no answer, and nobody sees them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from workflows.errors import WorkflowError
from workflows.parsers import Parsed, Parser, ParserHooks, invalid, read_reply

_OPENED: Final = ""  # the name of a thought that the prompt opened: any mark closes it
_MARK: Final = re.compile(
    r"<\s*(?P<close>/?)\s*(?:\w+:)?(?P<tag>think|thinking|thoughts?|reason|reasoning|scratchpad)\s*>"
    r"|\[\s*(?P<close2>/?)\s*(?P<tag2>think)\s*\]"
    r"|◁\s*(?P<close3>/?)\s*(?P<tag3>think)\s*▷"
    r"|<\|(?P<close4>begin|end)_of_(?P<tag4>thought)\|>",
    re.IGNORECASE,
)


Reasoning = bool | Literal["opened"]
"""Whether replies begin with thoughts: no; yes, between marks; or in one that the prompt has "opened"."""


def after_thinking(text: str, opened: bool = False) -> str:
    """What a reply says outside its thoughts; the whole text where nothing marks a thought.

    A chat template may open the first thought itself, so all before a mark that only closes is a thought.
    A thought that is opened and never closed reaches to the end of the text. With `opened` the template is
    known to open one, and a reply that closes none is a thought as a whole.
    """
    said: list[str] = []
    within: list[str] = [_OPENED] if opened else []  # the names of the thoughts that are open here
    end, marked = 0, opened
    for mark in _MARK.finditer(text):
        marked = True
        closes, name = _read(mark)
        if not closes:
            if not within:
                said.append(text[end : mark.start()])
            elif within == [_OPENED] and not text[: mark.start()].strip():
                within.clear()  # the model opens it again
            within.append(name)
        elif within == [_OPENED]:
            within.clear()
        elif name in within:
            while within.pop() != name:
                pass
        elif not within:
            said.clear()
        end = mark.end()
    if not within:
        said.append(text[end:])
    return "".join(said).strip() if marked else text


def check_reasoning(value: Any) -> None:
    """Refuse an option `reasoning` of another kind.

    Raises:
        WorkflowError: with the value.
    """
    if not isinstance(value, bool) and value != "opened":
        raise WorkflowError(f"option reasoning must be true, false or 'opened', got {value!r}")


def after_no_thought(reply: str, reasoning: Reasoning) -> str:
    """A demonstration's reply without a thought; one that the prompt has opened ends at once."""
    return f"</think>\n{reply}" if reasoning == "opened" else reply


def without_thoughts(text: str, reasoning: Reasoning) -> str:
    """What others see of a reply: all of it, or what it says outside its thoughts."""
    return after_thinking(text, reasoning == "opened") if reasoning else text


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
    opened: bool = False

    def parse(self, text: str) -> Parsed:
        said = after_thinking(text, self.opened)
        return _unless_thoughts_alone(text, said, self.parser.parse(said))

    def parse_for(self, text: str, variables: Mapping[str, Any]) -> Parsed:
        said = after_thinking(text, self.opened)
        return _unless_thoughts_alone(text, said, read_reply(self.parser, said, variables))


def _unless_thoughts_alone(text: str, said: str, parsed: Parsed) -> Parsed:
    if said or not text.strip() or parsed.valid:
        return parsed
    return invalid("thoughts alone, which never end", "" if parsed.lenient is None else parsed.lenient)
