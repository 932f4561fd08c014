"""Every folder says in its first sentence which question it answers, and what is not in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [
    p for room in ("pipeline", "stages", "rewards", "workflows") for p in (ROOT / room).rglob("__init__.py")
]


@pytest.mark.parametrize("file", FOLDERS, ids=lambda p: str(p.parent.relative_to(ROOT)))
def test_a_folder_asks_its_question_and_says_what_lies_elsewhere(file: Path) -> None:
    line = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").splitlines()[0]
    question, mark, answer = line.partition("? ")
    assert mark, line
    assert question[0].isupper(), line
    assert answer.endswith("."), line


def test_every_folder_with_modules_is_a_package() -> None:
    with_modules = {
        p.parent
        for room in ("pipeline", "stages", "rewards", "workflows")
        for p in (ROOT / room).rglob("*.py")
        if "files" not in p.parts
    }
    assert with_modules == {p.parent for p in FOLDERS}
