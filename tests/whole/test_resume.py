"""A run that an outage ended goes on with the same command; a cause that was mended is gone on from."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.run.session import session
from pipeline.run.signals import Stopped
from pipeline.settings.reading import parse_settings
from pipeline.store.run import Run
from tests.whole.test_blocks import HaltsIn
from tests.whole.test_iteration import _Halt, frames_of, play, same
from workflows.errors import RunFailed, UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

Settings = Callable[..., dict[str, Any]]


def with_outage(scripted: Settings, file: Path, **changes: Any) -> dict[str, Any]:
    raw = scripted(**{"rollout": {"call_attempts": 1}, **changes})
    raw["workflow"] = {"use": "tests.support.outage:build", "options": {"file": str(file)}}
    del raw["credit"]
    return raw


def test_after_an_outage_the_same_command_goes_on_and_ends_as_if_there_had_been_none(
    scripted: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "down"
    raw = with_outage(scripted, file)
    file.write_text("10")
    for _ in range(2):  # a second call while it lasts fails in the same way
        with pytest.raises(RunFailed, match=r"16 of 16 episodes failed, .* plays the failed episodes again"):
            play(raw)
    file.unlink()
    run, (done,) = play(raw)
    assert any("16 episodes that had failed were played again" in note for note in done.notes)
    whole, _ = play(raw | {"run": raw["run"] | {"name": "unbroken"}})
    one, other = (frames_of(r.iteration(0).tables()[0]) for r in (run, whole))
    same(one, other)


def test_only_what_failed_is_played_again_and_a_budget_may_be_raised(
    scripted: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "down"
    file.write_text("5")
    raw = with_outage(scripted, file, rollout={"call_attempts": 1, "max_failed_share": 0.0})
    with pytest.raises(RunFailed, match=r"of 16 episodes failed, more than the 0 that"):
        play(raw)
    # with a larger budget the unfinished stage is finished, though the outage goes on
    raw["rollout"]["max_failed_share"] = 0.9
    run, (done,) = play(raw)
    lost = int(done.stage_metrics["rollout"]["episodes_failed"])
    assert 0 < lost < 16
    # a finished rollout stays as it is: nothing is played again by later calls
    file.unlink()
    again = pl.DataFrame(run.iteration(0).tables()[0]["episodes"].read())
    assert again.filter(pl.col("status") != "ok").height == lost


def test_evaluations_and_training_with_them_go_on_after_an_outage(scripted: Settings, tmp_path: Path) -> None:
    file = tmp_path / "down"
    raw = with_outage(scripted, file, evaluate={"every": 1, "tasks": 4, "rewards": [{"use": "token_f1"}]})
    plan = assemble(parse_settings(raw))
    file.write_text("10")
    with session(plan, signals=False) as runner, pytest.raises(RunFailed, match="4 of 4 episodes failed"):
        runner.train(1, assemble_evaluation(plan))
    file.unlink()
    with session(plan, signals=False) as runner:
        runner.train(1, assemble_evaluation(plan))
        assert runner.run.is_finished(0)


# --- a cause that was mended ------------------------------------------------------------------------


def stopped_before(raw: dict[str, Any], stage: str) -> Run:
    """A run whose first iteration ended where `stage` would begin."""
    plan = assemble(parse_settings(raw))
    with session(plan, signals=False) as runner:
        runner.plan = replace(plan, schedule=HaltsIn(plan.schedule, stage, 0))
        with pytest.raises(_Halt):
            runner.run_iteration()
    return runner.run


def test_what_a_mended_setting_made_is_made_again_by_redo_and_its_plays_stay(scripted: Settings) -> None:
    raw = scripted()
    run = stopped_before(raw, "update/team")
    plays = run.iteration(0).manifest_at("rollout")
    mended = scripted(rewards=[{"use": "token_f1"}], ppo={"micro_batch_tokens": 4096})
    plan = assemble(parse_settings(mended))
    with session(plan, signals=False) as runner:
        with pytest.raises(UsageError, match=r"finished its stage 'reward' .*run iteration --redo reward`"):
            runner.run_iteration()
        with pytest.raises(UsageError, match=r"finished its stage 'reward' "):
            runner.redo("partition")  # an earlier stage was made with other settings, too
        with pytest.raises(UsageError, match=r"no such stage \(did you mean 'reward'"):
            runner.redo("rewards")
        assert run.iteration(0).manifest_at("rewards") is not None
        said = runner.redo("reward")
        assert "stage 'reward' of iteration 0 and those after it are made again" in said
        done = runner.run_iteration()
    assert run.iteration(0).manifest_at("rollout") == plays
    [entry] = run.read_info()["redone"]
    assert (entry["iteration"], entry["stage"]) == (0, "reward")
    assert "4096" in entry["changes"]
    assert any(note.startswith("made again by --redo: ") for note in done.notes)
    fresh, _ = play(mended | {"run": mended["run"] | {"name": "fresh"}})
    same(*(frames_of(r.iteration(0).tables()[0]) for r in (run, fresh)))


def test_an_update_that_moved_its_model_is_taken_back_before_it_is_made_again(scripted: Settings) -> None:
    raw = scripted()
    run, _ = play(raw)
    before = run.iteration(0).manifest_at("updates/team")
    (Path(run.folder.path) / "iterations/00000/done.json").unlink()  # killed just before the end
    other = scripted(ppo={"learning_rate": 1e-2})
    plan = assemble(parse_settings(other))
    with session(plan, signals=False) as runner:
        with pytest.raises(UsageError, match=r"'update/team' .*learning_rate: 0.001 → 0.01.*--redo update`"):
            runner.run_iteration()
        runner.redo("update")
        assert (run.weights_versions("team"), runner.version_of("team")) == ([], 0)
        runner.run_iteration()
    fresh, _ = play(other | {"run": other["run"] | {"name": "fresh"}})
    hashes = [r.iteration(0).tables()[0]["models/team"].read()["hash"].to_pylist() for r in (run, fresh)]
    assert hashes[0] == hashes[1]
    assert before is not None
    assert run.read_info()["redone"][0]["versions"] == [["team", 1]]


def test_a_rollout_made_again_keeps_its_shards_only_where_their_sampling_is_unchanged(
    scripted: Settings,
) -> None:
    raw = scripted()
    run = stopped_before(raw, "reward")
    before = frames_of(run.iteration(0).tables()[0])["turns"]
    with session(assemble(parse_settings(raw)), signals=False) as runner:
        assert "its finished shards stay" in runner.redo("rollout")
        assert run.iteration(0).manifest_at("rollout") is None
        assert len(list(Path(run.folder.path).glob("iterations/00000/rollout/shards/*.json"))) == 2
    warmer = scripted(rollout={"temperature": 0.5})
    with session(assemble(parse_settings(warmer)), signals=False) as runner:
        with pytest.raises(UsageError, match=r"begun stage 'rollout' .*temperature.*--redo rollout`"):
            runner.run_iteration()
        assert "its finished shards are played anew" in runner.redo("rollout")
        assert not (Path(run.folder.path) / "iterations/00000/rollout").exists()
        runner.run_iteration()
    after = frames_of(run.iteration(0).tables()[0])["turns"]
    assert after["sampling"].to_list() != before["sampling"].to_list()
    plan = assemble(parse_settings(warmer))
    with (
        session(plan, signals=False) as runner,
        pytest.raises(UsageError, match="has no unfinished iteration"),
    ):
        runner.redo("reward")


# --- updates that are made again --------------------------------------------------------------------


def test_updates_since_the_last_checkpoint_are_made_again_with_their_own_settings(
    scripted: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    rare = {"checkpoints": {"every": 50, "keep": 5}}
    raw = scripted(**rare)
    run, _ = play(raw, iterations=2)
    published = {row["version"]: row["hash"] for row in models_of(run, 2)}
    shutil.rmtree(f"{run.folder.path}/checkpoints/team/00002")  # as a kill before the last save leaves it
    other = scripted(ppo={"learning_rate": 1e-1}, **rare)
    play(other)
    folder = run.folder.child("checkpoints/team")
    assert json.loads(folder.read_text("00002/manifest.json") or "")["hash"] == published[2]
    assert [n for n in folder.names() if not n.isdigit()] == []
    rates = {row["learning_rate"] for row in run.iteration(2).tables()[0]["updates/team"].read().to_pylist()}
    assert rates == {1e-1}
    assert "bit for bit" not in capsys.readouterr().out


def models_of(run: Run, iterations: int) -> list[dict[str, Any]]:
    tables = [run.iteration(index).tables()[0]["models/team"] for index in range(iterations)]
    return [row for table in tables for row in table.read().to_pylist()]


def test_a_stop_leaves_a_whole_checkpoint_of_what_was_trained(scripted: Settings) -> None:
    plan = assemble(parse_settings(scripted(checkpoints={"every": 50, "keep": 5})))
    with contextlib.suppress(Stopped), session(plan, signals=False) as runner:
        runner.run_iteration()
        before = runner.run.checkpoint_versions("team")
        raise Stopped(signal.SIGTERM)
    assert (before, runner.run.checkpoint_versions("team")) == ([], [1])
