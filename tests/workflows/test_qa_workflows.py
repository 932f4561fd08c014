"""The built-in question-answering workflows: every branch of every graph."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import cloudpickle
import pytest

from workflows.engine import Message, Sampling
from workflows.errors import InfraError, ToolRefusal, UsageError, WorkflowError
from workflows.graph import Workflow
from workflows.loading import load_workflow
from workflows.playing.play import Played, PlayLimits
from workflows.prompts import Trim
from workflows.teams.qa_decompose import build as qa
from workflows.teams.single import build as single
from workflows.testing import ScriptedModel, play_once
from workflows.trajectory import INFRA_ERROR, MALFORMED, OK, TOOL_ERROR


@functools.cache
def workflow_of(use: str) -> Workflow:
    """A built-in workflow with its defaults; its index is built once."""
    workflow = load_workflow(use, {})
    assert isinstance(workflow, Workflow)
    return workflow


FAMILY = ("single", "qa_decompose", "qa_rewrite", "qa_summarise", "qa_select", "mask")

QUESTION = "In which city was the author of Emma born?"
TWO = '{"sub_queries": ["Who wrote Emma?", "Where was Jane Austen born?"]}'


class Shelf:
    """A retriever with one document for each query and rank, and one that all share.

    It refuses, finds nothing or is down for queries as told.
    """

    def __init__(self, refused: str = "", unknown: str = "", down: str = ""):
        self.refused = refused
        self.unknown = unknown
        self.down = down

    async def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        query = request["query"]
        assert query.strip(), "no workflow asks for nothing"
        if query == self.down:
            raise InfraError("connection refused")
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


def queries(played: Played) -> list[str]:
    return [json.loads(t["tool_request"])["query"] for t in played.turns if t["event"] == "tool"]


def of(played: Played, step: str) -> dict[str, Any]:
    """The only turn of a step."""
    (turn,) = [t for t in played.turns if t["step"] == step]
    return turn


# What holds for all of them.


@pytest.mark.parametrize("use", FAMILY)
def test_every_workflow_plays_to_an_answer_whatever_its_roles_say(use: str) -> None:
    workflow = cloudpickle.loads(cloudpickle.dumps(workflow_of(use)))
    statuses: Counter[str] = Counter()
    for sample in range(12):
        played = play_once(workflow, {"question": "What is the capital of Chad?"}, sample=sample)
        assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")
        assert [t for t in played.turns if t["event"] == "llm"][-1]["step"] in (
            workflow.answer_step,
            "search",
        )
        statuses.update(t["status"] for t in played.turns if t["event"] == "llm")
    assert set(statuses) == {OK, MALFORMED}  # the scripted model gives a group something to learn from


@pytest.mark.parametrize("use", FAMILY)
@pytest.mark.parametrize("said", ["", " \n", "x", "<", "<answer>", "{}", "<end>", "{" * 99])
def test_no_role_is_asked_about_nothing_when_all_of_them_talk_nonsense(use: str, said: str) -> None:
    workflow = workflow_of(use)
    played = play_once(workflow, {"question": QUESTION}, lambda messages, sampling: said)
    assert played.episode["status"] == "ok"
    for turn in played.turns:
        if turn["event"] == "tool":
            assert json.loads(turn["tool_request"])["query"].strip()
        if turn["event"] == "llm":
            for line in json.loads(turn["messages"])[-1]["content"].splitlines():
                assert line.strip()
                assert not line.endswith((": ", "- "))  # a label or a step with nothing behind it


@pytest.mark.parametrize("use", FAMILY)
def test_every_prompt_has_the_question_and_ends_with_its_form(use: str) -> None:
    played = play_once(workflow_of(use), {"question": QUESTION})
    for turn in played.turns:
        if turn["event"] == "llm":
            prompt = json.loads(turn["messages"])[-1]["content"]
            assert QUESTION in prompt
            assert "\nReply: " in prompt[prompt.index(QUESTION) :]  # last, where small models see it best


@pytest.mark.parametrize("use", FAMILY)
def test_every_role_is_shown_its_format_and_loses_lists_only(use: str) -> None:
    workflow = workflow_of(use)
    for role in workflow.roles.values():
        assert 1 <= len(role.demonstrations) <= 3
        assert len(role.prompt) < 250  # small models: the room belongs to the passages
        for trim in role.trims:
            assert trim.by == "item"
            assert trim.variable in ("passages", "notes", "facts", "summary", "trajectory", "queries")
        assert Trim("question") not in role.trims


# Decompose, and a reader for each sub-question.


def test_each_sub_question_is_looked_up_and_read_and_the_answer_sees_what_was_found() -> None:
    played = play(top_k=2)
    assert steps(played) == ["decompose", "retrieve0", "retrieve1", "read0", "read1", "answer"]
    requests = [json.loads(t["tool_request"]) for t in played.turns if t["event"] == "tool"]
    assert requests == [{"query": q, "top_k": 2} for q in json.loads(TWO)["sub_queries"]]
    assert "T: about Who wrote Emma? 0\nT: about Who wrote Emma? 1\neverywhere" in asked(played, "read")[0]
    notes = asked(played, "answer")[0]
    assert "Who wrote Emma?: Jane Austen\n" in notes
    assert "Where was Jane Austen born?: no tag\n" in notes  # malformed, so read as it stands
    assert [t["parents"] for t in played.turns] == [[], [0], [0], [0, 1], [0, 2], [0, 3, 4]]


def test_without_readers_the_answer_sees_each_passage_once_best_ones_first() -> None:
    played = play(readers=False, top_k=1)
    assert steps(played) == ["decompose", "retrieve0", "retrieve1", "answer"]
    prompt = asked(played, "answer")[0]
    assert prompt.startswith(
        "Text: T: about Who wrote Emma? 0\nT: about Where was Jane Austen born? 0\neverywhere\nQuestion: "
    )


@pytest.mark.parametrize("reply", ["Who wrote Emma?", '{"sub_queries": [1]}', '{"sub_queries": "Emma"}', "{"])
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
        dropped = json.loads(turn["cut"])["passages"]["items"] if turn["cut"] else 0
        lines = prompt.removeprefix("Text: ").splitlines()
        assert [line[0] for line in lines if line[-3:] == "xxx"] == [str(i) for i in range(9 - dropped)]
        assert QUESTION in prompt
        assert prompt.endswith("\nReply: <answer>your answer</answer>")


def test_an_empty_decomposition_goes_straight_to_the_answer() -> None:
    for readers in (True, False):
        played = play(decomposer='{"sub_queries": []}', readers=readers)
        assert [(t["step"], t["status"]) for t in played.turns] == [("decompose", MALFORMED), ("answer", OK)]
        assert asked(played, "answer")[0].startswith("Text: (nothing found)\n")


def test_a_retriever_that_is_down_for_one_branch_keeps_what_the_others_found() -> None:
    limits = PlayLimits(call_attempts=2, backoff_seconds=0)
    said = {"decomposer": TWO, "reader": reader, "answerer": "<answer>x</answer>"}
    tools = {"retriever": Shelf(down="Who wrote Emma?")}
    played = play_once(qa(), {"question": QUESTION}, said, tools=tools, limits=limits)
    assert [(t["step"] + t["branch"], t["status"], t["attempts"]) for t in played.turns] == [
        ("decompose", OK, 1), ("retrieve0", INFRA_ERROR, 2), ("retrieve1", OK, 1), ("read1", MALFORMED, 1)
    ]  # fmt: skip
    assert (played.episode["status"], played.episode["stop_reason"]) == (INFRA_ERROR, "call_failed")
    assert "connection refused" in played.episode["error"]


# Rewrite, select, answer.


def rewrite(shelf: Shelf | None = None, **said: str) -> Played:
    replies = {
        "rewriter": "<query>author of Emma</query>",
        "selector": "<selected>Jane Austen.\nBorn in Steventon.</selected>",
        "answerer": "<answer>Steventon</answer>",
    } | said
    tools = {"retriever": shelf or Shelf()}
    return play_once(workflow_of("qa_rewrite"), {"question": QUESTION}, replies, tools=tools)


def test_the_rewritten_query_is_looked_up_and_the_answer_sees_what_was_selected() -> None:
    played = rewrite()
    assert steps(played) == ["rewrite", "retrieve", "select", "answer"]
    assert queries(played) == ["author of Emma"]
    selecting = asked(played, "select")[0]
    assert selecting.startswith("Text: T: about author of Emma 0\n")
    assert f"\nQuery: author of Emma\nQuestion: {QUESTION}\n" in selecting
    assert asked(played, "answer")[0].startswith("Text: Jane Austen.\nBorn in Steventon.\nQuestion: ")
    assert [t["parents"] for t in played.turns] == [[], [0], [0, 1], [2]]


def test_a_rewriting_without_its_tag_is_looked_up_as_it_stands_and_a_blank_one_is_the_question() -> None:
    assert queries(rewrite(rewriter="who wrote Emma")) == ["who wrote Emma"]
    assert queries(rewrite(rewriter=" ")) == [QUESTION]
    assert of(rewrite(rewriter="who wrote Emma"), "rewrite")["parsed"] == '"who wrote Emma"'


@pytest.mark.parametrize("shelf", [Shelf(unknown="author of Emma"), Shelf(refused="author of Emma")])
def test_where_nothing_is_found_there_is_nothing_to_select(shelf: Shelf) -> None:
    played = rewrite(shelf)
    assert steps(played) == ["rewrite", "retrieve", "answer"]
    assert of(played, "retrieve")["status"] == (TOOL_ERROR if shelf.refused else OK)
    assert asked(played, "answer")[0].startswith("Text: (nothing found)\n")
    assert played.episode["status"] == "ok"


def test_a_selection_without_its_tag_is_shown_as_it_stands_and_a_blank_one_as_nothing() -> None:
    assert asked(rewrite(selector="Jane Austen"), "answer")[0].startswith("Text: Jane Austen\n")
    assert asked(rewrite(selector="<selected> </selected>"), "answer")[0].startswith(
        "Text: <selected> </selected>\n"
    )
    assert asked(rewrite(selector=""), "answer")[0].startswith("Text: (nothing found)\n")


# Decompose, then one summary of all parts.


def summarise(shelf: Shelf | None = None, **said: str) -> Played:
    replies = {
        "decomposer": TWO,
        "summariser": '{"sub_answers": ["Jane Austen", "Steventon"]}',
        "answerer": "<answer>Steventon</answer>",
    } | said
    tools = {"retriever": shelf or Shelf()}
    return play_once(workflow_of("qa_summarise"), {"question": QUESTION}, replies, tools=tools)


def test_one_summary_answers_all_sub_questions_from_all_passages() -> None:
    played = summarise()
    assert steps(played) == ["decompose", "retrieve0", "retrieve1", "summarise", "answer"]
    prompt = asked(played, "summarise")[0]
    assert prompt.startswith(
        "Text:\n1: T: about Who wrote Emma? 0\n2: T: about Where was Jane Austen born? 0\n"
        "1: T: about Who wrote Emma? 1\n"
    )
    assert prompt.count("everywhere") == 1
    assert "Queries:\n1: Who wrote Emma?\n2: Where was Jane Austen born?\nQuestion: " in prompt
    assert asked(played, "answer")[0].startswith(
        "Text: Who wrote Emma?: Jane Austen\nWhere was Jane Austen born?: Steventon\nQuestion: "
    )
    assert [t["parents"] for t in played.turns] == [[], [0], [0], [0, 1, 2], [0, 3]]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('{"sub_answers": ["Jane Austen"]}', "Jane Austen|unknown"),
        ('{"sub_answers": ["a", "b", "c"]}', "a|b"),
        ('{"sub_answers": []}', "unknown|unknown"),
    ],
)
def test_each_sub_question_has_one_answer_or_is_unknown(said: str, shown: str) -> None:
    one, other = shown.split("|")
    assert asked(summarise(summariser=said), "answer")[0].startswith(
        f"Text: Who wrote Emma?: {one}\nWhere was Jane Austen born?: {other}\nQuestion: "
    )


def test_a_summary_that_is_no_list_is_shown_as_it_stands_and_a_blank_one_as_nothing() -> None:
    assert asked(summarise(summariser="It was\nAusten"), "answer")[0].startswith("Text: It was\nAusten\n")
    assert asked(summarise(summariser=" "), "answer")[0].startswith("Text: (nothing found)\n")


def test_without_any_passage_or_sub_question_there_is_nothing_to_summarise() -> None:
    nothing = summarise(Shelf(unknown=QUESTION), decomposer="?")
    assert steps(nothing) == ["decompose", "retrieve0", "answer"]
    assert asked(nothing, "answer")[0].startswith(f"Text: {QUESTION}: (nothing found)\n")
    refused = summarise(Shelf(refused=QUESTION), decomposer="?")
    assert steps(refused) == ["decompose", "retrieve0", "answer"]
    none = summarise(decomposer='{"sub_queries": []}')
    assert steps(none) == ["decompose", "answer"]
    half = summarise(Shelf(unknown="Who wrote Emma?"))
    assert steps(half) == ["decompose", "retrieve0", "retrieve1", "summarise", "answer"]
    assert asked(half, "summarise")[0].startswith("Text:\n2: T: about Where was Jane Austen born? 0\n")


def test_five_sub_questions_are_the_most() -> None:
    many = json.dumps({"sub_queries": [f"{n}?" for n in range(7)]})
    assert queries(summarise(decomposer=many)) == [f"{n}?" for n in range(5)]


# Rewrite, select by number, and look up again.


def select(shelf: Shelf | None = None, **said: str) -> Played:
    replies = {
        "rewriter": '{"query": "author of Emma"}',
        "selector": '{"ids": [2, 1]}',
        "summariser": '{"summary": "By Jane Austen."}',
        "answerer": '{"answer": "Steventon"}',
    } | said
    tools = {"retriever": shelf or Shelf()}
    return play_once(workflow_of("qa_select"), {"question": QUESTION}, replies, tools=tools)


CHOSEN = ["rewrite", "retrieve", "select", "summarise", "answer"]
AGAIN = ["rewrite", "retrieve", "select", "retrieve_again", "summarise", "answer"]


def test_what_is_chosen_by_number_is_summed_up_and_nothing_is_looked_up_again() -> None:
    played = select()
    assert steps(played) == CHOSEN
    assert asked(played, "select")[0].startswith(
        "1: T: about author of Emma 0\n2: T: about author of Emma 1\n"
    )
    assert asked(played, "summarise")[0].startswith(
        "Text: T: about author of Emma 1\nT: about author of Emma 0\nQuestion: "
    )
    assert asked(played, "answer")[0].startswith("Text: By Jane Austen.\nQuestion: ")
    assert of(played, "answer")["parsed"] == '"Steventon"'


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ('{"ids": []}', OK),  # nobody is punished for saying that nothing helps
        ('{"ids": [0, 99, -1]}', OK),
        ('{"ids": ["1"]}', MALFORMED),
        ('{"ids": [true]}', MALFORMED),
        ('{"ids": 1}', MALFORMED),
        ("1, 2", MALFORMED),
        ("", MALFORMED),
    ],
)
def test_where_nothing_is_chosen_the_question_itself_is_looked_up(said: str, status: str) -> None:
    played = select(selector=said)
    assert steps(played) == AGAIN
    assert of(played, "select")["status"] == status
    assert queries(played) == ["author of Emma", QUESTION]
    assert json.loads(of(played, "retrieve_again")["tool_request"])["top_k"] == 6
    assert asked(played, "summarise")[0].startswith(f"Text: T: about {QUESTION} 0\n")


def test_a_number_that_is_named_twice_is_one_passage() -> None:
    prompt = asked(select(selector='{"ids": [3, 3, 3]}'), "summarise")[0]
    assert prompt.startswith("Text: T: about author of Emma 2\nQuestion: ")


@pytest.mark.parametrize("shelf", [Shelf(unknown="author of Emma"), Shelf(refused="author of Emma")])
def test_a_query_that_finds_nothing_is_followed_by_the_question(shelf: Shelf) -> None:
    played = select(shelf)
    assert steps(played) == ["rewrite", "retrieve", "retrieve_again", "summarise", "answer"]
    assert asked(played, "summarise")[0].startswith(f"Text: T: about {QUESTION} 0\n")


@pytest.mark.parametrize("shelf", [Shelf(unknown=QUESTION), Shelf(refused=QUESTION)])
def test_where_the_second_retrieval_finds_nothing_the_answer_is_given_without(shelf: Shelf) -> None:
    played = select(shelf, selector='{"ids": []}')
    assert steps(played) == ["rewrite", "retrieve", "select", "retrieve_again", "answer"]
    assert asked(played, "answer")[0].startswith("Text: (nothing found)\n")
    blank = select(Shelf(unknown=QUESTION), rewriter="")
    assert steps(blank) == ["rewrite", "retrieve", "retrieve_again", "answer"]


def test_texts_without_their_key_are_read_as_they_stand() -> None:
    played = select(rewriter="who wrote Emma", summariser="Austen did", answerer="Steventon")
    assert queries(played) == ["who wrote Emma"]
    assert asked(played, "answer")[0].startswith("Text: Austen did\n")
    answer = of(played, "answer")
    assert (answer["status"], answer["parsed"], answer["format_valid"]) == (MALFORMED, '"Steventon"', False)


# One role, one call.


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


@pytest.mark.parametrize(
    ("use", "option"),
    [
        ("qa_rewrite", "top_k"),
        ("qa_summarise", "top_k"),
        ("qa_summarise", "max_sub_questions"),
        ("qa_select", "top_k"),
        ("qa_select", "top_k_again"),
        ("mask", "top_k"),
        ("mask", "max_rounds"),
    ],
)
def test_counts_are_whole_numbers_of_at_least_one(use: str, option: str) -> None:
    for value in (0, -1, 1.5, "2", True, None):
        with pytest.raises(UsageError, match=option):
            load_workflow(use, {option: value})


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
