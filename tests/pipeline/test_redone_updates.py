"""With which settings an update that is made again was made: those of its manifest, not today's."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.plan.assemble import assemble
from pipeline.plan.trainers import changed_loss, spec_of
from pipeline.settings.reading import parse_settings
from pipeline.store.differences import plain
from tests.conftest import SCRIPTED, merge
from tests.pipeline.test_recorded_fingerprints import TEAMS
from workflows.errors import UsageError

CHANGES: dict[str, dict[str, Any]] = {
    "rate": {"ppo": {"learning_rate": 0.5, "betas": [0.5, 0.9], "eps": 1e-3, "weight_decay": 0.5}},
    "loss": {"ppo": {"loss": "gspo", "clip_low": 0.1, "entropy_coefficient": 0.2}},
    "schedule": {"ppo": {"schedule": "cosine", "warmup_updates": 2, "total_updates": 9}},
    "epochs": {"ppo": {"epochs": 3, "gradient_clip": 0.1, "mini_batches": 2}},
    "anchor": {"ppo": {"kl_coefficient": 0.1}},
    "trainer": {"models": {"team": {"trainer": {"shared_prefix": False, "num_threads": 2}}}},
    **TEAMS,
}


def plan_of(**changes: Any) -> Any:
    return assemble(parse_settings(merge(SCRIPTED, changes)))


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_the_trainer_of_an_update_is_read_off_its_fingerprint(name: str) -> None:
    then = plan_of(**CHANGES[name])
    today = plan_of()
    for model_id, spec in then.trainer_specs.items():
        fingerprint = plain(then.fingerprints[f"update/{model_id}"])
        assert spec_of(fingerprint, spec) == spec
        if model_id in today.trainer_specs and spec.adapter is None:
            assert spec_of(fingerprint, today.trainer_specs[model_id]) == spec
        assert changed_loss(fingerprint) is None


def test_settings_that_are_unknown_and_sources_that_changed_are_told() -> None:
    plan = plan_of()
    fingerprint = plain(plan.fingerprints["update/team"])
    spec = plan.trainer_specs["team"]
    with pytest.raises(UsageError, match=r"an update of model .team. has to be made again.*another_key"):
        spec_of(merge(fingerprint, {"ppo": {"another_key": 1}}), spec)
    assert changed_loss({**fingerprint, "loss_source": "other"}) == "ppo"
