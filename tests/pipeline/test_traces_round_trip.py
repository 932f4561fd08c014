"""Export → import → export is equal, for the survey's schema and for ATIF, whatever the episode."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from atif import Trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.traces.course import course_of
from pipeline.traces.episode import Episode
from pipeline.traces.extension import Source
from pipeline.traces.format import problems_of, read, written
from pipeline.traces.imported import as_episode
from pipeline.traces.otel import otel_request
from tests.support.random_traces import random_episode, through_arrow
from tests.support.spawn_trees import Trees
from workflows.trajectory import CREDIT, EPISODES, REWARDS, TASKS, TURNS

SOURCE = Source("run", {"name": "team", "steps": {"plan": "lead"}, "answer_step": "plan"})
ELSEWHERE = Source("other", {"name": "imported"})
EXAMPLES = 60
ON_DEMAND = 10_000
CONTENTS = ("inline", "hash", "none")


def again(document: dict[str, Any]) -> Episode:
    """The episode of a document that went through a file and through tables."""
    episode = as_episode(read(json.loads(json.dumps(document, allow_nan=False))))
    rows = through_arrow([{**episode.row, **turn} for turn in _narrow(episode.turns)], TURNS)
    keys = {"episode_id": episode.episode_id}
    beside = [
        {i: through_arrow([{**keys, "turn_index": i, **row}], schema)[0] for i, row in table.items()}
        for table, schema in ((episode.rewards, REWARDS), (episode.credit, CREDIT))
    ]
    return Episode(
        through_arrow([dict(episode.row)], EPISODES)[0],
        through_arrow([dict(episode.task or {})], TASKS)[0],
        rows,
        *beside,
        episode.evaluation,
        {k: json.loads(json.dumps(v)) for k, v in episode.traced.items()},
        episode.refs,
    )


def _narrow(turns: Any) -> list[dict[str, Any]]:
    """Turns with every column, so that those of the episode that have the same names do not show through."""
    return [{**dict.fromkeys(TURNS.names[7:]), **turn} for turn in turns]


def check(seed: int, contents: Sequence[str] = CONTENTS) -> None:
    episode = random_episode(seed)
    for format in ("survey", "atif"):
        for content in contents:
            first = written(episode, SOURCE, content, format)  # type: ignore[arg-type]
            assert not problems_of(first), (seed, format, content, problems_of(first)[:3])
            second = written(again(first), ELSEWHERE, content, format)  # type: ignore[arg-type]
            assert second == first, (seed, format, content)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**32))
def test_what_was_exported_and_imported_is_exported_equal(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_random_episodes_are_exported_equal() -> None:
    start = int(os.environ.get("CADRE_SEED", "0"))
    for seed in range(start, start + ON_DEMAND):
        check(seed, (CONTENTS[seed % len(CONTENTS)],))


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(st.integers(0, 2**32))
def test_trajectories_are_such_as_the_models_of_atif_take(seed: int) -> None:
    episode = random_episode(seed)
    for content in CONTENTS:
        document = written(episode, SOURCE, content, "atif")  # type: ignore[arg-type]
        taken = Trajectory.model_validate(json.loads(json.dumps(document)))
        assert taken.to_json_dict() == document


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(st.integers(0, 2**32))
def test_a_trace_of_one_format_goes_through_the_other_and_back(seed: int) -> None:
    first = written(random_episode(seed), SOURCE, "inline", "survey")
    through = written(again(first), ELSEWHERE, "inline", "atif")
    assert not problems_of(through)
    assert written(again(through), ELSEWHERE, "inline", "survey") == first


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(st.integers(0, 2**32))
def test_where_content_is_withheld_no_text_and_no_id_is_in_the_document(seed: int) -> None:
    episode = random_episode(seed)
    secret = "the secret that nobody may read"
    for turn in episode.turns:
        for column in ("messages", "response_text", "parsed", "tool_request", "tool_result", "status_detail"):
            turn[column] = secret if turn.get(column) is not None else None  # type: ignore[index]
    for format in ("survey", "atif", "otel"):
        for content in ("hash", "none"):
            text = json.dumps(written(episode, SOURCE, content, format))  # type: ignore[arg-type]
            assert secret not in text
            assert "token_ids" not in text
            assert ("sha256:" in text) <= (content == "hash")


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(st.integers(0, 2**32))
def test_spans_have_ids_parents_and_links_that_are_there(seed: int) -> None:
    episode = random_episode(seed)
    request = json.loads(json.dumps(otel_request(episode, SOURCE, "inline"), allow_nan=False))
    spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ids = [span["spanId"] for span in spans]
    assert len(set(ids)) == len(ids)
    assert {len(i) for i in ids} == {16}
    for span in spans[1:]:
        assert span["parentSpanId"] in ids
        assert all(link["spanId"] in ids for link in span.get("links", ()))
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])


def played(seed: int) -> Episode:
    """An episode of a team whose plays spawn, write to and cancel others; some of its calls fail."""
    play = Trees("modelled" if seed % 2 else "logical", seed, fails=0.05 * (seed % 3)).play(seed)
    return Episode(
        through_arrow([play.episode], EPISODES)[0],
        None,
        through_arrow(sorted(play.turns, key=lambda turn: turn["turn_index"]), TURNS),
    )


@pytest.mark.parametrize("seed", range(8))
def test_teams_that_spawn_are_exported_with_their_spawns_returns_and_ends(seed: int) -> None:
    episode = played(seed)
    trace = written(episode, SOURCE, "inline", "survey")
    assert not problems_of(trace), problems_of(trace)[:3]
    of_type = Counter(event["type"] for event in trace["events"])
    acts = Counter(turn["act"] for turn in episode.turns if turn["act"])
    assert of_type["spawn"] == of_type["despawn"] == acts["spawn"]
    spawned = {event["to"] for event in trace["events"] if event["type"] == "spawn"}
    assert spawned == {turn["instance"] for turn in episode.turns if turn["instance"]}
    agents = {event["agent"] for event in trace["events"]}
    returns = [event for event in trace["events"] if event["type"] == "return" and event["to"] != "user"]
    assert len(returns) == acts["return"]
    assert {event["from"] for event in returns} <= spawned
    assert {event["to"] for event in returns} <= agents
    assert not any(event.get("to") == "trunk" for event in trace["events"])
    for format in ("survey", "atif"):
        for content in CONTENTS:
            first = written(episode, SOURCE, content, format)  # type: ignore[arg-type]
            assert not problems_of(first)
            assert written(again(first), ELSEWHERE, content, format) == first  # type: ignore[arg-type]
    course = course_of(episode.turns)
    assert set(spawned) <= set(course.lanes)
