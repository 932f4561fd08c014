"""A team that is written as a function, with a frozen judge, from settings to new weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import assemble
from pipeline.plan.overview import overview
from pipeline.run.runner import Finished
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.run import Run
from pipeline.views.overview import overview_lines
from stages.players.actor import PlayerSpec, play_shard, player_process, start_players
from stages.players.shards import Shard
from stages.tables.parquet import TableSink
from workflows.engine import Message, Sampling
from workflows.errors import RunFailed
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.testing import ScriptedEngine
from workflows.trajectory import EPISODES, TASKS, TURNS, rows_to_table


def settings(scripted: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    raw = scripted(workflow={"use": "debate", "options": {"debaters": 2, "judge": True}})
    del raw["workflow"]["options"]["top_k"]
    raw["models"]["critic"] = {**raw["models"]["team"], "train": False}
    del raw["models"]["critic"]["trainer"]
    speaks = {"debater": "team", "reviser": "team", "decider": "team", "judge": "critic"}
    raw["roles"] = {role: {"model": model} for role, model in speaks.items()}
    raw["rewards"] = [
        {"use": "judge", "options": {"scale": [0, 10], "malformed": "skip"}},
        {"use": "format", "weight": 0.2},
    ]
    return raw


def test_check_shows_a_function_and_a_frozen_model(scripted: Callable[..., dict[str, Any]]) -> None:
    plan = assemble(parse_settings(settings(scripted)))
    assert set(plan.trainer_specs) == {"team"}
    assert len(plan.engine_specs) == 2
    lines = "\n".join(overview_lines(overview(plan)))
    assert "workflows.teams.debate:debate decides in Python" in lines
    assert "engine scripted, frozen" in lines
    assert {s.name for s in plan.stages if "/" in s.name and "critic" in s.name} == set()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_function_with_a_frozen_judge_runs_through_an_iteration(
    scripted: Callable[..., dict[str, Any]],
) -> None:
    plan = assemble(parse_settings(settings(scripted)))
    with session(plan, signals=False) as runner:
        done: Finished = runner.run_iteration()
        run: Run = runner.run
    turns, credit = (pl.DataFrame(done.tables[name].read()) for name in ("turns", "credit"))
    judged = turns.filter(role="judge")
    assert judged.height == 16
    assert not judged["trainable"].any()
    assert set(judged["model_id"]) == {"critic"}
    partition = pl.DataFrame(done.tables["partition/team"].read())
    assert set(partition["role"]) == {"debater", "reviser", "decider"}
    usable = credit.filter(pl.col("excluded").is_null())
    assert usable.height == partition.height
    assert usable.filter(pl.col("advantage") != 0).height > 0
    assert run.checkpoint_versions("team") == [1]
    assert run.checkpoint_versions("critic") == []
    assert json.loads(turns["team_version"].drop_nulls()[0]) == {"critic": 0, "team": 0}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_player_that_a_plain_function_blocks_fails_the_run_and_does_not_hang(tmp_path: Path) -> None:
    def blocks(messages: Sequence[Message], sampling: Sampling) -> str:
        time.sleep(20)
        return ""

    models = ModelMap({"m": Model("m", "m", "scripted")}, {"solver": "m"})
    spec = PlayerSpec("single", {}, models, {}, PlayLimits(episode_timeout_seconds=1), 0, 1)
    player = player_process(spec)
    start_players([player], spec, {"m": ScriptedEngine(blocks)})
    row = {"task_id": "t", "split": "train", "source": "", "inputs": '{"question": "?"}', "gold": "{}"}
    sink = TableSink("tasks", str(tmp_path / "tasks"), TASKS)
    tasks = sink.ref([sink.write_part(0, rows_to_table([row], TASKS))])
    sinks = {n: TableSink(n, str(tmp_path / n), s) for n, s in (("turns", TURNS), ("episodes", EPISODES))}
    with pytest.raises(RunFailed, match="has not answered for"):
        play_shard(player, Shard(0, 0, 1, tasks, sinks, str(tmp_path / "receipts")), stall_seconds=0.5)
    import ray

    ray.kill(player)
