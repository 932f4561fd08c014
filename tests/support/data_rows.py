"""Rows written to a file and loaded, and good rows of every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import strategies as st

from workflows.data.tasks import LoadedTasks, load_tasks
from workflows.errors import DataError


def load(tmp_path: Path, *rows: object, name: str = "rows.jsonl", **options: object) -> LoadedTasks:
    path = tmp_path / name
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return load_tasks(str(path), **options)  # type: ignore[arg-type]


def decoded(loaded: LoadedTasks) -> list[dict]:
    return [
        row | {"inputs": json.loads(row["inputs"]), "gold": json.loads(row["gold"])}
        for row in loaded.tasks.to_pylist()
    ]


def task_of(tmp_path: Path, row: object, **options: object) -> dict:
    (task,) = decoded(load(tmp_path, row, **options))
    return task


def refused(tmp_path: Path, row: object, format: str = "auto") -> tuple[str, str]:
    """Cause and reason of the one row that is refused beside a good one."""
    good = {"inputs": {"x": 1}, "gold": {"y": 1}}
    (tmp_path / "good.jsonl").write_text(json.dumps(good) + "\n")
    (tmp_path / "bad.jsonl").write_text((row if isinstance(row, str) else json.dumps(row)) + "\n")
    if format == "auto":
        paths = [str(tmp_path / "good.jsonl"), str(tmp_path / "bad.jsonl")]
        loaded = load_tasks(paths, max_bad_share=0.5)
        (reject,) = loaded.rejects
    else:
        with pytest.raises(DataError, match="1 of 1 rows") as refused:
            load_tasks(str(tmp_path / "bad.jsonl"), format=format)
        return "", str(refused.value)
    return reject.cause, reject.reason


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["answer", "target", "x"]), inner)
    ),
    max_leaves=8,
)


STDIO = [
    {"input": "1\n", "output": "2\n"},
    {"input": "3\n", "output": "4\n"},
    {"input": "5\n", "output": "6\n"},
]


CODE = {"problem": "Add one.", "tests": STDIO}


def inputs_of(tests: dict) -> list:
    return [case["input"] for case in tests["cases"]]


def sides(task: dict) -> tuple[list, list]:
    return inputs_of(task["inputs"]["public_tests"]), inputs_of(task["gold"]["private_tests"])


HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "import math\n\n\ndef helper(x):\n    return x\n\n\n"
    'def f(x):\n    """ One more.\n    >>> f(1)\n    2\n    """\n',
    "entry_point": "f",
    "canonical_solution": "    return helper(x) + 1\n",
    "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate(1) == 2\n    assert True\n",
}


MULTIPLE = {
    "name": "mbpp_1_f",
    "language": "py",
    "prompt": 'def f(x: int) -> int:\n    """\n\tWrite a function.\n\t"""\n',
    "entry_point": "f",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(candidate(2)) == 4\n\n"
    "def test_check():\n    check(f)\n\ntest_check()\n",
}
