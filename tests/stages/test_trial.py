"""Trials of candidates, as arithmetic: pairs, their gain and its bound, what a rejected update leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.tables.parquet import TableRef, TableSink
from stages.training.report import taken_back
from stages.training.spec import UpdateReport
from stages.training.trust.spec import REJECTED, TrustSpec
from stages.trial import Played, account_of, gain_of, pairs, returns_of
from workflows.errors import RunFailed
from workflows.trajectory import EPISODES, REWARDS, TRIAL, rows_to_table


def plays(**returns: float | None) -> Played:
    """One play of each task, which has failed where it has no return."""
    return {
        (task, 0): {
            "return": value,
            "failed": None if value is not None else "timeout",
            "response_tokens": 3,
            "prompt_tokens": 5,
        }
        for task, value in returns.items()
    }


def test_a_gain_is_of_pairs_and_a_failed_play_takes_its_pair_out_by_reason() -> None:
    rows = pairs(plays(a=0.0, b=1.0, c=None, d=1.0), plays(a=1.0, b=1.0, c=1.0, d=None))
    gain = gain_of(rows, z=1.0)
    assert (gain.before, gain.after, gain.mean, gain.tasks) == (0.5, 1.0, 0.5, 2)
    assert gain.lower == pytest.approx(0.0)  # 0.5 less one error of 0.5
    account = account_of("m", rows)
    account.check()
    assert (account.rows_in, account.rows_out) == (4, 2)
    assert account.excluded == {"play before failed": 1, "play candidate failed": 1}
    assert rows_to_table(rows, TRIAL).num_rows == 4


def test_samples_of_a_task_are_one_observation() -> None:
    before = {(task, sample): play for sample in (0, 1) for (task, _), play in plays(a=0.0, b=0.0).items()}
    after = {(task, sample): play for sample in (0, 1) for (task, _), play in plays(a=1.0, b=0.5).items()}
    assert gain_of(pairs(before, after), 1.64) == gain_of(
        pairs(plays(a=0.0, b=0.0), plays(a=1.0, b=0.5)), 1.64
    )


def test_a_bound_needs_two_tasks_that_both_teams_have_played() -> None:
    with pytest.raises(RunFailed, match=r"needs 2 tasks .* and has 1 of 2: before: timeout"):
        gain_of(pairs(plays(a=1.0, b=None), plays(a=1.0, b=1.0)), 1.64)
    missing = pairs(plays(a=1.0, b=1.0), plays(a=1.0))
    assert [row["failed"] for row in missing] == [None, "candidate: no return"]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=8),
    st.floats(0, 4),
    st.floats(-3, 3),
)
def test_a_candidate_that_plays_alike_gains_nothing_and_shifting_all_returns_changes_no_gain(
    returns: list[tuple[float, float]], z: float, shift: float
) -> None:
    def sides(by: float) -> Any:
        before = plays(**{f"t{k}": one + by for k, (one, _) in enumerate(returns)})
        return pairs(before, plays(**{f"t{k}": two + by for k, (_, two) in enumerate(returns)}))

    gain, moved = gain_of(sides(0.0), z), gain_of(sides(shift), z)
    assert (moved.mean, moved.lower) == pytest.approx((gain.mean, gain.lower), abs=1e-9)
    assert gain.lower <= gain.mean + 1e-12
    before = plays(**{f"t{k}": one for k, (one, _) in enumerate(returns)})
    same = gain_of(pairs(before, before), z)
    assert (same.mean, same.lower) == (0, 0)


def test_the_return_of_an_episode_is_the_mean_reward_of_its_turns_that_have_one(tmp_path: Path) -> None:
    def stored(name: str, schema: Any, rows: list[dict[str, Any]]) -> TableRef:
        sink = TableSink(name, f"{tmp_path}/{name}", schema)
        return sink.ref([sink.write_part(0, rows_to_table(rows, schema))])

    counts = {"num_prompt_tokens": 7, "num_response_tokens": 2, "sample": 0}
    episodes = [
        {"episode_id": "e0", "task_id": "a", "error": None, **counts},
        {"episode_id": "e1", "task_id": "b", "error": "the engine is gone", **counts},
        {"episode_id": "e2", "task_id": "c", "error": None, **counts},
    ]
    rewards = [
        {"episode_id": "e0", "turn_index": 0, "reward": 1.0},
        {"episode_id": "e0", "turn_index": 1, "reward": None, "no_reward_reason": "tool turn"},
        {"episode_id": "e0", "turn_index": 2, "reward": 0.5},
        {"episode_id": "e2", "turn_index": 0, "reward": None, "no_reward_reason": "reward raised"},
    ]
    played = returns_of(stored("episodes", EPISODES, episodes), stored("rewards", REWARDS, rewards))
    assert played["a", 0]["return"] == 0.75
    assert played["b", 0]["failed"] == "the engine is gone"
    assert played["c", 0]["failed"] == "reward raised"


def test_a_candidate_that_is_taken_back_leaves_the_version_of_before_and_half_the_radius() -> None:
    row = {
        **{"shrink": 1.0, "scale": 2.0, "spent_before": 3, "candidate_version": 4, "decision": "accepted"},
        **{"whole_divergence": 0.01, "divergence": 0.01, "per_episode": 0.02, "kept_share": 1.0},
        **{"next_shrink": 1.0, "next_scale": 2.0},
    }
    report = UpdateReport(
        *("m", 0, 2, 4, 6, 60, 90, 0.1),
        steps=[{"kind": "step", "version_after": 4}],
        summary={"kind": "summary", "version_after": 4, "decision": "accepted", "kept_share": 1.0},
        trust=row,
        ratios=[{"episode_id": "e", "turn_index": 0, "log_ratio": 0.1}],
        on_trial=True,
    )
    back = taken_back(report, TrustSpec(0.05, reject=True, trial_tasks=4), "the trial: worse")
    assert back.version_after == 2
    assert [r["version_after"] for r in back.rows()] == [2, 2]
    assert back.trust is not None
    assert (back.trust["decision"], back.trust["reason"]) == (REJECTED, "the trial: worse")
    assert (back.trust["candidate_version"], back.trust["next_shrink"]) == (4, 0.5)
    assert (back.summary["decision"], back.summary["kept_share"]) == (REJECTED, 0.0)
    assert (back.ratios, back.on_trial) == ([], False)
