"""Candidates on trial, on the torch engine: plays on held-out tasks decide, and a stop changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import Plan, assemble
from pipeline.run.session import session
from pipeline.settings.reading import load_settings
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from tests.whole.test_blocks import of_blocks, same_blocks, stop_before
from tests.whole.test_iteration import _Halt

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
EXAMPLE = Path(__file__).parents[2] / "docs/examples/signal.toml"


def planned(root: Path, name: str, *overrides: str) -> Plan:
    """One model for both roles, whose words are paid for their letters: one step changes what it says."""
    return assemble(
        load_settings(
            EXAMPLE,
            [
                *(f"run.root={root}", f"run.name={name}", "tracking.uri=none"),
                *('data.path="8"', "data.tasks_per_iteration=4", "rollout.group_size=8"),
                *("evaluate.split=dev", "evaluate.tasks=2", "evaluate.every=0", "ppo.learning_rate=0.05"),
                *("models.team.max_batch_size=1", "rollout.max_in_flight=1"),  # bit for bit
                'rewards=[{use = "rewards.testing:distinct_characters", name = "distinct"}]',
                *("trust_region.radius=1000", "trust_region.reject=true", "trust_region.trial_tasks=6"),
                *overrides,
            ],
        )
    )


def played(plan: Plan, iterations: int) -> tuple[Run, list[Finished]]:
    with session(plan, signals=False) as runner:
        return runner.run, [runner.run_iteration() for _ in range(iterations)]


def row_of(run: Run, index: int) -> dict[str, Any]:
    (tables,) = of_blocks(run, index)
    return dict(tables["trust/team"].row(0, named=True))


def test_a_candidate_stays_or_goes_by_its_trial_and_a_stop_changes_nothing(tmp_path: Path) -> None:
    # a bound of that many errors below the gain is below 0 where any play differs
    strict = "trust_region.z=50"
    run, done = played(planned(tmp_path, "whole", strict), 2)
    rows = [row_of(run, index) for index in (0, 1)]
    assert [row["decision"] for row in rows] == ["rejected", "rejected"]
    assert [row["candidate_version"] for row in rows] == [1, 2]
    assert all(row["reason"].startswith("the trial: ") for row in rows)
    assert rows[1]["radius"] == rows[0]["radius"] / 2
    assert run.weights_versions("team") == []
    (tables,) = of_blocks(run, 1)
    assert set(tables["turns"]["policy_version"]) == {0}  # the engine has the old weights again
    trial = tables["trial/team"]
    assert trial.height == 6
    assert trial["failed"].null_count() == 6
    assert (trial["return_before"] != trial["return_candidate"]).any()
    assert not set(trial["task_id"]) & set(tables["turns"]["task_id"])
    assert done[1].metrics["trial/episodes"] == 12
    assert done[1].metrics["total/sampled_tokens"] == 2 * 64
    assert done[1].metrics["total/trial_tokens"] == 2 * 24
    assert any("is rejected (the trial: " in note for note in done[1].notes)
    assert "team-plays" not in " ".join(run.iteration(1).folder.child("updates/team").names())

    with session(planned(tmp_path, "broken", strict), signals=False) as runner:
        runner.run_iteration()
        stop_before(runner, "update/team", 0)
        with pytest.raises(_Halt):
            runner.run_iteration()
    broken, _ = played(planned(tmp_path, "broken", strict), 1)
    same_blocks(broken, run, [0, 1])

    # the next iteration with another bound: its candidate has the third number, and is sampled by
    kept, (third, fourth) = played(planned(tmp_path, "whole", "trust_region.tolerance=100"), 2)
    assert (row_of(kept, 2)["decision"], row_of(kept, 2)["candidate_version"]) == ("accepted", 3)
    assert kept.weights_versions("team") == [3, 4]
    (tables,) = of_blocks(kept, 3)
    assert set(tables["turns"]["policy_version"]) == {3}
    assert any(note.startswith("trial of model 'team'") for note in third.notes)
    assert "shift/team/trial_gain" in fourth.metrics
