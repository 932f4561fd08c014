"""docs/design.md can be cited: decisions are numbered by room, and code cites those that there are."""

from __future__ import annotations

import re
from itertools import groupby

from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "design.md").read_text("utf-8")
ROOMS = ("pipeline", "stages", "rewards", "workflows", "tests")
CITED = re.compile(r"docs/design\.md`?,\s+([A-Z]\d+(?:,\s+[A-Z]\d+)*)")


def decisions() -> list[str]:
    return re.findall(r"^\*\*([A-Z]\d+)\. .+\*\* ", PAGE, re.MULTILINE)


def test_every_decision_has_a_number_of_its_own_in_the_order_of_its_room() -> None:
    numbers = decisions()
    assert len(numbers) == len(re.findall(r"^\*\*", PAGE, re.MULTILINE)) > 40
    rooms = {letter: [int(n[1:]) for n in group] for letter, group in groupby(numbers, key=lambda n: n[0])}
    assert sum(map(len, rooms.values())) == len(numbers)  # each room stands in one place
    assert all(counts == sorted(set(counts)) for counts in rooms.values())


def test_what_code_cites_is_there() -> None:
    cited = {
        number
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
        for numbers in CITED.findall(file.read_text("utf-8"))
        for number in re.split(r",\s+", numbers)
    }
    assert "S1" in cited
    assert cited <= set(decisions())


def test_files_that_the_page_names_are_there() -> None:
    for named in re.findall(r"`((?:pipeline|stages|rewards|workflows|docs|tests)/[\w/.]+)`", PAGE):
        assert (ROOT / named).exists(), named
