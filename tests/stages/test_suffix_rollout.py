"""Blocks that play the ends of block 0's episodes again: what is kept is exact, and what it saves. No Ray."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stages.players.actor import PlayerActor, PlayerSpec
from stages.players.shards import Shard
from stages.rollout import BASE_TURNS, RolloutStage
from stages.tables.parquet import Part, TableRef, TableSink
from tests.support.small_teams import equally_long
from workflows.errors import InfraError, SchemaError
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.testing import ScriptedEngine
from workflows.trajectory import EPISODES, TASKS, TURNS, rows_to_table

GROUP = 3
TASK_IDS = ("red", "blue/sea")


class Line:
    """A team of `count` units that speak in turn, and the blocks of its iteration."""

    def __init__(self, count: int, folder: Path, before: Any = None) -> None:
        self.folder = folder
        ids = [f"r{i}" for i in range(count)]
        self.engines = {m: ScriptedEngine(equally_long, model_id=m, before=before) for m in ids}
        models = ModelMap({m: Model(m, m, "scripted") for m in ids}, {m: m for m in ids})
        spec = PlayerSpec(
            "tests.support.small_teams:line", {"roles": count}, models, {},
            PlayLimits(backoff_seconds=0, call_attempts=1), 0, 4,
        )  # fmt: skip
        self.actor = PlayerActor(spec, self.engines)
        rows = [
            {"task_id": t, "split": "train", "source": "s", "inputs": json.dumps({"question": t}),
             "gold": "{}", "row_hash": ""} for t in TASK_IDS
        ]  # fmt: skip
        sink = TableSink("tasks", str(folder / "tasks"), TASKS)
        self.tasks = sink.ref([sink.write_part(0, rows_to_table(rows, TASKS))])

    def play(self, block: int, base: TableRef | None = None) -> dict[str, TableRef]:
        sinks = {
            name: TableSink(name, str(self.folder / f"{block}/{name}"), schema)
            for name, schema in (("turns", TURNS), ("episodes", EPISODES))
        }
        folder = str(self.folder / f"{block}/receipts")
        shard = Shard(0, 4, GROUP, self.tasks, sinks, folder, block, base)

        async def run() -> dict[str, Any]:
            await self.actor.start()  # in the event loop of this block
            return await self.actor.play_shard(shard)

        self.receipt = asyncio.run(run())
        return {name: sink.ref([Part(**self.receipt["parts"][name])]) for name, sink in sinks.items()}


def rows(table: TableRef) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.read().to_pylist()
    return found


def tokens(table: TableRef, origin: str = "sampled") -> int:
    return sum(t["num_response_tokens"] for t in rows(table) if t["origin"] == origin)


def iteration(folder: Path, order: Sequence[int]) -> list[dict[str, TableRef]]:
    """The tables of each block, where the units are updated in this order."""
    team = Line(len(order), folder)
    blocks: list[dict[str, TableRef]] = []
    for block, unit in enumerate(order):
        blocks.append(team.play(block, blocks[0]["turns"] if block else None))
        team.engines[f"r{unit}"].policy_version += 1
    return blocks


@pytest.mark.parametrize("count", [2, 3, 5])
def test_in_reverse_speaking_order_n_plus_1_of_2n_tokens_are_sampled_and_all_in_speaking_order(
    count: int, tmp_path: Path
) -> None:
    units = range(count)
    reverse, forward = (
        iteration(tmp_path / name, order) for name, order in (("r", [*reversed(units)]), ("f", [*units]))
    )
    fresh = count * tokens(reverse[0]["turns"])  # every block of fresh plays samples what block 0 does
    for name, made, share in (("reverse", reverse, (count + 1) / (2 * count)), ("forward", forward, 1.0)):
        sampled = sum(tokens(block["turns"]) for block in made)
        assert sampled == share * fresh, name
        of_episodes = sum(e["num_response_tokens"] for block in made for e in rows(block["episodes"]))
        assert of_episodes == sampled
        for block in made:  # as many rows for each update as with fresh plays
            assert block["turns"].rows == len(TASK_IDS) * GROUP * count
    if count == 5:
        assert sum(tokens(block["turns"]) for block in reverse) <= 2 / 3 * fresh


@pytest.mark.parametrize(
    "order", [*([*random.Random(s).sample(range(5), 5)] for s in range(4)), [4, 3, 2, 1, 0]]
)
def test_what_is_kept_was_sampled_by_the_weights_of_today_and_nothing_else_is(
    order: list[int], tmp_path: Path
) -> None:
    blocks = iteration(tmp_path, order)
    base = {(t["task_id"], t["sample"], t["step"]): t for t in rows(blocks[0]["turns"])}
    replies = set()
    for block, tables in enumerate(blocks):
        updated = set(order[:block])
        first = min(updated, default=5)  # the first unit in speaking order that was updated
        for turn in rows(tables["turns"]):
            unit = int(turn["role"][1:])
            assert turn["origin"] == ("copied" if block and unit < first else "sampled")
            assert turn["policy_version"] == (1 if unit in updated else 0)
            team = json.loads(turn["team_version"])
            if turn["origin"] == "sampled":
                assert team == {f"r{u}": int(u in updated) for u in range(5)}
                replies.add(turn["response_text"])
            then = base[turn["task_id"], turn["sample"], turn["step"]]
            kept = (
                "response_token_ids",
                "behaviour_logprobs",
                "sampling",
                "context_hash",
                "parsed",
                "status",
            )
            if turn["origin"] == "copied":
                assert all(turn[c] == then[c] for c in kept)
            if block:
                assert turn["base_episode_id"] == then["episode_id"] != turn["episode_id"]
                assert turn["replay_from_turn"] == first
            else:
                assert turn["base_episode_id"] is None
        for episode in rows(tables["episodes"]):
            assert episode["num_copied_tokens"] == (31 * first if block else None)
    sampled = [t for tables in blocks for t in rows(tables["turns"]) if t["origin"] == "sampled"]
    assert len(replies) == len(sampled)  # each block samples its own continuations


def test_blocks_are_played_alike_whatever_was_played_before_in_the_same_process(tmp_path: Path) -> None:
    one, other = (iteration(tmp_path / name, [2, 1, 0]) for name in "ab")
    times = {"queued_at", "started_at", "first_token_at", "ended_at", "seconds"}
    for mine, theirs in zip(one, other, strict=True):
        for name in ("turns", "episodes"):
            assert [{k: v for k, v in row.items() if k not in times} for row in rows(mine[name])] == [
                {k: v for k, v in row.items() if k not in times} for row in rows(theirs[name])
            ]


def test_an_episode_that_failed_in_block_0_is_played_on_from_its_last_good_turn(tmp_path: Path) -> None:
    down = {"now": True}

    async def before(messages: Any, sampling: Any) -> None:
        if down["now"] and "red" not in messages[-1]["content"] and "answer" in messages[-1]["content"]:
            raise InfraError("down")

    team = Line(3, tmp_path, before)
    first = team.play(0)
    assert all(e["status"] == "infra_error" for e in rows(first["episodes"]))
    down["now"] = False
    team.engines["r2"].policy_version = 1
    second = team.play(1, first["turns"])
    assert {e["status"] for e in rows(second["episodes"])} == {"ok"}
    assert {t["step"] for t in rows(second["turns"]) if t["origin"] == "copied"} == {"s0"}
    assert team.receipt["copied_tokens"] == tokens(second["turns"], "copied") == 31 * 6


def test_a_suffix_that_failed_is_played_again_from_the_same_base(tmp_path: Path) -> None:
    down = {"now": False}

    async def before(messages: Any, sampling: Any) -> None:
        if down["now"]:
            raise InfraError("down")

    team = Line(3, tmp_path / "a", before)
    first = team.play(0)
    team.engines["r2"].policy_version = 1
    down["now"] = True
    broken = team.play(1, first["turns"])
    assert {e["status"] for e in rows(broken["episodes"])} == {"infra_error"}
    down["now"] = False
    mended = team.play(1, first["turns"])
    unbroken = iteration(tmp_path / "b", [2, 1, 0])[1]
    times = {"queued_at", "started_at", "first_token_at", "ended_at", "seconds"}
    assert [{k: v for k, v in t.items() if k not in times} for t in rows(mended["turns"])] == [
        {k: v for k, v in t.items() if k not in times} for t in rows(unbroken["turns"])
    ]


def test_parts_that_do_not_belong_together_are_refused_before_a_player_is_asked(tmp_path: Path) -> None:
    from stages.base import Context

    team = Line(2, tmp_path)
    first = team.play(0)["turns"]
    stage = RolloutStage(GROUP, 4, 0.0, suffix=True)
    outputs = {n: TableSink(n, str(tmp_path / "x" / n), s) for n, s in stage.outputs.items()}
    two = TableRef("turns", first.folder, first.schema, first.parts * 2)
    with pytest.raises(SchemaError, match="different numbers of parts"):
        stage.run({"tasks": team.tasks, BASE_TURNS: two}, outputs, Context(0))
