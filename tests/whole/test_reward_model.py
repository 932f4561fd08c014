"""A reward model from stored plays to a reward: stopped and gone on with, replayed, ranked with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.reward_model.best_of import best_of
from pipeline.replays.command import ReplayOptions, run_replay
from pipeline.reward_model.asked import Asked, asked_of
from pipeline.reward_model.plays import Where, collect
from pipeline.reward_model.train import run_training
from pipeline.store.run import Run
from stages.base import Quiet
from stages.reward_model.model import read_model
from stages.reward_model.scorer import ModelScorer
from tests.support.stored_games import game_run, tasks_of
from workflows.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
SMALL = (
    "reward_model.context=128",
    "reward_model.held_out=0.4",
    "reward_model.pairs_per_step=2",
    "reward_model.passes=2",
    "reward_model.save_steps=1",
    'reward_model.trainer={ precision = "fp32", num_threads = 1 }',
)


class Killed(Exception):
    pass


class StopsAfter(Quiet):
    """Ends the command after so many checkpoints."""

    def __init__(self, number: int) -> None:
        self.left = number

    def advance(self, amount: int = 1, **rates: float) -> None:
        self.left -= 1
        if not self.left:
            raise Killed


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return game_run(str(tmp_path_factory.mktemp("games")), "game", tasks=tasks_of(8), plays=5)


def asked(run: Run, out: str, *overrides: str) -> Asked:
    root = run.folder.url.rpartition("/")[0]
    return asked_of([run], "tiny-words", out, root=root, overrides=[*SMALL, *overrides])


def test_a_stop_changes_no_bit_and_the_model_pays_and_ranks(
    played: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    info = run_training(asked(played, "whole"), Quiet(), lambda: None)
    with pytest.raises(Killed):
        run_training(asked(played, "stopped"), StopsAfter(2), lambda: None)
    again = run_training(asked(played, "stopped"), Quiet(), lambda: None)
    assert again["hash"] == info["hash"]
    assert [step["loss"] for step in again["steps"]] == [step["loss"] for step in info["steps"]]
    assert run_training(asked(played, "stopped"), StopsAfter(1), lambda: None)["hash"] == info["hash"]
    with pytest.raises(UsageError, match="holds another reward model"):
        run_training(asked(played, "stopped", "reward_model.passes=3"), Quiet(), lambda: None)

    root = played.folder.url.rpartition("/")[0]
    rewards = '[{ use = "learned", options = { model = "whole" } }]'
    options = ReplayOptions(as_json=True, until="credit")
    run_replay(played.folder.url, root, [f"rewards={rewards}"], options)
    replay = json.loads(capsys.readouterr().out)
    paid = paid_by(Path(replay["folder"]) / "00000/rewards")
    plays = collect([played], {played.folder.url: "final"}, Where()).plays
    scores = ModelScorer(read_model(f"{root}/whole"))([play.text for play in plays])
    assert paid == pytest.approx({p.episode_id: s for p, s in zip(plays, scores, strict=True)}, abs=1e-5)
    assert len(set(paid.values())) > 2

    best_of("whole", played.folder.url, "1,2", None, None, 0.0, root, True)
    found = json.loads(capsys.readouterr().out)
    tasks = found["accounts"][1]
    assert tasks["in"] == tasks["out"] + sum(tasks["excluded"].values())
    assert [row["n"] for row in found["rows"]] == [1, 2]


def paid_by(folder: Path) -> dict[str, float]:
    import polars as pl

    rows: list[dict[str, Any]] = pl.read_parquet(str(folder / "*.parquet")).to_dicts()
    return {row["episode_id"]: row["reward"] for row in rows if row["reward"] is not None}


def test_a_head_alone_keeps_no_weights_and_an_adapter_becomes_whole(played: Run) -> None:
    head = asked(played, "head", "reward_model.head_only=true")
    info = run_training(head, Quiet(), lambda: None)
    folder = Path(head.folder.path)
    assert info["base"] == "tiny-words"
    assert not (folder / "weights").exists()
    assert not (folder / "training").exists()
    adapted = run_training(
        asked(played, "adapted", "reward_model.adapter={ rank = 2 }"), Quiet(), lambda: None
    )
    assert (folder.parent / "adapted/weights/model.safetensors").is_file()
    plays = collect([played], {played.folder.url: "final"}, Where()).plays
    texts = [play.text for play in plays]
    for name in ("head", "adapted"):
        scores = ModelScorer(read_model(str(folder.parent / name)))(texts)
        assert len(set(scores)) > 2
    assert adapted["base"] is None
