"""One base, an adapter for each role, through the whole pipeline: rollout, updates, restart and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from pipeline.plan.assemble import assemble
from pipeline.run.session import session
from pipeline.settings.reading import load_settings
from pipeline.store.export import export_model
from pipeline.store.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word"),
]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "signal.toml"


def play(root: Path, iterations: int) -> tuple[Run, int, int]:
    """The signal game under the regime; the run, and how many engines and trainer processes it had."""
    plan = assemble(
        load_settings(
            EXAMPLE,
            [
                f"run.root={root}",
                'sharing.regime="adapters"',
                "models.team.adapter={rank=4, train_embeddings=true}",
                "evaluate.every=0",
                'tracking.uri="none"',
            ],
        )
    )
    with session(plan, signals=False) as runner:
        runner.train(iterations, None)
        trainers = {id(a) for group in runner.fleet._trainers.values() for a in group._actors}
        return runner.run, len(runner.fleet.engines.up), len(trainers)


def rows(run: Run, iteration: int, table: str) -> list[dict[str, Any]]:
    found = pq.read_table(f"{run.folder.path}/iterations/{iteration:05d}/{table}")
    return list(found.to_pylist())


def test_roles_with_adapters_share_an_engine_and_a_trainer_and_go_on_after_a_restart(tmp_path: Path) -> None:
    run, engines, trainers = play(tmp_path, 1)
    assert (engines, trainers) == (1, 1)
    play(tmp_path, 2)  # another session: engine and trainer come up at the newest adapters
    models = ("sender", "receiver")
    for iteration in range(2):
        turns = rows(run, iteration, "rollout/turns")
        assert {(t["model_id"], t["base_id"]) for t in turns} == {(m, "team") for m in models}
        for model_id in models:
            steps = rows(run, iteration, f"updates/{model_id}/steps")
            (summary,) = [row for row in steps if row["kind"] == "summary"]
            asked = {t["policy_version"] for t in turns if t["model_id"] == model_id}
            assert asked == {summary["version_before"]} == {iteration}
            assert summary["sampler_gap_max"] < 1e-4  # what was sampled is what is trained
            (entry,) = rows(run, iteration, f"updates/{model_id}/models")
            assert json.loads(entry["adapter"])["rank"] == 4
    exports(run, tmp_path)


def exports(run: Run, tmp_path: Path) -> None:
    """The adapter's folder with PEFT, and the merged one with transformers alone, are the same model."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    alone, merged = str(tmp_path / "alone"), str(tmp_path / "merged")
    said = export_model(run, alone, model_id="sender", version="latest")
    assert said["version"] == 2
    export_model(run, merged, model_id="sender", version="latest", merge=True)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        one = AutoPeftModelForCausalLM.from_pretrained(alone, dtype=torch.float32).eval()(ids).logits
        other = AutoModelForCausalLM.from_pretrained(merged).eval()(ids).logits
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert AutoTokenizer.from_pretrained(merged).chat_template
    origin = json.loads(Path(merged, "cadre.json").read_text())
    assert (origin["checkpoint"]["checkpoint"], origin["merged"]) == ("tiny-words", True)
