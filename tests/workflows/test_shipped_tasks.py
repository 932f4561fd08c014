"""What holds for the task sets that ship beside `facts`: arithmetic, functions, reading."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from workflows.data import SHIPPED, shipped_file
from workflows.data.makers import build_arithmetic, build_functions, build_reading
from workflows.data.tasks import load_tasks


def _tasks(name: str) -> list[dict]:
    with open(shipped_file(name, "tasks"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


ARITHMETIC, FUNCTIONS = _tasks("arithmetic"), _tasks("functions")
READING, CHAINS = _tasks("reading"), _tasks("reading_chains")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_set_loads_whole_under_its_name(name):
    loaded = load_tasks(name)
    assert loaded.tasks.num_rows == len(_tasks(name))
    assert loaded.rejects == []
    assert loaded.notes == {}
    assert set(loaded.tasks["split"].to_pylist()) == {"train", "dev", "test"}


@pytest.mark.parametrize("build", [build_arithmetic, build_functions, build_reading])
def test_the_script_builds_the_shipped_file_byte_for_byte(build):
    assert build.main(["--check"]) == 0


def test_the_check_notices_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr(build_arithmetic, "shipped_file", lambda *_: str(tmp_path / "other.jsonl"))
    assert build_arithmetic.main(["--check"]) == 1
    assert build_arithmetic.main([]) == 0
    assert build_arithmetic.main(["--check"]) == 0
    assert build_arithmetic.main(["--chek"]) == 2


@pytest.mark.parametrize("name", SHIPPED)
def test_the_files_are_small_enough_to_ship(name):
    assert os.path.getsize(Path(shipped_file(name, "tasks"))) < 800_000


# arithmetic


def test_the_expression_gives_the_answer_in_the_stated_number_of_steps():
    for task in ARITHMETIC:
        expression = task["gold"]["expression"]
        assert task["gold"]["answers"] == [str(eval(expression))]
        assert len(re.findall(r"//|[-+*]", expression)) == task["gold"]["steps"]
        assert "/" not in expression.replace("//", "")
        assert eval(expression.replace("//", "/")) == eval(expression), "no rounding"
        assert eval(expression) > 0


def test_a_problem_states_the_numbers_of_its_expression_and_no_others():
    for task in ARITHMETIC:
        problem = task["inputs"]["problem"]
        stated = set(re.findall(r"\d+", problem)) | ({"2"} if re.search("half|twice", problem) else set())
        assert stated == set(re.findall(r"\d+", task["gold"]["expression"])), problem


def test_every_split_has_every_kind_and_number_of_steps_evenly():
    by_split = Counter((task["split"], task["gold"]["kind"]) for task in ARITHMETIC)
    for split, each in (("train", 20), ("dev", 5), ("test", 5)):
        counts = {kind: n for (of, kind), n in by_split.items() if of == split}
        assert set(counts.values()) == {each}
    steps = {task["gold"]["kind"]: task["gold"]["steps"] for task in ARITHMETIC}
    assert Counter(steps.values()) == {1: 8, 2: 8, 3: 8}


def test_a_kind_with_the_same_numbers_is_in_one_split_only():
    sums = {
        split: {(t["gold"]["kind"], t["gold"]["expression"]) for t in ARITHMETIC if t["split"] == split}
        for split in ("train", "dev", "test")
    }
    assert all(one.isdisjoint(other) for one, other in combinations(sums.values(), 2))
    assert sum(map(len, sums.values())) == len(ARITHMETIC)


def test_people_in_a_problem_are_different_people():
    from workflows.data.makers.arithmetic_wording import KINDS, NAMES

    two = {kind.name for kind in KINDS if "{other}" in kind.text}
    for task in ARITHMETIC:
        people = {name for name in NAMES if re.search(rf"\b{name}\b", task["inputs"]["problem"])}
        assert len(people) == 2 or task["gold"]["kind"] not in two


# functions


def _outcomes(source: str, name: str, fn_name: str, cases: list[dict]) -> list[bool]:
    function = build_functions.function_of(source.replace(f"def {name}(", f"def {fn_name}("), fn_name)
    return [function(*case["args"]) == case["expected"] for case in cases]


def _cases(task: dict) -> list[dict]:
    return task["inputs"]["public_tests"]["cases"] + task["gold"]["private_tests"]["cases"]


def test_there_are_enough_problems_each_with_its_public_and_private_cases():
    assert len(FUNCTIONS) >= 120
    for task in FUNCTIONS:
        assert len(task["inputs"]["public_tests"]["cases"]) == 2
        assert len(task["gold"]["private_tests"]["cases"]) >= 4
        arguments = [json.dumps(case["args"]) for case in _cases(task)]
        assert len(set(arguments)) == len(arguments), "no case is public and private, or there twice"


def test_every_reference_solution_passes_its_own_tests():
    for task in FUNCTIONS:
        name = task["inputs"]["fn_name"]
        assert all(_outcomes(task["gold"]["solution"], name, name, _cases(task))), name


def test_no_sibling_passes_the_private_tests_of_another_problem():
    shape = {task["inputs"]["fn_name"]: _family(task) for task in FUNCTIONS}
    for task, other in combinations(FUNCTIONS, 2):
        name, wrong = task["inputs"]["fn_name"], other["inputs"]["fn_name"]
        if shape[name] == shape[wrong]:
            private = task["gold"]["private_tests"]["cases"]
            assert not all(_outcomes(other["gold"]["solution"], wrong, name, private)), (name, wrong)


def test_a_constant_passes_no_private_tests():
    for task in FUNCTIONS:
        private = task["gold"]["private_tests"]["cases"]
        assert len({json.dumps(case["expected"]) for case in private}) > 1, task["inputs"]["fn_name"]
        assert any(case["args"] != [case["expected"]] for case in private), "nor does returning the argument"


def test_no_problem_is_in_two_splits_and_every_family_is_in_all():
    for column in ("problem", "fn_name"):
        assert set(Counter(task["inputs"][column] for task in FUNCTIONS).values()) == {1}
    families = {
        split: {_family(t) for t in FUNCTIONS if t["split"] == split} for split in ("train", "dev", "test")
    }
    assert families["train"] == families["dev"] == families["test"]


def test_problems_name_the_function_and_nothing_is_left_to_fill_in():
    for task in FUNCTIONS:
        assert f"`{task['inputs']['fn_name']}(" in task["inputs"]["problem"]
        assert not re.search(r"<\w+>", task["inputs"]["problem"] + task["gold"]["solution"])


def _family(task: dict) -> str:
    from workflows.data.makers.functions_wording import FAMILIES

    name = task["inputs"]["fn_name"]
    for number, family in enumerate(FAMILIES):
        if any(build_functions.filled(family.name, parameters) == name for parameters in family.variants):
            return str(number)
    raise AssertionError(name)


def test_the_judge_passes_reference_solutions_and_fails_siblings():
    judge = pytest.importorskip("workflows.tools.code.judge")
    cases = pytest.importorskip("workflows.tools.code.cases")
    grade = judge.CodeJudge(sandbox="auto").grade
    family = [task for task in FUNCTIONS if _family(task) == _family(FUNCTIONS[0])][:2]
    for task in [*family, FUNCTIONS[70]]:
        tests = cases.read_tests(task["gold"]["private_tests"])
        assert grade(task["gold"]["solution"], tests).pass_rate == 1.0
    wrong = family[1]["gold"]["solution"].replace(
        family[1]["inputs"]["fn_name"], family[0]["inputs"]["fn_name"]
    )
    assert grade(wrong, cases.read_tests(family[0]["gold"]["private_tests"])).pass_rate < 1.0


def test_every_answer_of_arithmetic_is_equal_to_itself_for_the_grader():
    grader = pytest.importorskip("rewards.grading.math")
    for task in ARITHMETIC[::20]:
        (answer,) = task["gold"]["answers"]
        assert grader.equal(answer, answer).correct
        assert not grader.equal(str(int(answer) + 1), answer).correct


# reading


def _place(sentence: str) -> str:
    return re.fullmatch(r".* in (the .+)\.", sentence)[1]


def _asked(task: dict) -> list[str]:
    """Sentences about the person and the thing that the question names."""
    question = task["inputs"]["question"]
    return [
        sentence
        for sentence in task["inputs"]["statements"]
        if (words := re.match(r"(\w+) \w+ the (\w+) in ", sentence))
        and all(re.search(rf"\b{word}\b", question) for word in words.groups())
    ]


def test_one_sentence_of_reading_answers_and_it_says_the_answer():
    for task in READING:
        assert _asked(task) == task["gold"]["sentences"]
        assert task["gold"]["answers"][0] == _place(task["gold"]["sentences"][0])
        assert len({_place(sentence) for sentence in task["inputs"]["statements"]}) == 4


def test_two_sentences_of_a_chain_answer_and_the_first_names_what_the_second_places():
    for task in CHAINS:
        first, second = task["gold"]["sentences"]
        assert _asked(task) == [first]
        assert second == f"The {_place(first).removeprefix('the ')} is in {task['gold']['answers'][0]}."
        assert {first, second} < set(task["inputs"]["statements"])
        rooms = [_place(s) for s in task["inputs"]["statements"] if s.startswith("The ")]
        assert len(set(rooms)) == 3


@pytest.mark.parametrize("tasks", [READING, CHAINS], ids=["reading", "chains"])
def test_no_sentence_is_in_two_splits(tasks):
    def said(split: str) -> set[str]:
        of_split = [task for task in tasks if task["split"] == split]
        words = [re.sub(" (keeps|left|found) ", " ", s) for t in of_split for s in t["inputs"]["statements"]]
        return set(words)

    assert all(said(one).isdisjoint(said(other)) for one, other in combinations(("train", "dev", "test"), 2))
    assert len({task["task_id"] for task in tasks}) == len(tasks)


@pytest.mark.parametrize(("tasks", "choices"), [(READING, 4), (CHAINS, 3)], ids=["reading", "chains"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_what_does_not_read_the_question_is_right_no_more_often_than_by_chance(tasks, choices, split):
    some = [task for task in tasks if task["split"] == split]
    places = Counter(task["gold"]["answers"][0] for task in some)
    assert places.most_common(1)[0][1] / len(some) < 0.12, "one answer to all"
    at = Counter(
        [_place(s) for s in task["inputs"]["statements"] if not s.startswith("The ") or choices == 3].index(
            task["gold"]["answers"][0]
        )
        for task in some
    )
    assert max(at.values()) / len(some) < 1 / choices + 0.05, "always the same place in the text"
