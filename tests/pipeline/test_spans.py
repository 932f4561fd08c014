"""An episode as spans: nested as it ran, with its own times, and everything that is known of a turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.store.episodes import Played, find_episode
from pipeline.store.samples import Chosen
from pipeline.tracking.spans import Span, Trace, trace_of
from tests.support.stored_plays import QUESTION, a_play, stored


def played(folder: Path, play: Any = None, score: float | None = 0.75) -> Played:
    tables = stored(str(folder), [[(play or a_play(), score)]])
    found = find_episode(tables, "00000/task/0")
    assert found is not None
    return found


def tree(trace: Trace) -> dict[str, list[str]]:
    """The names of each span's children, in their order; names are unique here."""
    by_key = {span.key: span for span in trace.spans}
    assert len(by_key) == len(trace.spans)
    children: dict[str, list[str]] = {}
    for span in trace.spans[1:]:
        children.setdefault(by_key[span.parent or ""].name, []).append(span.name)
    return children


def named(trace: Trace, name: str) -> Span:
    return next(span for span in trace.spans if span.name == name)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return trace_of(Chosen(played(tmp_path_factory.mktemp("trace")), "best"))


def test_tools_and_roles_hang_under_their_branches_and_those_under_the_episode(trace: Trace) -> None:
    assert (
        tree(trace)
        == {
            "00000/task/0": ["decompose: decomposer", "branch 0", "branch 1", "answer: answerer"],
            "branch 0": ["retrieve: search", "read: reader"],
            "branch 1": ["retrieve: search"],
        }
        or tree(trace)["branch 0"][-1] == "read: reader"
    )


def test_every_span_lies_in_time_within_its_parent(trace: Trace) -> None:
    by_key = {span.key: span for span in trace.spans}
    for span in trace.spans:
        assert span.start <= span.end
        if span.parent is not None:
            above = by_key[span.parent]
            assert above.start <= span.start
            assert span.end <= above.end


def test_times_are_those_of_the_rows(tmp_path: Path) -> None:
    episode = played(tmp_path)
    trace = trace_of(Chosen(episode, "best"))
    root = trace.spans[0]
    assert root.start == round(episode.episode["started_at"] * 1e9)
    turns = [span for span in trace.spans if span.key.startswith("turn ")]
    assert len(turns) == len(episode.turns)
    for span, row in zip(sorted(turns, key=lambda s: s.key), episode.turns, strict=True):
        begun = row["started_at"] if row["started_at"] is not None else row["queued_at"]
        assert span.start - root.start == round(begun * 1e9)
        assert span.end - root.start == round(row["ended_at"] * 1e9)
        assert span.moments["queued"] - root.start == round(row["queued_at"] * 1e9)


def test_a_turn_says_what_it_was_asked_and_said_cost_and_earned(trace: Trace) -> None:
    reader = named(trace, "read: reader")
    assert reader.kind == "CHAT_MODEL"
    assert [m["role"] for m in reader.inputs["messages"]][-1] == "user"
    assert reader.outputs["choices"][0]["message"]["role"] == "assistant"
    assert reader.tokens is not None
    assert min(reader.tokens) > 0
    assert reader.model == "reader@0"
    assert reader.attributes["reward"] == reader.attributes["return"] == 0.75
    assert reader.attributes["advantage"] == 0.25
    assert reader.attributes["reward_parts"] == {"f1": 0.75, "format": 0.0}
    tool = next(span for span in trace.spans if span.kind == "TOOL")
    assert tool.inputs
    assert tool.outputs
    assert tool.attributes["excluded"] == "not an llm turn"
    root = trace.spans[0]
    assert root.inputs == {"question": QUESTION}
    assert root.outputs["answer"]
    assert trace.values == {"return": 0.75, "f1": 0.75, "format": 0.0}
    assert trace.gold == ["Norway"]
    assert trace.tags["chosen"] == "best"
    assert trace.tags["task_id"] == "task"


def test_branches_of_branches_nest_and_a_name_that_comes_again_is_another_branch(tmp_path: Path) -> None:
    play = a_play()
    rows = [dict(play.turns[0]) for _ in range(7)]
    for index, (row, branch) in enumerate(zip(rows, ("", "0", "0.1", "0.1", "", "0", "1"), strict=True)):
        row |= {"turn_index": index, "branch": branch, "step": f"s{index}", "role": None, "parents": []}
        row |= {"queued_at": index * 1.0, "started_at": index * 1.0, "ended_at": index + 0.5}
    play.turns[:] = rows
    trace = trace_of(Chosen(played(tmp_path, play), "random"))
    parents = {span.name: span.parent for span in trace.spans if span.name.startswith("s")}
    by_key = {span.key: span for span in trace.spans}
    assert [by_key[parents[f"s{k}"] or ""].name for k in range(7)] == [
        *("00000/task/0", "branch 0", "branch 0.1", "branch 0.1", "00000/task/0", "branch 0", "branch 1")
    ]
    first, again = by_key[parents["s1"] or ""], by_key[parents["s5"] or ""]
    assert first.key != again.key
    seconds = [(span.start - trace.spans[0].start) / 1e9 for span in (first, again)]
    assert seconds == pytest.approx([1.0, 5.0])
    assert (first.end - trace.spans[0].start) / 1e9 == pytest.approx(3.5)
    assert by_key[parents["s2"] or ""].parent == first.key


def test_what_is_not_ok_says_why(tmp_path: Path) -> None:
    play = a_play()
    play.turns[-1] |= {"status": "truncated", "status_detail": "48 tokens"}
    play.episode |= {"status": "infra_error", "error": "the engine died"}
    trace = trace_of(Chosen(played(tmp_path, play, None), "failed"))
    assert trace.spans[0].problem == "infra_error: the engine died"
    assert trace.spans[-1].problem == "truncated: 48 tokens"
    assert trace.spans[1].problem is None
    assert trace.values == {}


def test_rows_without_times_or_texts_still_make_a_trace(tmp_path: Path) -> None:
    """Imported or of an engine that died."""
    play = a_play()
    for row in play.turns:
        row |= dict.fromkeys(("queued_at", "started_at", "ended_at", "messages", "response_text", "parsed"))
        row |= {"num_response_tokens": None, "tool_result": None, "event": "llm"}
    play.episode |= {"started_at": None, "seconds": None}
    trace = trace_of(Chosen(played(tmp_path, play), "random"))
    assert {(span.start, span.end) for span in trace.spans} == {(0, 0)}
    assert trace.spans[0].outputs is None
