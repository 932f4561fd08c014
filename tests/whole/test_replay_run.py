"""`run replay` and `run ablate` on a run that really ran: from the command line to what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.replays.ablation.command import run_ablate
from pipeline.replays.command import ReplayOptions, run_replay
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from stages.base import Quiet


def replay_of(
    root: str, capsys: pytest.CaptureFixture[str], *overrides: str, **options: Any
) -> dict[str, Any]:
    run_replay("latest", root, overrides, ReplayOptions(**options, as_json=True))
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_run_replays_as_it_ran_without_its_weights(
    scripted: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    raw = scripted(evaluate={"tasks": 2}, data={"tasks_per_iteration": 2}, rollout={"group_size": 2})
    raw["advantage"] = {"use": "gae", "lam": 0.9}
    raw["critic"] = {"kind": "head"}
    raw["credit"] = {"use": "none"}
    plan = assemble(parse_settings(raw))
    with session(plan, Quiet(), signals=False) as runner:
        runner.run_iteration()
        runner.evaluate(assemble_evaluation(plan))
        folder = Path(runner.run.folder.path)
    # what a laptop does not have
    settings = folder / "settings.toml"
    settings.write_text(settings.read_text().replace("tiny-scripted", "/nowhere/weights"))
    root = str(folder.parent)

    assert replay_of(root, capsys)["folder"] is None
    assert not (folder / "replays").exists()
    again = replay_of(root, capsys, again=True)
    assert again["verified_tables"] == 5
    assert again["iterations"]["0"]["stages"] == ["reward", "credit", "partition", "score/team", "advantage"]
    assert replay_of(root, capsys, split="dev")["iterations"] == {}
    assert replay_of(root, capsys, split="dev", again=True)["verified_tables"] == 1
    dry = replay_of(root, capsys, "advantage.lam=0.1", dry_run=True)
    assert dry["iterations"]["0"]["stages"] == ["advantage"]
    assert not dry["iterations"]["0"]["finished"]
    assert not Path(dry["folder"]).exists()
    other = replay_of(root, capsys, "advantage.lam=0.1")
    assert other["folder"] == dry["folder"]
    assert replay_of(root, capsys, "advantage.lam=0.1", dry_run=True)["iterations"]["0"]["finished"] == [
        "advantage"
    ]
    assert other["iterations"]["0"]["stages"] == ["advantage"]
    assert all(row["return_before"] == row["return_after"] for row in other["roles"])

    variants = tmp_path / "two.toml"
    variants.write_text('[variants.stored]\n[variants.lambda]\n"advantage.lam" = 0.1\n')
    asked = {"iterations": None, "label": None, "shown": 2, "as_json": False}
    run_ablate("latest", root, str(variants), **asked, dry_run=True)
    page = capsys.readouterr().out
    assert "dry run of an ablation" in page
    assert "0 of 1" in page
    assert not (folder / "replays" / "two").exists()
    run_ablate("latest", root, str(variants), **asked, dry_run=False)
    page = capsys.readouterr().out
    assert "advantage.lam = 0.1" in page
    assert str(folder / "replays" / "two") in page
