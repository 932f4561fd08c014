"""docs/parity.md can't rot: what it names is there, and what it says may not go away."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "parity.md"
RECORD = Path(__file__).with_name("parity_rows.txt")
COLUMNS = ("where", "shown by")
NO_TEST = ("open:", "n/a:")  # what a cell without a test begins with: not done, or nothing to do here

CODE = re.compile(r"`([^`]+)`")
TEST = re.compile(r"(test_\w+\.py)?(?:::(test_\w+)(?:\[[^]]*\])?)?")
METRIC = re.compile(r"\w+/\w+/(?=\w+_mean)|_mean$")  # the names of steps and moves in a metric's name
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


# --- what may not go away --------------------------------------------------------------------------------

# The items of the specification: its sections, the numbered weaknesses, the checklist.
ITEMS = (
    *(f"1.{n}" for n in range(1, 7)),
    *(f"2.{n}" for n in range(8)),
    *("3", *(f"3.{n}" for n in range(1, 7))),
    *("4", *(f"4.{n}" for n in range(1, 5))),
    *(f"5.{n}" for n in range(9)),
    *(f"6.{n}" for n in range(1, 6)),
    *(f"7.A {n}" for n in range(1, 13)),
    *(f"7.B {n}" for n in range(13, 24)),
    *(f"7.C {n}" for n in range(24, 33)),
    *(f"7.D {n}" for n in range(33, 42)),
    *(f"7.E {n}" for n in range(42, 51)),
    *(f"P{n}" for n in range(1, 14)),
)


def recorded() -> list[str]:
    """The first two cells of every row, in order: what the page is about."""
    lines = PAGE.read_text("utf-8").splitlines()
    return [" | ".join(cell.strip() for cell in lines[row.line - 1].split("|")[1:3]) for row in rows()]


def test_every_item_of_the_specification_has_a_row() -> None:
    assert set(ITEMS) <= {name.partition(" | ")[0] for name in recorded()}


def test_no_row_goes_away() -> None:
    """Rows may be added; one that is gone, or is about another thing, is taken out of the record by hand."""
    gone = Counter(RECORD.read_text("utf-8").splitlines()) - Counter(recorded())
    assert not gone, f"rows that were on the page: {list(gone)}"


def named_cases() -> dict[tuple[str, str], set[str]]:
    """By file and function of a test, the cases that rows name in brackets."""
    cases: dict[tuple[str, str], set[str]] = {}
    for row in rows():
        file = ""
        for named in CODE.findall(row.shown):
            found = re.fullmatch(r"(test_\w+\.py)?(?:::(test_\w+)(?:\[([^]]*)\])?)?", named)
            if found is None:
                continue
            file = found[1] or file
            if found[3]:
                cases.setdefault((file, found[2]), set()).update(found[3].split(", "))
    return cases


def test_named_cases_are_cases_of_their_tests() -> None:
    """As pytest names them: a case's own words, or the part of them before a hyphen that says which it is."""
    cases = named_cases()
    assert sum(map(len, cases.values())) > 15
    files = sorted({str(path_of(file).relative_to(ROOT)) for file, _ in cases})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ids: dict[tuple[str, str], list[str]] = {}
    for line in listed.splitlines():
        if found := re.fullmatch(r"\S*?(test_\w+\.py)::(test_\w+)\[(.*)\]", line):
            ids.setdefault((found[1], found[2]), []).append(found[3])
    for (file, function), wanted in cases.items():
        for case in wanted:
            there = ids.get((file, function), [])
            assert any(re.search(rf"(^|-){re.escape(case)}(-|$)", name) for name in there), (
                f"{file}::{function} has no case {case!r}; it has: {there[:40]}"
            )


def test_settings_options_and_metrics_that_rows_name_are_in_the_code() -> None:
    """Each word in code marks under "How it is here" is one of the code, its settings or its metrics."""
    rooms = ("pipeline", "stages", "rewards", "workflows")
    texts = [path.read_text("utf-8") for room in rooms for path in (ROOT / room).rglob("*.py")]
    texts += [(ROOT / "docs" / page).read_text("utf-8") for page in ("metrics.md", "settings.md")]
    known = set(re.findall(r"\w+", "\n".join(texts)))
    lines = PAGE.read_text("utf-8").splitlines()
    for row in rows():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", lines[row.line - 1])[1:-1]]
        for named in CODE.findall(cells[2]):
            for word in re.findall(r"[A-Za-z_]\w+", METRIC.sub("", named)):
                assert word in known, f"line {row.line}: {named}: nothing in the code is called {word}"


if __name__ == "__main__":
    RECORD.write_text("\n".join(recorded()) + "\n", "utf-8")
