"""Every key about training reaches what trains: a resume makes its trainer from the settings of now."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import Plan, assemble
from pipeline.settings.reading import parse_settings
from pipeline.settings.training import CriticSection, PpoSection, TrainerSection
from stages.advantage import AdvantageStage
from stages.partition import PartitionStage
from stages.training.checkpoint import foreign
from stages.weights.resolve import resolve_checkpoint

KL = {"kl_coefficient": 0.1}
FALLING = {"schedule": "linear", "total_updates": 9}
IMPORTANCE = {"importance": "masked", "importance_cap": 3.0}
PPO: dict[str, tuple[Any, dict[str, Any]]] = {  # another value, and other keys that give it an effect
    "learning_rate": (0.5, {}),
    "schedule": ("cosine", FALLING),
    "warmup_updates": (3, {}),
    "total_updates": (5, FALLING),
    "final_share": (0.5, FALLING),
    "loss": ("cispo", {"clip_low": 0.3}),
    "normalisation": ("sequence_mean", {}),
    "fixed_length": (77, {"normalisation": "fixed_length"}),
    "clip_low": (0.1, {}),
    "clip_high": (0.3, {}),
    "dual_clip": (5.0, {}),
    "cov_share": (0.1, {"loss": "clip_cov"}),
    "cov_low": (0.5, {"loss": "clip_cov"}),
    "cov_high": (9.0, {"loss": "clip_cov"}),
    "cov_kl_coefficient": (0.5, {"loss": "kl_cov", "epochs": 2}),
    "entropy_coefficient": (0.1, {}),
    "kl_coefficient": (0.2, KL),
    "kl_in": ("reward", KL),
    "kl_estimator": ("k2", KL),
    "kl_target": (0.3, KL),
    "kl_step": (0.3, {**KL, "kl_target": 0.3}),
    "importance": ("truncated", {}),
    "importance_level": ("sequence", IMPORTANCE),
    "importance_cap": (4.0, IMPORTANCE),
    "importance_floor": (0.5, IMPORTANCE),
    "epochs": (2, {}),
    "mini_batches": (2, {}),
    "micro_batch_tokens": (4096, {}),
    "gradient_clip": (0.5, {}),
    "weight_decay": (0.5, {}),
    "betas": ([0.5, 0.9], {}),
    "eps": (1e-3, {}),
    "coherence_damping": (0.3, {}),
    "coherence_window": (8, {"coherence_damping": 0.3}),
    "max_role_share": (0.6, {}),
    "damp_copies": (True, {}),
}
TRAINER: dict[str, Any] = {
    "ranks": 2,
    "zero_stage": 2,
    "precision": "bf16",
    "shared_prefix": False,
    "activation_checkpointing": True,
    "compile": True,
    "num_threads": 2,
    "num_gpus": 0.5,
}
REFUSED = {"ranks", "zero_stage", "precision"}  # a trainer's state is cut and stored by them
CRITIC: dict[str, Any] = {
    "kind": "model",
    "heads": "role",
    "checkpoint": None,  # a folder that the test makes
    "learning_rate": 0.1,
    "value_clip": 0.1,
    "coefficient": 0.1,
    "warmup_updates": 2,
}
Settings = Callable[..., dict[str, Any]]


def made(plan: Plan) -> dict[str, Any]:
    """What an update of the model `team` is made from."""
    parts = [s.models for s in plan.stages if isinstance(s, PartitionStage)]
    tokens = [s.specs for s in plan.stages if isinstance(s, AdvantageStage)]
    return {"trainer": plan.trainer_specs["team"], "partition": parts, "tokens": tokens}


def planned(raw: dict[str, Any]) -> Plan:
    return assemble(parse_settings(raw))


def manifest_of(plan: Plan) -> dict[str, Any]:
    spec = plan.trainer_specs["team"]
    return {
        "files": [{"name": "trainer/x"}],
        "model_id": "team",
        "version": 1,
        "ranks": spec.ranks,
        "zero_stage": spec.zero_stage,
        "precision": spec.precision,
        "critic": spec.critic.kind if spec.critic else None,
        "critic_checkpoint": spec.critic.checkpoint if spec.critic else None,
        "critic_heads": list(spec.critic.roles) if spec.critic else [],
        "adapter": None,
    }


def test_the_tables_have_all_keys() -> None:
    assert set(PPO) == set(PpoSection.model_fields)
    assert set(TRAINER) == set(TrainerSection.model_fields)
    assert set(CRITIC) == set(CriticSection.model_fields)


@pytest.mark.parametrize("key", PPO)
def test_every_key_of_ppo_acts_after_a_resume(key: str, scripted: Settings) -> None:
    value, others = PPO[key]
    exact = {"gradients": "exact"}
    before = planned(scripted(ppo=others, measure=exact))
    after = planned(scripted(ppo=others | {key: value}, measure=exact))
    assert made(after) != made(before)
    assert foreign(manifest_of(before), after.trainer_specs["team"], 1) is None


@pytest.mark.parametrize("key", TRAINER)
def test_every_key_of_a_trainer_acts_after_a_resume_or_is_refused(key: str, scripted: Settings) -> None:
    before = planned(scripted())
    after = planned(scripted(models={"team": {"trainer": {key: TRAINER[key]}}}))
    assert made(after) != made(before)
    problem = foreign(manifest_of(before), after.trainer_specs["team"], 1)
    assert (problem is not None) is (key in REFUSED)
    assert problem is None or f"it has {key} " in problem


@pytest.mark.parametrize("key", CRITIC)
def test_every_key_of_a_critic_acts_after_a_resume_or_is_refused(
    key: str, scripted: Settings, tmp_path: Path
) -> None:
    raw = scripted(advantage={"use": "gae"})
    raw["credit"] = {"use": "none"}
    raw["critic"] = {"kind": "model"} if key == "checkpoint" else {}
    before = planned(raw)
    value = CRITIC[key]
    if key == "checkpoint":
        value = shutil.copytree(resolve_checkpoint("tiny-scripted"), str(tmp_path / "another"))
    raw["critic"] = raw["critic"] | {key: value}
    after = planned(raw)
    assert made(after) != made(before)
    problem = foreign(manifest_of(before), after.trainer_specs["team"], 1)
    assert (problem is not None) is (key in {"kind", "checkpoint", "heads"})
    assert problem is None or "it has critic" in problem
