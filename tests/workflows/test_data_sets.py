"""Rows in the shapes of public data sets (made ones): what becomes of each, and what is refused."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from tests.support.data_rows import STDIO, decoded, load, refused, sides, task_of
from workflows.data.fields import (
    BAD_GOLD,
    NO_GOLD,
    NO_PROBLEM,
    NO_TESTS,
    UNANSWERABLE,
    UNDECIDABLE,
    Draft,
)
from workflows.data.packed import unpacked
from workflows.data.qa_rows import coerced_answers
from workflows.data.shapes import usual_shape

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1/2 + 1/3?"}]


def _math(name: str, **row: Any) -> Any:
    return pytest.param(row, "problem", id=name)


def _qa(name: str, **row: Any) -> Any:
    return pytest.param(row, "question", id=name)


# What is asked and the golds of each: the row's field `expected` is taken out before it is written.
SETS = [
    _math("skywork", prompt=CHAT, data_source="train-math-numinamath", ability="math",
          reward_model={"ground_truth": '["\\\\frac{5}{6}"]', "style": "rule"}, expected=["\\frac{5}{6}"]),
    _math("skywork-interval", prompt=CHAT, ability="math", reward_model={"ground_truth": '["(1,2)"]'},
          expected=["(1,2)"]),
    _math("a-list-of-numbers-is-one-answer", problem="P", answer="[1, 2]", expected=["[1, 2]"]),
    _math("python-list", problem="P", answer="['1', '2']", expected=["1", "2"]),
    _math("dapo", data_source="math_dapo", prompt=CHAT, ability="MATH", extra_info={"index": "u"},
          reward_model={"ground_truth": "34", "style": "rule-lighteval/MATH_v2"}, expected=["34"]),
    _math("by-source-alone", data_source="math_dapo", prompt=CHAT, reward_model={"ground_truth": "34"},
          expected=["34"]),
    _math("numina-source", data_source="numina_olympiads", prompt=CHAT, reward_model={"ground_truth": "x"},
          expected=["x"]),
    _math("trl-box", prompt=CHAT, solution="It is \\boxed{5/6}.", expected=["5/6"]),
    _math("trl-dollars", prompt=CHAT, solution="$\\frac{5}{6}$", expected=["$\\frac{5}{6}$"]),
    _math("trl-number", prompt=CHAT, solution="5/6", expected=["5/6"]),
    _math("trl-word", prompt=CHAT, solution="True", expected=["True"]),
    _math("trl-text-prompt", prompt="What?", solution="$0$", expected=["$0$"]),
    _math("deepmath", question="Q", final_answer="0", difficulty=4.5, r1_solution_1="…", expected=["0"]),
    _math("olympiadbench", question="Q", final_answer=["2", "3"], solution=["a long one"],
          expected=["2", "3"]),
    _math("openmath", problem="P", generated_solution="…", expected_answer="4", expected=["4"]),
    _math("openr1", problem="P", solution="… \\boxed{7}", answer="7", question_type="math-word-problem",
          problem_is_valid="Yes", messages=CHAT, expected=["7"]),
    _math("deepscaler", problem="P", answer="-\\frac{2}{3}", solution="…", expected=["-\\frac{2}{3}"]),
    _math("bigmath", problem="P", answer="12", source="orca_math", domain=["Algebra"], expected=["12"]),
    _math("simplerl", question="Q", gt_answer="3", answer="3", expected=["3"]),
    _math("synthetic", prompt="Solve x.", task_type="verifiable_math",
          verification_info='{"ground_truth": "42"}', expected=["42"]),
    _math("aime-with-capitals", ID="2024-I-1", Problem="P", Answer=204, expected=["204"]),
    _qa("bamboogle", Question="Q?", Answer="Ada", expected=["Ada"]),
    _qa("musique", id="2hop__1", question="Q?", answer="Ada", answer_aliases=["Ada L.", "Ada"],
        answerable=True, paragraphs=[], expected=["Ada", "Ada L."]),
    _qa("triviaqa", question="Q?", question_id="tc_1",
        answer={"value": "Ada", "aliases": ["Lady Ada"], "normalized_value": "ada"},
        expected=["Ada", "Lady Ada"]),
    _qa("popqa", question="Q?", obj="x", possible_answers='["politician", "pol."]',
        expected=["politician", "pol."]),
    _qa("squad", question="Q?", context="c", answers={"text": ["Ada", "Ada"], "answer_start": [1, 1]},
        expected=["Ada"]),
    _qa("2wiki", _id="1", question="Q?", answer="Ada", supporting_facts=[["A", 0]], evidences=[],
        expected=["Ada"]),
    _qa("search-r1", question="Q?", golden_answers=["Ada"], prompt=CHAT, ability="fact-reasoning",
        data_source="nq", reward_model={"ground_truth": {"target": ["Ada"]}}, expected=["Ada"]),
    _qa("nq-as-text", question="Q?", answer="['Ada', 'Bea']", expected=["Ada", "Bea"]),
    _qa("csv-of-verl", prompt=json.dumps([{"role": "user", "content": "Q?"}]),
        reward_model='{"ground_truth": {"target": ["Ada"]}}', expected=["Ada"]),
    _qa("sharegpt", conversations=[{"from": "human", "value": "Q?"}], answer="Ada", expected=["Ada"]),
    _qa("boolq", question="is it so", passage="It is.", answer=True, expected=["yes", "true"]),
    _qa("strategyqa", qid="1", term="t", question="Is it?", answer=False, facts=["f"],
        decomposition=["d"], expected=["no", "false"]),
    _qa("boolq-as-verl", prompt=CHAT, data_source="boolq", reward_model={"ground_truth": True},
        expected=["yes", "true"]),
    _qa("yes-as-text", question="Is it?", answer="yes", expected=["yes"]),
    _qa("a-number", question="How many?", answer=12, expected=["12"]),
    _qa("numbers", question="How many?", answers=[12, 12.5, True], expected=["12", "12.5", "yes", "true"]),
    _qa("the-letter-a", question="Which?\nA) x\nB) y", answer="A", expected=["A"]),
]  # fmt: skip


@pytest.mark.parametrize(("row", "name"), SETS)
def test_what_is_asked_and_the_golds_of_public_data_sets(tmp_path, row, name):
    row = dict(row)
    expected = row.pop("expected")
    task = task_of(tmp_path, row)
    assert list(task["inputs"]) == [name]
    assert task["inputs"][name].strip()
    assert "role" not in task["inputs"][name]
    assert task["gold"]["answers"] == expected


def test_open_reasoner_zeros_pairs_of_turns_are_mathematics(tmp_path):
    pair = [
        {"from": "human", "value": "P"},
        {"from": "assistant", "ground_truth": {"value": "34"}},
    ]
    for row in (pair, {"0": pair[0], "1": pair[1]}):
        task = task_of(tmp_path, row)
        assert (task["inputs"], task["gold"]) == ({"problem": "P"}, {"answers": ["34"]})
    assert usual_shape([1, 2]) == [1, 2]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({"problem": "P", "answer": "proof"}, UNDECIDABLE),
        ({"problem": "P", "answer": "notfound"}, UNDECIDABLE),
        ({"problem": "P", "answer": "3", "question_type": "proof"}, UNDECIDABLE),
        ({"problem": "P", "answer": "3", "problem_is_valid": "Incomplete"}, UNDECIDABLE),
        ({"problem": "P", "answer": '{"x": 1}'}, BAD_GOLD),
        ({"prompt": CHAT, "solution": "Add them up, then see."}, NO_GOLD),
        ({"question": "Q?", "answer": "Ada", "answerable": False}, UNANSWERABLE),
        ({"question": "Q?", "answers": {"text": []}, "is_impossible": True}, UNANSWERABLE),
        ({"question": "Q?", "answers": {"text": [], "answer_start": []}}, NO_GOLD),
        ({"question": "Q?", "answer": '{"text": "x"}'}, BAD_GOLD),
        ({"question": '[{"role": "assistant", "content": "x"}]', "answer": "Ada"}, NO_PROBLEM),
        ({"question": "[{'role': 'user', 'content': 'cut o", "answer": "Ada"}, NO_PROBLEM),
        ({"question": "Q?", "choices": ["x", "y"], "answer": 7}, BAD_GOLD),
        ({"question": "Q?", "answer": [[1, 2]]}, NO_GOLD),
    ],
)  # fmt: skip
def test_rows_that_no_grader_can_decide_are_refused_by_reason(tmp_path, row, cause):
    assert refused(tmp_path, row)[0] == cause


@pytest.mark.parametrize("column", ["talk", "data.talk"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_chat_in_a_column_is_what_the_user_says(tmp_path, column, as_text):
    talk: Any = json.dumps(CHAT) if as_text else CHAT
    row = {"talk": talk, "gold": "5/6"} if column == "talk" else {"data": {"talk": talk}, "gold": "5/6"}
    for name in ("question", "problem"):
        task = task_of(tmp_path, row, columns={name: column, "answers": "gold"})
        assert task["inputs"] == {name: "What is 1/2 + 1/3?"}
        assert task["gold"] == {"answers": ["5/6"]}


def test_a_column_map_reads_trls_and_verls_rows(tmp_path):
    columns = {"problem": "prompt", "answers": "solution"}
    assert task_of(tmp_path, {"prompt": CHAT, "solution": "5/6"}, columns=columns)["gold"]["answers"] == [
        "5/6"
    ]
    columns = {"problem": "prompt", "answers": "reward_model"}
    row = {"prompt": CHAT, "reward_model": {"ground_truth": '["5/6"]'}}
    assert task_of(tmp_path, row, columns=columns)["gold"]["answers"] == ["5/6"]


# choices


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Q?", "choices": ["x", "y"], "answer": 1},
        {"question": "Q?", "choices": '["x", "y"]', "answer": "B"},
        {"question": "Q?", "options": ["x", "y"], "answer": "B", "answer_index": 1, "category": "law"},
        {"question": "Q?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"},
        {"question_stem": "Q?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"},
        {"question": "Q?", "options": {"A": "x", "B": "y"}, "answer": "y", "answer_idx": "B"},
        {"question": "Q?", "options": [{"key": "A", "value": "x"}, {"key": "B", "value": "y"}], "answer": 1},
        {"question": "Q?", "options": ["A)x", "B)y"], "correct": "B"},
        {"question": "Q?", "A": "x", "B": "y", "answer": "B"},
        {"question": "Q?", "choices": ["x", "y"], "answer": "(B)"},
    ],
)  # fmt: skip
def test_choices_are_lines_of_the_question_and_letter_and_text_are_golds(tmp_path, row):
    loaded = load(tmp_path, row)
    (task,) = decoded(loaded)
    assert loaded.formats == ("choices",)
    assert task["inputs"] == {"question": "Q?\n\nA. x\nB. y", "choices": ["x", "y"]}
    assert task["gold"] == {"answers": ["B", "y"]}


def test_the_right_choice_a_is_a_gold_and_a_question_that_lists_its_choices_stays(tmp_path):
    row = {"question": "Red or blue?", "choices": ["Red", "blue"], "answer": "A"}
    task = task_of(tmp_path, row)
    assert task["inputs"]["question"] == "Red or blue?"
    assert task["gold"]["answers"] == ["A", "Red"]


# code


def test_a_file_of_mathematics_and_code_is_read_row_by_row(tmp_path):
    tests = json.dumps({"inputs": ["1\n", "3\n"], "outputs": ["2\n", "4\n"]})
    math = {"data_source": "numina_olympiads", "prompt": CHAT, "ability": "math",
            "reward_model": {"ground_truth": "5/6", "style": "rule"}}  # fmt: skip
    code = {"data_source": "taco", "prompt": CHAT, "ability": "code",
            "reward_model": {"ground_truth": tests, "style": "rule"}}  # fmt: skip
    for rows in ((math, code), (code, math)):
        loaded = load(tmp_path, *rows)
        tasks = {task["source"]: task for task in decoded(loaded)}
        assert set(loaded.formats) == {"math", "code"}
        assert tasks["numina_olympiads"]["gold"] == {"answers": ["5/6"]}
        assert sides(tasks["taco"]) == (["1\n"], ["3\n"])
    with_format = load(tmp_path, math, code, format="math", max_bad_share=0.5)
    assert [(r.row, r.cause) for r in with_format.rejects] == [(2, BAD_GOLD)]


def test_a_row_of_the_same_family_keeps_the_first_rows_format(tmp_path):
    good, unmarked = {"question": "Q?", "answer": "#### 1"}, {"question": "R?", "answer": "2"}
    loaded = load(tmp_path, good, unmarked, max_bad_share=0.5)
    assert (loaded.formats, loaded.rejects[0].row) == (("gsm8k",), 2)


def test_a_first_row_that_tells_nothing_is_a_reject_not_the_end_of_the_file(tmp_path):
    rows = [{"question": "P", "input_output": ""}, {"question": "R", "input_output": json.dumps(STDIO)}]
    loaded = load(tmp_path, *rows, max_bad_share=0.5)
    assert loaded.formats == ("code",)
    assert [(reject.row, reject.cause) for reject in loaded.rejects] == [(1, NO_TESTS)]
    rows = [{"problem": "P", "answer": None, "solution": ""}, {"problem": "R", "answer": "1"}]
    assert [reject.row for reject in load(tmp_path, *rows, max_bad_share=0.5).rejects] == [1]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "P", "input_output": json.dumps({"inputs": ["1\n", "3\n"], "outputs": ["2\n", "4\n"]}),
         "solutions": "[]", "difficulty": "easy", "starter_code": ""},
        {"prompt": "P", "task_type": "verifiable_code", "verification_info": json.dumps(
            {"language": "python", "test_cases": [{"type": "stdin_stdout", **STDIO[0]}, STDIO[1]]})},
    ],
    ids=["apps-taco", "synthetic"],
)  # fmt: skip
def test_programs_of_apps_taco_and_synthetic_have_their_tests(tmp_path, row):
    task = task_of(tmp_path, row)
    assert task["inputs"]["problem"] == "P"
    assert sides(task) == (["1\n"], ["3\n"])


def test_livecodebenchs_packed_tests_are_read_without_running_a_pickle(tmp_path):
    text = json.dumps([STDIO[1], STDIO[2]])
    packed = base64.b64encode(zlib.compress(pickle.dumps(text))).decode()
    row = {"question_title": "T", "question_content": "P", "question_id": "1", "starter_code": "",
           "public_test_cases": json.dumps(STDIO[:1]), "private_test_cases": packed,
           "metadata": "{}"}  # fmt: skip
    task = task_of(tmp_path, row)
    assert (task["inputs"]["problem"], sides(task)) == ("P", (["1\n"], ["3\n", "5\n"]))
    for evil in (Draft({}, {}), print, OSError("x")):
        hidden = base64.b64encode(zlib.compress(pickle.dumps(evil))).decode()
        assert unpacked(hidden) == hidden
    assert (
        unpacked("eJust a text that begins so and is no base64")
        == "eJust a text that begins so and is no base64"
    )


PLUS = """import numpy as np
from math import inf

def assertion(out, exp, atol):
    exact_match = out == exp
    if atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match

inputs = [[1], [5]]
results = [2, 6]
for i, (inp, exp) in enumerate(zip(inputs, results)):
    assertion(f(*inp), exp, 0)
    assertion([float(f(*inp))], [exp + 1e-9], 1e-6)
"""
MBPP_PLUS = {"task_id": 2, "prompt": "Add one.", "code": "def f(x):\n    return x + 1\n", "test_imports": [],
             "test_list": ["assert f(1) == 2", "assert f(2) == 3"], "test": PLUS}  # fmt: skip


@pytest.mark.parametrize("numpy", [True, False])
def test_the_further_tests_of_mbpp_plus_are_private_and_run_without_numpy(tmp_path, numpy, monkeypatch):
    import sys

    private = task_of(tmp_path, MBPP_PLUS)["gold"]["private_tests"]["cases"]
    assert len(private) == 2
    if not numpy:
        monkeypatch.setitem(sys.modules, "numpy", None)
    for wrong, right in (("return x + 2", "return x + 1"),):
        exec(private[1]["code"], {"f": eval("lambda x: " + right.removeprefix("return "))})
        with pytest.raises(AssertionError):
            exec(private[1]["code"], {"f": eval("lambda x: " + wrong.removeprefix("return "))})


def test_an_object_with_aliases_is_its_answers():
    assert coerced_answers({"value": "x", "aliases": ["y", "x"]}) == ["x", "y"]
    assert coerced_answers('["a", " ", "b"]') == ["a", "b"]
