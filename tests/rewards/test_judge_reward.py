"""A judge's mark as a reward: how it is read, who gets it, and what is no mark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rewards.judge import Judge
from rewards.loading import load_reward
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from workflows.errors import UsageError
from workflows.teams.debate import build
from workflows.testing import play_once
from workflows.trajectory import EPISODES, TASKS, TURNS, rows_to_table

ANSWER = "<answer>eight</answer>"


def debate(judge_says: str, **options: Any) -> pa.Table:
    """Rewards of one debate in which `judge` is frozen."""
    team = {"debater": ANSWER, "reviser": ANSWER, "decider": ANSWER, "judge": judge_says}
    played = play_once(build(debaters=2, judge=True), {"question": "?"}, team)
    for turn in played.turns:
        turn["trainable"] = turn["role"] != "judge"
    task = {"task_id": "task", "inputs": '{"question": "?"}', "gold": '{"answers": ["x"]}'}
    reward = Judge(**{"scale": (0, 10), **options})
    rewards = WeightedRewards((WeightedReward("judge", 2.0, reward), WeightedReward("one", 1.0, ones)))
    return score_turns(
        rows_to_table([task], TASKS),
        rows_to_table(played.turns, TURNS),
        rows_to_table([played.episode], EPISODES),
        rewards,
    )


def ones(episode: Any) -> list[float | None]:
    trained = set(episode.trainable())
    return [1.0 if i in trained else None for i in range(len(episode.turns))]


def test_everyone_but_the_judge_gets_its_mark() -> None:
    table = debate("<score>8</score>")
    assert table["reward"].to_pylist() == [2 * 0.8 + 1] * 3 + [None]
    assert table["no_reward_reason"].to_pylist() == [None] * 3 + ["model is frozen"]


def test_a_judge_that_is_trained_does_not_mark_itself() -> None:
    judge = Judge(scale=(0, 10))
    turn = {"event": "llm", "trainable": True, "parsed": 5, "format_valid": True, "status": "ok"}
    turns = [{**turn, "step": "write"}, {**turn, "step": "judge", "response_text": "5"}]
    assert judge(episode(turns)) == [0.5, None]


@pytest.mark.parametrize(
    "said", ["great", "<score>great</score>", "<score>11</score>", "<score>nan</score>", "8"]
)
def test_no_mark_is_never_a_zero(said: str) -> None:
    excluded = debate(said)
    assert excluded["reward"].to_pylist() == [None] * 4
    assert all("reward 'judge' failed" in reason for reason in excluded["no_reward_reason"].to_pylist())
    skipped = debate(said, malformed="skip")
    assert skipped["reward"].to_pylist() == [1.0] * 3 + [None]


def episode(turns: list[dict[str, Any]]) -> Any:
    from rewards.base import PlayedEpisode

    return PlayedEpisode("e", "ok", {}, {}, turns)


def mark(parsed: Any, text: str = "", **options: Any) -> float:
    """The mark of a judge with these turns: one, or a list of several."""
    each = parsed if isinstance(parsed, list) else [parsed]
    turn = {"step": "judge", "event": "llm", "trainable": False, "status": "ok", "format_valid": True}
    return Judge(**options).mark_of(episode([{**turn, "parsed": p, "response_text": text} for p in each]))


def test_how_a_mark_is_read() -> None:
    assert mark("0.25") == mark(0.25) == 0.25
    assert mark({"score": "3"}, key="score", scale=(1, 5)) == 0.5
    assert mark(2, scale=(5, 1)) == 0.75  # where 1 is best
    assert mark(None, "first 2/10, no: 7/10", pattern=r"(\d+)/10", scale=(0, 10)) == 0.7
    assert mark([0.0, 1.0]) == 1.0
    assert mark([0.0, 1.0], combine="mean") == 0.5
    for bad in (True, None, [None], {"score": 1}, "inf"):
        with pytest.raises(ValueError, match="names no mark"):
            mark(bad)
    with pytest.raises(ValueError, match="has not run"):
        Judge().mark_of(episode([]))


@pytest.mark.parametrize(("options", "message"), [
    ({"scale": (1, 1)}, "two different numbers"),
    ({"scale": (0, float("inf"))}, "two different numbers"),
    ({"combine": "best"}, "combine"),
    ({"malformed": "zero"}, "malformed"),
    ({"pattern": "("}, "is not a regular expression"),
    ({"pattern": "(a)(b)"}, "2 groups"),
    ({"pattern": "(a)", "key": "k"}, "two ways"),
    ({"steps": "judge"}, "no option 'steps'"),
])  # fmt: skip
def test_options_that_can_not_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_reward("judge", options)
