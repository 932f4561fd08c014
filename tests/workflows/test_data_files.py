"""Which files a data path means and what their names say; ids and accounting across files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workflows.data.collect import RENAMED_NOTE, SHARED_NOTE
from workflows.data.fields import BAD_GOLD, NOT_DECODED, REPEATED
from workflows.data.files import data_files, split_name
from workflows.data.hotpot_corpus import main as hotpot_main
from workflows.data.hotpot_corpus import passages
from workflows.data.rows import read_rows
from workflows.data.tasks import load_tasks
from workflows.errors import DataError


def _row(number: int, **fields: object) -> dict:
    return {"question": f"Q{number}?", "answer": f"A{number}"} | fields


def _write(path: Path, *rows: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def _splits(loaded) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for task in loaded.tasks.to_pylist():
        found.setdefault(task["split"], []).append(json.loads(task["inputs"])["question"])
    return found


# one file


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([_row(1), _row(2)]),
        json.dumps({"data": [_row(1), _row(2)]}, indent=2),
        json.dumps({"version": 1, "data": [_row(1), _row(2)]}),
        json.dumps(_row(1)) + "\n\n" + json.dumps(_row(2)) + "\n",
        "\n" + json.dumps(_row(1)) + "\n" + json.dumps(_row(2)),
    ],
)
def test_json_is_a_list_an_object_with_data_or_lines(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    assert [row for _, row in read_rows(str(tmp_path / "t.json"))] == [_row(1), _row(2)]


@pytest.mark.parametrize("content", [json.dumps(_row(1)), json.dumps(_row(1), indent=1)])
def test_json_may_be_a_single_object(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    assert [row for _, row in read_rows(str(tmp_path / "t.json"))] == [_row(1)]


def test_a_broken_line_is_a_reject_wherever_it_stands(tmp_path):
    for name, lines in (("t.json", ["{broken", _row(1)]), ("t.jsonl", [_row(1), "{broken"])):
        loaded = load_tasks(_write(tmp_path / name, *lines), max_bad_share=0.5)
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
    whole = gzip.compress(json.dumps(_row(1)).encode() * 500)
    (tmp_path / "t.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"t\.jsonl\.gz.*can't be read"):
        load_tasks(str(tmp_path / "t.jsonl.gz"))


# several files


def test_several_files_are_read_in_order_and_rejects_name_theirs(tmp_path):
    paths = [
        _write(tmp_path / "b.jsonl", _row(1), "broken"),
        _write(tmp_path / "a.jsonl", _row(2, answer="the")),
        _write(tmp_path / "dev.jsonl", _row(3)),
    ]
    loaded = load_tasks(paths, max_bad_share=0.5)
    assert _splits(loaded) == {"train": ["Q1?"], "dev": ["Q3?"]}
    found = [(r.file, r.row, r.cause) for r in loaded.rejects]
    assert found == [("b.jsonl", 2, NOT_DECODED), ("a.jsonl", 1, BAD_GOLD)]
    assert loaded.reject_counts == {BAD_GOLD: 1, NOT_DECODED: 1}
    with pytest.raises(DataError, match=r"2 of 4 rows.*a\.jsonl, row 1.*b\.jsonl, row 2"):
        load_tasks(paths, max_bad_share=0.25)


def test_each_file_may_have_its_own_format(tmp_path):
    paths = [
        _write(tmp_path / "nq.jsonl", _row(1)),
        _write(tmp_path / "gsm8k.jsonl", {"question": "P", "answer": "#### 1"}),
    ]
    loaded = load_tasks(paths)
    assert loaded.formats == ("nq_open", "gsm8k")
    assert loaded.tasks["source"].to_pylist() == ["nq", "gsm8k"]


def test_a_pattern_takes_what_matches_in_order(tmp_path):
    for number in (2, 1, 3):
        _write(tmp_path / f"part-{number}.jsonl", _row(number))
    _write(tmp_path / "other.jsonl", _row(9))
    loaded = load_tasks(str(tmp_path / "part-*.jsonl"))
    assert _splits(loaded) == {"train": ["Q1?", "Q2?", "Q3?"]}
    with pytest.raises(DataError, match=r"no file matches .*nothing-\*"):
        load_tasks(str(tmp_path / "nothing-*.jsonl"))


def test_settings_may_name_the_split_of_each_path(tmp_path):
    one = _write(tmp_path / "dev.jsonl", _row(1), _row(2, split="train"))
    more = [_write(tmp_path / "x.jsonl", _row(3)), _write(tmp_path / "y.jsonl", _row(4))]
    loaded = load_tasks({"test": one, "validation": more})
    assert _splits(loaded) == {"test": ["Q1?", "Q2?"], "dev": ["Q3?", "Q4?"]}


@pytest.mark.parametrize("paths", [[], {}, {"train": []}])
def test_no_path_at_all_is_refused(paths):
    with pytest.raises(DataError, match=r"path is empty|there are no rows"):
        load_tasks(paths)


# folders


def test_a_folder_of_files_named_by_split_as_on_the_hub(tmp_path):
    for split, number in (("train", 1), ("validation", 2), ("test", 3)):
        path = tmp_path / "my_set" / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([_row(number)]), path)
    (tmp_path / "my_set" / "README.md").write_text("# about")
    (tmp_path / "my_set" / "dataset_infos.json").write_text("{}")
    _write(tmp_path / "my_set" / ".cache" / "x.jsonl", _row(9))
    loaded = load_tasks(str(tmp_path / "my_set"))
    assert _splits(loaded) == {"train": ["Q1?"], "dev": ["Q2?"], "test": ["Q3?"]}
    assert set(loaded.tasks["source"].to_pylist()) == {"my_set"}


def test_folders_below_the_one_asked_for_say_the_split_but_not_those_above_it(tmp_path):
    _write(tmp_path / "test" / "set" / "train" / "a.jsonl", _row(1))
    _write(tmp_path / "test" / "set" / "dev" / "a.jsonl", _row(2))
    assert _splits(load_tasks(str(tmp_path / "test" / "set"))) == {"dev": ["Q2?"], "train": ["Q1?"]}
    assert _splits(load_tasks(str(tmp_path / "test" / "set" / "*" / "a.jsonl"))) == {
        "dev": ["Q2?"],
        "train": ["Q1?"],
    }
    assert _splits(load_tasks(str(tmp_path / "test" / "set" / "dev" / "a.jsonl"))) == {"train": ["Q2?"]}


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
    _save_to_disk(tmp_path / "saved", [_row(1), _row(2)], "validation")
    loaded = load_tasks(str(tmp_path / "saved"))
    assert _splits(loaded) == {"dev": ["Q1?", "Q2?"]}
    assert set(loaded.tasks["source"].to_pylist()) == {"saved"}
    _save_to_disk(tmp_path / "plain", [_row(1)], None)
    assert _splits(load_tasks(str(tmp_path / "plain"))) == {"train": ["Q1?"]}


def test_a_folder_of_splits_that_datasets_saved(tmp_path):
    for split, number in (("train", 1), ("test", 2)):
        _save_to_disk(tmp_path / "saved" / split, [_row(number)], split)
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert _splits(load_tasks(str(tmp_path / "saved"))) == {"train": ["Q1?"], "test": ["Q2?"]}


def test_a_saved_folder_with_selected_rows_is_refused_not_read_whole(tmp_path):
    _save_to_disk(tmp_path / "saved", [_row(1)], "train", [{"filename": "indices.arrow"}])
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
            file.write(json.dumps(_row(number)).encode())
    expected = {"train": ["Q1?"], "dev": ["Q2?"]}
    assert _splits(load_tasks("memory://cadre-folder")) == dict(reversed(expected.items()))
    assert _splits(load_tasks("memory://cadre-folder/*.jsonl.gz")) == dict(reversed(expected.items()))
    assert {file.source for file in data_files("memory://cadre-folder")} == {"cadre-folder"}


# names


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
    path = _write(tmp_path / "t.jsonl", _row(1, split="validation"), _row(2))
    assert _splits(load_tasks(path, split="dev")) == {"dev": ["Q1?"]}
    with pytest.raises(DataError, match="no split 'validation'; it is called 'dev' here"):
        load_tasks(path, split="validation")


# ids and accounting across files


def test_a_row_that_an_earlier_file_has_is_a_reject(tmp_path):
    one, other = (
        _write(tmp_path / "train.jsonl", _row(1, id="a")),
        _write(tmp_path / "dev.jsonl", _row(1, id="a"), _row(2)),
    )
    loaded = load_tasks([one, other], max_bad_share=0.5)
    assert [(r.file, r.cause) for r in loaded.rejects] == [("dev.jsonl", REPEATED)]
    assert "train.jsonl" in loaded.rejects[0].reason


def test_an_id_that_two_files_use_for_two_tasks_is_made_distinct_and_counted(tmp_path):
    one = _write(tmp_path / "train.jsonl", _row(1, id="0"), _row(2, id="1"))
    other = _write(tmp_path / "dev.jsonl", _row(3, id="0"), _row(4, id="2"))
    loaded = load_tasks([one, other])
    ids = loaded.tasks["task_id"].to_pylist()
    assert ids == ["0", "1", f"0~{loaded.tasks['row_hash'][2].as_py()[:8]}", "2"]
    assert loaded.notes == {RENAMED_NOTE: 1}


def test_a_held_out_task_that_train_has_too_is_noted(tmp_path):
    one = _write(tmp_path / "train.jsonl", _row(1, id="a"), _row(2, id="b"))
    other = _write(tmp_path / "test.jsonl", _row(1, id="c"), _row(3, id="d"))
    assert load_tasks([one, other]).notes == {SHARED_NOTE: 1}


def test_filtering_and_reordering_a_file_changes_no_id(tmp_path):
    rows = [_row(number) for number in range(6)]
    whole = load_tasks(_write(tmp_path / "whole.jsonl", *rows)).tasks
    part = load_tasks(_write(tmp_path / "part.jsonl", *rows[:1:-2])).tasks
    ids = dict(zip(whole["inputs"].to_pylist(), whole["task_id"].to_pylist(), strict=True))
    assert [ids[inputs] for inputs in part["inputs"].to_pylist()] == part["task_id"].to_pylist()


@pytest.mark.parametrize(
    ("limit", "kept"), [(2, ["Q0?", "Q2?"]), (-2, ["Q2?", "Q4?"]), (9, ["Q0?", "Q2?", "Q4?"])]
)
def test_a_limit_keeps_the_first_or_the_last_of_each_split_in_their_order(tmp_path, limit, kept):
    rows = [_row(number, split="dev" if number % 2 else "train") for number in range(5)]
    loaded = load_tasks(_write(tmp_path / "t.jsonl", *rows), limit=limit)
    assert _splits(loaded)["train"] == kept
    assert len(_splits(loaded)["dev"]) == min(2, abs(limit))


def test_held_out_splits_are_loaded_whole_and_once_whatever_the_sizes(tmp_path):
    rows = [_row(number, split="dev") for number in range(5)]
    loaded = load_tasks(_write(tmp_path / "t.jsonl", *rows), split="dev")
    assert Counter(_splits(loaded)["dev"]) == {f"Q{number}?": 1 for number in range(5)}


def test_the_fingerprint_notices_another_task_id_split_or_content(tmp_path):
    def of(*rows: dict) -> str:
        return load_tasks(_write(tmp_path / "t.jsonl", *rows)).fingerprint

    base = of(_row(1, id="a"), _row(2, id="b"))
    assert base == of(_row(1, id="a"), _row(2, id="b"))
    assert (
        len({base, of(_row(1, id="c"), _row(2, id="b")), of(_row(1, id="a", split="dev"), _row(2, id="b"))})
        == 3
    )
    assert base not in (
        of(_row(1, id="a")),
        of(_row(1, id="a"), _row(3, id="b")),
        of(_row(2, id="b"), _row(1, id="a")),
    )


# HotpotQA's passages

HOTPOT = [
    {"context": [["Ada", ["Ada wrote.", " She did."]], ["Bea", ["Bea read."]]]},
    {"context": {"title": ["Ada", "Cyd"], "sentences": [["Ada wrote.", " She did."], ["Cyd sang."]]}},
]


def test_passages_of_hotpotqa_become_a_corpus_each_once(tmp_path):
    (tmp_path / "hotpot.json").write_text(json.dumps(HOTPOT))
    found = list(passages(str(tmp_path / "hotpot.json")))
    assert [(p["title"], p["text"]) for p in found] == [
        ("Ada", "Ada wrote. She did."),
        ("Bea", "Bea read."),
        ("Cyd", "Cyd sang."),
    ]
    assert hotpot_main([str(tmp_path / "hotpot.json"), str(tmp_path / "corpus.jsonl")]) == 0
    from workflows.tools.retriever import Bm25Retriever

    retriever = Bm25Retriever(str(tmp_path / "corpus.jsonl"))
    assert [row for _, row in read_rows(retriever.corpus)] == found


@pytest.mark.parametrize(
    "row", [{}, {"context": "text"}, {"context": [["Ada", "text"]]}, {"context": {"title": []}}, 3]
)
def test_rows_without_passages_are_refused_by_number(tmp_path, row, capsys):
    path = _write(tmp_path / "h.jsonl", HOTPOT[0], row)
    with pytest.raises(DataError, match="row 2: no passages"):
        list(passages(path))
    assert hotpot_main([path, str(tmp_path / "c.jsonl")]) == 2
    assert "row 2" in capsys.readouterr().err
    assert not (tmp_path / "c.jsonl").exists()


# settings


def test_check_tells_formats_rejects_and_what_was_decided(tmp_path, scripted):
    from pipeline.cli.check import report, report_lines
    from pipeline.plan.assemble import assemble
    from pipeline.settings.reading import parse_settings

    rows = [_row(number) for number in range(1, 9)]
    rows[2]["answer"] = ["the", "A3"]
    path = {"train": [_write(tmp_path / "a.jsonl", *rows), _write(tmp_path / "b.jsonl", _row(20), "{broken")]}
    plan = assemble(parse_settings(scripted(data={"path": path, "max_bad_share": 0.2})))
    found = report(plan)
    assert (found["data"]["formats"], found["data"]["rejected_rows"]) == (["nq_open"], 1)
    text = "\n".join(report_lines(found))
    assert "1 × can't be decoded (row 2: not JSON" in text
    assert "1 gold answers left out" in text
    assert plan.stages[0].remarks == tuple(plan.tasks.remarks)
    assert len(plan.tasks.remarks) == 2


def test_paths_by_split_survive_the_settings_file_of_a_run():
    import tomllib

    from pipeline.settings.reading import parse_settings, settings_toml

    for path in ("facts", ["a.jsonl", "b/*.parquet"], {"train": "a.jsonl", "dev": ["b.jsonl", "c.jsonl"]}):
        settings = parse_settings({"data": {"path": path, "limit": -5, "public_tests": 2}})
        assert parse_settings(tomllib.loads(settings_toml(settings))) == settings


@pytest.mark.parametrize("data", [{"limit": 0}, {"public_tests": -1}, {"path": 3}])
def test_data_settings_that_cannot_be_are_refused(data):
    from pipeline.settings.reading import parse_settings
    from workflows.errors import UsageError

    with pytest.raises(UsageError, match=f"data.{next(iter(data))}"):
        parse_settings({"data": data})


def test_another_file_under_the_same_name_is_another_run(tmp_path, scripted):
    from pipeline.plan.assemble import assemble
    from pipeline.settings.reading import parse_settings

    path = _write(tmp_path / "t.jsonl", *[_row(number) for number in range(8)])
    raw = scripted(data={"path": path})
    before = assemble(parse_settings(raw)).identity
    assert assemble(parse_settings(raw)).identity == before
    _write(tmp_path / "t.jsonl", *[_row(number, id=f"x{number}") for number in range(8)])
    assert assemble(parse_settings(raw)).identity != before
