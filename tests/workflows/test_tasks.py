"""Tasks: a row becomes a task or a reject with its reason; slices of epochs give each task in turn."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.grading.qa import usable
from workflows.data.qa_rows import vanishes
from workflows.data.rejects import Reject
from workflows.data.tasks import choose, load_tasks
from workflows.errors import DataError, UsageError
from workflows.trajectory import TASKS, to_json

GOOD = {"id": "q1", "question": "Who?", "answer": ["Ada", "Ada Lovelace"]}
REAL = os.environ.get("CADRE_TEST_DATA")
needs_real_data = pytest.mark.skipif(
    not REAL, reason="SKIPPED LOUDLY: real rows are NOT tried: CADRE_TEST_DATA names no folder"
)


def _jsonl(path: Path, *rows: object) -> str:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def _rows(loaded) -> list[dict]:
    return [
        row | {"inputs": json.loads(row["inputs"]), "gold": json.loads(row["gold"])}
        for row in loaded.tasks.to_pylist()
    ]


# formats


def test_nq_open_rows(tmp_path):
    path = _jsonl(tmp_path / "t.jsonl", GOOD, {"question": "When?", "answer": "1843"})
    first, second = _rows(load_tasks(path))
    assert (first["task_id"], first["gold"]) == ("q1", {"answers": ["Ada", "Ada Lovelace"]})
    assert (second["inputs"], second["gold"]) == ({"question": "When?"}, {"answers": ["1843"]})


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "h1", "answers": ["Ada"], "supporting_titles": ["A", "B"]},
        {"_id": "h1", "answer": "Ada", "supporting_facts": [["A", 0], ["B", 1], ["A", 2]]},
        {"id": "h1", "answer": "Ada", "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 1]}},
    ],
)
def test_hotpotqa_rows_as_published_and_as_on_the_hub(tmp_path, fields):
    row = {"question": "Who?", "type": "bridge", "level": "hard"} | fields
    (task,) = _rows(load_tasks(_jsonl(tmp_path / "t.jsonl", row)))
    assert task["task_id"] == "h1"
    assert task["inputs"] == {"question": "Who?"}
    expected = {"answers": ["Ada"], "type": "bridge", "level": "hard", "supporting_titles": ["A", "B"]}
    assert task["gold"] == expected


def test_native_rows_take_any_inputs_and_gold(tmp_path):
    row = {"inputs": {"goal": {"x": 1}}, "gold": {"tests": ["t"]}, "split": "dev", "source": "mine"}
    (task,) = _rows(load_tasks(_jsonl(tmp_path / "t.jsonl", row)))
    assert (task["inputs"], task["gold"]) == (row["inputs"], row["gold"])
    assert (task["split"], task["source"]) == ("dev", "mine")


def test_columns_map_rows_of_no_known_format(tmp_path):
    path = _jsonl(tmp_path / "t.jsonl", {"key": 7, "query": "Who?", "target": "Ada", "fold": "dev"})
    columns = {"question": "query", "answers": "target", "id": "key", "split": "fold"}
    (task,) = _rows(load_tasks(path, columns=columns))
    assert (task["task_id"], task["split"], task["gold"]) == ("7", "dev", {"answers": ["Ada"]})


def test_a_users_loader_reads_any_file(tmp_path, monkeypatch):
    (tmp_path / "acme_rows.py").write_text(
        "def load(path):\n"
        "    for line in open(path):\n"
        "        q, a = line.strip().split('|')\n"
        "        yield {'inputs': {'question': q}, 'gold': {'answers': [a]}}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rows.txt").write_text("Who?|Ada\nWhat?|!\n")
    loaded = load_tasks(str(tmp_path / "rows.txt"), format="acme_rows:load", max_bad_share=0.5)
    assert [task["gold"] for task in _rows(loaded)] == [{"answers": ["Ada"]}]
    assert loaded.rejects[0].row == 2


def test_every_file_type_gives_the_same_tasks(tmp_path):
    rows = [{"id": str(i), "question": f"Wer ist Ö{i}?", "answer": f"É{i}"} for i in range(5)]
    jsonl = _jsonl(tmp_path / "t.jsonl", *rows)
    (tmp_path / "t.json").write_text(json.dumps(rows))
    (tmp_path / "lines.json").write_text(Path(jsonl).read_text())
    (tmp_path / "t.csv").write_text(
        "id,question,answer\n" + "".join(f"{r['id']},{r['question']},{r['answer']}\n" for r in rows)
    )
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(Path(jsonl).read_bytes()))
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + Path(jsonl).read_bytes())
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    with fsspec.open("memory://tasks/t.jsonl", "wb") as file:
        file.write(Path(jsonl).read_bytes())

    expected = load_tasks(jsonl).tasks.drop_columns("source")
    assert expected.num_rows == 5
    paths = [tmp_path / n for n in ("t.json", "lines.json", "t.csv", "t.jsonl.gz", "bom.jsonl", "t.parquet")]
    for path in [*map(str, paths), "memory://tasks/t.jsonl"]:
        assert load_tasks(path).tasks.drop_columns("source") == expected, path


def test_the_table_has_the_declared_schema_and_no_metadata():
    tasks = load_tasks("facts").tasks
    assert tasks.schema == TASKS
    assert tasks.schema.metadata is None


# rejects


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{not json", "not JSON"),
        ('{"question": "q", "answer": NaN}', "NaN"),
        ("[1]", "expected an object"),
        ({"answer": "x"}, "no question"),
        ({"question": " \n", "answer": "x"}, "blank"),
        ({"question": 3, "answer": "x"}, "question is 3"),
        ({"question": "q"}, "no gold"),
        ({"question": "q", "answer": []}, "no gold"),
        ({"question": "q", "answer": ["!"]}, "'!'"),
        ({"question": "q", "answer": "The"}, "'The'"),
        ({"question": "q", "answer": ["x", ["y"]]}, "answer is ['y']"),
        ({"question": "q", "answer": {"text": "x"}}, "answer is {"),
        ({"question": "q", "answer": "x", "id": ["a"]}, "id is"),
        ({"question": "q", "answer": "x", "id": ""}, "id is blank"),
        ({"question": "other", "answer": "x", "id": "q1"}, "row 1"),
    ],
)
def test_a_bad_row_is_refused_by_number_and_reason_or_reported(tmp_path, row, reason):
    path = _jsonl(tmp_path / "t.jsonl", GOOD, "", row)
    with pytest.raises(DataError, match="1 of 2 rows") as refused:
        load_tasks(path, format="nq_open")
    assert "row 3: " in str(refused.value)
    assert reason in str(refused.value)

    loaded = load_tasks(path, format="nq_open", max_bad_share=0.5)
    assert loaded.tasks.num_rows == 1
    assert [reject.row for reject in loaded.rejects] == [3]


@pytest.mark.parametrize(
    "row",
    [
        {"inputs": {}, "gold": {"answers": ["x"]}},
        {"inputs": "question", "gold": {"answers": ["x"]}},
        {"inputs": {"question": "q"}, "gold": {}},
        {"inputs": {"question": "q"}, "gold": {"answers": []}},
        {"inputs": {"question": ""}, "gold": {"answers": ["x"]}},
    ],
)
def test_a_native_row_without_inputs_or_gold_is_rejected(tmp_path, row):
    with pytest.raises(DataError, match="row 1"):
        load_tasks(_jsonl(tmp_path / "t.jsonl", row), format="cadre")


def test_a_hotpotqa_row_of_another_shape_is_rejected_not_a_crash(tmp_path):
    rows = [{"question": "q", "answer": "x", "supporting_facts": odd} for odd in (3, [3], {"title": "A"})]
    loaded = load_tasks(_jsonl(tmp_path / "t.jsonl", GOOD, *rows), format="hotpotqa", max_bad_share=0.9)
    assert [reject.row for reject in loaded.rejects] == [2, 3, 4]


def test_rows_in_are_tasks_and_rejects_out(tmp_path):
    rows = [GOOD, "nope", {"question": "q", "answer": "!"}, {"question": "q", "answer": "x"}]
    loaded = load_tasks(_jsonl(tmp_path / "t.jsonl", *rows), max_bad_share=1.0)
    assert loaded.tasks.num_rows + len(loaded.rejects) == len(rows)
    assert all(isinstance(reject, Reject) for reject in loaded.rejects)


def test_invalid_utf8_spoils_its_own_row_only(tmp_path):
    (tmp_path / "t.jsonl").write_bytes(json.dumps(GOOD).encode() + b'\n{"question": "\xff"}\n')
    loaded = load_tasks(str(tmp_path / "t.jsonl"), max_bad_share=0.5)
    assert [reject.row for reject in loaded.rejects] == [2]


@given(st.text(alphabet="aAnNtheTHE !.,-'\"xé1 ", max_size=8))
def test_answers_that_vanish_for_the_published_graders_are_those_that_we_reject(answer):
    if answer.strip(" !.,-'\"").lower() == "a":  # the first of several choices, for strict grading
        assert not vanishes(answer)
        assert usable(answer, "strict")
    else:
        assert vanishes(answer) != usable(answer, "official_hotpot")


def test_an_answer_that_vanishes_beside_one_that_does_not_is_left_out(tmp_path):
    path = _jsonl(tmp_path / "t.jsonl", {"question": "q", "answer": ["the", "x"]})
    assert _rows(load_tasks(path))[0]["gold"] == {"answers": ["x"]}


def test_lone_surrogates_are_replaced_so_that_the_table_can_be_written(tmp_path):
    path = _jsonl(tmp_path / "t.jsonl", '{"question": "a\\ud800b", "answer": ["\\udfffx"]}')
    loaded = load_tasks(path)
    pq.write_table(loaded.tasks, tmp_path / "t.parquet")
    assert _rows(loaded)[0]["inputs"]["question"] == "a?b"


# ids and hashes


def test_ids_and_hashes_depend_on_the_content_only(tmp_path):
    one = {"question": "Who?", "answer": "Ada"}
    other = {"answer": "Ada", "extra": 1, "question": "Who?"}
    first = load_tasks(_jsonl(tmp_path / "a.jsonl", one, {"question": "What?", "answer": "x"}))
    second = load_tasks(_jsonl(tmp_path / "b.jsonl", other))
    changed = load_tasks(_jsonl(tmp_path / "c.jsonl", one | {"answer": "Bea"}))
    for column in ("task_id", "row_hash"):
        assert first.tasks.column(column)[0] == second.tasks.column(column)[0]
        assert first.tasks.column(column)[0] != changed.tasks.column(column)[0]


# splits


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("nq_open_dev.jsonl", "dev"),
        ("test.jsonl", "test"),
        ("rows.jsonl", "train"),
        ("contest.jsonl", "train"),
    ],
)
def test_the_split_is_the_rows_own_else_the_file_names_else_train(tmp_path, name, split):
    path = _jsonl(tmp_path / name, GOOD, {"question": "q", "answer": "x", "split": "own"})
    assert load_tasks(path).tasks.column("split").to_pylist() == [split, "own"]


def test_one_split_is_kept_where_one_is_asked_for():
    dev = load_tasks("facts", split="dev").tasks
    assert set(dev.column("split").to_pylist()) == {"dev"}


def test_an_unknown_split_names_those_that_there_are():
    with pytest.raises(DataError, match=r"did you mean 'train'\?.*'dev', 'test', 'train'"):
        load_tasks("facts", split="tain")


# refusals of the whole file


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("fact", {}, "did you mean 'facts'"),
        ("nowhere.jsonl", {}, "nowhere.jsonl"),
        ("rows.txt", {}, "'rows.txt' does not exist"),
        ("no/such/folder", {}, "'no/such/folder' does not exist"),
        (__file__, {}, "expected a file that ends in .jsonl"),
        ("nope://x/t.jsonl", {}, "nope"),
        ("facts", {"format": "hotpot"}, "did you mean 'hotpotqa'"),
        ("facts", {"format": "no_such_module:load"}, "no module 'no_such_module'"),
        ("facts", {"format": "json:no_such_name"}, "no 'no_such_name'"),
        ("facts", {"columns": {"question": "q", "answer": "a"}}, "did you mean 'answers'"),
        ("facts", {"columns": {"question": "q"}}, "no answers"),
        ("facts", {"columns": {"question": "q", "answers": "a"}, "format": "cadre"}, "drop one"),
    ],
)
def test_what_cannot_be_read_as_asked_is_refused_with_the_remedy(path, options, message):
    with pytest.raises(UsageError) as refused:
        load_tasks(path, **options)
    assert message in str(refused.value)


def test_rows_of_no_known_format_are_refused_with_their_fields(tmp_path):
    with pytest.raises(DataError, match=r"row 1: .*prompt, target.*columns"):
        load_tasks(_jsonl(tmp_path / "t.jsonl", {"prompt": "Who?", "target": "Ada"}))


def test_a_column_that_no_row_has_is_named_with_those_that_there_are(tmp_path):
    path = _jsonl(tmp_path / "t.jsonl", {"query": "Who?", "target": "Ada"})
    with pytest.raises(
        DataError, match=r"question = 'qery' \(did you mean 'query'\?\); its rows have query, target"
    ):
        load_tasks(path, columns={"question": "qery", "answers": "target"})


@pytest.mark.parametrize("content", [b"", b"\n\n", b"[]"])
def test_a_file_without_rows_is_refused(tmp_path, content):
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(DataError, match="no rows"):
        load_tasks(str(tmp_path / "t.json"), max_bad_share=1.0)


@pytest.mark.parametrize("name", ["t.parquet", "t.json", "t.jsonl.gz"])
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"[ this is neither")
    with pytest.raises(DataError, match=name):
        load_tasks(str(tmp_path / name))


def test_a_long_list_of_bad_rows_is_cut(tmp_path):
    with pytest.raises(DataError, match=r"20 × can't be decoded \(row 2: not JSON .*and 18 more") as refused:
        load_tasks(_jsonl(tmp_path / "t.jsonl", GOOD, *["nope"] * 20))
    assert len(str(refused.value)) < 1000


def test_a_loader_that_fails_is_named_with_its_error(tmp_path, monkeypatch):
    (tmp_path / "acme_broken.py").write_text("def load(path):\n    yield 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match=r"acme_broken:load.*ZeroDivisionError"):
        load_tasks("x", format="acme_broken:load")


# choosing


def _table(n: int, split: str = "train") -> pa.Table:
    rows = [{"task_id": f"t{i}", "split": split, "inputs": "{}", "gold": "{}"} for i in range(n)]
    return pa.Table.from_pylist(rows, schema=TASKS)


def _chosen(tasks: pa.Table, start: int, count: int, seed: int = 3) -> list[str]:
    return choose(tasks, "train", seed, start, count).column("task_id").to_pylist()


sizes = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes, st.integers(0, 2**63))
def test_following_slices_give_every_task_once_per_epoch_and_none_twice_in_a_slice(size, seed):
    n, count = size
    tasks = _table(n)
    slices = [_chosen(tasks, i * count, count, seed) for i in range(3 * n)]
    assert all(len(set(ids)) == count for ids in slices)
    order = [id for ids in slices for id in ids]
    assert all(len(set(order[e * n : (e + 1) * n])) == n for e in range(len(order) // n))


@given(sizes, st.integers(0, 30))
def test_a_slice_does_not_depend_on_how_it_is_reached_nor_on_the_order_of_the_table(size, start):
    n, count = size
    tasks = _table(n)
    shuffled = tasks.take(pa.array(range(n)[::-1]))
    assert _chosen(tasks, start, count) == _chosen(shuffled, start, count)
    assert set(_chosen(tasks, start, count)) <= set(tasks.column("task_id").to_pylist())


def test_the_next_epoch_has_another_order_and_another_seed_too():
    tasks = _table(40)
    first, second = _chosen(tasks, 0, 40), _chosen(tasks, 40, 40)
    assert first != second
    assert first != _chosen(tasks, 0, 40, seed=4)
    assert _chosen(tasks, 0, 8) != _chosen(tasks, 40, 8)
    assert len({tuple(_chosen(tasks, 30 * i, 30)) for i in range(12)}) == 12


def test_other_splits_are_not_touched_and_rows_stay_whole():
    tasks = load_tasks("facts").tasks
    chosen = choose(tasks, "dev", 1, 150, 20)
    assert chosen.schema == TASKS
    known = {to_json(row) for row in tasks.to_pylist() if row["split"] == "dev"}
    assert {to_json(row) for row in chosen.to_pylist()} <= known


@pytest.mark.parametrize(("start", "count"), [(0, 0), (0, 6), (-1, 2)])
def test_a_slice_that_would_repeat_a_task_or_be_empty_is_refused(start, count):
    with pytest.raises(DataError, match="from 1 to 5"):
        choose(_table(5), "train", 0, start, count)


def test_choosing_from_an_unknown_split_is_refused():
    with pytest.raises(DataError, match="'train'"):
        choose(_table(5), "dev", 0, 0, 1)


# real rows


@needs_real_data
@pytest.mark.parametrize(
    ("file", "rows", "split"),
    [
        ("hotpot/train.jsonl", 50, "train"),
        ("hotpot/dev.jsonl", 20, "dev"),
        ("nq/nq_open_dev.jsonl", 3000, "dev"),
    ],
)
def test_real_rows_load_without_a_reject_or_with_a_reason(file, rows, split):
    loaded = load_tasks(str(Path(REAL or "") / file), max_bad_share=0.02)
    assert loaded.tasks.num_rows + len(loaded.rejects) == rows
    assert set(loaded.tasks.column("split").to_pylist()) == {split}
    for reject in loaded.rejects:
        assert "nothing once" in reject.reason
    for task in _rows(loaded):
        assert all(usable(answer, "strict") for answer in task["gold"]["answers"])
        assert file.startswith("nq") or len(task["gold"]["supporting_titles"]) >= 2
