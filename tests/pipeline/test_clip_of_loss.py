"""GSPO's ratio is of whole replies and far closer to 1 than a token's: it has a clip range of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from pipeline.plan.assemble import Plan, assemble
from pipeline.settings.origins import settings_with_origins
from pipeline.settings.reading import parse_settings, settings_toml
from pipeline.settings.training import PpoSection

Settings = Callable[..., dict[str, Any]]
GSPO = {"loss": "gspo"}


def plan(scripted: Settings, **changes: Any) -> Plan:
    return assemble(parse_settings(scripted(**changes)))


def clip(found: Plan, model: str = "team") -> tuple[float, float]:
    loss = found.algorithms[model].loss
    return loss.clip_low, loss.clip_high


@pytest.mark.parametrize(
    ("ppo", "expected"),
    [
        ({}, (0.2, 0.2)),
        (GSPO, (3e-4, 4e-4)),
        ({**GSPO, "clip_low": 0.1, "clip_high": 0.2}, (0.1, 0.2)),
        ({**GSPO, "clip_high": 1e-3}, (3e-4, 1e-3)),
        ({"loss": "cispo"}, (0.2, 0.2)),
        ({"loss": "clip_cov"}, (0.2, 0.2)),
    ],
)
def test_a_loss_has_its_own_clip_range_until_one_is_named(
    scripted: Settings, ppo: dict[str, Any], expected: tuple[float, float]
) -> None:
    assert clip(plan(scripted, ppo=ppo)) == expected


def test_the_loss_that_a_model_ends_up_with_decides(scripted: Settings) -> None:
    assert clip(plan(scripted, models={"team": {"ppo": GSPO}})) == (3e-4, 4e-4)
    apart = plan(scripted, sharing={"regime": "separate"}, roles={"reader": {"ppo": GSPO}})
    assert clip(apart, "reader") == (3e-4, 4e-4)
    assert clip(apart, "answerer") == (0.2, 0.2)
    named = plan(scripted, ppo={"clip_low": 0.1, "clip_high": 0.1}, models={"team": {"ppo": GSPO}})
    assert clip(named) == (0.1, 0.1)


def test_the_settings_that_a_run_keeps_read_back_to_the_same_clip(scripted: Settings) -> None:
    for changes in ({"ppo": GSPO}, {"models": {"team": {"ppo": GSPO}}}, {}):
        found = plan(scripted, **changes)
        again = assemble(parse_settings(tomlkit.parse(settings_toml(found.settings)).unwrap()))
        assert clip(again) == clip(found)
        assert again.fingerprints == found.fingerprints


def test_runs_that_named_their_clip_and_those_of_other_losses_have_the_fingerprint_that_they_had(
    scripted: Settings,
) -> None:
    """Older versions wrote 0.2 where nothing was named, and read it back as a key of the file."""
    written = {"clip_low": 0.2, "clip_high": 0.2}
    before, now = plan(scripted, ppo=written), plan(scripted)
    assert before.fingerprints == now.fingerprints
    assert now.fingerprints["update/team"]["ppo"].items() >= written.items()
    assert PpoSection().fingerprint() == PpoSection(**written).fingerprint()
    assert plan(scripted, ppo={"loss": "policy_gradient", **written}).algorithms["team"].loss.clip_low == 0.2


def test_sampling_of_evaluations_is_training_s_unless_it_is_set(scripted: Settings) -> None:
    def origins(**changes: Any) -> dict[str, tuple[Any, str]]:
        raw = scripted(**changes)
        parsed = parse_settings(raw)
        listed = settings_with_origins(assemble(parsed).settings, parsed, raw, [])
        return {setting.key: (setting.value, setting.origin) for setting in listed}

    assert origins()["evaluate.top_p"] == (1.0, "training's, by role")
    own = origins(evaluate={"temperature": 0.6, "top_p": 0.95})
    assert own["evaluate.top_p"] == (0.95, "file")
    assert own["evaluate.temperature"] == (0.6, "file")
    assert own["evaluate.min_p"] == (0.0, "training's, by role")


def test_every_setting_has_its_origin_and_a_clip_names_its_loss(scripted: Settings, tmp_path: Path) -> None:
    def origins(**ppo: Any) -> dict[str, tuple[Any, str]]:
        raw = scripted(ppo=ppo)
        parsed = parse_settings(raw)
        listed = settings_with_origins(assemble(parsed).settings, parsed, raw, [])
        return {setting.key: (setting.value, setting.origin) for setting in listed}

    of_gspo = origins(loss="gspo", clip_high=1e-3)
    assert of_gspo["ppo.clip_low"] == (3e-4, "default of gspo")
    assert of_gspo["ppo.clip_high"] == (1e-3, "file")
    assert origins()["ppo.clip_low"] == (0.2, "default")
    assert origins(loss="clip_cov")["ppo.cov_share"] == (2e-4, "default of clip_cov")


@pytest.mark.parametrize(("loss", "share"), [("clip_cov", 2e-4), ("kl_cov", 2e-3)])
def test_the_share_of_tokens_that_is_held_back_is_that_of_the_paper(
    scripted: Settings, loss: str, share: float
) -> None:
    ppo = {"loss": loss, "epochs": 2}
    assert plan(scripted, ppo=ppo).algorithms["team"].loss.cov_share == share
    assert plan(scripted, ppo={**ppo, "cov_share": 0.1}).algorithms["team"].loss.cov_share == 0.1
