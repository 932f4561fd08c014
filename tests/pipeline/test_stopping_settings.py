"""[stopping]: what is refused before a run, and what a plan makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.plan.assemble import assemble
from pipeline.settings.reading import load_settings
from workflows.errors import UsageError

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "stopping.toml"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["workflow.options={}", "roles.stopper=", "models.stop="],
            "no role of workflow 'evaluate_optimise' decides on a stop",
        ),
        (["stopping.use=off"], 'stopping.price = 0.001 has no effect with stopping.use = "off"'),
        (["stopping.epsilon=0.5"], "stopping.epsilon = 0.5 has no effect"),
        (["stopping.use=measure"], "stopping.budget = 120.0 has no effect"),
        (["stopping.price=0"], "steers the price by factors"),
        (["stopping.budget=", "stopping.price_step=0.5"], "has no effect without stopping.budget"),
        (["roles.stopper.model=base"], "whose model is not trained"),
        (["measure.gradients=estimate"], "does not go with measure.gradients"),
        (["models.stop.trust_region={radius=0.1}"], "only decides on stops"),
        (["schedule.use=sequential"], 'goes with schedule.use = "simultaneous"'),
    ],
)
def test_settings_that_can_not_be_kept_are_refused(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    overrides = [*overrides, f"run.root={tmp_path}"]
    if "roles.stopper.model=base" in overrides:
        overrides += ["models.stop="]
    with pytest.raises(UsageError, match=message):
        assemble(load_settings(EXAMPLE, overrides))


def test_a_plan_holds_stops_back_in_training_and_never_in_evaluations(tmp_path: Path) -> None:
    from pipeline.plan.assemble import assemble_evaluation

    plan = assemble(load_settings(EXAMPLE, [f"run.root={tmp_path}"]))
    assert plan.player_spec.hold_stops
    assert not assemble_evaluation(plan).player_spec.hold_stops
    names = [stage.name for stage in plan.stages]
    assert names[4:9] == ["probe", "probe_reward", "stops", "partition", "stop_rows"]
    assert {m: a.loss.stop_loss for m, a in plan.algorithms.items()} == {"team": "", "stop": "hazard"}
    assert plan.fingerprints["rollout"]["hold_stops"]
    plain = assemble(load_settings(EXAMPLE, [f"run.root={tmp_path}", "stopping={}", "run.name=plain"]))
    assert "hold_stops" not in plain.fingerprints["rollout"]
    assert "stop_loss" not in plain.fingerprints["update/stop"]["loss"]
