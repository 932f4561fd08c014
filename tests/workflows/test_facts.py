"""What holds for the task set that ships."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from rewards.grading.qa import f1, usable
from workflows.data import shipped_file
from workflows.data.makers import build_facts
from workflows.data.makers.facts_source import PACKAGES, installed_versions
from workflows.data.tasks import load_tasks


def _rows(kind: str) -> list[dict]:
    with open(shipped_file("facts", kind), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


TASKS = _rows("tasks")
PASSAGES = {row["id"]: row for row in _rows("corpus")}


def _words(text: str) -> str:
    words = re.findall(r"[\w+]+", unicodedata.normalize("NFC", text).casefold())
    return f" {' '.join(words)} "


def test_it_has_the_promised_size():
    by_split = Counter(task["split"] for task in TASKS)
    assert by_split["train"] >= 600
    assert min(by_split["dev"], by_split["test"]) >= 150
    assert len(PASSAGES) >= 200
    assert {task["gold"]["hops"] for task in TASKS} == {1, 2}
    assert sum(Path(shipped_file("facts", kind)).stat().st_size for kind in ("tasks", "corpus")) < 600_000


def test_no_fact_of_any_hop_is_in_two_splits():
    facts = {
        split: {
            pair
            for task in TASKS
            if task["split"] == split
            for pair in zip(task["gold"]["subjects"], task["gold"]["relations"], strict=True)
        }
        for split in ("train", "dev", "test")
    }
    for one, other in combinations(facts, 2):
        assert facts[one].isdisjoint(facts[other])


def test_the_splits_ask_about_the_same_relations():
    kinds = {
        split: {tuple(task["gold"]["relations"]) for task in TASKS if task["split"] == split}
        for split in ("train", "dev", "test")
    }
    assert kinds["train"] == kinds["dev"] == kinds["test"]


def test_every_question_is_asked_once_under_an_id_of_its_own():
    assert len({task["inputs"]["question"] for task in TASKS}) == len(TASKS)
    assert len({task["task_id"] for task in TASKS}) == len(TASKS)


def test_gold_is_consistent():
    for task in TASKS:
        gold = task["gold"]
        assert gold["hops"] == len(gold["passages"]) == len(set(gold["passages"]))
        assert gold["hops"] == len(gold["relations"]) == len(gold["subjects"])


def test_the_last_gold_passage_tells_the_answer():
    for task in TASKS:
        passage = PASSAGES[task["gold"]["passages"][-1]]
        told = _words(f"{passage['title']} {passage['text']}")
        assert _words(task["gold"]["answers"][0]) in told, task


def test_every_gold_passage_names_the_subject_of_its_fact_and_the_first_leads_to_the_second():
    for task in TASKS:
        texts = [_words(PASSAGES[id]["text"]) for id in task["gold"]["passages"]]
        subjects = [_words(subject) for subject in task["gold"]["subjects"]]
        assert all(subject in text for subject, text in zip(subjects, texts, strict=True)), task
        assert subjects[-1] in texts[0], task


def test_a_two_hop_question_does_not_name_the_thing_in_between():
    for task in TASKS:
        if task["gold"]["hops"] == 2:
            middle = task["gold"]["subjects"][1]
            assert _words(middle) not in _words(task["inputs"]["question"]), task


def test_no_question_spells_out_its_answer():
    for task in TASKS:
        for answer in task["gold"]["answers"]:
            assert _words(answer) not in _words(task["inputs"]["question"]), task


def test_every_answer_can_be_graded_and_is_graded_right():
    for task in TASKS:
        answers = task["gold"]["answers"]
        for answer in answers:
            assert usable(answer, "official_hotpot")
            assert f1(answer, answers) == 1.0


def test_passages_are_short_and_named_apart():
    assert len({p["title"] for p in PASSAGES.values()}) == len(PASSAGES)
    for passage in PASSAGES.values():
        assert 20 <= len(passage["text"].split()) <= 70


def test_most_subjects_are_named_by_passages_that_do_not_answer():
    texts = {id: _words(passage["text"]) for id, passage in PASSAGES.items()}
    distracted = [
        any(_words(subject) in text for id, text in texts.items() if id not in task["gold"]["passages"])
        for task in TASKS
        for subject in task["gold"]["subjects"]
    ]
    assert sum(distracted) > 0.8 * len(distracted)


def test_the_loader_takes_every_row():
    loaded = load_tasks("facts")
    assert loaded.tasks.num_rows == len(TASKS)
    assert loaded.rejects == []
    assert loaded.tasks.column("task_id").to_pylist() == [task["task_id"] for task in TASKS]


def test_the_rows_are_in_one_order():
    keys = [(("train", "dev", "test").index(task["split"]), task["task_id"]) for task in TASKS]
    assert all(a < b for a, b in pairwise(keys))


@pytest.mark.skipif(
    installed_versions() != PACKAGES,
    reason=f"SKIPPED LOUDLY: the shipped tasks are NOT compared with their script: it needs {PACKAGES}",
)
class TestTheScript:
    def test_builds_the_shipped_files_byte_for_byte(self):
        for path, content in build_facts.files().items():
            assert path.read_bytes() == content, f"{path.name}: rerun makers.build_facts"

    def test_check_tells_a_changed_file(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(build_facts, "FOLDER", tmp_path)
        assert build_facts.main([]) == 0
        assert build_facts.main(["--check"]) == 0
        (tmp_path / "facts_corpus.jsonl").write_bytes(b"{}\n")
        assert build_facts.main(["--check"]) == 1
        assert "facts_corpus.jsonl" in capsys.readouterr().err


def test_the_script_refuses_other_arguments(capsys):
    assert build_facts.main(["--chekc"]) == 2
    assert "--check" in capsys.readouterr().err


def test_the_script_says_which_packages_it_needs(monkeypatch, capsys):
    monkeypatch.setattr("workflows.data.makers.facts_source.PACKAGES", {"no-such-package": "1.0"})
    assert build_facts.main(["--check"]) == 2
    assert "pip install --no-deps no-such-package==1.0" in capsys.readouterr().err
