"""Outputs that pages show have the lines that the commands print today, numbers aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import assemble
from pipeline.settings.reading import load_settings
from pipeline.views.render import as_text
from tests.support.pages import ROOT, blocks, missing_from, output, shape


def test_masks_keep_words_and_lose_numbers() -> None:
    assert shape("a  1.5  -2e-5  10.2 k  81%  –\n\nb-1/t02") == ["a # # # # #", "b-#/t#"]
    assert missing_from("one 1\ntwo 2\n", "one 7\nother\ntwo 8\n") == []
    assert missing_from("two 2\none 1\n", "one 7\ntwo 8\n") == ["one #"]


def test_every_shown_output_is_held_by_a_test() -> None:
    shown = {block.label.removeprefix("output: ").partition(",")[0] for block in blocks("") if block.label}
    assert shown == {"summary", "ablation", "comparison"}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_the_summary_of_the_first_iteration(tmp_path: Path) -> None:
    from pipeline.run.session import session
    from pipeline.views.summary import summary_of

    model = {
        "checkpoint": '"tiny-scripted"',
        "engine": '"scripted"',
        "engine_options": '{reply = "workflows.testing:echo_qa"}',
        "max_model_len": "2048",
        "trainer": '{precision = "fp32", num_threads = 1}',
    }
    overrides = [f"models.team.{key}={value}" for key, value in model.items()]
    overrides += [f'run.root="{tmp_path}"', 'tracking.uri="none"', "cluster.object_store_gib=0.2"]
    plan = assemble(load_settings(ROOT / "pipeline.toml", overrides))
    with session(plan, signals=False) as runner:
        done = runner.run_iteration()
    assert missing_from(output("summary"), as_text(summary_of(runner.run, done))) == []


def test_a_comparison(tmp_path: Path) -> None:
    from pipeline.experiments.comparison import compare
    from pipeline.experiments.comparison_view import comparison_page
    from pipeline.store.history import read_history
    from tests.support.small_runs import make_run

    adapter = {"rank": 8, "alpha": 16.0, "train_embeddings": True}
    changes: dict[str, dict[str, Any]] = {
        "full": {"ppo": {"learning_rate": 1.5e-3}},
        "separate": {"ppo": {"learning_rate": 1.5e-3}},
        "adapters": {"ppo": {"learning_rate": 2e-3}, "models": {"team": {"adapter": adapter}}},
    }
    runs = {
        make_run(
            tmp_path,
            f"{regime}-{seed}",
            [0.1] * 20 + [last + 0.01 * seed] * 20,
            regime=regime,
            seed=seed,
            settings=changes[regime],
            scores={0: 0.0, 40: last},
        ): regime
        for regime, last in (("full", 0.5), ("separate", 0.955), ("adapters", 0.95))
        for seed in (0, 1, 2)
    }
    found = compare([read_history(run) for run in runs], {run.folder.url: name for run, name in runs.items()})
    assert missing_from(output("comparison"), as_text(comparison_page(found), width=120)) == []


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_an_ablation(tmp_path: Path) -> None:
    from pipeline.replays.ablation.ablate import ablate
    from pipeline.replays.ablation.show import ablation_page
    from pipeline.replays.ablation.variants import variant_plans
    from pipeline.replays.source import Source
    from stages.base import Quiet
    from tests.pipeline.test_replay import stored_run

    run = stored_run(tmp_path, count=1)
    plans = variant_plans(Source(run), str(ROOT / "docs/examples/variants/credit.toml"), None)
    made = as_text(ablation_page(ablate(plans, [0], Quiet(), shown=2), None, []))
    assert missing_from(output("ablation").replace("of run mask", f"of run {run.name}"), made) == []
