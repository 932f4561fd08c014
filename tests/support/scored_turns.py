"""Small tables of played turns, and their rewards."""

import json
from dataclasses import dataclass

from rewards.format import Format
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from rewards.token_f1 import TokenF1
from tests.support.tables import named_values
from workflows.trajectory import EPISODES, REWARDS, TASKS, TURNS, rows_to_table

BOTH = WeightedRewards(
    (WeightedReward("token_f1", 2.0, TokenF1()), WeightedReward("format", 0.5, Format({"reader": 3.0})))
)


def task(task_id="t", answers=("Paris",)):
    gold = json.dumps({"answers": list(answers)})
    return {"task_id": task_id, "inputs": json.dumps({"question": "?"}), "gold": gold}


def episode(episode_id="t/0", status="ok"):
    return {"episode_id": episode_id, "task_id": episode_id.split("/")[0], "status": status}


def llm(index, step="answer", parsed="Paris", episode_id="t/0", **other):
    return {
        "episode_id": episode_id,
        "turn_index": index,
        "step": step,
        "role": step,
        "event": "llm",
        "model_id": "m",
        "trainable": True,
        "status": "ok",
        "parsed": None if parsed is None else json.dumps(parsed),
        "format_valid": parsed is not None,
        "response_text": str(parsed),
        "num_response_tokens": 7,
    } | other


def tool(index, episode_id="t/0", **other):
    return {
        "episode_id": episode_id,
        "turn_index": index,
        "step": "retrieve",
        "event": "tool",
        "status": "ok",
        "tool": "bm25",
        "tool_request": '{"queries":["x"]}',
        "tool_result": '{"passages":[]}',
        "trainable": False,
        "metrics": named_values({"hits": 2.0}),
    } | other


def tables(turns, episodes=None, tasks=None):
    return (
        rows_to_table(tasks or [task()], TASKS),
        rows_to_table(turns, TURNS),
        rows_to_table(episodes or [episode()], EPISODES),
    )


def score(turns, episodes=None, tasks=None, rewards=BOTH, **options):
    """Rows of the rewards table by key."""
    table = score_turns(*tables(turns, episodes, tasks), rewards, **options)
    assert table.schema == REWARDS
    rows = table.to_pylist()
    keys = [(r["episode_id"], r["turn_index"]) for r in rows]
    assert keys == sorted((t["episode_id"], t["turn_index"]) for t in turns)
    for row in rows:  # a number, or the reason why there is none
        assert (row["reward"] is None) != (row["no_reward_reason"] is None)
    return dict(zip(keys, rows, strict=True))


def parts(row):
    return {p["name"]: p["value"] for p in row["reward_parts"]}


def only(reward, name="mine"):
    return WeightedRewards((WeightedReward(name, 1.0, reward),))


@dataclass(frozen=True)
class Returns:
    """Gives what it is told for episode t/0, and ones for the others."""

    answer: object

    def __call__(self, played):
        if played.episode_id != "t/0":
            return [1.0] * len(played.turns)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
