"""What tasks of one kind ask of a team that does not care what its task is: statement, form, parser, example.

`voting`, `evaluate_optimise`, `orchestrate_workers` and `single` take `task = "questions" | "reading" |
"mathematics" | "code"` and are otherwise the same. An answer that breaks its form still reads: what its
tag holds first, else the whole reply; an empty reply reads as nothing, for which `NO_ANSWER` stands where
others see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from workflows.errors import UsageError, WorkflowError, did_you_mean
from workflows.parsers import Parser, StrictTags, Tag
from workflows.prompts import parse_template
from workflows.state import Output, State
from workflows.steps import Source
from workflows.teams.code_text import code_form, execution, shown_tests
from workflows.thinking import AfterThinking, Reasoning, after_no_thought, check_reasoning

NO_ANSWER: Final = "(no answer)"
_VISIBLE_TESTS: Final = 3
_CASE_CHARACTERS: Final = 400


@dataclass(frozen=True)
class TaskKind:
    """One kind of task.

    Attributes:
        statement: template of the task, with its last line break.
        reminder: what a later message of a conversation repeats of it, with its last line break, or "".
        sources: each variable of these and of the form, from a task's inputs.
        tag, content: the tag of an answer, and what stands between the tags in the form of a reply.
        shown: the task of demonstrations; right and wrong: answers to it.
        max_response_tokens: default limit of one answer.
        reasoning: replies may begin with thoughts, which nobody else sees; see `workflows.thinking`.
    """

    name: str
    statement: str
    reminder: str
    sources: Mapping[str, Callable[[Mapping[str, Any]], Any]]
    tag: str
    content: str
    shown: Mapping[str, Any]
    right: str
    wrong: str
    max_response_tokens: int
    reasoning: Reasoning = False

    @property
    def graded_as(self) -> str:
        """How answers are graded, in the words of `Workflow.task`."""
        return "questions" if self.name == "reading" else self.name

    @property
    def form(self) -> str:
        """The last line of a prompt that asks for an answer: the form of the reply."""
        return f"Reply: {self.tagged(self.content)}"

    @property
    def parser(self) -> Parser:
        """Reads an answer."""
        return self.reads(self.plain_parser)

    @property
    def plain_parser(self) -> Parser:
        """Reads an answer that has no thoughts around it."""
        return StrictTags(self.tag) if self.name == "code" else Tag(self.tag)

    @property
    def right_reply(self) -> str:
        return self.demonstrated(self.tagged(self.right))

    @property
    def wrong_reply(self) -> str:
        return self.demonstrated(self.tagged(self.wrong))

    def reads(self, parser: Parser) -> Parser:
        """A parser of the team's replies, which reads what is said outside of thoughts."""
        return AfterThinking(parser, self.reasoning == "opened") if self.reasoning else parser

    def demonstrated(self, reply: str) -> str:
        """A reply of a demonstration, without a thought."""
        return after_no_thought(reply, self.reasoning)

    @property
    def inputs(self) -> dict[str, Source]:
        """The variables of statement and form as the inputs of a graph's step."""
        return {name: _of_state(name, read) for name, read in self.sources.items()}

    def only_stated(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of `values` that the statement uses: for a prompt that asks for no answer."""
        used = parse_template(self.statement).variables
        return {name: value for name, value in values.items() if name in used}

    def stated(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of statement and form as an async function gives them."""
        return {name: read(task) for name, read in self.sources.items()}

    def tagged(self, answer: str) -> str:
        return f"<{self.tag}>{answer}</{self.tag}>"

    def answer(self, output: Output) -> str:
        """An answer as others see it."""
        return str(output.best or "").strip() or NO_ANSWER


def task_kind(name: str, reasoning: Reasoning = False) -> TaskKind:
    """The kind of task that option `task` names, for models that think before they speak or not.

    Raises:
        WorkflowError: it names none, or `reasoning` is of another kind.
    """
    check_reasoning(reasoning)
    if name not in KINDS:
        raise WorkflowError(
            f"option task is {name!r}{did_you_mean(str(name), KINDS)}; use one of {', '.join(KINDS)}"
        )
    return replace(KINDS[name], reasoning=reasoning)


def numbered(answers: list[str]) -> list[str]:
    """Answers as a prompt lists them, one item each: a prompt that is too long loses words of the last."""
    return [f"Answer {number}: {answer}" for number, answer in enumerate(answers, 1)]


def check_count(name: str, value: Any, least: int) -> None:
    """Refuse an option that is not a whole number of at least `least`.

    Raises:
        WorkflowError: with its value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise WorkflowError(f"option {name} must be a whole number of at least {least}, got {value!r}")


def _of_state(name: str, read: Callable[[Mapping[str, Any]], Any]) -> Source:
    if name in ("question", "problem", "statements"):
        return f"task.{name}"  # a path is checked against the tasks before a run
    return lambda state: _read(state, read)


def _read(state: State, read: Callable[[Mapping[str, Any]], Any]) -> Any:
    try:
        return read(state.task)
    except UsageError as error:
        raise WorkflowError(str(error)) from error


def _field(name: str) -> Callable[[Mapping[str, Any]], Any]:
    def read(task: Mapping[str, Any]) -> Any:
        if name not in task:
            raise WorkflowError(
                f"the task has no field {name!r}; it has: {', '.join(task) or 'nothing'}. Set the workflow's "
                'option task to "questions", "reading", "mathematics" or "code", whichever the tasks are'
            )
        return task[name]

    return read


def _tests(task: Mapping[str, Any]) -> list[str]:
    return shown_tests(task, _VISIBLE_TESTS, _CASE_CHARACTERS) or ["none"]


KINDS: Final[Mapping[str, TaskKind]] = {
    "questions": TaskKind(
        name="questions",
        statement="Question: {question}\n",
        reminder="",
        sources={"question": _field("question")},
        tag="answer",
        content="your answer",
        shown={"question": "How many legs does a spider have?"},
        right="eight",
        wrong="six",
        max_response_tokens=48,
    ),
    "reading": TaskKind(
        name="reading",
        statement="{statements}\nQuestion: {question}\n",
        reminder="",
        sources={"statements": _field("statements"), "question": _field("question")},
        tag="answer",
        content="your answer",
        shown={
            "statements": ["Lisa keeps the cups in the loft.", "Max keeps the coats in the red box."],
            "question": "Where does Max keep the coats?",
        },
        right="the red box",
        wrong="the loft",
        max_response_tokens=32,
    ),
    "mathematics": TaskKind(
        name="mathematics",
        statement="Problem: {problem}\n",
        reminder="",
        sources={"problem": _field("problem")},
        tag="answer",
        content="the result alone",
        shown={"problem": "Sam buys 3 pens for 4 dollars each. How much does he pay?"},
        right="12",
        wrong="7",
        max_response_tokens=128,
    ),
    "code": TaskKind(
        name="code",
        statement="Problem: {problem}\n{execution}\nTests:\n{tests}\n",
        reminder="{execution}\n",
        sources={
            "problem": _field("problem"),
            "execution": execution,
            "tests": _tests,
            "code_form": code_form,
        },
        tag="code",
        content="{code_form}",
        shown={
            "problem": "Return twice the number n.",
            "execution": "Write the Python function twice.",
            "tests": ["twice(2) → 4"],
            "code_form": "def twice(…): …",
        },
        right="\ndef twice(n):\n    return n * 2\n",
        wrong="\ndef twice(n):\n    return n\n",
        max_response_tokens=256,
    ),
}
