"""`run replay --counterfactual`: stored episodes with one reply replaced, from the run's own weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import assemble
from pipeline.replays.counterfactual.command import play as play_plan
from pipeline.replays.counterfactual.command import run_counterfactual
from pipeline.replays.counterfactual.plan import Asked, CounterfactualPlan, counterfactual_plan
from pipeline.replays.source import Source
from pipeline.run.session import session
from pipeline.settings.reading import load_settings
from pipeline.store.run import Run
from stages.base import Quiet
from tests.whole.test_blocks import EXAMPLE
from tests.whole.test_iteration import play
from tests.whole.test_suffix import line
from workflows.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

Settings = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run(ray_cluster: None, scripted_module: dict[str, Any]) -> Run:
    """One iteration of three blocks, whose plays begin with each other."""
    made, _ = play(line(scripted_module, "whole"))
    made.read_info()
    return made


def planned(run: Run, ops: str, **options: Any) -> CounterfactualPlan:
    return counterfactual_plan(Source(run), Asked(ops, **options))


def frames(plan: CounterfactualPlan, table: str) -> pl.DataFrame:
    done = play_plan(plan, Quiet())
    return pl.concat([pl.DataFrame(each.tables[table].read()) for each in done])


def files(run: Run) -> dict[str, int]:
    folder = Path(run.folder.path)
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for part in ("iterations", "checkpoints")
        for path in (folder / part).rglob("*")
        if path.is_file()
    }


def test_all_blocks_are_played_from_their_own_weights_and_the_run_stays_as_it_is(run: Run) -> None:
    before = files(run)
    plan = planned(run, "drop,resample", alternatives=2, label="all")
    rows, turns = frames(plan, "interventions"), frames(plan, "turns")
    assert files(run) == before
    episodes = 3 * 2 * 4  # blocks, tasks, samples
    assert rows.filter(op="none").height == episodes
    assert rows.filter(op="none")["first_difference"].null_count() == episodes
    assert (rows.filter(op="none")["effect"] == 0).all()
    assert rows.filter(op="drop").height == episodes * 3
    assert rows.filter(op="resample").height == episodes * 3 * 2
    # what comes before the reply is a copy; what it leads to was asked of the weights of its block
    for row in rows.filter(op="resample", block=1).iter_rows(named=True):
        of_play = turns.filter(episode_id=row["play_id"]).sort("turn_index")
        place = int(row["role"][1:])
        # the reader is asked something else, with the stored seed, which makes its script say the same
        asked = min(2, 3 - place)
        expected = ["copied"] * place + ["sampled"] * asked + ["copied"] * (3 - place - asked)
        assert of_play["origin"].to_list() == expected
        assert of_play["policy_version"].to_list() == [0, 0, 1]
        assert row["tokens"] == asked * 31
    first = rows.filter(op="drop", role="r0")
    assert set(first["first_difference"]) == {1}
    last = rows.filter(op="drop", role="r2")
    assert last["first_difference"].null_count() == last.height  # nobody reads it
    assert set(last["effect"]) == {0.0}
    resampled = rows.filter(op="resample", role="r2")
    assert (resampled["effect"] == resampled["base_return"] - resampled["return"]).all()
    assert resampled["effect"].abs().sum() > 0


def test_what_is_finished_is_not_played_again_and_another_question_needs_another_label(run: Run) -> None:
    plan = planned(run, "drop", label="once")
    rows = frames(plan, "interventions")
    place = plan.place(plan.blocks(0)[1])
    manifest = place.folder.child("counterfactual/manifest.json").path
    written = Path(manifest).stat().st_mtime_ns
    assert frames(planned(run, "drop", label="once"), "interventions").equals(rows)
    assert Path(manifest).stat().st_mtime_ns == written
    with pytest.raises(UsageError, match=r"were made otherwise: .*use another --label"):
        planned(run, "null", label="once")


def test_a_part_of_the_budget_takes_a_known_part_of_the_plays(run: Run, capsys: Any) -> None:
    whole = frames(planned(run, "drop", label="whole"), "interventions").filter(op="drop")
    budget = 31 * 3 * 24 // 4  # a quarter of what all drops may take: one and two turns after r1 and r0
    root, name = run.folder.path.rsplit("/", 1)
    run_counterfactual(name, root, Asked("drop", tokens=budget, label="part"), as_json=True)
    said = json.loads(capsys.readouterr().out)
    rows = frames(planned(run, "drop", tokens=budget, label="part"), "interventions").filter(op="drop")
    assert 0 < rows.height < whole.height
    assert set(rows["select_probability"]) == {0.25}
    keys = ["episode_id", "turn_index"]
    same = rows.join(whole, on=keys, suffix="_whole")
    assert same.height == rows.height
    assert same["effect"].equals(same["effect_whole"], null_equal=True)
    assert said["tokens"] == rows["tokens"].sum()
    assert {entry["role"] for entry in said["effects"]} <= {"r0", "r1", "r2"}
    run_counterfactual(name, root, Asked("drop", label="part", tokens=budget))
    assert "instead" in capsys.readouterr().out


def test_what_can_not_be_played_is_refused_before_anything_starts(run: Run) -> None:
    for options, words in (
        ({"ops": "dorp"}, "did you mean 'drop'"),
        ({"ops": "paraphrase"}, "name one with --paraphrase"),
        ({"ops": "drop", "paraphrase": "builtins:str"}, "--paraphrase has no effect"),
        ({"ops": "drop", "alternatives": 3}, "--alternatives has no effect"),
        ({"ops": "drop", "tokens": 0}, "tokens = 0"),
        ({"ops": "drop", "iterations": "7:"}, "no iteration with a finished rollout in 7:"),
        ({"ops": "drop", "label": "a/b"}, "--label 'a/b'"),
    ):
        with pytest.raises(UsageError, match=words):
            planned(run, **options)
    assert not run.folder.child("counterfactuals/a").names()


def test_weights_that_are_gone_are_named(scripted: Settings) -> None:
    made, _ = play(line(scripted(), "pruned"))
    made.read_info()
    made.folder.remove("checkpoints/r2/00001")
    with pytest.raises(UsageError, match="version 1 of model 'r2', whose weights are gone"):
        play_plan(planned(made, "drop"), Quiet())
    assert not made.folder.child("counterfactuals").names()


def test_with_an_engine_that_has_weights_a_replay_of_an_older_version_gives_equal_rows(
    tmp_path: Path,
) -> None:
    """The second iteration was sampled by version 1 and the weights are at 2 now; the stored seed gives the
    stored reply, and another seed another one."""
    settings = load_settings(
        EXAMPLE,
        [
            f"run.root={tmp_path / 'runs'}",
            "ppo.learning_rate=0.01",
            "rollout.group_size=6",
            "checkpoints.every=1",
            "checkpoints.keep=5",
            "tracking.uri=none",
            'rewards=[{use = "rewards.testing:distinct_characters", name = "distinct"}]',
        ],
    )
    with session(assemble(settings), signals=False) as runner:
        for _ in range(2):
            runner.run_iteration()
        made = runner.run
    made.read_info()
    plan = planned(made, "resample,swap,mask", alternatives=3, iterations="1:2")
    rows, turns = frames(plan, "interventions"), frames(plan, "turns")
    assert set(turns["policy_version"].drop_nulls()) == {1}
    assert rows.filter(op="none")["first_difference"].null_count() == 24
    resampled = rows.filter(op="resample")
    assert resampled.height == 24 * 2 * 3
    assert 0 < resampled["first_difference"].null_count() < resampled.height  # few words, so some come again
    assert rows.filter(op="mask", role="sender").height == 24
    assert rows.filter(op="mask", role="receiver").height == 0  # nobody reads it
    # a sender's other word is sampled at the stored prompt, and its logprob is the trainer's
    stored = pl.DataFrame(Source(made).stored(1).tables["turns"].read())
    hashes = set(stored.filter(role="sender")["context_hash"])
    assert set(turns.filter(role="sender")["context_hash"]) <= hashes
