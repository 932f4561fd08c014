"""How the roles of `mask` may reply, and what is read of a reply that breaks its form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.errors import WorkflowError
from workflows.parsers import read_reply
from workflows.teams.mask_parsers import (
    NO_EVIDENCE,
    UNKNOWN,
    AnswerParser,
    PlanParser,
    SearchParser,
    SummaryParser,
    UpdateParser,
    first_line,
    number_of,
    step_id,
)

ASKED: dict[str, Any] = {"question": "Q?", "next_id": "t3"}
PARSERS = (PlanParser(), SearchParser(), SummaryParser(), UpdateParser(), AnswerParser())
TAGS = ("q1", "a1", "q2", "a2", "final_answer", "search", "evidence", "update", "add")
PIECES = [mark for tag in TAGS for mark in (f"<{tag}>", f"</{tag}>")]
PIECES += ["<end>", "t1", "t3", "tau1", "Paris", "who?", "\n", "<", ">"]
pieces = st.lists(st.sampled_from(PIECES), max_size=12)


@given(st.one_of(st.text(max_size=60), pieces.map("".join)))
def test_every_reply_has_a_typed_reading_whether_legal_or_not(text: str) -> None:
    for parser in PARSERS:
        parsed = read_reply(parser, text, ASKED)
        assert parsed.valid == (parsed.problem is None)
        assert parsed.best is not None
        json.dumps(parsed.best)
    plan, search, summary, update, answer = (read_reply(p, text, ASKED).best for p in PARSERS)
    assert 1 <= len(plan["steps"]) <= 5
    assert all(step["sub_question"] and step["sub_answer"] for step in plan["steps"])
    assert plan["answer"]
    assert (search["action"] == "end") == (search["query"] == "")
    assert summary
    assert answer
    known = {"update": ("t1", "t2"), "add": ("t3",)}
    assert update["id"] in known[update["action"]]


def steps(*pairs: str) -> list[dict[str, str]]:
    return [dict(zip(("sub_question", "sub_answer"), pair.split("|"), strict=True)) for pair in pairs]


PLAN = "<q1>A?</q1><a1>x</a1>\n<Q2>B?</q2> <a2>y</A2>\n<final_answer>z</final_answer>\n"


@pytest.mark.parametrize(
    ("text", "pairs", "answer"),
    [
        (PLAN, ["A?|x", "B?|y"], "z"),
        ("<final_answer>z</final_answer><q1>A?</q1><a1>x</a1>", ["A?|x"], "z"),
        ("<q2>A?</q2><a2>x</a2><q4>B?</q4><a4>y</a4><final_answer>z</final_answer>", ["A?|x", "B?|y"], "z"),
        ("<q1>A?</q1><a1></a1><final_answer></final_answer>", ["A?|Unknown"], "Unknown"),
        ("<q1></q1><a1>x</a1><final_answer>z</final_answer>", ["Q?|x"], "z"),
        ("<q1>a < b <i>or</i> c</q1><a1>x</a1><final_answer>z</final_answer>", ["a < b <i>or</i> c|x"], "z"),
    ],
)
def test_legal_plans(text: str, pairs: list[str], answer: str) -> None:
    parsed = read_reply(PlanParser(), text, ASKED)
    assert parsed.problem is None
    assert parsed.value == {"steps": steps(*pairs), "answer": answer}


FINAL = "<final_answer>z</final_answer>"


@pytest.mark.parametrize(
    ("text", "pairs", "answer"),
    [
        ("", ["Q?|Unknown"], "Unknown"),
        ("I don't know", ["Q?|Unknown"], "Unknown"),
        (FINAL, ["Q?|Unknown"], "z"),
        ("<q1>A?</q1><a1>x</a1>", ["A?|x"], "x"),
        ("<q1>A?</q1><a1>x</a1><q2>B?</q2><a2>y</a2>", ["A?|x", "B?|y"], "y"),
        ("<a1>x</a1>" + FINAL, ["Q?|x"], "z"),
        ("<q1>A?</q1>" + FINAL, ["A?|Unknown"], "z"),
        ("<q1>A?</q1><a1>x</a1><a2>y</a2>" + FINAL, ["A?|x"], "z"),  # an answer to nothing
        ("<a1>x</a1><q1>A?</q1>" + FINAL, ["A?|x"], "z"),
        ("<q2>B?</q2><a2>y</a2><q1>A?</q1><a1>x</a1>" + FINAL, ["A?|x", "B?|y"], "z"),
        ("<q1>A?</q1><a1>x</a1><q1>A?</q1><a1>x</a1>" + FINAL, ["A?|x"], "z"),
        ("<q1>A?</q1><a1>x</a1><q2> a? </q2><a2>y</a2>" + FINAL, ["A?|x", "a?|y"], "z"),
        ("So: <q1>A?</q1><a1>x</a1>" + FINAL, ["A?|x"], "z"),
        (PLAN + "I hope so", ["A?|x", "B?|y"], "z"),
        (PLAN + FINAL, ["A?|x", "B?|y"], "z"),
        ("<q1>A?<a1>x</a1></q1>" + FINAL, ["A?<a1>x</a1>|x"], "z"),
        ("<q1>A?</q1><a1>x</a1><q2>B?</q2><a2>y", ["A?|x", "B?|Unknown"], "Unknown"),  # cut off
        (
            "".join(f"<q{n}>{n}?</q{n}><a{n}>{n}</a{n}>" for n in range(1, 7)) + FINAL,
            ["1?|1", "2?|2", "3?|3", "4?|4", "5?|5"],
            "z",
        ),
    ],
)
def test_illegal_plans_are_read_as_far_as_they_go(text: str, pairs: list[str], answer: str) -> None:
    parsed = read_reply(PlanParser(), text, ASKED)
    assert parsed.problem
    assert parsed.lenient == {"steps": steps(*pairs), "answer": answer}


@pytest.mark.parametrize(
    ("text", "legal", "query"),
    [
        ("<search>who wrote Emma?</search>", True, "who wrote Emma?"),
        (" <SEARCH> who </search>\n", True, "who"),
        ("<search>who</search><end>", True, "who"),
        ("<end/><search>who</search>", True, "who"),
        ("<end>", True, ""),
        ("\n<END/> ", True, ""),
        ("<search></search>", False, ""),
        ("<search> </search><search>who</search>", False, "who"),
        ("<search>who</search><search>where</search>", False, "who"),
        ("<search>who <search>where</search>", False, "who <search>where"),
        ("Let me see. <search>who</search>", False, "who"),
        ("<search>who wrote", False, "who wrote"),
        ("\n\n Who wrote 'Emma' (1815)?!\nor Persuasion", False, "Who wrote Emma 1815"),
        ("谁写了《红楼梦》？", False, "谁写了 红楼梦"),
        ("<end><end>", False, ""),
        ("?!…", False, ""),
        ("", False, ""),
        ("w" * 300, False, "w" * 200),
    ],
)
def test_searches(text: str, legal: bool, query: str) -> None:
    parsed = SearchParser().parse(text)
    assert parsed.valid == legal, parsed.problem
    assert parsed.best == {"action": "search" if query else "end", "query": query}


@pytest.mark.parametrize(
    ("text", "legal", "evidence"),
    [
        ("<evidence>She was born in Steventon.</evidence>", True, "She was born in Steventon."),
        ("<EVIDENCE>\nx\n</evidence> ", True, "x"),
        ("<evidence></evidence>", True, NO_EVIDENCE),
        ("No useful information", True, NO_EVIDENCE),
        (" no USEFUL information\n", True, NO_EVIDENCE),
        ("<evidence>" + "w " * 75 + "</evidence>", True, ("w " * 75).strip()),
        ("<evidence>" + "w " * 76 + "</evidence>", False, ("w " * 76).strip()),
        ("No useful information.", False, "No useful information."),
        ("It says: <evidence>x</evidence>", False, "x"),
        ("<evidence>x</evidence><evidence>y</evidence>", False, "x"),
        ("<evidence>x", False, "x"),
        ("She was born there.\nIndeed.", False, "She was born there."),
        ("", False, NO_EVIDENCE),
        ("w" * 300, False, "w" * 200),
    ],
)
def test_summaries(text: str, legal: bool, evidence: str) -> None:
    parsed = SummaryParser().parse(text)
    assert (parsed.valid, parsed.best) == (legal, evidence)


@pytest.mark.parametrize(
    ("text", "legal", "where"),
    [
        ("<update>t1</update>", True, "update t1"),
        (" <UPDATE> T2 </update>\n", True, "update t2"),
        ("<add>t3</add>", True, "add t3"),
        ("<update>t3</update>", False, "add t3"),  # there is none yet
        ("<update>t9</update>", False, "add t3"),
        ("<update>tau1</update>", False, "add t3"),
        ("<update>1</update>", False, "add t3"),
        ("<add>t1</add>", False, "add t3"),
        ("<add>t4</add>", False, "add t3"),
        ("<add></add>", False, "add t3"),
        ("<update>t1</update><add>t3</add>", False, "update t1"),
        ("<update>t1</update><update>t2</update>", False, "update t1"),
        ("It belongs to <update>t1</update>", False, "update t1"),
        ("t1", False, "add t3"),
        ("", False, "add t3"),
    ],
)
def test_updates_name_a_step_that_the_prompt_shows(text: str, legal: bool, where: str) -> None:
    parsed = UpdateParser().parse_for(text, ASKED)
    action, step = where.split()
    assert (parsed.valid, parsed.best) == (legal, {"action": action, "id": step})


@given(st.integers(1, 30), st.integers(1, 30))
def test_an_id_is_legal_exactly_if_it_is_there_or_next(steps: int, named: int) -> None:
    asked = {"next_id": step_id(steps + 1)}
    assert UpdateParser().parse_for(f"<update>{step_id(named)}</update>", asked).valid == (named <= steps)
    assert UpdateParser().parse_for(f"<add>{step_id(named)}</add>", asked).valid == (named == steps + 1)
    assert number_of(step_id(named)) == named


@pytest.mark.parametrize("step", ["", "t", "1", "tau1", "t-1", "t1.0", "t²", "T1", "t99999"])
def test_what_is_no_id_is_refused(step: str) -> None:
    with pytest.raises(WorkflowError, match="is not the id of a step"):
        number_of(step)


@pytest.mark.parametrize(
    ("text", "legal", "answer"),
    [
        ("<final_answer>Paris</final_answer>", True, "Paris"),
        ("\n<Final_Answer> Paris </final_answer> ", True, "Paris"),
        ("<final_answer></final_answer>", True, UNKNOWN),
        ("<final_answer>Paris</final_answer><final_answer>Rome</final_answer>", True, "Paris"),
        ("It is <final_answer>Paris</final_answer>", False, "It is Paris"),
        ("<final_answer>Paris", False, "Paris"),
        ("<answer>Paris</answer>\nor Rome", False, "Paris"),
        ("Paris\nRome", False, "Paris"),
        ("", False, UNKNOWN),
        (" \n ", False, UNKNOWN),
    ],
)
def test_answers(text: str, legal: bool, answer: str) -> None:
    parsed = AnswerParser().parse(text)
    assert (parsed.valid, parsed.best) == (legal, answer)


def test_the_placeholder_for_what_nobody_knows_is_a_word() -> None:
    assert UNKNOWN == "Unknown"


@given(st.text(max_size=400))
def test_a_first_line_is_one_bounded_line_without_markup(text: str) -> None:
    line = first_line(text)
    assert len(line) <= 200
    assert "\n" not in line
    assert line == line.strip()
    assert (line == "") == (not any(first_line(part) for part in text.splitlines()))
