"""Declared graphs: what is refused before anything is played, and what a graph means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from workflows.draw import mermaid, text_lines
from workflows.errors import WorkflowError
from workflows.graph import ControlStep, Edge, LlmStep, ToolStep, Workflow
from workflows.roles import Role
from workflows.testing import play_once

WRITER = Role("writer", "{question}")
CRITIC = Role("critic", "{draft}")


async def search(request: Any) -> Any:
    return request


async def later(state: Any) -> bool:
    return True


def always(state: Any) -> bool:
    return True


def control(name: str, **options: Any) -> ControlStep:
    return ControlStep(name, lambda state: name, **options)


def llm(name: str = "draft", role: str = "writer", **inputs: Any) -> LlmStep:
    return LlmStep(name, role, inputs or {"question": "task.question"})


def controls(*names: str, edges: list[Edge], **options: Any) -> Workflow:
    return Workflow("w", [], [control(n) for n in names], edges, **options)


def forked(*joined: Any, edges: list[Edge]) -> Workflow:
    """a spreads; b follows in its branches; then `joined`."""
    steps = [
        control("start"),
        control("a", for_each=lambda s: [1, 2]),
        control("b", same_branch=True),
        *joined,
    ]
    return Workflow("w", [], steps, [Edge("start", "a"), Edge("a", "b"), *edges])


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no steps": (lambda: Workflow("w", [], []), "no steps"),
    "two roles of a name": (
        lambda: Workflow("w", [WRITER, WRITER], [llm()]),
        "role 'writer' is declared twice",
    ),
    "two steps of a name": (
        lambda: Workflow("w", [WRITER], [llm(), llm()]),
        "step 'draft' is declared twice",
    ),
    "step named like a path": (lambda: controls("task", edges=[]), "got 'task'"),
    "unknown role": (lambda: Workflow("w", [WRITER], [llm(role="writre")]), "did you mean 'writer'"),
    "unused role": (lambda: Workflow("w", [WRITER, CRITIC], [llm()]), "role 'critic' is used by no step"),
    "unknown tool": (
        lambda: Workflow("w", [], [ToolStep("find", "serch", always)], tools={"search": search}),
        "did you mean 'search'",
    ),
    "unused tool": (
        lambda: Workflow("w", [WRITER], [llm()], tools={"search": search}),
        "tool 'search' is used by no step",
    ),
    "a tool that is a class": (
        lambda: Workflow("w", [], [ToolStep("find", "search", always)], tools={"search": dict}),
        "give an object that can be called",
    ),
    "edge to nowhere": (lambda: controls("a", "bee", edges=[Edge("a", "be")]), "did you mean 'bee'"),
    "edge twice": (
        lambda: controls("a", "b", edges=[Edge("a", "b"), Edge("a", "b", always)]),
        "declared twice",
    ),
    "condition is a text": (
        lambda: controls("a", "b", edges=[Edge("a", "b", "len(x) > 0")]),  # type: ignore[arg-type]
        "when must be a function",
    ),
    "condition is async": (lambda: controls("a", "b", edges=[Edge("a", "b", later)]), "not an async one"),  # type: ignore[arg-type]
    "limit 0": (lambda: controls("a", edges=[Edge("a", "a", always, limit=0)]), "at least 1"),
    "cycle": (
        lambda: controls("s", "a", "b", edges=[Edge("s", "a"), Edge("a", "b"), Edge("b", "a")]),
        "cycle: (a → b → a|b → a → b)",
    ),
    "a back edge that leads on": (
        lambda: controls("a", "b", edges=[Edge("a", "b", limit=2)]),
        "must lead back",
    ),
    "step without an edge": (lambda: controls("a", "b", edges=[]), "step 'b' can't be reached"),
    "no start": (lambda: controls("b", "a", edges=[Edge("a", "b")], start=["b"]), "there is no start"),
    "unknown start": (lambda: controls("a", edges=[], start=["aa"]), "start names step 'aa'"),
    "side entry": (
        lambda: controls(
            "a",
            "b",
            "c",
            "x",
            edges=[
                Edge("a", "b"),
                Edge("b", "c"),
                Edge("a", "x"),
                Edge("x", "c"),
                Edge("c", "b", always, limit=1),
            ],
        ),
        "from the side",
    ),
    "start inside a loop": (
        lambda: controls("a", "b", edges=[Edge("a", "b"), Edge("b", "a", limit=1)], start=["a", "b"]),
        "there is no start",
    ),
    "a missing variable": (
        lambda: Workflow("w", [WRITER], [llm(qestion="task.question")]),
        "does not give 'question', which the prompt of role 'writer' uses .did you mean 'qestion'",
    ),
    "a variable too many": (
        lambda: Workflow("w", [WRITER], [llm(question="task.question", hint="task.hint")]),
        "gives 'hint', which the prompt of role 'writer' does not use",
    ),
    "a path to an unknown step": (lambda: Workflow("w", [WRITER], [llm(question="taks.x")]), "did you mean"),
    "a path to the whole task": (
        lambda: Workflow("w", [WRITER], [llm(question="task")]),
        "a field of the task",
    ),
    "a path to a later step": (
        lambda: Workflow(
            "w",
            [WRITER, CRITIC],
            [llm(question="judge"), llm("judge", "critic", draft="draft")],
            [Edge("draft", "judge")],
        ),
        "'judge' is not before 'draft'",
    ),
    "item outside branches": (lambda: Workflow("w", [WRITER], [llm(question="item")]), "in no branch"),
    "for_each is a list": (
        lambda: Workflow("w", [], [control("a", for_each=["x"])]),
        "for_each must be a function",
    ),
    "for_each in a branch": (
        lambda: forked(control("c", for_each=lambda s: [], same_branch=True), edges=[Edge("b", "c")]),
        "both for_each and same_branch",
    ),
    "same_branch after a join": (
        lambda: forked(control("c", same_branch=True), edges=[Edge("start", "c")]),
        "same_branch",
    ),
    "same_branch of two": (
        lambda: forked(control("c", same_branch=True), edges=[Edge("start", "c"), Edge("b", "c")]),
        "branches of one for_each",
    ),
    "loop across branches": (
        lambda: forked(edges=[Edge("b", "start", always, limit=1)]),
        "across a for_each",
    ),
    "a branch's output as one path": (
        lambda: Workflow(
            "w",
            [CRITIC],
            [control("a", for_each=lambda s: [1]), llm("judge", "critic", draft="a")],
            [Edge("a", "judge")],
        ),
        "s.all",
    ),
    "answer of no step": (
        lambda: Workflow("w", [WRITER], [llm()], answer_step="drafts"),
        "did you mean 'draft'",
    ),
    "answer of a tool": (
        lambda: Workflow("w", [], [ToolStep("find", "s", always)], tools={"s": search}, answer_step="find"),
        "no parsed value",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_graph_that_can_not_work_is_refused_with_one_message_that_names_it(fault: str) -> None:
    make, message = REFUSED[fault]
    with pytest.raises(WorkflowError, match=message) as raised:
        make()
    assert str(raised.value).startswith("workflow 'w'")


def looped() -> Workflow:
    return controls(
        "plan", "search", "read", "judge", "answer",
        edges=[
            Edge("plan", "search"), Edge("search", "read"), Edge("read", "judge"), Edge("judge", "answer"),
            Edge("judge", "search", always, limit=3), Edge("read", "read", always, limit=1),
        ],
    )  # fmt: skip


def test_a_loop_is_every_step_on_a_way_from_its_target_to_its_source() -> None:
    inner, outer = looped().structure.loops
    assert inner.body == {"read"}
    assert outer.body == {"search", "read", "judge"}


def test_steps_see_what_is_before_them_and_earlier_rounds_of_their_loop_only() -> None:
    sees = looped().structure.sees
    assert sees("read", "search")
    assert sees("search", "judge")  # of the round before
    assert not sees("plan", "search")
    assert not sees("search", "answer")


def test_an_edge_remembers_the_largest_loop_that_it_leaves() -> None:
    workflow = looped()
    left = {
        (e.source, e.target): k
        for e, k in zip(workflow.edges, workflow.structure.leaves, strict=True)
        if k is not None
    }
    assert left == {("judge", "answer"): 1, ("read", "judge"): 0}


def test_steps_are_ordered_after_what_they_wait_for_and_otherwise_as_declared() -> None:
    edges = [Edge("a", "d"), Edge("a", "b"), Edge("b", "d"), Edge("a", "c"), Edge("c", "b")]
    assert controls("a", "d", "b", "c", edges=edges).structure.order == ("a", "c", "b", "d")


def test_a_workflow_travels_by_cloudpickle_and_plays_the_same() -> None:
    def build() -> Workflow:
        limit = 2
        steps = [llm(), ControlStep("count", lambda s: len(s["draft"].text) + limit)]
        return Workflow("w", [WRITER], steps, [Edge("draft", "count", when=lambda s: limit == 2)])

    travelled = cloudpickle.loads(cloudpickle.dumps(build()))
    one, other = (play_once(w, {"question": "?"}, {"writer": "four"}) for w in (build(), travelled))
    assert [t["parsed"] for t in one.turns] == [t["parsed"] for t in other.turns] == ['"four"', "6"]


def test_drawings_name_every_step_role_and_edge() -> None:
    workflow = Workflow(
        "w",
        [WRITER, CRITIC],
        [llm(), llm("judge", "critic", draft="draft")],
        [Edge("draft", "judge", always), Edge("judge", "draft", always, limit=2)],
        answer_step="judge",
    )
    assert text_lines(workflow) == [
        "draft  role writer          starts; again after judge if always, at most 2×",
        "judge  role critic, answer  after draft if always",
    ]
    drawn = mermaid(workflow)
    assert 'step_draft -.->|"always"| step_judge' in drawn
    assert 'step_judge -.->|"always, again, at most 2×"| step_draft' in drawn


def test_replacing_a_tool_that_is_not_there_is_refused() -> None:
    workflow = Workflow("w", [], [ToolStep("find", "search", always)], tools={"search": search})
    with pytest.raises(WorkflowError, match="tool 'serch' is used by no step"):
        workflow.with_tools({"serch": search})
