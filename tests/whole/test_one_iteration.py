"""docs/examples/one_iteration.py does what the pipeline does: the same rows, numbers and weights."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import torch

from pipeline.plan.assemble import assemble
from pipeline.run.execution import Finished
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.run import Run
from tests.support.pages import ROOT
from workflows.trajectory import TURN_KEYS

SCRIPT = ROOT / "docs" / "examples" / "one_iteration.py"


def test_the_example_is_short_and_runs_by_the_command_that_it_names() -> None:
    text = SCRIPT.read_text("utf-8")
    assert len(text.splitlines()) <= 85
    assert "PYTHONPATH=. python docs/examples/one_iteration.py" in text
    assert not {"ray", "vllm", "deepspeed", "pipeline"} & set(text.replace(".", " ").split())
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("16 episodes, ")


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """What the names of the script hold at its end."""
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def pipeline(
    ray_cluster: None, scripted_module: dict[str, Any], example: dict[str, Any]
) -> tuple[Run, Finished]:
    """The same iteration by the pipeline: scripted engine, trainer of one rank in float32."""
    settings = parse_settings(scripted_module)
    assert (settings.data.tasks_per_iteration, settings.rollout.group_size) == (4, 4)
    assert settings.ppo.learning_rate == example["LEARNING_RATE"]
    with session(assemble(settings), signals=False) as runner:
        return runner.run, runner.run_iteration()


def same(table: pa.Table, stored: pa.Table, *columns: str) -> None:
    one, other = (pl.DataFrame(t.select([*TURN_KEYS, *columns])).sort(TURN_KEYS) for t in (table, stored))
    assert one.height > 0
    assert one.equals(other)


@pytest.mark.slow
def test_rows_rewards_and_advantages_are_those_of_the_pipeline_bit_for_bit(
    example: dict[str, Any], pipeline: tuple[Run, Finished]
) -> None:
    tables: Callable[[str], pa.Table] = lambda name: pipeline[1].tables[name].read()  # noqa: E731
    same(example["turns"], tables("turns"), "role", "prompt_token_ids", "response_token_ids", "status")
    same(example["rewards"], tables("rewards"), "reward", "reward_parts", "no_reward_reason")
    same(example["credit"], tables("credit"), "return", "advantage", "excluded")
    keys = {key for batch in example["batches"] for key in batch.keys}
    rows = tables("partition/team").select(TURN_KEYS).to_pylist()
    assert keys == {(row["episode_id"], row["turn_index"]) for row in rows}


@pytest.mark.slow
def test_the_loss_and_the_new_weights_are_those_of_the_pipeline(
    example: dict[str, Any], pipeline: tuple[Run, Finished]
) -> None:
    from transformers import AutoModelForCausalLM

    run, done = pipeline
    (summary,) = [r for r in done.tables["updates/team"].read().to_pylist() if r["kind"] == "summary"]
    assert example["loss"] == pytest.approx(summary["loss"], abs=1e-6)
    folder = f"{run.checkpoint_uri('team', 1)}/weights"
    stored = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    moved = dict(example["model"].model.named_parameters())
    assert stored.keys() == moved.keys()
    steps = [float((moved[name] - stored[name]).abs().max()) for name in stored]
    # AdamW's first step is the learning rate whatever the gradient's size, so a gradient that is nearly
    # zero may step otherwise where the kernels add up in another order
    assert max(steps) < example["LEARNING_RATE"] * 0.1
    flat = torch.cat([(moved[name] - stored[name]).detach().flatten() for name in stored])
    assert float(flat.abs().mean()) < example["LEARNING_RATE"] * 1e-3
