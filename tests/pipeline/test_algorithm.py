"""From settings to what each model optimises: stages, numbers by model and role, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import Plan, assemble
from pipeline.settings.reading import load_settings, parse_settings, settings_toml
from pipeline.store.run import Run, carried_tables
from rewards.credit.silent import LeaveOutSilent
from stages.base import StageResult
from stages.credit import CreditStage
from stages.partition import PartitionStage
from stages.training.loss.spec import LOSSES, RoleLoss
from workflows.errors import UsageError
from workflows.trajectory import BASELINES, CREDIT, rows_to_table

Settings = Callable[..., dict[str, Any]]
GAE = {"advantage": {"use": "gae"}, "critic": {"kind": "head"}}
SEPARATE = {"sharing": {"regime": "separate"}}


@pytest.fixture
def scripted(scripted: Settings, tmp_path: Path) -> Settings:
    """The shared settings on two tasks, which load at once."""
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"question": "Who?", "answer": ["me"]}\n{"question": "Where?", "answer": ["here"]}\n')
    return lambda **changes: scripted(data={"path": str(file), "tasks_per_iteration": 2}, **changes)


def plan(scripted: Settings, **changes: Any) -> Plan:
    return assemble(parse_settings(scripted(**changes)))


def stages(found: Plan) -> list[str]:
    names = [s.name for s in found.stages]
    return names[names.index("partition") + 1 :]


@pytest.mark.parametrize(
    ("changes", "expected", "needs"),
    [
        ({}, ["update/team"], set()),
        ({"advantage": {"whiten": "role"}}, ["advantage", "update/team"], set()),
        (GAE, ["score/team", "advantage", "update/team"], {"values", "old"}),
        (
            {"advantage": {"use": "gae", "bootstrap_cut": True}, "critic": {"kind": "model"}},
            ["score/team", "advantage", "update/team"],
            {"values", "bootstrap_turns"},
        ),
        (
            {
                "advantage": {"use": "gae", "bootstrap_cut": True, "across_turns": True},
                "critic": {"kind": "model"},
                "credit": {"truncated": "mask"},
            },
            ["score/team", "advantage", "update/team"],
            {"values", "bootstrap_episodes"},
        ),
        (
            {**GAE, "critic": {"kind": "model"}},
            ["score/team", "advantage", "update/team"],
            {"values"},
        ),
        ({"ppo": {"kl_coefficient": 0.1}}, ["score/team", "update/team"], {"reference"}),
        (
            {"ppo": {"kl_coefficient": 0.1, "epochs": 2}},
            ["score/team", "update/team"],
            {"reference", "old"},
        ),
        (
            {"ppo": {"kl_coefficient": 0.1, "kl_in": "reward"}},
            ["score/team", "advantage", "update/team"],
            {"reference", "old"},
        ),
        ({"ppo": {"loss": "clip_cov"}}, ["update/team"], set()),
        (
            {"ppo": {"kl_coefficient": 0.1, "kl_target": 0.05}},
            ["score/team", "advantage", "update/team"],
            {"reference", "old"},
        ),
        (
            {"ppo": {"loss": "clip_cov", "kl_coefficient": 0.1}},
            ["score/team", "update/team"],
            {"reference", "old"},
        ),
        ({"ppo": {"importance": "truncated"}}, ["score/team", "advantage", "update/team"], {"old"}),
        (
            {"ppo": {"loss": "supervised"}, "credit": {"use": "rejection", "options": {"best": True}}},
            ["advantage", "update/team"],
            set(),
        ),
    ],
)
def test_a_plan_has_the_stages_that_its_method_needs(
    scripted: Settings, changes: dict[str, Any], expected: list[str], needs: set[str]
) -> None:
    found = plan(scripted, **changes)
    assert stages(found) == expected
    assert found.algorithms["team"].needs == needs
    assert set(found.fingerprints) >= {s.name for s in found.stages}


def test_gae_needs_no_groups_and_group_methods_do(scripted: Settings) -> None:
    alone = {"rollout": {"group_size": 1}}
    raw = scripted(**GAE, **alone)
    assert assemble(parse_settings(raw)).settings.credit_method == "group_relative"  # it has options
    del raw["credit"]
    assert assemble(parse_settings(raw)).settings.credit_method == "none"
    with pytest.raises(UsageError, match="group_size"):
        plan(scripted, **alone)


@pytest.mark.parametrize("loss", [*LOSSES[:-1], "math:exp"])
def test_every_loss_assembles_by_its_name(scripted: Settings, loss: str) -> None:
    found = plan(scripted, ppo={"loss": loss, "epochs": 2}).algorithms["team"].loss
    assert found.name == loss
    assert found.normalisation == ("sequence_mean" if loss == "gspo" else "token_mean")


def test_fixed_length_is_the_longest_answer_unless_it_is_given(scripted: Settings) -> None:
    changes = {"ppo": {"normalisation": "fixed_length"}, "roles": {"reader": {"max_response_tokens": 333}}}
    assert plan(scripted, **changes).algorithms["team"].loss.fixed_length == 333
    changes["ppo"]["fixed_length"] = 10
    assert plan(scripted, **changes).algorithms["team"].loss.fixed_length == 10


def test_models_and_roles_have_their_own_numbers(scripted: Settings) -> None:
    found = plan(
        scripted,
        **SEPARATE,
        models={"team": {"ppo": {"clip_high": 0.5}}},
        roles={"reader": {"ppo": {"learning_rate": 0.5, "epochs": 3, "kl_coefficient": 0.2, "weight": 2.0}}},
    )
    reader, answerer = found.algorithms["reader"], found.algorithms["answerer"]
    assert found.trainer_specs["reader"].learning_rate == 0.5
    assert found.trainer_specs["reader"].epochs == 3
    assert found.trainer_specs["answerer"].learning_rate == 1e-3
    assert reader.loss.clip_high == answerer.loss.clip_high == 0.5
    assert reader.loss.of("reader").weight == 2
    assert (reader.needs, answerer.needs) == ({"reference", "old"}, set())


def test_roles_that_share_a_model_differ_in_the_loss_only(scripted: Settings) -> None:
    roles = {"reader": {"ppo": {"clip_low": 0.1, "kl_coefficient": 0.2, "weight": 0.5}}}
    loss = plan(scripted, roles=roles).algorithms["team"].loss
    assert loss.roles == {"reader": RoleLoss(clip_low=0.1, kl_coefficient=0.2, weight=0.5)}
    assert loss.needs_reference
    in_reward = plan(scripted, roles=roles, ppo={"kl_in": "reward"}).algorithms["team"]
    assert not in_reward.loss.needs_reference
    assert in_reward.tokens.reward_kl.of("reader") == 0.2
    assert in_reward.tokens.reward_kl.of("answerer") == 0


def test_a_model_that_speaks_for_several_roles_may_have_a_value_head_for_each(scripted: Settings) -> None:
    heads = {**GAE, "critic": {"heads": "role"}}
    critic = plan(scripted, **heads).algorithms["team"].critic
    assert critic is not None
    assert critic.roles == ("answerer", "decomposer", "reader")
    groups = {"sharing": {"groups": {"one": ["reader"], "two": ["decomposer", "answerer"]}}}
    apart = plan(scripted, **heads, **groups)
    assert apart.fingerprints["update/one"]["critic"]["roles"] == ("reader",)
    assert "roles" not in plan(scripted, **GAE).fingerprints["update/team"]["critic"]


def test_frozen_roles_and_silent_groups_reach_their_stages(scripted: Settings) -> None:
    found = plan(
        scripted,
        roles={"reader": {"frozen": True}},
        credit={"silent": "exclude", "silent_by": "token_f1"},
    )
    partition = next(s for s in found.stages if isinstance(s, PartitionStage))
    credit = next(s for s in found.stages if isinstance(s, CreditStage))
    assert partition.frozen_roles == {"reader"}
    assert credit.leave_out == LeaveOutSilent("token_f1")


def test_masking_cut_replies_changes_credit_and_no_reward(scripted: Settings) -> None:
    usual, masked, without = (
        plan(scripted, credit={"truncated": word}) for word in ("as_malformed", "mask", "exclude")
    )
    stage = [next(s for s in p.stages if isinstance(s, CreditStage)) for p in (usual, masked, without)]
    assert [s.mask_truncated for s in stage] == [False, True, False]
    assert masked.fingerprints["reward"] == usual.fingerprints["reward"] != without.fingerprints["reward"]
    assert masked.fingerprints["credit"] != usual.fingerprints["credit"]


def test_the_first_iteration_has_no_baselines_before_it(scripted: Settings, tmp_path: Path) -> None:
    raw = scripted()
    raw["credit"] = {"use": "running_baseline"}
    found = assemble(parse_settings(raw))
    credit = next(s for s in found.stages if isinstance(s, CreditStage))
    assert credit.outputs["baselines"] == BASELINES
    run = Run(str(tmp_path), "r")
    carried = carried_tables(run, run.iteration(0), found.stages)
    assert (carried["baselines_before"].rows, carried["baselines_before"].schema) == (0, BASELINES)
    assert carried_tables(run, run.iteration(0), plan(scripted).stages) == {}


def test_an_iteration_carries_what_the_one_before_it_left_also_when_it_has_begun(
    scripted: Settings, tmp_path: Path
) -> None:
    raw = scripted()
    raw["credit"] = {"use": "running_baseline"}
    credit = next(s for s in assemble(parse_settings(raw)).stages if isinstance(s, CreditStage))
    run = Run(str(tmp_path), "r")
    for index, mean in ((0, 0.25), (1, 0.5)):
        place = run.iteration(index)
        sinks = place.sinks(credit)
        rows = [{"key": "solver", "mean": mean, "count": 2.0, "iteration": index}]
        tables = {"credit": CREDIT.empty_table(), "baselines": rows_to_table(rows, BASELINES)}
        parts = {name: [sinks[name].write_part(0, table)] for name, table in tables.items()}
        place.commit(credit, StageResult(parts), {}, {}, 0.0)
    for index, mean in ((1, 0.25), (2, 0.5)):
        carried = carried_tables(run, run.iteration(index), [credit])["baselines_before"].read()
        assert carried["mean"].to_pylist() == [mean]


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "gae without a critic": ({"advantage": {"use": "gae"}}, ["[critic]", "gae"]),
    "a critic that nothing asks": ({"critic": {"kind": "head"}}, ["gae", "remove [critic]"]),
    "a critic option of a model": (
        {**GAE, "models": {"team": {"critic": {"value_klip": 1}}}},
        ["models.team.critic", "value_clip"],
    ),
    "heads of one role each": (
        {**GAE, **SEPARATE, "critic": {"heads": "role"}},
        ['critic.heads = "role" has no effect', "reader", "share a model"],
    ),
    "values after replies that nobody trains on": (
        {"advantage": {"use": "gae", "bootstrap_cut": True}, "critic": {}, "credit": {"truncated": "mask"}},
        ["advantage.bootstrap_cut has no effect", 'credit.truncated = "mask"', "across_turns"],
    ),
    "a head with a checkpoint": ({**GAE, "critic": {"checkpoint": "tiny-scripted"}}, ["kind", "model"]),
    "a critic of another tokenizer": (
        {**GAE, "critic": {"kind": "model", "checkpoint": "tiny"}},
        ["tokenizer", "critic"],
    ),
    "a reference of another tokenizer": (
        {"models": {"team": {"reference": "tiny"}}, "ppo": {"kl_coefficient": 0.1}},
        ["models.team.reference", "tokenizer"],
    ),
    "an option without effect": ({"advantage": {"lam": 0.9}}, ["advantage.lam", "no effect"]),
    "gamma without effect": ({"advantage": {"gamma": 0.9}}, ["advantage.gamma", "no effect"]),
    "an unknown loss": ({"ppo": {"loss": "gpso"}}, ["'gspo'", "team"]),
    "a loss that is not there": ({"ppo": {"loss": "no_such_pkg.x:loss"}}, ["no_such_pkg"]),
    "a length without its normalisation": ({"ppo": {"fixed_length": 9}}, ["normalisation"]),
    "a KL to a policy that has not moved": (
        {"ppo": {"loss": "kl_cov"}},
        ["epochs = 1", "mini_batches", "team"],
    ),
    "covariances between nothing": ({"ppo": {"loss": "clip_cov", "cov_low": 6}}, ["cov_low is 6", "team"]),
    "a schedule without an end": ({"ppo": {"schedule": "cosine"}}, ["total_updates"]),
    "a dual clip below 1": ({"ppo": {"dual_clip": 0.5}}, ["dual_clip", "above 1"]),
    "imitation of signed credit": ({"ppo": {"loss": "supervised"}}, ["supervised", '"rejection"']),
    "an unknown key of a role": ({"roles": {"reader": {"ppo": {"clip_hi": 1}}}}, ["clip_hi", "clip_high"]),
    "a learning rate of a role that shares its model": (
        {"roles": {"reader": {"ppo": {"learning_rate": 0.1}}}},
        ["reader", "learning_rate", "models.team.ppo", "decomposer"],
    ),
    "a word for a number": ({"roles": {"reader": {"ppo": {"clip_low": "x"}}}}, ["reader", "'x'"]),
    "a number out of range": ({"roles": {"reader": {"ppo": {"clip_low": 7}}}}, ["reader", "clip_low is 7"]),
    "all roles frozen": (
        {"roles": {r: {"frozen": True} for r in ("decomposer", "reader", "answerer")}},
        ["frozen", "train = false"],
    ),
    "floor above cap": (
        {"ppo": {"importance": "masked", "importance_cap": 1, "importance_floor": 2}},
        ["floor"],
    ),
    "silence by no reward": (
        {"credit": {"silent": "exclude", "silent_by": "tokenf1"}},
        ["tokenf1", "'token_f1'"],
    ),
    "silence that is kept": ({"credit": {"silent_by": "token_f1"}}, ['silent = "exclude"']),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_contradict_themselves_are_refused(scripted: Settings, case: str) -> None:
    changes, words = REFUSED[case]
    with pytest.raises(UsageError) as error:
        plan(scripted, **changes)
    for word in words:
        assert word in str(error.value), str(error.value)


def test_the_settings_read_back_the_same(scripted: Settings, tmp_path: Path) -> None:
    settings = parse_settings(
        scripted(**GAE, ppo={"dual_clip": 0, "loss": "cispo"}, roles={"reader": {"ppo": {"weight": 2}}})
    )
    file = tmp_path / "again.toml"
    file.write_text(settings_toml(settings))
    again = load_settings(file)
    assert again == settings
    assert assemble(again).algorithms["team"].loss.dual_clip is None
