"""`[schedule] rollouts = "suffix"` in whole runs: exact by the version vector, resumed, replayed, counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import assemble
from pipeline.replays.plan import replay_plan
from pipeline.replays.replayer import replay
from pipeline.replays.settings import overridden
from pipeline.replays.source import Source
from pipeline.report.write import write_report
from pipeline.run.session import session
from pipeline.settings.reading import load_settings, parse_settings
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.shelf import shelf_of
from pipeline.views.stored import print_place
from stages.base import Quiet
from tests.whole.test_blocks import EXAMPLE, of_blocks, stop_before
from tests.whole.test_iteration import _Halt, play, same
from tests.whole.test_kills import command, finish, start, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

Settings = Callable[..., dict[str, Any]]
Whole = tuple[Run, list[Finished]]
UNITS = 3
TOKENS = 31  # of each reply of the scripted team


def line(raw: dict[str, Any], name: str, order: str = "reverse", rollouts: str = "suffix") -> dict[str, Any]:
    """A scripted team of three models that speak in turn."""
    raw = json.loads(json.dumps(raw))
    team = raw["models"].pop("team")
    team["engine_options"] = {"reply": "tests.support.small_teams:equally_long"}
    raw["run"]["name"] = name
    raw["models"] = {f"r{i}": dict(team) for i in range(UNITS)}
    raw["roles"] = {f"r{i}": {"model": f"r{i}"} for i in range(UNITS)}
    raw["workflow"] = {"use": "tests.support.small_teams:line", "options": {"roles": UNITS}}
    raw["data"]["tasks_per_iteration"] = 2 * UNITS
    raw["rewards"] = [{"use": "tests.support.small_teams:last_digit", "name": "digit"}]
    raw["schedule"] = {"use": "sequential", "options": {"order": order, "rollouts": rollouts}}
    return raw


def sampled(block: dict[str, pl.DataFrame]) -> int:
    return int(block["turns"].filter(origin="sampled")["num_response_tokens"].sum())


@pytest.fixture(scope="module")
def whole(ray_cluster: None, scripted_module: dict[str, Any]) -> Whole:
    """Two iterations in reverse speaking order that nothing broke."""
    return play(line(scripted_module, "whole"), iterations=2)


def test_later_blocks_keep_what_the_weights_of_today_would_have_said(whole: Whole) -> None:
    run, done = whole
    for index, finished in enumerate(done):
        blocks = of_blocks(run, index)
        assert finished.notes[0] == (
            "3 blocks: 0 played and trained r2; 1 played on and trained r1; 2 played on and trained r0"
        )
        for number, block in enumerate(blocks):
            unit, updated = f"r{2 - number}", {f"r{u}" for u in range(3 - number, 3)}
            turns = block["turns"]
            assert set(turns["role"].filter(turns["origin"] == "copied")) == (
                {f"r{u}" for u in range(3 - number)} if number else set()
            )
            for row in turns.iter_rows(named=True):
                assert row["policy_version"] == index + (row["role"] in updated)
                assert row["block"] == number
            # as many rows for the update as fresh plays would give, all of the version that is trained
            part = block[f"partition/{unit}"]
            assert part.height == 2 * 4
            assert set(part["policy_version"]) == {index}
            assert block[f"updates/{unit}"]["version_after"].to_list()[-1] == index + 1
            assert set(block["tasks"]["task_id"]) == set(blocks[0]["tasks"]["task_id"])
            copied = block["episodes"]["num_copied_tokens"]
            assert copied.to_list() == [TOKENS * (3 - number) if number else None] * 8
    assert not set(of_blocks(run, 1)[0]["tasks"]["task_id"]) & set(of_blocks(run, 0)[0]["tasks"]["task_id"])


def test_two_thirds_of_the_tokens_of_fresh_plays_are_sampled_and_metrics_and_cost_say_so(
    whole: Whole, scripted: Settings
) -> None:
    run, done = whole
    fresh, (of_fresh,) = play(line(scripted(), "fresh", rollouts="fresh"))
    forward, (of_forward,) = play(line(scripted(), "forward", order="forward"))
    tokens = [sum(sampled(block) for block in of_blocks(r)) for r in (run, fresh, forward)]
    assert tokens == [12 * 2 * 4 * TOKENS // 2, 9 * 2 * 4 * TOKENS, 9 * 2 * 4 * TOKENS]
    assert tokens[0] * 2 * UNITS == tokens[1] * (UNITS + 1)
    for finished, count in ((done[0], tokens[0]), (of_fresh, tokens[1]), (of_forward, tokens[2])):
        assert (
            finished.metrics["rollout/response_tokens"] == finished.metrics["total/sampled_tokens"] == count
        )
        turns = [finished.metrics[f"role/r{u}/turns"] for u in range(UNITS)]
        assert sum(turns) * TOKENS == count
        assert finished.metrics["rollout/turns"] == 3 * 3 * 2 * 4
    assert done[1].metrics["total/sampled_tokens"] == 2 * tokens[0]
    assert done[0].metrics["rollout/copied_tokens"] == tokens[1] - tokens[0]
    assert of_forward.metrics["rollout/copied_tokens"] == 0
    assert "rollout/copied_tokens" not in of_fresh.metrics
    assert any("not sampled again" in note for note in done[0].notes)
    # as many rows are trained on
    rows = [[f.metrics[f"model/r{u}/rows_trained"] for u in range(UNITS)] for f in (done[0], of_fresh)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    "block", [pytest.param(0, marks=pytest.mark.long), 1, pytest.param(2, marks=pytest.mark.long)]
)
def test_stopped_at_every_border_and_resumed_it_is_as_if_nothing_had_been(
    whole: Whole, block: int, scripted: Settings
) -> None:
    raw = line(scripted(), f"stopped-{block}")
    plan = assemble(parse_settings(raw))
    for stage in ("sample", "rollout", "reward", "credit", "partition", f"update/r{2 - block}"):
        with session(plan, signals=False) as runner:
            stop_before(runner, stage, block)
            with pytest.raises(_Halt):
                runner.run_iteration()
    run, _ = play(raw)
    for one, other in zip(of_blocks(run), of_blocks(whole[0]), strict=True):
        same(one, other)


@pytest.mark.long
def test_killed_in_the_rollout_and_in_the_update_of_block_1_it_is_as_if_nothing_had_been(
    whole: Whole, scripted: Settings, tmp_path: Path
) -> None:
    raw = line(scripted(), "killed")
    iteration = Path(raw["run"]["root"]) / "killed/iterations/00000/blocks/01"
    argv, log = command(raw, tmp_path), tmp_path / "log"
    for point in ("rollout/begun.json", "rollout/shards/00000.json", "updates/r1/begun.json"):
        process = start(argv, log)
        try:
            wait_for((iteration / point).exists, process)
        finally:
            process.kill()
            process.wait()
    finish(argv, log)
    run = Run(raw["run"]["root"], "killed")
    for one, other in zip(of_blocks(run), of_blocks(whole[0]), strict=True):
        same(one, other)
    finish(argv, log)
    for one, other in zip(of_blocks(run, 1), of_blocks(whole[0], 1), strict=True):
        same(one, other)


def test_a_rollout_that_is_made_again_keeps_its_shards(whole: Whole, scripted: Settings) -> None:
    raw = line(scripted(), "redone")
    plan = assemble(parse_settings(raw))
    with session(plan, signals=False) as runner:
        stop_before(runner, "reward", 1)
        with pytest.raises(_Halt):
            runner.run_iteration()
        place = runner.run.iteration(0).at(1)
        shard = Path(place.folder.path) / "rollout/shards/00000.json"
        written = shard.stat().st_mtime_ns
        runner.redo("rollout")
        assert shard.stat().st_mtime_ns == written
    run, _ = play(raw)
    for one, other in zip(of_blocks(run), of_blocks(whole[0]), strict=True):
        same(one, other)


def test_all_readers_see_the_copies_and_a_replay_makes_the_same_numbers(whole: Whole, capsys: Any) -> None:
    run, (first, _) = whole
    run.read_info()
    plan = replay_plan(Source(run), overridden(run, []), label="again", again=True)
    assert replay(plan, [0, 1], Quiet()).verified == 2 * 3 * 3  # rewards, credit, a partition in each block
    changed = replay_plan(Source(run), overridden(run, ["credit.use=rloo"]), label="rloo")
    tables = set(replay(changed, [0], Quiet()).own_tables(0))
    assert tables == {"credit", *(f"partition/r{u}" for u in range(3))}
    last = of_blocks(run)[2]["episodes"]["episode_id"][-1]
    print_place(shelf_of(run), 0, episode=last, episodes=1, full=False, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{TOKENS} more copied from {last.replace('.2/', '/')}" in shown
    assert write_report(run).episodes == 2 * 3 * 8
    assert first.tables["episodes"].rows == 3 * 8


def test_with_an_engine_that_has_weights_copies_are_what_the_trainer_s_weights_said(tmp_path: Path) -> None:
    """The unit that is updated second is trained on copies alone: they agree with its trainer."""
    settings = load_settings(
        EXAMPLE,
        [
            f"run.root={tmp_path / 'runs'}",
            "sharing.regime=separate",
            "schedule.use=sequential",
            'schedule.options={order="reverse", rollouts="suffix"}',
            "ppo.learning_rate=0.01",
            "rollout.group_size=24",
            "tracking.uri=none",
            'rewards=[{use = "rewards.testing:distinct_characters", name = "distinct"}]',
        ],
    )
    with session(assemble(settings), signals=False) as runner:
        done = [runner.run_iteration() for _ in range(2)]
    for index, finished in enumerate(done):
        first, second = of_blocks(runner.run, index)
        turns = second["turns"]
        assert set(turns.filter(model_id="sender")["origin"]) == {"copied"}
        assert set(turns.filter(model_id="sender")["policy_version"]) == {index}
        assert set(turns.filter(model_id="receiver")["origin"]) == {"sampled"}
        assert set(turns.filter(model_id="receiver")["policy_version"]) == {index + 1}
        assert sampled(second) * 2 == sampled(first)
        said = [b["turns"].filter(model_id="sender")["response_token_ids"].to_list() for b in (first, second)]
        assert said[0] == said[1]
        updates = [m for m in finished.manifests.values() if m.stage.startswith("update/")]
        assert [m.key for m in updates] == ["update/receiver", "update/sender#1"]
        assert max(m.metrics["sampler_gap_max"] for m in updates) < 1e-3
        assert second["partition/sender"].height == first["turns"].filter(model_id="sender").height
