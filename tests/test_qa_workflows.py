"""The built-in workflows `single` and `qa_decompose`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import cloudpickle
import pytest

from workflows.engine import Message, Sampling
from workflows.errors import ToolRefusal, UsageError, WorkflowError
from workflows.loading import BUILTIN_WORKFLOWS, load_workflow
from workflows.play import Played
from workflows.qa import build as qa
from workflows.single import build as single
from workflows.testing import ScriptedModel, play_once
from workflows.trajectory import MALFORMED, OK

QUESTION = "In which city was the author of Emma born?"
TWO = '{"sub_queries": ["Who wrote Emma?", "Where was Jane Austen born?"]}'


class Shelf:
    """A retriever with one document for each query; it refuses and fails to find as told."""

    def __init__(self, refused: str = "", unknown: str = ""):
        self.refused = refused
        self.unknown = unknown

    async def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        query = request["query"]
        if query == self.refused:
            raise ToolRefusal("no")
        if query == self.unknown:
            return {"documents": []}
        found = [{"id": f"{query} {i}", "title": "T", "text": f"about {query} {i}", "score": 1.0}
                 for i in range(request["top_k"])]  # fmt: skip
        return {"documents": [*found, {"id": "same", "title": "", "text": "everywhere", "score": 0.1}]}


def reader(messages: Sequence[Message], sampling: Sampling) -> str:
    return "no tag" if "Where was" in messages[-1]["content"] else "<answer>Jane Austen</answer>"


def play(shelf: Shelf | None = None, decomposer: str = TWO, **options: Any) -> Played:
    w = qa(**options)
    said = {"decomposer": decomposer, "reader": reader, "answerer": "<answer>Steventon</answer>"}
    return play_once(
        w, {"question": QUESTION}, {r: said[r] for r in w.roles}, tools={"retriever": shelf or Shelf()}
    )


def steps(played: Played) -> list[str]:
    return [t["step"] + t["branch"] for t in played.turns]


def asked(played: Played, step: str) -> list[str]:
    """The last message of each turn of a step."""
    return [json.loads(t["messages"])[-1]["content"] for t in played.turns if t["step"] == step]


@pytest.mark.parametrize("options", [{}, {"readers": False}, {"top_k": 1, "max_sub_questions": 1}])
@pytest.mark.parametrize("use", BUILTIN_WORKFLOWS)
def test_every_built_in_workflow_plays_to_an_answer(use: str, options: dict[str, Any]) -> None:
    workflow = load_workflow(use, options if use == "qa_decompose" else {})
    workflow = cloudpickle.loads(cloudpickle.dumps(workflow))
    statuses: Counter[str] = Counter()
    for sample in range(12):
        played = play_once(workflow, {"question": "What is the capital of Chad?"}, sample=sample)
        assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")
        assert played.turns[-1]["step"] == workflow.answer_step
        statuses.update(t["status"] for t in played.turns if t["event"] == "llm")
    assert set(statuses) == {OK, MALFORMED}  # the scripted model gives a group something to learn from


@pytest.mark.parametrize("use", BUILTIN_WORKFLOWS)
def test_every_role_of_a_built_in_workflow_is_shown_its_format_once(use: str) -> None:
    for role in load_workflow(use, {}).roles.values():
        assert len(role.demonstrations) == 1
        assert len(role.prompt) < 200  # small models: the room belongs to the passages


def test_each_sub_question_is_looked_up_and_read_and_the_answer_sees_what_was_found() -> None:
    played = play(top_k=2)
    assert steps(played) == ["decompose", "retrieve0", "retrieve1", "read0", "read1", "answer"]
    requests = [json.loads(t["tool_request"]) for t in played.turns if t["event"] == "tool"]
    assert requests == [{"query": q, "top_k": 2} for q in json.loads(TWO)["sub_queries"]]
    assert "T: about Who wrote Emma? 0\nT: about Who wrote Emma? 1\neverywhere" in asked(played, "read")[0]
    notes = asked(played, "answer")[0]
    assert "Who wrote Emma?: Jane Austen\n" in notes
    assert "Where was Jane Austen born?: unknown\n" in notes  # malformed: its text is not a finding
    assert "no tag" not in notes
    assert [t["parents"] for t in played.turns] == [[], [0], [0], [0, 1], [0, 2], [0, 3, 4]]


def test_without_readers_the_answer_sees_each_passage_once_best_ones_first() -> None:
    played = play(readers=False, top_k=1)
    assert steps(played) == ["decompose", "retrieve0", "retrieve1", "answer"]
    prompt = asked(played, "answer")[0]
    assert prompt.startswith(
        "Text: T: about Who wrote Emma? 0\nT: about Where was Jane Austen born? 0\neverywhere\nQuestion: "
    )


@pytest.mark.parametrize("reply", ["Who wrote Emma?", '{"sub_queries": []}', '{"sub_queries": "Emma"}', "{"])
@pytest.mark.parametrize("readers", [True, False])
def test_a_decomposition_that_breaks_its_format_looks_up_the_question_itself(
    reply: str, readers: bool
) -> None:
    played = play(decomposer=reply, readers=readers)
    assert played.turns[0]["status"] == MALFORMED
    assert [json.loads(t["tool_request"])["query"] for t in played.turns if t["event"] == "tool"] == [
        QUESTION
    ]
    assert played.turns[-1]["step"] == "answer"


def test_no_role_is_ever_asked_about_nothing() -> None:
    for shelf in (Shelf(refused="Who wrote Emma?"), Shelf(unknown="Who wrote Emma?")):
        played = play(shelf)
        assert [t["branch"] for t in played.turns if t["step"] == "read"] == ["1"]
        assert "Who wrote Emma?: (nothing found)\n" in asked(played, "answer")[0]
        assert played.episode["status"] == "ok"


@pytest.mark.parametrize("readers", [True, False])
def test_an_answer_is_given_even_if_nothing_is_found_at_all(readers: bool) -> None:
    played = play(Shelf(unknown=QUESTION), decomposer="none", readers=readers)
    assert steps(played)[-1] == "answer"
    assert "(nothing found)" in asked(played, "answer")[0]


def test_sub_questions_are_asked_once_each_and_not_more_than_wished() -> None:
    same = json.dumps({"sub_queries": ["Who?", "who?", "Where?", "When?"]})
    played = play(decomposer=same, max_sub_questions=3)
    assert [json.loads(t["tool_request"])["query"] for t in played.turns if t["event"] == "tool"] == [
        "Who?", "Where?"
    ]  # fmt: skip


def test_long_passages_are_cut_from_the_lowest_rank_and_the_question_stays() -> None:
    class Long(Shelf):
        async def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
            text = "x" * 900
            return {"documents": [{"id": str(i), "title": "", "text": f"{i} {text}"} for i in range(9)]}

    played = play(Long())
    for turn, prompt in zip(
        [t for t in played.turns if t["step"] == "read"], asked(played, "read"), strict=True
    ):
        dropped = json.loads(turn["cut"])["passages"] if turn["cut"] else 0
        lines = prompt.removeprefix("Text: ").splitlines()
        assert [line[0] for line in lines if line[-3:] == "xxx"] == [str(i) for i in range(9 - dropped)]
        assert QUESTION in prompt
        assert prompt.endswith("\nReply: <answer>your answer</answer>")


def test_single_takes_its_own_prompt_tag_and_fields() -> None:
    w = single(prompt="{context}\n{question}\nPut it in <final>.", answer_tag="final", max_response_tokens=20)
    inputs = {"question": QUESTION, "context": "C"}
    turn = play_once(w, inputs, {"solver": "<final>x</final>"}).turns[0]
    assert json.loads(turn["messages"]) == [
        {"role": "user", "content": f"C\n{QUESTION}\nPut it in <final>."}
    ]  # a demonstration can't know what context would look like
    assert turn["parsed"] == '"x"'
    assert json.loads(turn["sampling"])["max_tokens"] == 20


def test_single_shows_its_format_with_its_own_prompt_too() -> None:
    chat = json.loads(
        play_once(single("Say: {question}", "a"), {"question": QUESTION}, {"solver": "x"}).turns[0][
            "messages"
        ]
    )
    assert [m["role"] for m in chat] == ["user", "assistant", "user"]
    assert chat[1]["content"] == "<a>eight</a>"


@pytest.mark.parametrize("options", [
    {"top_k": 0}, {"top_k": "4"}, {"top_k": True}, {"max_sub_questions": 0}, {"readers": "no"}, {"k": 3},
    {"max_sub_questions": 2.5},
])  # fmt: skip
def test_options_of_the_wrong_kind_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        load_workflow("qa_decompose", options)


@pytest.mark.parametrize("options", [
    {"prompt": "no variable"}, {"prompt": "{question"}, {"prompt": 3}, {"answer_tag": "a b"},
    {"max_response_tokens": 0},
])  # fmt: skip
def test_options_of_single_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(WorkflowError):
        single(**options)


def test_default_prompts_leave_a_small_context_to_the_passages() -> None:
    tokenizer = ScriptedModel(lambda messages, sampling: "")
    for turn in play(top_k=1).turns:
        if turn["event"] == "llm":
            words = sum(len(m["content"].split()) for m in json.loads(turn["messages"]))
            assert words < 130
            assert tokenizer.render(json.loads(turn["messages"])) == turn["prompt_token_ids"]
