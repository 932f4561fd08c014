"""What names of files and folders say; ids and accounting across files."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.data_files import qa_row, splits_of, write
from workflows.data.collect import RENAMED_NOTE, SHARED_NOTE
from workflows.data.fields import REPEATED
from workflows.data.files import data_files, split_name
from workflows.data.tasks import load_tasks
from workflows.errors import DataError


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("sets/nq/train_verl.parquet", "nq"),
        ("sets/gsm8k/main/train-00000-of-00001.parquet", "main"),
        ("hotpot/dev.jsonl", "hotpot"),
        ("my_rows.v2.jsonl.gz", "my_rows"),
        ("https://x.org/gsm8k/resolve/test.jsonl?download=true", "resolve"),
        ("test.jsonl", "test.jsonl"),
        ("nq_open_dev.jsonl", "nq_open_dev"),
    ],
)
def test_the_source_is_the_files_name_or_its_folders_where_that_says_only_a_split(path, source):
    assert data_files(path)[0].source == source


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("validation", "dev"),
        ("VAL", "dev"),
        ("eval", "dev"),
        ("train", "train"),
        ("Test", "test"),
        ("own", "own"),
    ],
)
def test_a_split_has_one_name(name, ours):
    assert split_name(name) == ours


def test_a_split_that_is_asked_for_by_another_name_is_refused_with_ours(tmp_path):
    path = write(tmp_path / "t.jsonl", qa_row(1, split="validation"), qa_row(2))
    assert splits_of(load_tasks(path, split="dev")) == {"dev": ["Q1?"]}
    with pytest.raises(DataError, match="no split 'validation'; it is called 'dev' here"):
        load_tasks(path, split="validation")


# ids and accounting across files


def test_a_row_that_an_earlier_file_has_is_a_reject_where_repeats_are(tmp_path):
    one, other = (
        write(tmp_path / "train.jsonl", qa_row(1, id="a")),
        write(tmp_path / "dev.jsonl", qa_row(1, id="a"), qa_row(2)),
    )
    loaded = load_tasks([one, other], max_bad_share=0.5, repeats="reject")
    assert [(r.file, r.cause) for r in loaded.rejects] == [("dev.jsonl", REPEATED)]
    assert "train.jsonl" in loaded.rejects[0].reason


def test_an_id_that_two_files_use_for_two_tasks_is_made_distinct_and_counted(tmp_path):
    one = write(tmp_path / "train.jsonl", qa_row(1, id="0"), qa_row(2, id="1"))
    other = write(tmp_path / "dev.jsonl", qa_row(3, id="0"), qa_row(4, id="2"))
    loaded = load_tasks([one, other])
    ids = loaded.tasks["task_id"].to_pylist()
    assert ids == ["0", "1", f"0~{loaded.tasks['row_hash'][2].as_py()[:8]}", "2"]
    assert loaded.notes == {RENAMED_NOTE: 1}


def test_a_held_out_task_that_train_has_too_is_noted(tmp_path):
    one = write(tmp_path / "train.jsonl", qa_row(1, id="a"), qa_row(2, id="b"))
    other = write(tmp_path / "test.jsonl", qa_row(1, id="c"), qa_row(3, id="d"))
    assert load_tasks([one, other]).notes == {SHARED_NOTE: 1}


def test_filtering_and_reordering_a_file_changes_no_id(tmp_path):
    rows = [qa_row(number) for number in range(6)]
    whole = load_tasks(write(tmp_path / "whole.jsonl", *rows)).tasks
    part = load_tasks(write(tmp_path / "part.jsonl", *rows[:1:-2])).tasks
    ids = dict(zip(whole["inputs"].to_pylist(), whole["task_id"].to_pylist(), strict=True))
    assert [ids[inputs] for inputs in part["inputs"].to_pylist()] == part["task_id"].to_pylist()


@pytest.mark.parametrize(
    ("limit", "kept"), [(2, ["Q0?", "Q2?"]), (-2, ["Q2?", "Q4?"]), (9, ["Q0?", "Q2?", "Q4?"])]
)
def test_a_limit_keeps_the_first_or_the_last_of_each_split_in_their_order(tmp_path, limit, kept):
    rows = [qa_row(number, split="dev" if number % 2 else "train") for number in range(5)]
    loaded = load_tasks(write(tmp_path / "t.jsonl", *rows), limit=limit)
    assert splits_of(loaded)["train"] == kept
    assert len(splits_of(loaded)["dev"]) == min(2, abs(limit))


def test_held_out_splits_are_loaded_whole_and_once_whatever_the_sizes(tmp_path):
    rows = [qa_row(number, split="dev") for number in range(5)]
    loaded = load_tasks(write(tmp_path / "t.jsonl", *rows), split="dev")
    assert Counter(splits_of(loaded)["dev"]) == {f"Q{number}?": 1 for number in range(5)}


def test_the_fingerprint_notices_another_task_id_split_or_content(tmp_path):
    def of(*rows: dict) -> str:
        return load_tasks(write(tmp_path / "t.jsonl", *rows)).fingerprint

    base = of(qa_row(1, id="a"), qa_row(2, id="b"))
    assert base == of(qa_row(1, id="a"), qa_row(2, id="b"))
    renamed = of(qa_row(1, id="c"), qa_row(2, id="b"))
    elsewhere = of(qa_row(1, id="a", split="dev"), qa_row(2, id="b"))
    assert len({base, renamed, elsewhere}) == 3
    assert base not in (
        of(qa_row(1, id="a")),
        of(qa_row(1, id="a"), qa_row(3, id="b")),
        of(qa_row(2, id="b"), qa_row(1, id="a")),
    )
