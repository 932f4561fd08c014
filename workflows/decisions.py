"""What a model decides, read from its reply: work for others, messages to them, or an answer.

    <spawn>Find the year in which it was built.</spawn>
    <message to="helper/0">Skip the introduction.</message>
    <answer>1889</answer>

As calls of tools in the chat format of Qwen, Hermes and others, the same is

    <tool_call>{"name": "spawn", "arguments": {"brief": "Find the year."}}</tool_call>
    <tool_call>{"name": "message", "arguments": {"to": ["helper/0"], "text": "Skip it."}}</tool_call>
    <tool_call>{"name": "answer", "arguments": {"answer": "1889"}}</tool_call>

A reply holds work for others and messages, or an answer alone. Anything else breaks the format: that is
the policy's doing, and the lenient reading of it is the acts that can be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from workflows.errors import WorkflowError
from workflows.parsers import Parsed, Parser, ParserHooks, invalid, tagged
from workflows.vocabulary import Act

FORMS: Final = ("tags", "tool_calls")
_MESSAGE: Final = re.compile(r'<message to="([^"<>]*)">(.*?)</message>', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Decisions(ParserHooks):
    """The acts of a reply, as a list of mappings; of an answer, a list of the one that stops.

    Each has `act`, `text`, of a message `to`, and `characters`: where the reply says it, as [start, end).

    Args:
        answer: reads an answer, given the whole reply or the text of a tool call.
        tag: the tag of an answer.
        most: how many plays one reply may spawn.
        form: an entry of `FORMS`.
        messages: whether messages may be written.
    """

    answer: Parser
    tag: str
    most: int
    form: str = "tags"
    messages: bool = False

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise WorkflowError(f"form is {self.form!r}; use one of {', '.join(FORMS)}")

    def parse(self, text: str) -> Parsed:
        acts, problem = self._called(text) if self.form == "tool_calls" else self._tagged(text)
        answers = [each for each in acts if each["act"] == Act.STOP]
        others = [each for each in acts if each["act"] != Act.STOP]
        spawns = [each for each in others if each["act"] == Act.SPAWN]
        if problem is None and not acts:
            problem = f"no work for others and no answer ({self.form.replace('_', ' ')})"
        elif problem is None and answers and others:
            problem = "an answer beside acts that go on; give one or the other"
        elif problem is None and len(answers) > 1:
            problem = f"{len(answers)} answers"
        elif problem is None and len(spawns) > self.most:
            problem = f"{len(spawns)} plays are spawned, at most {self.most} may be"
        if problem is None:
            return Parsed(acts, True)
        return invalid(problem, (answers[:1] or others or None))

    def _tagged(self, text: str) -> tuple[list[dict[str, Any]], str | None]:
        acts = [_act(Act.SPAWN, s.content, s.start, s.end) for s in tagged("spawn", text) if s.content]
        written = list(_MESSAGE.finditer(text)) if self.messages else []
        for found in written:
            to = [name.strip() for name in found[1].split(",") if name.strip()]
            acts.append({**_act(Act.MESSAGE, found[2].strip(), *found.span()), "to": to})
        acts.sort(key=lambda each: each["characters"])
        spans = tagged(self.tag, text)
        if not spans:
            return acts, None
        parsed = self.answer.parse(text)
        stop = _act(Act.STOP, parsed.best, spans[0].start, spans[0].end)
        return [*acts, stop], None if parsed.valid else parsed.problem

    def _called(self, text: str) -> tuple[list[dict[str, Any]], str | None]:
        acts, problem = [], None
        for span in tagged("tool_call", text):
            try:
                call = json.loads(span.content)
                acts.append(self._of_call(call["name"], call["arguments"], span.start, span.end))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                problem = problem or f"a tool call can't be read: {error!r:.200}"
        return acts, problem

    def _of_call(self, name: str, given: Mapping[str, Any], start: int, end: int) -> dict[str, Any]:
        key = {"spawn": "brief", "message": "text", "answer": "answer"}[name]
        text = given[key]
        if not isinstance(text, str) or not text.strip() or (name == "message" and not self.messages):
            raise ValueError(f"{name} wants {key} as a text that is not empty, got {text!r:.80}")
        if name == "answer":
            parsed = self.answer.parse(f"<{self.tag}>{text}</{self.tag}>")
            return _act(Act.STOP, parsed.best, start, end)
        act = _act(Act.SPAWN if name == "spawn" else Act.MESSAGE, text.strip(), start, end)
        return {**act, "to": [str(each) for each in given["to"]]} if name == "message" else act


def _act(act: Act, text: Any, start: int, end: int) -> dict[str, Any]:
    return {"act": str(act), "text": text, "characters": [start, end]}
