"""Which files a data path means, and how each is read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.data_files import qa_row, splits_of, write
from workflows.data.fields import BAD_GOLD, NOT_DECODED
from workflows.data.files import data_files
from workflows.data.rows import read_rows
from workflows.data.tasks import load_tasks
from workflows.errors import DataError


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([qa_row(1), qa_row(2)]),
        json.dumps({"data": [qa_row(1), qa_row(2)]}, indent=2),
        json.dumps({"version": 1, "data": [qa_row(1), qa_row(2)]}),
        json.dumps(qa_row(1)) + "\n\n" + json.dumps(qa_row(2)) + "\n",
        "\n" + json.dumps(qa_row(1)) + "\n" + json.dumps(qa_row(2)),
    ],
)
def test_json_is_a_list_an_object_with_data_or_lines(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    assert [row for _, row in read_rows(str(tmp_path / "t.json"))] == [qa_row(1), qa_row(2)]


@pytest.mark.parametrize("content", [json.dumps(qa_row(1)), json.dumps(qa_row(1), indent=1)])
def test_json_may_be_a_single_object(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    assert [row for _, row in read_rows(str(tmp_path / "t.json"))] == [qa_row(1)]


def test_a_broken_line_is_a_reject_wherever_it_stands(tmp_path):
    for name, lines in (("t.json", ["{broken", qa_row(1)]), ("t.jsonl", [qa_row(1), "{broken"])):
        loaded = load_tasks(write(tmp_path / name, *lines), max_bad_share=0.5)
        assert [reject.cause for reject in loaded.rejects] == [NOT_DECODED]
        assert loaded.tasks.num_rows == 1


def test_gaps_of_columnar_files_and_csv_are_null_not_nan(tmp_path):
    table = pa.table(
        {
            "question": ["Q1?", "Q2?"],
            "answer": ["A1", "A2"],
            "id": pa.array([float("nan"), 7.0]),
            "meta": [{"x": float("nan")}, {"x": 1.5}],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "t.csv").write_text("question,answer,id\nQ1?,A1,\nQ2?,A2,7\n")
    for name in ("t.parquet", "t.arrow"):
        assert [row["meta"]["x"] for _, row in read_rows(str(tmp_path / name))] == [None, 1.5]
    for name in ("t.parquet", "t.arrow", "t.csv"):
        ids = load_tasks(str(tmp_path / name)).tasks["task_id"].to_pylist()
        assert len(ids[0]) == 32, "no id of its own: the hash of its content"
        assert ids[1] == "7"


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    whole = gzip.compress(json.dumps(qa_row(1)).encode() * 500)
    (tmp_path / "t.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"t\.jsonl\.gz.*can't be read"):
        load_tasks(str(tmp_path / "t.jsonl.gz"))


# several files


def test_several_files_are_read_in_order_and_rejects_name_theirs(tmp_path):
    paths = [
        write(tmp_path / "b.jsonl", qa_row(1), "broken"),
        write(tmp_path / "a.jsonl", qa_row(2, answer="the")),
        write(tmp_path / "dev.jsonl", qa_row(3)),
    ]
    loaded = load_tasks(paths, max_bad_share=0.5)
    assert splits_of(loaded) == {"train": ["Q1?"], "dev": ["Q3?"]}
    found = [(r.file, r.row, r.cause) for r in loaded.rejects]
    assert found == [("b.jsonl", 2, NOT_DECODED), ("a.jsonl", 1, BAD_GOLD)]
    assert loaded.reject_counts == {BAD_GOLD: 1, NOT_DECODED: 1}
    with pytest.raises(DataError, match=r"2 of 4 rows.*a\.jsonl, row 1.*b\.jsonl, row 2"):
        load_tasks(paths, max_bad_share=0.25)


def test_each_file_may_have_its_own_format(tmp_path):
    paths = [
        write(tmp_path / "nq.jsonl", qa_row(1)),
        write(tmp_path / "gsm8k.jsonl", {"question": "P", "answer": "#### 1"}),
    ]
    loaded = load_tasks(paths)
    assert loaded.formats == ("nq_open", "gsm8k")
    assert loaded.tasks["source"].to_pylist() == ["nq", "gsm8k"]


def test_a_pattern_takes_what_matches_in_order(tmp_path):
    for number in (2, 1, 3):
        write(tmp_path / f"part-{number}.jsonl", qa_row(number))
    write(tmp_path / "other.jsonl", qa_row(9))
    loaded = load_tasks(str(tmp_path / "part-*.jsonl"))
    assert splits_of(loaded) == {"train": ["Q1?", "Q2?", "Q3?"]}
    with pytest.raises(DataError, match=r"no file matches .*nothing-\*"):
        load_tasks(str(tmp_path / "nothing-*.jsonl"))


def test_settings_may_name_the_split_of_each_path(tmp_path):
    one = write(tmp_path / "dev.jsonl", qa_row(1), qa_row(2, split="train"))
    more = [write(tmp_path / "x.jsonl", qa_row(3)), write(tmp_path / "y.jsonl", qa_row(4))]
    loaded = load_tasks({"test": one, "validation": more})
    assert splits_of(loaded) == {"test": ["Q1?", "Q2?"], "dev": ["Q3?", "Q4?"]}


@pytest.mark.parametrize("paths", [[], {}, {"train": []}])
def test_no_path_at_all_is_refused(paths):
    with pytest.raises(DataError, match=r"path is empty|there are no rows"):
        load_tasks(paths)


# folders


def test_a_folder_of_files_named_by_split_as_on_the_hub(tmp_path):
    for split, number in (("train", 1), ("validation", 2), ("test", 3)):
        path = tmp_path / "my_set" / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([qa_row(number)]), path)
    (tmp_path / "my_set" / "README.md").write_text("# about")
    (tmp_path / "my_set" / "dataset_infos.json").write_text("{}")
    write(tmp_path / "my_set" / ".cache" / "x.jsonl", qa_row(9))
    loaded = load_tasks(str(tmp_path / "my_set"))
    assert splits_of(loaded) == {"train": ["Q1?"], "dev": ["Q2?"], "test": ["Q3?"]}
    assert set(loaded.tasks["source"].to_pylist()) == {"my_set"}


def test_folders_below_the_one_asked_for_say_the_split_but_not_those_above_it(tmp_path):
    write(tmp_path / "test" / "set" / "train" / "a.jsonl", qa_row(1))
    write(tmp_path / "test" / "set" / "dev" / "a.jsonl", qa_row(2))
    assert splits_of(load_tasks(str(tmp_path / "test" / "set"))) == {"dev": ["Q2?"], "train": ["Q1?"]}
    assert splits_of(load_tasks(str(tmp_path / "test" / "set" / "*" / "a.jsonl"))) == {
        "dev": ["Q2?"],
        "train": ["Q1?"],
    }
    assert splits_of(load_tasks(str(tmp_path / "test" / "set" / "dev" / "a.jsonl"))) == {"train": ["Q2?"]}


def _save_to_disk(folder: Path, rows: list[dict], split: str | None, indices: object = None) -> None:
    """What `datasets` writes: Arrow streams and two JSON files."""
    folder.mkdir(parents=True)
    names = []
    for number, row in enumerate(rows):
        table = pa.Table.from_pylist([row])
        names.append(f"data-{number:05d}-of-{len(rows):05d}.arrow")
        with (
            pa.OSFile(str(folder / names[-1]), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as writer,
        ):
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": split}
    if indices:
        state["_indices_data_files"] = indices
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def test_a_folder_that_datasets_saved(tmp_path):
    _save_to_disk(tmp_path / "saved", [qa_row(1), qa_row(2)], "validation")
    loaded = load_tasks(str(tmp_path / "saved"))
    assert splits_of(loaded) == {"dev": ["Q1?", "Q2?"]}
    assert set(loaded.tasks["source"].to_pylist()) == {"saved"}
    _save_to_disk(tmp_path / "plain", [qa_row(1)], None)
    assert splits_of(load_tasks(str(tmp_path / "plain"))) == {"train": ["Q1?"]}


def test_a_folder_of_splits_that_datasets_saved(tmp_path):
    for split, number in (("train", 1), ("test", 2)):
        _save_to_disk(tmp_path / "saved" / split, [qa_row(number)], split)
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert splits_of(load_tasks(str(tmp_path / "saved"))) == {"train": ["Q1?"], "test": ["Q2?"]}


def test_a_saved_folder_with_selected_rows_is_refused_not_read_whole(tmp_path):
    _save_to_disk(tmp_path / "saved", [qa_row(1)], "train", [{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match="selected rows"):
        load_tasks(str(tmp_path / "saved"))


@pytest.mark.parametrize(
    ("name", "content"),
    [("dataset_dict.json", "{}"), ("dataset_dict.json", "{broken"), ("state.json", "{}"), ("other.txt", "")],
)
def test_a_folder_that_is_none_of_these_is_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=r"can't be read|no data files"):
        load_tasks(str(tmp_path))


def test_folders_and_patterns_of_other_file_systems(tmp_path):
    for number, split in ((1, "train"), (2, "dev")):
        with fsspec.open(f"memory://cadre-folder/{split}.jsonl.gz", "wb", compression="gzip") as file:
            file.write(json.dumps(qa_row(number)).encode())
    expected = {"train": ["Q1?"], "dev": ["Q2?"]}
    assert splits_of(load_tasks("memory://cadre-folder")) == dict(reversed(expected.items()))
    assert splits_of(load_tasks("memory://cadre-folder/*.jsonl.gz")) == dict(reversed(expected.items()))
    assert {file.source for file in data_files("memory://cadre-folder")} == {"cadre-folder"}
