"""Iterations of several blocks: models updated in turn, each on plays of the team as it is by then."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import Plan, assemble
from pipeline.plan.blocks import Block, Manifests, Schedule
from pipeline.replays.plan import replay_plan
from pipeline.replays.replayer import replay
from pipeline.replays.settings import overridden
from pipeline.replays.source import Source
from pipeline.report.write import write_report
from pipeline.run.runner import Runner
from pipeline.run.session import session
from pipeline.settings.reading import load_settings, parse_settings
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.shelf import shelf_of
from pipeline.views.stored import print_place
from stages.base import Quiet
from tests.whole.test_iteration import _Halt, _Halting, frames_of, play, same
from tests.whole.test_kills import command, finish, start, wait_for
from workflows.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

Settings = Callable[..., dict[str, Any]]
EXAMPLE = str(Path(__file__).parents[2] / "docs/examples/signal.toml")
STAGES = ("sample", "rollout", "reward", "credit", "partition", "update/first", "update/second")


def in_turn(scripted: Settings, **changes: Any) -> dict[str, Any]:
    """A scripted team of two models that are updated one after the other."""
    raw = scripted(schedule={"use": "sequential"}, **changes)
    team = raw["models"].pop("team")
    raw["models"] = {"first": team, "second": dict(team)}
    raw["roles"] = {
        "decomposer": {"model": "first"},
        "reader": {"model": "second"},
        "answerer": {"model": "second"},
    }
    return raw


class HaltsIn:
    """A schedule whose block `block` ends where stage `stage` would begin, as a crash there would."""

    def __init__(self, inner: Schedule, stage: str, block: int) -> None:
        self.inner, self.stage, self.block = inner, stage, block

    def check(self, plan: Plan) -> None:
        self.inner.check(plan)

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        block = self.inner.next_block(plan, iteration, finished)
        if block is None or block.index != self.block:
            return block
        stages = tuple(_Halting(s) if s.name == self.stage else s for s in block.stages)
        return replace(block, stages=stages)


def stop_before(runner: Runner, stage: str, block: int) -> None:
    runner.plan = replace(runner.plan, schedule=HaltsIn(runner.plan.schedule, stage, block))


def stopped_in_the_second(raw: dict[str, Any], halts: Sequence[tuple[str, int]]) -> Run:
    """A run of two iterations that was stopped before each of these stages, by block, of the second."""
    for stage, block in halts:
        with session(assemble(parse_settings(raw)), signals=False) as runner:
            if runner.run.iterations() in ([], [0]) and not runner.run.is_finished(0):
                runner.run_iteration()
            stop_before(runner, stage, block)
            with pytest.raises(_Halt):
                runner.run_iteration()
    run, _ = play(raw)
    return run


def same_blocks(one: Run, other: Run, indices: Sequence[int]) -> None:
    """All tables of these iterations are equal."""
    for index in indices:
        for block, of_other in zip(of_blocks(one, index), of_blocks(other, index), strict=True):
            same(block, of_other)


def of_blocks(run: Run, index: int = 0) -> list[dict[str, pl.DataFrame]]:
    return [frames_of(place.tables()[0]) for place in run.iteration(index).blocks()]


def hashes(run: Run) -> dict[str, str]:
    """The weights of every version of both models."""
    folder = run.folder.child("checkpoints")
    return {
        f"{model}/{name}": json.loads(folder.read_text(f"{model}/{name}/manifest.json") or "{}")["hash"]
        for model in ("first", "second")
        for name in folder.child(model).names()
    }


@pytest.fixture(scope="module")
def whole(
    ray_cluster: None, scripted_module: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, list[Finished]]:
    """Two iterations that nothing broke."""
    from tests.conftest import merge

    raw = in_turn(lambda **changes: merge(scripted_module, changes), run={"name": "whole"})
    return play(raw, iterations=2)


Whole = tuple[Run, list[Finished]]


def test_each_model_is_trained_in_its_block_on_plays_of_the_team_as_it_is_by_then(whole: Whole) -> None:
    run, done = whole
    for index, finished in enumerate(done):
        blocks = of_blocks(run, index)
        assert len(blocks) == finished.blocks == 2
        first, second = blocks
        assert set(first["turns"]["block"]) == {0}
        assert set(second["turns"]["block"]) == {1}
        assert not set(first["tasks"]["task_id"]) & set(second["tasks"]["task_id"])
        assert {n for n in first if "/" in n} == {"partition/first", "updates/first", "models/first"}
        assert {n for n in second if "/" in n} == {"partition/second", "updates/second", "models/second"}
        # the team of block 1 has the first model's new weights
        for block, versions in ((first, (index, index)), (second, (index + 1, index))):
            (text,) = set(block["turns"]["team_version"].drop_nulls())
            assert json.loads(text) == dict(zip(("first", "second"), versions, strict=True))
        assert second["updates/second"]["block"].to_list()[-1] == 1
        assert all(e.startswith(f"{index:05d}.1/") for e in second["episodes"]["episode_id"])
        assert all(e.startswith(f"{index:05d}/") for e in first["episodes"]["episode_id"])


def test_all_readers_see_all_blocks(whole: Whole, capsys: Any) -> None:
    run, (first, _) = whole
    blocks = of_blocks(run)
    for table in ("tasks", "turns", "episodes", "rewards", "credit"):
        assert first.tables[table].rows == sum(block[table].height for block in blocks)
    assert first.metrics["model/first/version"] == first.metrics["model/second/version"] == 1
    assert first.metrics["rollout/episodes"] == sum(block["episodes"].height for block in blocks)
    assert first.notes[0] == "2 blocks: 0 played and trained first; 1 played and trained second"
    split = next(a for a in first.accounts if a.boundary == "credit to partition")
    of_both = sum(blocks[b][f"partition/{m}"].height for b, m in enumerate(("first", "second")))
    assert split.rows_in == sum(block["credit"].height for block in blocks)
    assert split.rows_out == of_both
    assert split.excluded["model is trained in another block"] > 0
    episodes = next(a for a in first.accounts if a.boundary == "rollout")
    assert episodes.rows_in == 16  # as many as an iteration of one block plays
    again = shelf_of(run).place(0)
    assert again.tables.keys() == first.own_tables.keys()
    assert {name: table.rows for name, table in again.tables.items()} == {
        name: table.rows for name, table in first.own_tables.items()
    }
    last = blocks[1]["episodes"]["episode_id"][-1]
    print_place(shelf_of(run), 0, episode=last, episodes=1, full=False, as_json=False)
    assert last in capsys.readouterr().out
    assert write_report(run).episodes == 2 * 16


@pytest.mark.parametrize("block", [pytest.param(0, marks=pytest.mark.long), 1])
def test_stopped_at_every_border_and_resumed_it_is_as_if_nothing_had_been(
    whole: Whole, block: int, scripted: Settings
) -> None:
    raw = in_turn(scripted, run={"name": f"stopped-{block}"})
    plan = assemble(parse_settings(raw))
    for stage in STAGES:
        if stage.startswith("update/") and stage != f"update/{('first', 'second')[block]}":
            continue
        with session(plan, signals=False) as runner:
            stop_before(runner, stage, block)
            with pytest.raises(_Halt):
                runner.run_iteration()
    run, _ = play(raw)
    for one, other in zip(of_blocks(run), of_blocks(whole[0]), strict=True):
        same(one, other)
    expected = {name: h for name, h in hashes(whole[0]).items() if name.endswith("/00001")}
    assert {name: h for name, h in hashes(run).items() if name.endswith("/00001")} == expected


def test_killed_in_the_rollout_and_in_the_update_of_block_1_it_is_as_if_nothing_had_been(
    whole: Whole, scripted: Settings, tmp_path: Path
) -> None:
    raw = in_turn(scripted, run={"name": "killed"})
    iteration = Path(raw["run"]["root"]) / "killed/iterations/00000/blocks/01"
    argv, log = command(raw, tmp_path), tmp_path / "log"
    for point in ("rollout/shards/00000.json", "updates/second/begun.json"):
        process = start(argv, log)
        try:
            wait_for((iteration / point).exists, process)
        finally:
            process.kill()
            process.wait()
    finish(argv, log)  # the first iteration: an unfinished one is finished before another begins
    run = Run(raw["run"]["root"], "killed")
    assert run.iterations() == [0]
    for one, other in zip(of_blocks(run), of_blocks(whole[0]), strict=True):
        same(one, other)
    finish(argv, log)  # the second one starts from the weights of both blocks
    for one, other in zip(of_blocks(run, 1), of_blocks(whole[0], 1), strict=True):
        same(one, other)
    assert hashes(run) == hashes(whole[0])


def test_blocks_are_replayed_bit_for_bit(whole: Whole) -> None:
    run, _ = whole
    run.read_info()
    plan = replay_plan(Source(run), overridden(run, []), label="again", again=True)
    result = replay(plan, [0, 1], Quiet())
    assert result.verified == 2 * 2 * 3  # rewards, credit and a partition in each of four blocks
    assert result.done[1].tables["credit"].rows == shelf_of(run).place(1).tables["credit"].rows
    assert shelf_of(run, replay="again").place(0).blocks == 2
    changed = replay_plan(Source(run), overridden(run, ["credit.use=rloo"]), label="rloo")
    assert set(replay(changed, [0], Quiet()).own_tables(0)) == {
        *("credit", "partition/first", "partition/second"),
    }
    with pytest.raises(UsageError, match="has 2 blocks"):
        replay_plan(Source(run), overridden(run, []), update=[0])


def test_stale_updates_train_on_the_plays_of_the_first_block(whole: Whole, scripted: Settings) -> None:
    """Both models are updated on what one team played: as many episodes as with fresh plays, none twice."""
    raw = in_turn(scripted, run={"name": "stale"})
    raw["schedule"]["options"] = {"rollouts": "stale"}
    run, (done,) = play(raw)
    first, second = of_blocks(run)
    assert set(second) == {"partition/second", "updates/second", "models/second"}
    assert set(second["partition/second"]["episode_id"]) <= set(first["episodes"]["episode_id"])
    assert done.tables["episodes"].rows == whole[1][0].tables["episodes"].rows == 16
    assert done.metrics["model/second/version"] == 1
    assert second["updates/second"]["place"].to_list()[-1] == 1
    run.read_info()
    again = replay_plan(Source(run), overridden(run, []), label="again", again=True)
    assert replay(again, [0], Quiet()).verified == 4  # rewards and credit once, a partition for each model
    changed = replay_plan(Source(run), overridden(run, ["credit.use=rloo"]), label="rloo")
    replayed = replay(changed, [0], Quiet())
    assert replayed.blocks[0, 1].own_tables.keys() == {"partition/second"}
    after = replayed.own_tables(0)
    credit = pl.DataFrame(after["credit"].read()).select("episode_id", "turn_index", expected="advantage")
    rows = pl.DataFrame(after["partition/second"].read()).join(credit, on=["episode_id", "turn_index"])
    assert rows.height > 0 and (rows["advantage"] == rows["expected"]).all()  # noqa: PT018
    assert not pl.DataFrame(after["credit"].read()).equals(first["credit"])


def test_tasks_without_signal_are_replaced_by_further_ones(scripted: Settings) -> None:
    """Where every third task teaches something, further tasks are played, and one update trains on all."""
    raw = scripted(
        run={"name": "refill"},
        schedule={"use": "refill", "options": {"rollouts": 3}},
        credit={"silent": "exclude"},
        rewards=[{"use": "tests.support.small_teams:sometimes", "name": "sometimes"}],
    )
    plan = assemble(parse_settings(raw))
    with session(plan, signals=False) as runner:
        stop_before(runner, "credit", 1)
        with pytest.raises(_Halt):
            runner.run_iteration()
    run, (done, again) = play(raw, iterations=2)
    raw["run"]["name"] = "unbroken"
    unbroken, _ = play(raw, iterations=2)
    tasks: list[str] = []
    for index, finished in enumerate((done, again)):
        *plays, training = of_blocks(run, index)
        for one, other in zip(of_blocks(run, index), of_blocks(unbroken, index), strict=True):
            same(one, other)
        assert 2 <= len(plays) <= 3
        tasks += [task for block in plays for task in block["tasks"]["task_id"]]
        credit = pl.concat([block["credit"] for block in plays])
        usable = set(credit.filter(pl.col("excluded").is_null())["episode_id"])
        assert set(training["partition/team"]["episode_id"]) == usable
        assert len({episode.partition("/")[0] for episode in usable}) > 1  # of several blocks
        assert (training["partition/team"]["advantage"] != 0).any()
        assert finished.metrics["model/team/version"] == index + 1
        of_credit = next(a for a in finished.accounts if a.boundary == "rewards to credit")
        assert of_credit.rows_in == finished.tables["turns"].rows == credit.height
        assert sum(of_credit.excluded.values()) == credit["excluded"].is_not_null().sum()
    assert len(set(tasks)) == len(tasks)  # no iteration takes another's
    run.read_info()
    plan_again = replay_plan(Source(run), overridden(run, []), label="again", again=True)
    verified = replay(plan_again, [0, 1], Quiet()).verified
    assert verified == sum(2 * (finished.blocks - 1) + 1 for finished in (done, again))


def test_another_schedule_does_not_finish_what_this_one_began(scripted: Settings) -> None:
    raw = in_turn(scripted, run={"name": "other"})
    plan = assemble(parse_settings(raw))
    with session(plan, signals=False) as runner:
        stop_before(runner, "reward", 1)
        with pytest.raises(_Halt):
            runner.run_iteration()
    raw["schedule"]["use"] = "simultaneous"
    with pytest.raises(UsageError, match="schedule"):
        play(raw)


def test_a_schedule_that_can_not_work_is_refused(scripted: Settings) -> None:
    raw = in_turn(scripted)
    for options, words in (
        ({"order": ["second", "frist"]}, "'frist'.*did you mean 'first'"),
        ({"order": ["second"]}, "must name each model"),
        ({"ordr": ["second"]}, "did you mean 'order'"),
    ):
        with pytest.raises(UsageError, match=words):
            assemble(parse_settings(raw | {"schedule": {"use": "sequential", "options": options}}))
    raw["data"]["tasks_per_iteration"] = 1
    with pytest.raises(UsageError, match="tasks_per_iteration to 2 or more"):
        assemble(parse_settings(raw))


def test_with_an_engine_that_has_weights_block_1_is_sampled_by_the_new_version(tmp_path: Path) -> None:
    """An engine that stayed at the old weights would not agree with the trainer that goes on from the new."""
    settings = load_settings(
        EXAMPLE,
        [
            f"run.root={tmp_path / 'runs'}",
            "sharing.regime=separate",
            "schedule.use=sequential",
            'schedule.options={order=["receiver", "sender"]}',
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
        versions = [{"receiver": index, "sender": index}, {"receiver": index + 1, "sender": index}]
        for block, expected in zip((first, second), versions, strict=True):
            (text,) = set(block["turns"]["team_version"].drop_nulls())
            assert json.loads(text) == expected
            by_model = block["turns"].group_by("model_id").agg(pl.col("policy_version").unique())
            assert {m: v for m, (v,) in by_model.rows()} == expected
        updates = [m for m in finished.manifests.values() if m.stage.startswith("update/")]
        assert [m.key for m in updates] == ["update/receiver", "update/sender#1"]
        assert [m.metrics["version_after"] for m in updates] == [index + 1] * 2
        assert max(m.metrics["sampler_gap_max"] for m in updates) < 1e-3
