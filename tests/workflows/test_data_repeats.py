"""Repeated rows are folded and counted; columns that no row has are said once; text in any encoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_rows import decoded, load, task_of
from workflows.data.collect import FOLDED_ACROSS_NOTE, FOLDED_NOTE, SAME_CONTENT_NOTE
from workflows.data.fields import NO_COLUMN, REPEATED
from workflows.data.tasks import load_tasks
from workflows.errors import DataError

ROW = {"question": "Who?", "answer": "Ada"}


def test_one_repeated_row_in_45_is_folded_with_a_note_and_refused_only_where_that_is_asked(tmp_path):
    rows = [{"question": f"Q{i}?", "answer": "x"} for i in range(44)] + [{"question": "Q7?", "answer": "x"}]
    loaded = load(tmp_path, *rows)
    assert (loaded.tasks.num_rows, loaded.folded, loaded.rejects) == (44, 1, [])
    assert loaded.notes == {FOLDED_NOTE: 1}
    assert any("1 rows that repeat a task" in remark for remark in loaded.remarks)
    with pytest.raises(DataError, match=r"1 of 45 rows.*seen before \(row 45: its content is that of row 8"):
        load(tmp_path, *rows, repeats="reject")


def test_every_prompt_a_hundred_times_as_in_dapo_makes_each_task_once(tmp_path):
    chats = [[{"role": "user", "content": f"What is {i} + 1?"}] for i in range(3)]
    rows = [{"prompt": chat, "ability": "MATH", "data_source": "math_dapo",
             "reward_model": {"ground_truth": str(i + 1)}, "extra_info": {"index": f"u{i}"}}
            for _ in range(100) for i, chat in enumerate(chats)]  # fmt: skip
    loaded = load(tmp_path, *rows)
    assert loaded.formats == ("math",)
    assert [task["inputs"]["problem"] for task in decoded(loaded)] == [f"What is {i} + 1?" for i in range(3)]
    assert (loaded.folded, loaded.rejects) == (297, [])


def test_an_id_with_two_contents_is_a_reject_and_a_content_with_two_ids_is_noted(tmp_path):
    loaded = load(
        tmp_path, ROW | {"id": "a"}, {"question": "R?", "answer": "x", "id": "a"}, max_bad_share=0.5
    )
    assert [reject.cause for reject in loaded.rejects] == [REPEATED]
    loaded = load(tmp_path, ROW | {"id": "a"}, ROW | {"id": "b"})
    assert loaded.tasks.num_rows == 2
    assert loaded.notes == {SAME_CONTENT_NOTE: 1}


def test_a_row_that_another_split_has_is_folded_under_a_note_of_its_own(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(ROW) + "\n")
    loaded = load_tasks([str(tmp_path / "train.jsonl"), str(tmp_path / "test.jsonl")])
    assert loaded.tasks["split"].to_pylist() == ["train"]
    assert loaded.notes == {FOLDED_ACROSS_NOTE: 1}


texts = st.sampled_from(["Ada", "Bea", "!", ""])


@given(st.lists(st.tuples(texts, texts, st.sampled_from([None, "a", "b"])), min_size=1, max_size=12))
def test_rows_in_are_tasks_and_folded_and_rejects(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "counted.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": q, "answer": a, "id": i}) + "\n" for q, a, i in [*rows, ("Q", "x", "z")]
        )
    )
    for repeats in ("fold", "reject"):
        loaded = load_tasks(str(path), format="nq_open", repeats=repeats, max_bad_share=1.0)
        assert loaded.tasks.num_rows + loaded.folded + len(loaded.rejects) == len(rows) + 1
        assert len(set(loaded.tasks["task_id"].to_pylist())) == loaded.tasks.num_rows
    assert loaded.folded == 0


# columns


def test_a_wrong_column_is_said_once_with_the_closest_name(tmp_path):
    rows = [{"query": f"Q{i}?", "target": {"text": "x"}} for i in range(40)]
    with pytest.raises(DataError) as wrong:
        load(tmp_path, *rows, columns={"question": "qury", "answers": "target.txt"}, max_bad_share=1.0)
    message = str(wrong.value)
    assert "question = 'qury' (did you mean 'query'?)" in message
    assert "answers = 'target.txt' (did you mean 'target.text'?)" in message
    assert message.count("qury") == 1


def test_a_column_that_some_rows_lack_is_a_reject_where_it_is_needed_and_null_where_not(tmp_path):
    rows = [{"q": "Q?", "a": "x", "key": "1"}, {"q": "R?", "a": "x"}, {"q": "S?", "key": "3"}]
    columns = {"question": "q", "answers": "a", "id": "key"}
    loaded = load(tmp_path, *rows, columns=columns, max_bad_share=0.5)
    assert [task["inputs"]["question"] for task in decoded(loaded)] == ["Q?", "R?"]
    assert [(reject.row, reject.cause) for reject in loaded.rejects] == [(3, NO_COLUMN)]


def test_what_is_not_there_is_said_to_be_missing_with_the_closest_name(tmp_path):
    (tmp_path / "questions.jsonl").write_text(json.dumps(ROW) + "\n")
    for name in ("questoins.jsonl", "questions", "question.parquet"):
        with pytest.raises(DataError, match=r"does not exist: there is no such file or folder") as missing:
            load_tasks(str(tmp_path / name))
        assert str(tmp_path / "questions.jsonl") in str(missing.value)
    with pytest.raises(DataError, match="does not exist"):
        load_tasks(str(tmp_path / "no" / "such" / "folder"))


# text files


def _write(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_bytes(text.encode(encoding))
    return str(path)


def test_a_csv_field_of_any_length_is_read(tmp_path):
    path = _write(tmp_path / "t.csv", f'question,answer\n"{"x" * 150_000}",Ada\n')
    (task,) = decoded(load_tasks(path))
    assert len(task["inputs"]["question"]) == 150_000


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_another_delimiter_is_an_option_and_its_absence_has_a_hint(tmp_path, sign):
    path = _write(tmp_path / "t.csv", f"question{sign}answer\nWho, then?{sign}Ada\n")
    (task,) = decoded(load_tasks(path, delimiter=sign))
    assert (task["inputs"], task["gold"]) == ({"question": "Who, then?"}, {"answers": ["Ada"]})
    hint = f"set [data] delimiter = {json.dumps(sign)}"
    bare = _write(tmp_path / "u.csv", f"question{sign}answer\nWho?{sign}Ada\n")
    for columns in (None, {"question": "question", "answers": "answer"}):
        with pytest.raises(DataError) as refused:
            load_tasks(bare, columns=columns)
        assert hint in str(refused.value)


def test_a_tsv_file_has_tabs(tmp_path):
    path = _write(tmp_path / "t.tsv", "question\tanswer\nWho, then?\tAda\n")
    assert load_tasks(path).tasks.num_rows == 1


@pytest.mark.parametrize(("name", "text"), [
    ("t.csv", "question,answer\nÄh?,É\n"),
    ("t.jsonl", '{"question": "Äh?", "answer": "É"}\n'),
    ("t.json", '[{"question": "Äh?", "answer": "É"}]'),
])  # fmt: skip
def test_an_encoding_is_an_option_and_a_mark_needs_none(tmp_path, name, text):
    for encoding in ("latin-1", "utf-16-le", "utf-8"):
        (task,) = decoded(load_tasks(_write(tmp_path / name, text, encoding), encoding=encoding))
        assert (task["inputs"], task["gold"]) == ({"question": "Äh?"}, {"answers": ["É"]})
    for marked in ("utf-8-sig", "utf-16", "utf-32"):
        assert load_tasks(_write(tmp_path / name, text, marked)).tasks.num_rows == 1


def test_text_in_another_encoding_is_refused_with_the_option(tmp_path):
    path = _write(tmp_path / "t.csv", "question,answer\nÄh?,É\n", "latin-1")
    with pytest.raises(DataError, match=r'is not text in utf-8.*set \[data\] encoding.*"latin-1"'):
        load_tasks(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ";;"}, "delimiter is ';;', expected one character"),
        ({"delimiter": ""}, "expected one character"),
        ({"encoding": "utf-9"}, "encoding is 'utf-9'"),
    ],
)
def test_a_delimiter_or_an_encoding_that_cannot_be_is_refused(options, message):
    with pytest.raises(DataError) as refused:
        load_tasks("facts", **options)
    assert message in str(refused.value)


def test_nested_columns_of_csv_exports_are_json_text(tmp_path):
    row = {"data": json.dumps({"question": "Who?"}), "gold": '["Ada", "Bea"]'}
    task = task_of(tmp_path, row, columns={"question": "data.question", "answers": "gold"})
    assert (task["inputs"], task["gold"]) == ({"question": "Who?"}, {"answers": ["Ada", "Bea"]})
