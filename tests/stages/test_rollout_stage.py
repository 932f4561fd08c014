"""Shards, receipts and the failure budget: what a rollout keeps, counts and says. No Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stages.players.actor import PlayerActor, PlayerSpec, failures, whole_groups
from stages.players.shards import Shard, num_failed, read_receipt
from stages.rollout import RolloutStage, causes, merged_failures
from stages.tables.parquet import Part, TableSink
from workflows.engine import Message, Sampling
from workflows.errors import InfraError, RunFailed, SchemaError
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.testing import ScriptedEngine
from workflows.trajectory import EPISODES, TASKS, TURNS, rows_to_table


def episode(group: str, sample: int, error: str | None = None, **other: Any) -> dict[str, Any]:
    status, stop = ("ok", "finished") if error is None else ("infra_error", "call_failed")
    ids = {"group_id": group, "episode_id": f"{group}/{sample}"}
    return {**ids, "status": status, "stop_reason": stop, "error": error, **other}


def test_causes_that_differ_in_numbers_are_one_kind_with_the_first_as_its_example() -> None:
    found = failures([
        episode("g", 3, "step 'a' (round 2): prompt of 71 tokens"), episode("g", 0),
        episode("g", 2, "step 'a' (round 1): prompt of 923 tokens"),
        episode("h", 1, "step 'b': <Index at 0x7f1e> is gone"),
        episode("h", 0, "step 'b': <Index at 0x0aa> is gone"),
    ])  # fmt: skip
    assert [(f["count"], f["episode_id"], f["cause"]) for f in found.values()] == [
        (2, "g/2", "infra_error, call_failed: step 'a' (round 1): prompt of 923 tokens"),
        (2, "h/0", "infra_error, call_failed: step 'b': <Index at 0x0aa> is gone"),
    ]


def test_a_group_is_whole_partial_or_failed() -> None:
    episodes = [episode("a", 0), episode("a", 1), episode("b", 0), episode("b", 1, "x"), episode("c", 0, "x")]
    assert whole_groups(episodes) == {"whole": 1, "partial": 1, "failed": 1}
    assert whole_groups([]) == {"whole": 0, "partial": 0, "failed": 0}


def receipt(*episodes: dict[str, Any]) -> dict[str, Any]:
    part = {"name": "p", "rows": len(episodes), "bytes": 0, "hash": ""}
    return {
        "parts": {"turns": part, "episodes": part}, "failed": failures(episodes), "response_tokens": 0,
        "groups": whole_groups(episodes), "prompt_tokens": 0, "stray_tool_threads": 0,
    }  # fmt: skip


def test_a_spent_budget_fails_the_run_with_its_most_frequent_causes_and_an_example_of_each() -> None:
    broken = [episode("g", i, f"step 'ask': port {8000 + i} is closed") for i in range(3)]
    receipts = [
        receipt(*broken),
        receipt(episode("h", 0, "index gone"), *(episode("h", i) for i in (1, 2, 3))),
    ]
    with pytest.raises(RunFailed) as caught:
        RolloutStage(4, 8, max_failed_share=0.5)._result(receipts, 7)
    assert str(caught.value) == (
        "4 of 7 episodes failed, more than the 0.5 that max_failed_share allows; most frequent: "
        "3 × infra_error, call_failed: step 'ask': port 8000 is closed (as in g/0); "
        "1 × infra_error, call_failed: index gone (as in h/0); "
        "when the cause is gone, the same command plays the failed episodes again"
    )


def test_within_the_budget_failures_are_counted_and_cost_no_other_episode() -> None:
    receipts = [receipt(episode("g", 0, "x"), *(episode("g", i) for i in (1, 2, 3)))]
    result = RolloutStage(4, 8, max_failed_share=0.25)._result(receipts, 4)
    told = ("episodes", "episodes_failed", "groups_partial", "groups_failed")
    assert [result.metrics[name] for name in told] == [4, 1, 1, 0]
    assert "1 of 4 episodes failed, so 1 groups are partial and 0 lost: 1 × " in result.notes[0]


def test_a_message_names_few_causes_of_many() -> None:
    merged = merged_failures([failures([episode("g", i, "x" * (i + 1)) for i in range(9)])])
    assert causes(merged).endswith("and 6 other causes")
    assert len(causes(merged)) < 600


# --- a player's shard -------------------------------------------------------------------------------


def play_shard(folder: Path, task_ids: Sequence[str], failing: str = "none") -> dict[str, Any]:
    """A shard of `single` on a scripted engine that is down for one question."""

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        if failing in messages[-1]["content"]:
            raise InfraError("engine down")

    async def run() -> dict[str, Any]:
        engine = ScriptedEngine(lambda m, s: f"<answer>{s.seed}</answer>", before=before)
        models = ModelMap({"m": Model("m", "m", "scripted")}, {"solver": "m"})
        actor = PlayerActor(
            PlayerSpec("single", {}, models, {}, PlayLimits(backoff_seconds=0), 0, 2), {"m": engine}
        )
        await actor.start()
        rows = [
            {"task_id": t, "split": "train", "source": "s", "inputs": json.dumps({"question": f"about {t}"}),
             "gold": "{}", "row_hash": ""} for t in task_ids
        ]  # fmt: skip
        sink = TableSink("tasks", str(folder / "tasks"), TASKS)
        tasks = sink.ref([sink.write_part(0, rows_to_table(rows, TASKS))])
        sinks = {
            "turns": TableSink("turns", str(folder / "turns"), TURNS),
            "episodes": TableSink("episodes", str(folder / "episodes"), EPISODES),
        }
        return await actor.play_shard(Shard(0, 0, 3, tasks, sinks, str(folder / "receipts")))

    return asyncio.run(run())


def test_a_shard_keeps_the_rows_of_all_its_episodes_the_failed_ones_among_them(tmp_path: Path) -> None:
    receipt = play_shard(tmp_path, ["red", "blue"], failing="red")
    assert read_receipt(str(tmp_path / "receipts/00000.json")) == receipt
    assert (receipt["parts"]["episodes"]["rows"], receipt["parts"]["turns"]["rows"]) == (6, 6)
    assert receipt["groups"] == {"whole": 1, "partial": 0, "failed": 1}
    [failed] = receipt["failed"].values()
    assert (failed["count"], failed["episode_id"]) == (3, "00000/red/0")
    assert failed["cause"] == "infra_error, call_failed: step 'solve': engine down"


def test_two_tasks_of_one_id_are_refused_before_they_are_played(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="task 'red' stands 2 times"):
        play_shard(tmp_path, ["red", "blue", "red"])
    assert not (tmp_path / "receipts").exists()


# --- a shard that goes on after an outage -----------------------------------------------------------


def rows(folder: Path, receipt: dict[str, Any], table: str) -> list[dict[str, Any]]:
    sink = TableSink(table, str(folder / table), {"turns": TURNS, "episodes": EPISODES}[table])
    timed = {"started_at", "queued_at", "first_token_at", "ended_at", "seconds"}
    found = sink.ref([Part(**receipt["parts"][table])]).read().to_pylist()
    return [{k: v for k, v in row.items() if k not in timed} for row in found]


def test_failed_episodes_of_a_shard_are_played_again_and_the_good_ones_stay(tmp_path: Path) -> None:
    first = play_shard(tmp_path / "a", ["red", "blue"], failing="red")
    untouched = sorted(p for p in (tmp_path / "a").rglob("*.parquet") if "tasks" not in p.parts)
    before = rows(tmp_path / "a", first, "turns")
    again = play_shard(tmp_path / "a", ["red", "blue"])
    assert (num_failed(first), num_failed(again), again["episodes_again"]) == (3, 0, 3)
    assert again["groups"] == {"whole": 2, "partial": 0, "failed": 0}
    unbroken = play_shard(tmp_path / "b", ["red", "blue"])
    for table in ("turns", "episodes"):  # equal keys, seeds and texts: as if there had been no outage
        assert rows(tmp_path / "a", again, table) == rows(tmp_path / "b", unbroken, table)
    counted = ("response_tokens", "prompt_tokens", "episodes_asked", "failed", "groups")
    assert {k: again[k] for k in counted} == {k: unbroken[k] for k in counted}
    good = [row for row in before if row["task_id"] == "blue"]
    assert good == [row for row in rows(tmp_path / "a", again, "turns") if row["task_id"] == "blue"]
    assert not any(path.exists() for path in untouched)  # the tables that were replaced are gone


def test_a_shard_that_fails_again_keeps_its_accounts(tmp_path: Path) -> None:
    play_shard(tmp_path, ["red", "blue"], failing="red")
    again = play_shard(tmp_path, ["red", "blue"], failing="red")
    assert (again["times_played"], num_failed(again)) == (2, 3)
    assert again["parts"]["episodes"]["rows"] == 6
    assert len({row["episode_id"] for row in rows(tmp_path, again, "episodes")}) == 6
