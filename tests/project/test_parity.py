"""docs/parity.md can't rot: every file and every test that it names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "parity.md"
COLUMNS = ("where", "shown by")
NO_TEST = ("open:", "n/a:")  # what a cell without a test begins with: not done, or nothing to do here

CODE = re.compile(r"`([^`]+)`")
TEST = re.compile(r"(test_\w+\.py)?(?:::(test_\w+)(?:\[[^]]*\])?)?")
LINK = re.compile(r"\]\(([^)#\s]+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table that has the two columns; `line` counts from 1."""

    line: int
    where: str
    shown: str


def rows() -> Iterator[Row]:
    places: list[int] | None = None
    for number, line in enumerate(PAGE.read_text("utf-8").splitlines(), 1):
        if not line.startswith("|"):
            places = None
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if places is None:
            header = [cell.lower() for cell in cells]
            places = [header.index(name) for name in COLUMNS] if set(COLUMNS) <= set(header) else []
        elif places and not set("".join(cells)) <= set("-: "):
            yield Row(number, *(cells[place] for place in places))


def named_tests(cell: str) -> Iterator[tuple[str, str | None]]:
    """(file, function or None) of each test that a cell names; `::name` is in the file named last."""
    file = None
    for named in CODE.findall(cell):
        found = TEST.fullmatch(named)
        if not found or not (found[1] or found[2]):
            continue
        file = found[1] or file
        assert file is not None, f"{named} follows no file"
        yield file, found[2]


@cache
def path_of(file: str) -> Path:
    """The file of this name; no two rooms have one of the same name."""
    (path,) = (ROOT / "tests").rglob(file)
    return path


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse(path_of(file).read_text("utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_page_has_its_tables() -> None:
    assert len(list(rows())) > 150


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"line-{row.line}")
def test_a_row_names_files_and_tests_that_exist(row: Row) -> None:
    for named in CODE.findall(row.where):
        assert (ROOT / named).exists(), f"line {row.line}: there is no {named}"
    tests = list(named_tests(row.shown))
    for file, function in tests:
        assert len(list((ROOT / "tests").rglob(file))) == 1, f"line {row.line}: not one file {file} in tests"
        assert function is None or function in functions(file), f"line {row.line}: no {function} in {file}"
    assert tests or row.shown.startswith(NO_TEST), f"line {row.line}: neither a test nor the reason why not"
    assert CODE.search(row.where) or row.shown.startswith(NO_TEST), f"line {row.line}: no file"


def test_everything_in_code_marks_under_shown_by_is_a_test() -> None:
    for row in rows():
        for named in CODE.findall(row.shown):
            if "test_" in named:
                assert TEST.fullmatch(named), f"line {row.line}: {named} can't be read as a test"


def test_links_lead_somewhere() -> None:
    for target in LINK.findall(PAGE.read_text("utf-8")):
        assert target.startswith("http") or (PAGE.parent / target).exists(), target


def test_no_weakness_is_left_out() -> None:
    """They are numbered through: a row that is gone leaves a hole."""
    numbers = re.findall(r"^\| 7\.[A-E] (\d+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))


def test_what_is_open_is_listed_at_the_top_and_said_in_its_row() -> None:
    page = PAGE.read_text("utf-8")
    summary = page.split("## What is open")[1].split("\n## ")[0]
    listed = {
        number
        for group in re.findall(r"\(([^()]*)\)\.$", summary, re.MULTILINE)
        for number in group.split(", ")
    }
    lines = page.splitlines()
    open_rows = {lines[row.line - 1].split("|")[1].strip() for row in rows() if "open:" in row.shown}
    assert listed == open_rows
