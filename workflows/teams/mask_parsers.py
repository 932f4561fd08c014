"""How the roles of `mask` reply, and what can still be read of a reply that breaks its form.

Legal replies and lenient readings follow UnityMAS-O's rules for M-ASK. Case does not count in tags.
Two readings differ, and say so where they stand: markup is never part of a text that is read
leniently, and a search for nothing is not a search.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from workflows.errors import WorkflowError
from workflows.parsers import Parsed, ParserHooks, Tagged, invalid, outside, tagged
from workflows.vocabulary import Move

UNKNOWN: Final = "Unknown"
NO_EVIDENCE: Final = "No useful information"
_MAX_LINE: Final = 200  # characters of a first line that is read leniently

_TAG: Final = re.compile(r"</?\w+/?>")
_STEP: Final = re.compile(r"<([qa])([0-9]{1,4})>", re.IGNORECASE)
_PLAN_TAG: Final = re.compile(r"</?(?:[qa][0-9]+|final_answer)>", re.IGNORECASE)
_END: Final = re.compile(r"<end\s*/?>", re.IGNORECASE)
_NOT_WORDS: Final = re.compile(r"[\W_]+")


def step_id(number: int) -> str:
    """The id of a step of the trajectory, counted from 1: t1, t2, … Spelled here and nowhere else."""
    return f"t{number}"


@dataclass(frozen=True, slots=True)
class PlanParser(ParserHooks):
    """`<q1>…</q1><a1>…</a1>…<final_answer>…</final_answer>`.

    Legal: one to `max_steps` pairs of sub-question and sub-answer, numbers ascending, sub-questions
    distinct, one final answer, nothing else. The value is `{"steps": [{"sub_question", "sub_answer"}],
    "answer"}`; what is empty reads as below.

    Leniently: the tags that are there. A missing first sub-question is the question itself, a later one
    drops its step; a missing sub-answer is "Unknown", a missing final answer the last sub-answer.
    """

    max_steps: int = 5

    def parse(self, text: str) -> Parsed:
        return self.parse_for(text, {})

    def parse_for(self, text: str, variables: Mapping[str, Any]) -> Parsed:
        final = tagged("final_answer", text)
        pairs, problem = self._pairs(text, final)
        steps = [
            {"sub_question": question or str(variables.get("question", "")), "sub_answer": answer or UNKNOWN}
            for n, (question, answer) in enumerate(pairs)
            if question or n == 0
        ]
        answer = final[0].content if final else steps[-1]["sub_answer"]
        plan = {"steps": steps, "answer": answer or UNKNOWN}
        return Parsed(plan, True) if problem is None else invalid(problem, plan)

    def _pairs(self, text: str, final: list[Tagged]) -> tuple[list[tuple[str, str]], str | None]:
        """(sub-question, sub-answer) in the order of their numbers, and what is wrong with the reply."""
        marks = [(m[1].lower(), int(m[2])) for m in _STEP.finditer(text)]
        numbers = sorted({number for _, number in marks})
        spans = {
            (kind, n): found[0] for n in numbers for kind in "qa" if (found := tagged(f"{kind}{n}", text))
        }
        contents = {key: span.content for key, span in spans.items()}
        pairs = [(contents.get(("q", n), ""), contents.get(("a", n), "")) for n in numbers]
        problem = self._problem(marks, [*spans.values(), *final], len(final), pairs, text)
        return pairs[: self.max_steps] or [("", "")], problem

    def _problem(
        self,
        marks: list[tuple[str, int]],
        spans: list[Tagged],
        finals: int,
        pairs: list[tuple[str, str]],
        text: str,
    ) -> str | None:
        if not marks:
            return "no <q1> and <a1>"
        if finals != 1:
            return "no <final_answer>" if not finals else "<final_answer> more than once"
        numbers = sorted({number for _, number in marks})
        if marks != [(kind, n) for n in numbers for kind in "qa"]:
            return "steps are not pairs <q1><a1><q2><a2>… in ascending order"
        if len(spans) < len(marks) + 1:
            return "a step is not closed"
        if len(numbers) > self.max_steps:
            return f"{len(numbers)} steps, more than {self.max_steps}"
        if len({" ".join(question.lower().split()) for question, _ in pairs}) < len(pairs):
            return "a sub-question is asked twice"
        if outside(spans, text) or any(_PLAN_TAG.search(span.content) for span in spans):
            return "text outside the tags"
        return None


@dataclass(frozen=True, slots=True)
class SearchParser(ParserHooks):
    """`<search>…</search>`, or `<end>` to stop. The value is `{"action": "search" or "end", "query"}`.

    Legal: `<end>` or `<end/>` alone; or one search that is not empty and nothing else but a stray
    `<end>`. Leniently: the first search that is not empty; else the words of the first line, markup
    and punctuation apart; nothing is an end. That an empty search is illegal is ours.
    """

    def parse(self, text: str) -> Parsed:
        if _END.fullmatch(text.strip()):
            return Parsed({"action": Move.END, "query": ""}, True)
        spans = tagged("search", text)
        queries = [span.content for span in spans if span.content]
        query = queries[0] if queries else _words(first_line(text))
        read = {"action": Move.SEARCH if query else Move.END, "query": query}
        if not spans:
            return invalid("neither <search> nor <end>", read)
        if len(spans) > 1 or "<search>" in spans[0].content.lower():
            return invalid("<search> more than once", read)
        if not queries:
            return invalid("<search> is empty", read)
        if _END.sub("", outside(spans, text)).strip():
            return invalid("text outside <search>", read)
        return Parsed(read, True)


@dataclass(frozen=True, slots=True)
class SummaryParser(ParserHooks):
    """`<evidence>…</evidence>`, or the words "no useful information". The value is the evidence.

    Legal: the phrase alone; or one evidence of at most `max_words` words and nothing else, where an empty
    one says that there is none. Leniently: the first evidence, else the first line.
    """

    max_words: int = 75

    def parse(self, text: str) -> Parsed:
        if text.strip().lower() == NO_EVIDENCE.lower():
            return Parsed(NO_EVIDENCE, True)
        spans = tagged("evidence", text)
        read = (spans[0].content if spans else first_line(text)) or NO_EVIDENCE
        if not spans:
            return invalid("no <evidence>", read)
        if len(spans) > 1 or "<evidence>" in spans[0].content.lower():
            return invalid("<evidence> more than once", read)
        if outside(spans, text):
            return invalid("text outside <evidence>", read)
        if (words := len(spans[0].content.split())) > self.max_words:
            return invalid(f"{words} words of evidence, more than {self.max_words}", read)
        return Parsed(read, True)


@dataclass(frozen=True, slots=True)
class UpdateParser(ParserHooks):
    """`<update>t2</update>` to rewrite a step, or `<add>t4</add>` for the next one.

    Which ids there are is what the prompt said: its variable `next_id` is the one that may be added,
    all before it may be updated. The value is `{"action": "update" or "add", "id"}`.

    Legal: exactly one of the two, and nothing else. Leniently: the first update of a step that there
    is, else the next one is added.
    """

    def parse(self, text: str) -> Parsed:
        return self.parse_for(text, {"next_id": step_id(1)})

    def parse_for(self, text: str, variables: Mapping[str, Any]) -> Parsed:
        next_id = str(variables["next_id"])
        known = [step_id(n) for n in range(1, number_of(next_id))]
        updates, adds = tagged("update", text), tagged("add", text)
        known_updates = [span.content.lower() for span in updates if span.content.lower() in known]
        read = (
            {"action": Move.UPDATE, "id": known_updates[0]}
            if known_updates
            else {"action": Move.ADD, "id": next_id}
        )
        if len(updates) + len(adds) != 1:
            return invalid("neither <update> nor <add>" if not updates + adds else "more than one tag", read)
        if outside([*updates, *adds], text):
            return invalid("text outside the tag", read)
        if updates and not known_updates:
            return invalid(f"<update> names no step; there are {', '.join(known) or 'none'}", read)
        if adds and adds[0].content.lower() != next_id:
            return invalid(f"<add> must name {next_id}", read)
        return Parsed(read, True)


@dataclass(frozen=True, slots=True)
class AnswerParser(ParserHooks):
    """`<final_answer>…</final_answer>`. The value is its text; an empty one says "Unknown".

    Legal: one or more of them and nothing outside; the first counts. Leniently: the first line.
    """

    def parse(self, text: str) -> Parsed:
        spans = tagged("final_answer", text)
        if spans and not outside(spans, text):
            return Parsed(spans[0].content or UNKNOWN, True)
        problem = "text outside <final_answer>" if spans else "no <final_answer>"
        return invalid(problem, first_line(text) or UNKNOWN)


def number_of(step: str) -> int:
    """The number in a step's id.

    Raises:
        WorkflowError: it is not an id.
    """
    if not re.fullmatch(r"t[0-9]{1,4}", step):
        raise WorkflowError(f"{step!r} is not the id of a step; ids are t1, t2, …")
    return int(step[1:])


def first_line(text: str) -> str:
    """The first line with more than markup, without it, cut at 200 characters."""
    lines = (" ".join(_TAG.sub(" ", line).split()) for line in text.splitlines())
    return next((line for line in lines if line), "")[:_MAX_LINE].strip()


def _words(line: str) -> str:
    return " ".join(_NOT_WORDS.sub(" ", line).split())
