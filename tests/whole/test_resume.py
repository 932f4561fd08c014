"""A run that an outage ended goes on with the same command; a cause that was mended is gone on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from tests.whole.test_iteration import frames_of, play, same
from workflows.errors import RunFailed

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
