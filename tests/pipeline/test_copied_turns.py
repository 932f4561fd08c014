"""Turns that were copied from another episode are not sampled tokens, wherever tokens are added up."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from pipeline.metrics.cost import cost_metrics
from pipeline.metrics.iteration import iteration_metrics
from pipeline.store.episodes import Played as StoredPlay
from pipeline.store.episodes import find_episode
from pipeline.store.samples import Chosen
from pipeline.tracking.mlflow_traces import _info
from pipeline.tracking.spans import trace_of
from pipeline.views.transcript import transcript
from stages.tables.parquet import TableRef, TableSink
from tests.support.replays import Stage, Verifier, stored, team_of
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.record import Played
from workflows.trajectory import EPISODES, TURNS, rows_to_table


def tables_of(folder: Path, *plays: Played) -> dict[str, TableRef]:
    rows = {
        "turns": rows_to_table([row for played in plays for row in played.turns], TURNS),
        "episodes": rows_to_table([played.episode for played in plays], EPISODES),
    }
    sinks = {name: TableSink(name, str(folder / name), table.schema) for name, table in rows.items()}
    return {name: sink.ref([sink.write_part(0, rows[name])]) for name, sink in sinks.items()}


@pytest.fixture
def plays() -> tuple[Played, Played]:
    """An episode with tools, and one that begins with it: its last role has new weights."""
    workflow, inputs = team_of("code")
    stage = Stage(workflow.with_tools({"verifier": Verifier()}), inputs)
    first = stage.play()
    stage.engines["coder"].policy_version = 1
    return first, stage.play(BaseEpisode.of(stored(first), alternative=1), block=1)


def metrics_of(tables: dict[str, TableRef]) -> dict[str, float]:
    metrics = iteration_metrics(tables, [], {"rollout": 2.0})
    return metrics | cost_metrics(metrics, {}, {})


def test_metrics_count_what_was_asked_and_sampled(tmp_path: Path, plays: tuple[Played, Played]) -> None:
    first, again = plays
    alone, both = metrics_of(tables_of(tmp_path / "a", first)), metrics_of(tables_of(tmp_path / "b", *plays))
    llm = [t for t in again.turns if t["event"] == "llm"]
    sampled = [t for t in llm if t["origin"] == "sampled"]
    copied = [t for t in llm if t["origin"] == "copied"]
    assert sampled
    assert copied
    for total, column in (("response_tokens", "num_response_tokens"), ("prompt_tokens", "num_prompt_tokens")):
        new = sum(t[column] for t in sampled)
        assert both[f"rollout/{total}"] == alone[f"rollout/{total}"] + new
    assert both["total/sampled_tokens"] == both["rollout/response_tokens"]
    assert both["total/prompt_tokens"] == both["rollout/prompt_tokens"]
    assert both["rollout/tokens_per_second"] == both["rollout/response_tokens"] / 2
    assert both["rollout/copied_tokens"] == sum(t["num_response_tokens"] for t in copied)
    assert "rollout/copied_tokens" not in alone
    asked_before = [t for t in first.turns if t["event"] == "llm"]
    for role in ("planner", "coder", "reflector"):
        turns = [t for t in [*asked_before, *sampled] if t["role"] == role]
        assert both.get(f"role/{role}/turns", 0) == len(turns)
        if turns:
            mean = sum(t["num_response_tokens"] for t in turns) / len(turns)
            assert both[f"role/{role}/response_tokens_mean"] == pytest.approx(mean)
            valid = sum(t["format_valid"] for t in turns) / len(turns)
            assert both[f"role/{role}/format_valid_rate"] == pytest.approx(valid)
    calls = [t for played in plays for t in played.turns if t["event"] == "tool"]
    assert both["tool/verifier/calls"] == len([t for t in calls if t["origin"] != "copied"])


def test_calls_that_were_made_again_are_counted(tmp_path: Path) -> None:
    workflow, inputs = team_of("code")
    stage = Stage(workflow, inputs)
    first = stage.play()
    again = stage.play(BaseEpisode.of(stored(first)))
    metrics = metrics_of(tables_of(tmp_path, again))
    calls = [t for t in first.turns if t["event"] == "tool"]
    assert metrics["rollout/tool_calls_again"] == metrics["tool/verifier/calls"] == len(calls) > 0
    assert metrics["rollout/response_tokens"] == metrics["rollout/prompt_tokens"] == 0
    assert "role/coder/turns" not in metrics


def found(folder: Path, plays: tuple[Played, Played]) -> StoredPlay:
    play = find_episode(tables_of(folder, *plays), plays[1].episode["episode_id"])
    assert play is not None
    return play


def test_a_trace_has_the_tokens_that_were_sampled_for_it(
    tmp_path: Path, plays: tuple[Played, Played]
) -> None:
    trace = trace_of(Chosen(found(tmp_path, plays), "low"))
    tokens = [span.tokens for span in trace.spans if span.tokens is not None]
    episode = plays[1].episode
    assert sum(response for _, response in tokens) == episode["num_response_tokens"] > 0
    assert sum(prompt for prompt, _ in tokens) == episode["num_prompt_tokens"]
    usage = str(_info(trace, "0", "r").trace_metadata)
    assert f'"output_tokens": {episode["num_response_tokens"]}' in usage
    origins = {s.attributes.get("origin") for s in trace.spans if "turn_index" in s.attributes}
    assert origins <= {None, "copied", "replayed"}
    assert "copied" in origins


def test_a_transcript_says_what_is_a_copy(tmp_path: Path, plays: tuple[Played, Played]) -> None:
    console = Console(record=True, width=200)
    console.print(transcript(found(tmp_path, plays)))
    text = console.export_text()
    episode = plays[1].episode
    assert f"more copied from {episode['base_episode_id']}" in text
    heads = [line for line in text.splitlines() if "→" in line or "tool " in line]
    assert sum(line.rstrip().endswith("copied") for line in heads) == len(
        [t for t in plays[1].turns if t["origin"] == "copied" and t["event"] != "control"]
    )
