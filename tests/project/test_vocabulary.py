"""The words of the tables: each is written, read, drawn, traced and measured wherever its kind is."""

from __future__ import annotations

import ast
import json
import pickle
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from pipeline.metrics.turns import EVENT_GROUPS
from pipeline.report.drawing import ACTORS, graph_of, svg
from pipeline.tracking.spans import SPAN_TYPES
from workflows import trajectory
from workflows.graph import ControlStep, LlmStep, ToolStep
from workflows.vocabulary import (
    NOT_THE_POLICYS_DOING,
    POLICYS_DOING,
    Act,
    Ending,
    Event,
    Status,
    StopReason,
    Word,
)

REPOSITORY = Path(__file__).parents[2]
KINDS = (Event, Act, Ending, Status, StopReason)


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_has_a_meaning_of_its_own_and_is_its_text(kind: type[Word]) -> None:
    assert len({word.meaning for word in kind}) == len(kind)
    for word in kind:
        assert word.meaning
        assert "\n" not in word.meaning
        assert word == word.value == str(word) == f"{word}" == json.loads(json.dumps(word))
        assert {word.value: 1}[word] == 1
        assert kind(word.value) is word is pickle.loads(pickle.dumps(word))


def test_words_are_plain_text_in_tables() -> None:
    table = pa.Table.from_pylist([{"status": s} for s in Status], schema=pa.schema([("status", pa.string())]))
    assert table["status"].to_pylist() == [s.value for s in Status]
    read = pl.DataFrame(table)
    failed = read.filter(pl.col("status").is_in(sorted(NOT_THE_POLICYS_DOING)))
    assert set(failed["status"]) == NOT_THE_POLICYS_DOING
    assert read.filter(pl.col("status") == Status.TIMEOUT).height == 1


def test_every_event_has_a_span_type_a_drawing_and_a_group_of_metrics() -> None:
    assert set(SPAN_TYPES) == set(ACTORS) == set(EVENT_GROUPS) == set(Event)
    assert len(set(SPAN_TYPES.values())) == len(Event)
    groups = [group for groups in EVENT_GROUPS.values() for group in groups]
    assert len(set(groups)) == len(groups) >= len(Event)
    for columns in EVENT_GROUPS.values():
        assert set(columns.values()) <= set(trajectory.TURNS.names)
    turns = [
        {"episode": 0, "turn_index": i, "step": f"at_{event}", "event": event.value, "parents": [],
         "role": "r", "tool": "t"}
        for i, event in enumerate(Event)
    ]  # fmt: skip
    drawn = svg(graph_of(None, turns), ["r"])
    for event in Event:
        assert f'class="step {event}' in drawn


def test_every_event_has_a_kind_of_step() -> None:
    assert {step.event for step in (LlmStep, ToolStep, ControlStep)} == set(Event)


def test_every_status_is_the_policys_doing_or_not() -> None:
    assert set(Status) == POLICYS_DOING | NOT_THE_POLICYS_DOING
    assert not POLICYS_DOING & NOT_THE_POLICYS_DOING


def test_the_names_from_before_mean_the_same_words() -> None:
    assert tuple(Status) == trajectory.STATUSES
    for status in Status:
        assert getattr(trajectory, status.name) is status


def test_no_code_spells_a_word_of_its_own() -> None:
    """An event, a stop reason or a status is compared, written and looked up by its name in the enum."""
    spelled = []
    for room in ("pipeline", "stages", "rewards", "workflows"):
        for file in sorted((REPOSITORY / room).rglob("*.py")):
            if file.name == "vocabulary.py":
                continue
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                column, texts = _compared(node)
                if set(texts) & WORDS.get(column, frozenset()):
                    spelled.append(f"{file.relative_to(REPOSITORY)}:{node.lineno}")  # type: ignore[attr-defined]
    assert not spelled


WORDS = {
    "event": {word.value for word in Event},
    "act": {word.value for word in Act},
    "status": {word.value for word in Status},
    "stop_reason": {word.value for word in StopReason},
}


def _compared(node: ast.AST) -> tuple[str, list[str]]:
    """The column and the texts of `x["event"] == "llm"`, `pl.col("event") == "llm"`, `event="llm"`."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        names = [name for side in sides if (name := _column(side))]
        return (names or [""])[0], [text for side in sides for text in _texts(side)]
    if isinstance(node, ast.keyword) and node.arg in WORDS:
        return node.arg, _texts(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _column(node.func.value), [text for argument in node.args for text in _texts(argument)]
    return "", []


def _column(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)  # pl.col("event"), turn.get("event")
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _texts(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [text for item in node.elts for text in _texts(item)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
