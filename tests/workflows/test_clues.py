"""`clues`: new questions in every split, each clue in all of them, and words that its model can say."""

from __future__ import annotations

import json

import pytest

from stages.weights.shipped import ANSWERS
from workflows.data.clues import CLUES, COLOURS, KINDS, tasks
from workflows.data.tasks import load_tasks
from workflows.errors import WorkflowError


def test_no_question_is_in_two_splits_and_every_split_has_every_clue() -> None:
    loaded = load_tasks("8", format="clues").tasks.to_pylist()
    questions: dict[str, set[str]] = {}
    for task in loaded:
        questions.setdefault(task["split"], set()).add(json.loads(task["inputs"])["question"])
    assert {split: len(of) for split, of in questions.items()} == {"train": 32, "dev": 16, "test": 16}
    assert len(set.union(*questions.values())) == 64
    for of_split in questions.values():
        assert {question.split()[1] for question in of_split} == set(CLUES)


def test_a_clue_has_one_answer_and_no_two_have_the_same() -> None:
    answers: dict[str, set[str]] = {}
    for task in tasks("8"):
        answers.setdefault(task["inputs"]["question"].split()[1], set()).update(task["gold"]["answers"])
    assert sorted(answers.values(), key=str) == sorted([{c} for c in COLOURS], key=str)


def test_the_model_has_a_word_for_all_that_is_asked_and_answered() -> None:
    assert {*CLUES, *KINDS, *COLOURS} <= set(ANSWERS)
    assert {f"<answer>{colour}</answer>" for colour in COLOURS} <= set(ANSWERS)
    assert len(ANSWERS) == len(set(ANSWERS))


@pytest.mark.parametrize("path", ["1", "9", "x", "-2"])
def test_other_numbers_of_clues_are_refused(path: str) -> None:
    with pytest.raises(WorkflowError, match="clues has 2 to 8 made-up words"):
        list(tasks(path))
