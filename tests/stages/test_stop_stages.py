"""Stop decisions from plays to rows that are trained: probes, values, plans of forward passes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rewards.stopping.table import NO_SCORE, NO_TRACE, NOT_CHOSEN, UNSEEN, StopSpec, stop_tables, traces_of
from stages.partition import PartitionSpec
from stages.players.probes import ProbeJob, play_probes
from stages.stop_rows import decision_rows, planned
from stages.stops import Budget
from stages.tables.parquet import TableRef, TableSink
from tests.workflows.test_decisions import TASKS, player_of
from workflows.stop_tables import PLAYED_PROBES
from workflows.trajectory import EPISODES, TURNS, rows_to_table
from workflows.trajectory import TASKS as TASK_SCHEMA
from workflows.vocabulary import Origin

Rows = list[dict[str, Any]]
SPEC = StopSpec(price=0.01, answer_step="decide")


def stored(folder: Path, name: str, schema: Any, rows: Rows) -> TableRef:
    sink = TableSink(name, f"{folder}/{name}", schema)
    return sink.ref([sink.write_part(0, rows_to_table(rows, schema))])


def probed(folder: Path, team: str, *, held: bool, samples: int = 2, epsilon: float = 0.0) -> dict[str, Rows]:
    """Three plays of a team and their probes."""
    player = player_of(team, hold_stops=held)
    inputs = TASKS[team]

    async def play() -> Any:
        task = {"task_id": "t", "split": "train", "inputs": inputs}
        return [await player.play(task, iteration=0, sample=k) for k in range(3)]

    plays = asyncio.run(play())
    tasks = [{"task_id": "t", "split": "train", "inputs": json.dumps(inputs), "gold": "{}"}]
    tables = {
        "tasks": stored(folder, "tasks", TASK_SCHEMA, tasks),
        "turns": stored(folder, "turns", TURNS, [t for p in plays for t in p.turns]),
        "episodes": stored(folder, "episodes", EPISODES, [p.episode for p in plays]),
    }
    schemas = {"probe_turns": TURNS, "probe_episodes": EPISODES, "played_probes": PLAYED_PROBES}
    sinks = {name: TableSink(name, f"{folder}/{name}", schema) for name, schema in schemas.items()}
    job = ProbeJob(0, *tables.values(), sinks, samples, epsilon, 0)  # type: ignore[misc, arg-type]
    receipt = asyncio.run(play_probes(player, job, asyncio.Semaphore(4)))
    found = {name: table.read().to_pylist() for name, table in tables.items()}
    probes = {name: sink.ref([receipt["parts"][name]]).read().to_pylist() for name, sink in sinks.items()}
    assert receipt["differ"] == receipt["failed"] == 0
    return found | probes


def valued(rows: dict[str, Rows], spec: StopSpec = SPEC, **scores: float) -> tuple[Rows, Rows]:
    """Stops and probes, where an episode scores 0.5 and a probe by its kind and sample."""
    returns = {row["episode_id"]: 0.5 for row in rows["episodes"]}
    of_probes = {p["play_id"]: scores.get(f"{p['kind']}_{p['sample']}", 0.25) for p in rows["played_probes"]}
    return stop_tables(
        rows["episodes"],
        rows["turns"],
        returns,
        rows["played_probes"],
        rows["probe_turns"],
        of_probes,
        spec,
    )


def test_probes_answer_from_the_frozen_context_and_are_accounted_apart(tmp_path: Path) -> None:
    rows = probed(tmp_path, "debate", held=True)
    contexts = {(t["episode_id"], t["turn_index"]): t["context_hash"] for t in rows["turns"]}
    assert len(rows["played_probes"]) == 2 * 3 * 3  # samples, decisions, episodes
    for probe in rows["played_probes"]:
        assert probe["context_hash"] == contexts[probe["episode_id"], probe["turn_index"]]
        assert (probe["origin"], probe["kind"], probe["skipped"]) == (Origin.PROBE, "stop", None)
    asked = [t for t in rows["probe_turns"] if t["origin"] == Origin.PROBE]
    assert {t["step"] for t in asked} == {"decide"}
    assert sum(t["num_response_tokens"] for t in asked) == sum(p["tokens"] for p in rows["played_probes"])
    assert {t["origin"] for t in rows["turns"]} == {Origin.SAMPLED}
    # no prompt of the episodes has a word of a probe: they are those of plays without probes
    again = probed(tmp_path / "again", "debate", held=True, samples=1)
    assert [t["context_hash"] for t in again["turns"]] == [t["context_hash"] for t in rows["turns"]]


def test_a_stop_that_needs_no_answer_is_probed_once_for_nothing(tmp_path: Path) -> None:
    rows = probed(tmp_path, "evaluate_optimise", held=True, samples=4)
    assert {p["sample"] for p in rows["played_probes"]} == {0}
    assert {p["tokens"] for p in rows["played_probes"]} == {0}


def test_a_trace_that_goes_on_has_a_row_for_every_point_and_its_end_is_censored(tmp_path: Path) -> None:
    rows = probed(tmp_path, "debate", held=True)
    stops, probes = valued(rows, stop_0=0.2, stop_1=0.4)
    assert [s["decision"] for s in stops] == [0, 1, 2, 3] * 3
    assert len(probes) == 18
    for stop in stops[:3]:
        assert (stop["stop_source"], stop["held_back"], stop["stop_taken"]) == ("learned", True, False)
        assert stop["scores"] == [0.2, 0.4]
        assert stop["score"] == pytest.approx(0.3)
        assert stop["utility"] == pytest.approx(0.3 - 0.01 * stop["tokens"])
        assert (stop["weight"], stop["excluded"]) == (1.0, None)
        assert stop["advantage"] == pytest.approx(stop["utility"] - stop["continue_value"])
    end = stops[3]
    assert (end["stop_source"], end["stop_taken"], end["turn_index"]) == ("budget", True, None)
    assert (end["weight"], end["excluded"], end["score"]) == (0.0, NOT_CHOSEN, 0.5)
    assert stops[2]["continue_value"] == pytest.approx(end["utility"])
    assert end["probe_tokens"] == 0
    # no probe and no decision counts as a cost of the team
    turns = [t for t in rows["turns"] if t["episode_id"] == end["episode_id"] and t["step"] != "halt"]
    assert end["tokens"] == sum(t["num_response_tokens"] for t in turns)
    traces = traces_of(stops)
    assert traces.last.tolist() == [3, 3, 3]
    assert traces.score[0].tolist() == pytest.approx([0.3, 0.3, 0.3, 0.5])


def test_a_probe_without_a_score_takes_its_whole_trace_out(tmp_path: Path) -> None:
    rows = probed(tmp_path, "debate", held=True)
    rows["played_probes"][0]["skipped"] = "because"
    stops, _ = valued(rows)
    first = [s for s in stops if s["episode_id"] == rows["played_probes"][0]["episode_id"]]
    assert {s["excluded"] for s in first[:-1]} == {NO_SCORE}
    assert sum(s["weight"] for s in stops) == 6
    assert len(traces_of(stops)) == 2
    rows["episodes"][1]["status"] = "infra_error"
    stops, _ = valued(rows)
    assert [s["excluded"] for s in stops].count(NO_TRACE) == 4


def test_plain_episodes_value_stops_by_what_came_and_by_the_share_that_goes_on(tmp_path: Path) -> None:
    rows = probed(tmp_path, "debate", held=False, samples=1, epsilon=1.0)
    spec = StopSpec(price=0.0, held_back=False, answer_step="decide", epsilon=1.0)
    stops, probes = valued(rows, spec, continue_0=0.9)
    taken = [s for s in stops if s["stop_taken"] and s["stop_source"] == "learned"]
    assert taken
    assert {p["kind"] for p in probes} >= {"continue"}
    for stop in taken:
        assert (stop["utility"], stop["continue_value"], stop["weight"]) == (0.5, 0.9, 1.0)
    unseen, _ = valued({**rows, "played_probes": []}, spec)
    assert {s["excluded"] for s in unseen if s["stop_taken"] and s["stop_source"] == "learned"} == {UNSEEN}
    for stop in stops:
        if not stop["stop_taken"]:
            assert (stop["utility"], stop["continue_value"]) == (0.25, 0.5)


def test_rows_that_are_trained_have_both_options_and_whole_traces_in_one_pass(tmp_path: Path) -> None:
    rows = probed(tmp_path, "debate", held=True)
    stops, _ = valued(rows)
    found = decision_rows(rows["turns"], stops)
    assert len(found) == 9
    assert all(row["stop_token_ids"] != row["continue_token_ids"] for row in found)
    assert {row["end_utility"] for row in found} == {s["utility"] for s in stops if s["turn_index"] is None}
    spec = PartitionSpec("stopper", ranks=2, mini_batches=2, micro_batch_tokens=1, seed=0)
    plan = planned(found, spec)
    assert sorted((r["episode_id"], r["turn_index"]) for r in plan) == sorted(
        (r["episode_id"], r["turn_index"]) for r in found
    )
    places: dict[str, set[Any]] = {}
    for row in plan:
        places.setdefault(row["episode_id"], set()).add((row["mini_batch"], row["rank"], row["micro_batch"]))
    assert all(len(place) == 1 for place in places.values())
    assert {mini for place in places.values() for mini, _, _ in place} == {0, 1}
    assert plan == planned(list(reversed(found)), spec)


def test_a_price_follows_its_budget_and_stays_above_nothing() -> None:
    budget = Budget(cost=10, step=0.5)
    assert budget.next_price(0.1, 20) == pytest.approx(0.1 * 2.718281828**0.5)
    assert budget.next_price(0.1, 5) < 0.1
    assert budget.next_price(0.1, 10) == budget.next_price(0.1, None) == 0.1
    assert budget.next_price(0.1, 0) > 0
    assert budget.next_price(0.1, 1000) == budget.next_price(0.1, 20)
