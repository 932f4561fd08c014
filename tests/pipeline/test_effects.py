"""A key that is set where it has no effect is refused; the table of effects covers every key of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.plan.algorithm import leave_out_silent
from pipeline.plan.assemble import assemble
from pipeline.plan.resolve import load_and_resolve
from pipeline.settings.effects import ACTS_UNDER
from pipeline.settings.page import parts
from pipeline.settings.reading import parse_settings
from pipeline.settings.schema import EvaluateSection, RolloutSection, SharingSection
from pipeline.settings.training import (
    AdvantageSection,
    CreditSection,
    CriticSection,
    MeasureSection,
    PpoSection,
    TrustSection,
)
from tests.support.merging import merged
from workflows.errors import UsageError

Raw = Callable[..., dict[str, Any]]

SECTIONS: dict[str, type] = {
    "ppo": PpoSection,
    "critic": CriticSection,
    "advantage": AdvantageSection,
    "credit": CreditSection,
    "sharing": SharingSection,
    "evaluate": EvaluateSection,
    "rollout": RolloutSection,
    "measure": MeasureSection,
    "trust_region": TrustSection,
}
# Keys that act whatever the others are. A new key goes here or into the table.
ACTIVE: dict[str, set[str]] = {
    "ppo": {
        *("learning_rate", "schedule", "warmup_updates", "loss", "normalisation", "entropy_coefficient"),
        *("kl_coefficient", "importance", "epochs", "mini_batches", "micro_batch_tokens", "gradient_clip"),
        *("weight_decay", "betas", "eps", "coherence_damping"),
    },
    "critic": set(),
    "advantage": {"use", "whiten", "clip"},
    "credit": {"use", "options", "truncated", "silent", "channels"},
    "sharing": {"regime"},
    "evaluate": {
        *("path", "split", "tasks", "samples", "temperature", "every", "rewards", "best", "solved_at"),
        *("max_failed_share", "test", "vote", "best_by"),
    },
    "rollout": {
        *("group_size", "temperature", "max_in_flight", "tasks_per_shard", "players", "max_turns"),
        *("call_timeout_seconds", "tool_timeout_seconds", "episode_timeout_seconds", "call_attempts"),
        "max_failed_share",
    },
    "measure": {"gradients"},
    "trust_region": {"radius"},
}
WITHIN = {"trust_region": {"radius": 0.01}}
STEPS = {"trust_region": {"radius": 0.01}, "ppo": {"epochs": 2}}
REJECTS = {"trust_region": {"radius": 0.01, "reject": True}}
TRIES = {**REJECTS, "evaluate": {"tasks": 4}, "models": {"team": {"engine": "torch"}}}
CERTIFIES = {"trust_region": {"radius": 0.01, "reject": True, "certificate": True}}
EXACT = {"measure": {"gradients": "exact"}}
GAE = {"advantage": {"use": "gae"}, "critic": {"kind": "head"}}
MODEL = {"advantage": {"use": "gae"}, "critic": {"kind": "model"}}
# by key: a value that is not its default, settings where it does not act, and settings where it acts
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "ppo.total_updates": (9, {}, {"ppo": {"schedule": "linear"}}),
    "ppo.final_share": (0.1, {}, {"ppo": {"schedule": "cosine", "total_updates": 9}}),
    "ppo.fixed_length": (9, {}, {"ppo": {"normalisation": "fixed_length"}}),
    "ppo.clip_low": (0.1, {"ppo": {"loss": "policy_gradient"}}, {"ppo": {"loss": "cispo"}}),
    "ppo.clip_high": (0.1, {"ppo": {"loss": "policy_gradient"}}, {"ppo": {"loss": "gspo"}}),
    "ppo.dual_clip": (4.0, {"ppo": {"loss": "gspo"}}, {"ppo": {"loss": "ppo"}}),
    "ppo.cov_share": (0.1, {}, {"ppo": {"loss": "clip_cov"}}),
    "ppo.cov_low": (0.5, {"ppo": {"loss": "kl_cov", "epochs": 2}}, {"ppo": {"loss": "clip_cov"}}),
    "ppo.cov_high": (9.0, {"ppo": {"loss": "kl_cov", "epochs": 2}}, {"ppo": {"loss": "clip_cov"}}),
    "ppo.cov_kl_coefficient": (
        0.5,
        {"ppo": {"loss": "clip_cov"}},
        {"ppo": {"loss": "kl_cov", "epochs": 2}},
    ),
    "ppo.kl_in": ("reward", {}, {"ppo": {"kl_coefficient": 0.1}}),
    "ppo.kl_estimator": ("k2", {}, {"roles": {"reader": {"ppo": {"kl_coefficient": 0.1}}}}),
    "ppo.kl_target": (0.1, {}, {"ppo": {"kl_coefficient": 0.1}}),
    "ppo.kl_step": (
        0.2,
        {"ppo": {"kl_coefficient": 0.1}},
        {"ppo": {"kl_coefficient": 0.1, "kl_target": 0.1}},
    ),
    "ppo.importance_level": ("sequence", {}, {"ppo": {"importance": "truncated"}}),
    "ppo.importance_cap": (3.0, {}, {"ppo": {"importance": "masked"}}),
    "ppo.importance_floor": (0.5, {"ppo": {"importance": "truncated"}}, {"ppo": {"importance": "masked"}}),
    "models.team.reference": ("tiny-scripted", {}, {"ppo": {"kl_coefficient": 0.1}}),
    "ppo.coherence_window": (8, {}, {"ppo": {"coherence_damping": 0.1}}),
    "ppo.max_role_share": (0.6, {"measure": {"gradients": "estimate"}}, EXACT),
    "ppo.damp_copies": (True, {}, EXACT),
    "measure.window": (8, {}, EXACT),
    "measure.drift": (True, merged(EXACT, {"ppo": {"kl_coefficient": 0.1}}), EXACT),
    "trust_region.measure": ("token", {}, WITHIN),
    "trust_region.estimator": ("k1", {}, WITHIN),
    "trust_region.top_k": (8, WITHIN, {"trust_region": {"radius": 0.01, "estimator": "exact"}}),
    "trust_region.direction": ("new_to_start", {}, WITHIN),
    "trust_region.quantile": (0.9, {}, WITHIN),
    "trust_region.share": (0.5, {}, WITHIN),
    "trust_region.backtrack": (3, {}, WITHIN),
    "trust_region.reject": (True, {}, WITHIN),
    "trust_region.penalty": (0.1, WITHIN, STEPS),
    "trust_region.stop_at": (1.5, WITHIN, STEPS),
    "trust_region.mask_above": (1.0, WITHIN, {**WITHIN, "ppo": {"mini_batches": 2}}),
    "trust_region.certificate": (True, WITHIN, REJECTS),
    "trust_region.z": (1.0, REJECTS, CERTIFIES),
    "trust_region.tolerance": (0.1, REJECTS, CERTIFIES),
    "trust_region.return_range": (2.0, REJECTS, CERTIFIES),
    "trust_region.trial_tasks": (4, WITHIN, {**REJECTS, **TRIES}),
    "trust_region.trial_samples": (2, REJECTS, merged(TRIES, {"trust_region": {"trial_tasks": 4}})),
    "advantage.gamma": (0.9, {}, {"ppo": {"kl_in": "reward", "kl_coefficient": 0.1}}),
    "advantage.lam": (0.9, {}, GAE),
    "advantage.turn_gamma": (0.9, {}, GAE),
    "advantage.turn_lam": (0.9, GAE, merged(GAE, {"advantage": {"across_turns": True}})),
    "advantage.across_turns": (True, {}, GAE),
    "advantage.bootstrap_cut": (True, {}, GAE),
    "critic.kind": ("model", {}, {"advantage": {"use": "gae"}}),
    "critic.heads": ("role", {}, GAE),
    "critic.checkpoint": ("tiny-scripted", GAE, MODEL),
    "critic.learning_rate": (1e-4, {}, {"advantage": {"use": "gae"}}),
    "critic.value_clip": (0.1, {}, GAE),
    "critic.coefficient": (0.1, MODEL, GAE),
    "critic.warmup_updates": (3, {}, GAE),
    "evaluate.top_p": (0.9, {}, {"evaluate": {"temperature": 0.7}}),
    "evaluate.top_k": (5, {}, {"evaluate": {"vote": {"answers": 3}}}),
    "evaluate.min_p": (0.1, {}, {"evaluate": {"temperature": 0.7}}),
    "evaluate.patience": (2, {}, {"evaluate": {"every": 1}}),
    "credit.silent_by": ("token_f1", {}, {"credit": {"silent": "exclude"}}),
    "sharing.groups": (
        {"a": ["decomposer", "reader", "answerer"]},
        {"sharing": {"regime": "full"}},
        {"sharing": {}},
    ),
}


def setting(key: str, value: Any) -> dict[str, Any]:
    for step in reversed(key.split(".")):
        value = {step: value}
    return dict(value)


def of_table(key: str) -> str:
    return key.replace("models.team", "models.<id>")


def plan(scripted: Raw, changes: dict[str, Any]) -> None:
    raw = scripted(**changes)
    if raw["models"]["team"]["engine"] != "scripted":
        del raw["models"]["team"]["engine_options"]
    assemble(parse_settings(raw))


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_acts_by_default_or_is_in_the_table(name: str) -> None:
    in_table = {key.partition(".")[2] for key in ACTS_UNDER if key.startswith(f"{name}.")}
    assert ACTIVE[name] | in_table == set(SECTIONS[name].model_fields)
    assert not ACTIVE[name] & in_table


def test_every_entry_of_the_table_is_a_key_and_has_a_case() -> None:
    keys = {f"{part.header.strip('[]')}.{key}" for part in parts() for key in part.section.model_fields}
    assert set(ACTS_UNDER) <= keys
    assert {of_table(key) for key in CASES} == set(ACTS_UNDER)


@pytest.mark.parametrize("key", CASES)
def test_a_key_is_refused_where_it_does_not_act_and_taken_where_it_acts(scripted: Raw, key: str) -> None:
    value, idle, acting = CASES[key]
    with pytest.raises(UsageError) as refused:
        plan(scripted, merged(idle, setting(key, value)))
    assert key.rpartition(".")[2] in str(refused.value) or "critic" in str(refused.value)
    plan(scripted, merged(acting, setting(key, value)))


def test_a_cap_on_shares_is_refused_where_every_role_has_a_model_of_its_own(scripted: Raw) -> None:
    capped = merged(EXACT, {"ppo": {"max_role_share": 0.6}, "sharing": {"regime": "separate"}})
    with pytest.raises(UsageError, match=r"max_role_share = 0\.6 has no effect with roles of the model = 1"):
        plan(scripted, capped)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"models": {"team": {"ppo": {"final_share": 0.5}}}}, "models.team.ppo.final_share = 0.5"),
        (
            {"ppo": {"loss": "policy_gradient"}, "roles": {"reader": {"ppo": {"clip_low": 0.1}}}},
            "roles.reader.ppo.clip_low = 0.1",
        ),
        (
            merged(MODEL, {"models": {"team": {"critic": {"coefficient": 0.25}}}}),
            "models.team.critic.coefficient = 0.25",
        ),
    ],
)
def test_a_key_of_one_model_or_role_is_refused_by_its_own_name(
    scripted: Raw, changes: dict[str, Any], where: str
) -> None:
    with pytest.raises(UsageError, match="has no effect with") as refused:
        plan(scripted, changes)
    assert str(refused.value).startswith(where)


def test_a_key_that_all_share_stays_where_one_model_reads_it(scripted: Raw) -> None:
    apart = {"reader": {"ppo": {"loss": "policy_gradient"}}}
    changes: dict[str, Any] = {"sharing": {"regime": "separate"}, "ppo": {"clip_high": 0.3}}
    plan(scripted, {**changes, "roles": apart})
    everyone = dict.fromkeys(("decomposer", "reader", "answerer"), apart["reader"])
    with pytest.raises(UsageError, match=r"ppo\.clip_high = 0\.3 has no effect with ppo\.loss"):
        plan(scripted, {**changes, "roles": everyone})


def test_what_would_have_to_be_set_is_said_as_a_sentence(scripted: Raw) -> None:
    with pytest.raises(UsageError) as refused:
        plan(scripted, {"evaluate": {"top_p": 0.9}})
    assert str(refused.value) == (
        "evaluate.top_p = 0.9 has no effect with evaluate.temperature = 0.0 and no evaluate.vote; remove it, "
        "or set evaluate.temperature above 0 or evaluate.vote"
    )


def test_a_default_and_what_is_off_are_no_mistake(scripted: Raw) -> None:
    plan(scripted, {"ppo": {"loss": "gspo", "dual_clip": 0, "final_share": 0.0, "importance_cap": 2.0}})
    plan(scripted, {"ppo": {"loss": "gspo", "dual_clip": 3.0}})
    plan(scripted, {"evaluate": {"top_p": 1.0, "top_k": 0, "min_p": 0.0}})


def test_a_loss_of_ones_own_may_read_every_key(scripted: Raw) -> None:
    loss = "stages.training.loss.policy:ppo"
    plan(scripted, {"ppo": {"loss": loss, "dual_clip": 4.0, "clip_low": 0.1, "clip_high": 0.3}})


@pytest.mark.parametrize("key", ["ppo", "critic"])
def test_keys_of_training_are_refused_for_a_model_that_is_not_trained(scripted: Raw, key: str) -> None:
    models = {
        "team": {},
        "judge": {"checkpoint": "tiny", "engine": "scripted", "train": False, key: {"learning_rate": 1e-4}},
    }
    roles = {"decomposer": {"model": "judge"}, "reader": {"model": "team"}, "answerer": {"model": "team"}}
    with pytest.raises(
        UsageError, match=rf"\[models\.judge\.{key}\] has no effect: the model is not trained"
    ):
        plan(scripted, {"models": models, "roles": roles})


def test_weights_that_leave_out_what_both_policies_agree_on_are_refused(scripted: Raw) -> None:
    for bounds in ({"importance_cap": 0.9}, {"importance_floor": 1.1}):
        with pytest.raises(UsageError, match="leave out tokens of weight 1"):
            plan(scripted, {"ppo": {"importance": "masked", **bounds}})
    plan(scripted, {"ppo": {"importance": "truncated", "importance_cap": 0.9}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"credit": {"use": "gae"}}, ["'gae'", '[advantage] use = "gae"']),
        ({"credit": {"use": "gspo"}}, ['[ppo] loss = "gspo"']),
        ({"ppo": {"loss": "grpo"}}, ['[credit] use = "grpo"']),
        ({"models": {"team": {"ppo": {"loss": "gae"}}}}, ["team", '[advantage] use = "gae"']),
    ],
)
def test_a_word_of_another_key_is_refused_with_that_key(
    scripted: Raw, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        load_and_resolve(parse_settings(scripted(**changes)))
    for word in words:
        assert word in str(refused.value)


def test_what_decides_on_silent_groups_is_refused_where_they_are_kept() -> None:
    with pytest.raises(UsageError, match="no effect"):
        leave_out_silent(CreditSection(silent_by="token_f1"), ["token_f1"])


def test_a_model_has_a_radius_of_its_own_and_others_have_none(scripted: Raw) -> None:
    made = assemble(parse_settings(scripted(models={"team": {"trust_region": {"radius": 0.02}}})))
    spec = made.trainer_specs["team"].trust
    assert spec is not None
    assert spec.radius == 0.02
    assert assemble(parse_settings(scripted())).trainer_specs["team"].trust is None


@pytest.mark.parametrize("of_episodes", [{"measure": "episode"}, {"certificate": True, "reject": True}])
def test_a_share_of_the_rows_is_refused_where_episodes_are_added_up(scripted: Raw, of_episodes) -> None:
    with pytest.raises(UsageError, match="needs all rows of an episode; use share = 1"):
        plan(scripted, {"trust_region": {"radius": 0.01, "share": 0.5, **of_episodes}})
