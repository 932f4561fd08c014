"""Scores of evaluations: failures count, intervals hold, pass@k is the published estimator."""

from __future__ import annotations

import itertools
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.base import PlayedEpisode
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from rewards.token_f1 import TokenF1
from stages.evaluate import estimate_mean, estimate_score, evaluate, summarise
from workflows.trajectory import EPISODES, EVALUATION, TASKS, TURNS, rows_to_table

METRICS = WeightedRewards((WeightedReward("f1", 1.0, TokenF1()),))


def table(values: dict[str, list[float | None]]) -> pa.Table:
    """An evaluation of one metric: the values of each task's samples, None for a failed episode."""
    rows = [
        {
            "task_id": task,
            "sample": sample,
            "episode_id": f"00000/{task}/{sample}",
            "status": "ok" if value is not None else "infra_error",
            "failed": None if value is not None else "episode infra_error",
            "values": [{"name": "f1", "value": value}],
        }
        for task, samples in values.items()
        for sample, value in enumerate(samples)
    ]
    return pa.Table.from_pylist(rows, schema=EVALUATION)


def test_a_failed_episode_is_in_the_denominator() -> None:
    (score,) = summarise(table({"a": [1.0], "b": [None], "c": [1.0], "d": [None]}), ["f1"])
    assert score.estimate.mean == 0.5
    assert score.estimate.tasks == 4


def test_a_metric_without_a_value_takes_no_other_with_it() -> None:
    def nothing(episode: PlayedEpisode) -> list[float | None]:
        return [None] * len(episode.turns)

    both = WeightedRewards((*METRICS.items, WeightedReward("mark", 1.0, nothing)))
    (row,) = evaluate(*one_answer(), both).to_pylist()
    assert row["values"] == [{"name": "f1", "value": 1.0}, {"name": "mark", "value": None}]
    assert row["failed"] == "no value of mark"


def test_samples_of_one_task_are_one_observation() -> None:
    (many,) = summarise(table({"a": [1.0, 1.0, 0.0, 0.0], "b": [0.0, 0.0, 0.0, 0.0]}), ["f1"])
    (few,) = summarise(table({"a": [0.5], "b": [0.0]}), ["f1"])
    assert many.estimate == few.estimate


def test_scores_stand_apart_by_the_source_of_tasks_where_there_are_several() -> None:
    values = table({"a": [1.0, 0.0], "b": [0.0, None], "c": [1.0, 1.0]})
    sources = {"a": "nq", "b": "nq", "c": "hotpot", "d": "not played"}
    (score,) = summarise(values, ["f1"], sources=sources)
    assert {source: of.estimate.mean for source, of in score.by_source.items()} == {"hotpot": 1.0, "nq": 0.25}
    assert {source: of.estimate.tasks for source, of in score.by_source.items()} == {"hotpot": 1, "nq": 2}
    assert score.by_source["nq"].pass_at == {1: 0.25, 2: 0.5}
    (whole,) = summarise(values, ["f1"])
    assert (score.estimate, score.pass_at) == (whole.estimate, whole.pass_at)
    (alone,) = summarise(values, ["f1"], sources=dict.fromkeys("abc", "nq"))
    assert alone.by_source == {}


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_pass_at_k_is_the_chance_that_one_of_k_drawn_samples_is_solved(drawn: list[list[bool]]) -> None:
    values = {f"t{i}": [float(solved) for solved in samples] for i, samples in enumerate(drawn)}
    (score,) = summarise(table(values), ["f1"])
    assert set(score.pass_at) == {1, 2, 4, 5}
    for k, found in score.pass_at.items():
        by_hand = [
            sum(any(chosen) for chosen in itertools.combinations(samples, k)) / math.comb(5, k)
            for samples in drawn
        ]
        assert found == pytest.approx(sum(by_hand) / len(by_hand))


def test_the_interval_is_student_s() -> None:
    found = estimate_mean([1.0, 2.0, 3.0, 4.0])
    half = 3.182446 * math.sqrt(5 / 3) / 2  # t(0.975, 3) from a table
    assert (found.low, found.high) == (
        pytest.approx(2.5 - half, abs=1e-5),
        pytest.approx(2.5 + half, abs=1e-5),
    )
    assert estimate_mean([0.25]).low is None
    with pytest.raises(ValueError, match="at least one"):
        estimate_mean([])


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        # binary: Wilson's formula by hand with t(0.975, 3) = 3.182446 and n = 4 p(1 - p)/s² = 3
        ([1.0, 1.0, 1.0, 0.0], 0.130661, 0.983547),
        ([1.0, 1.0, 1.0, 1.0], 4 / (4 + 3.182446**2), 1.0),
        ([0.0, 0.0, 0.0, 0.0], 0.0, 3.182446**2 / (4 + 3.182446**2)),
    ],
)
def test_the_interval_of_scores_from_0_to_1_is_wilson_s(values: list[float], low: float, high: float) -> None:
    interval = estimate_score(values)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_an_interval_of_scores_holds_its_mean_and_stays_possible(values: list[float]) -> None:
    interval = estimate_score(values)
    assert interval.low is not None
    assert interval.high is not None
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1 + 1e-12


def test_equal_means_of_runs_do_not_differ_and_equal_answers_may_be_luck() -> None:
    runs, answers = estimate_score([1.0, 1.0, 1.0], of_means=True), estimate_score([1.0, 1.0, 1.0])
    assert (runs.low, runs.high) == (1.0, 1.0)
    assert answers.low is not None
    assert answers.low < 0.2


def test_scores_beyond_0_and_1_keep_student_s_interval_and_many_values_agree_with_it() -> None:
    assert estimate_score([0.5, 1.5, 0.2]) == estimate_mean([0.5, 1.5, 0.2])
    many = [0.4, 0.5, 0.6, 0.7] * 200
    one, other = estimate_score(many), estimate_mean(many)
    assert (one.low, one.high) == (pytest.approx(other.low, abs=1e-3), pytest.approx(other.high, abs=1e-3))


def one_answer() -> tuple[pa.Table, pa.Table, pa.Table]:
    """Tasks, turns and episodes of one right answer of a frozen role."""
    turn = dict.fromkeys(TURNS.names) | {
        "episode_id": "00000/t/0",
        "turn_index": 0,
        "step": "answer",
        "round": 0,
        "branch": "",
        "event": "llm",
        "role": "answerer",
        "trainable": False,
        "status": "ok",
        "format_valid": True,
        "parsed": '"Bram Stoker"',
        "response_text": "<answer>Bram Stoker</answer>",
    }
    task = {
        "task_id": "t",
        "split": "dev",
        "source": "s",
        "inputs": "{}",
        "gold": '{"answers":["Bram Stoker"]}',
        "row_hash": "h",
    }
    return rows_to_table([task], TASKS), rows_to_table([turn], TURNS), rows_to_table([EPISODE], EPISODES)


EPISODE = dict.fromkeys(EPISODES.names) | {
    "task_id": "t",
    "sample": 0,
    "episode_id": "00000/t/0",
    "status": "ok",
}


def test_frozen_roles_are_evaluated_and_episodes_without_turns_fail() -> None:
    tasks, turns, _ = one_answer()
    lost = EPISODE | {"sample": 1, "episode_id": "00000/t/1", "status": "infra_error"}
    found = evaluate(tasks, turns, rows_to_table([lost, EPISODE], EPISODES), METRICS).to_pylist()
    assert [row["episode_id"] for row in found] == ["00000/t/0", "00000/t/1"]
    assert found[0]["values"] == [{"name": "f1", "value": 1.0}]
    assert found[0]["failed"] is None
    assert found[1]["values"] == [{"name": "f1", "value": None}]
    assert found[1]["failed"] == "episode infra_error"
