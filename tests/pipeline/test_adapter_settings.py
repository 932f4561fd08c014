"""Adapters in the settings: a fourth sharing regime, who may stand on whom, one base in every count."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from pipeline.plan.assemble import Plan, assemble
from pipeline.plan.memory import memory_report
from pipeline.plan.overview import overview
from pipeline.settings.reading import parse_settings, settings_toml
from pipeline.views.overview import overview_lines
from stages.weights.adapters import AdapterSpec
from workflows.errors import UsageError

Settings = Callable[..., dict[str, Any]]
TORCH: dict[str, Any] = {"engine": "torch", "engine_options": {}, "checkpoint": "tiny"}


def with_team(raw: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The single model on the torch engine, whose options are none."""
    raw["models"]["team"] |= TORCH | changes
    return raw


def plan_of(raw: dict[str, Any]) -> Plan:
    return assemble(parse_settings(raw))


def explicit(scripted: Settings, **changes: Any) -> dict[str, Any]:
    """A planner and a reader of qa_decompose on one base, written out."""
    raw = scripted(
        roles={"decomposer": {"model": "one"}, "searcher": {"model": "two"}, "reader": {"model": "two"}},
        workflow={"use": "qa_decompose"},
    )
    base = raw["models"].pop("team") | TORCH
    raw["models"] = {
        "big": base,
        "one": {"base": "big", "adapter": {"rank": 4}},
        "two": {"base": "big", "adapter": {"rank": 8, "alpha": 8, "targets": ["q_proj", "v_proj"]}},
    }
    for model_id, section in changes.items():
        raw["models"][model_id] = raw["models"].get(model_id, {}) | section
    return raw


def roles_of(raw: dict[str, Any]) -> list[str]:
    raw = {**raw, "models": {"team": {"engine": "scripted"}}, "roles": {}}
    return list(plan_of(raw).models.roles)


def with_roles(scripted: Settings, **changes: Any) -> dict[str, Any]:
    """`explicit`, with the roles that the workflow has: the first speaks with one, the others with two."""
    raw = explicit(scripted, **changes)
    first, *others = roles_of(raw)
    raw["roles"] = {first: {"model": "one"}, **{role: {"model": "two"} for role in others}}
    return raw


def test_the_regime_puts_an_adapter_for_each_role_on_one_base(scripted: Settings) -> None:
    raw = with_team(scripted(sharing={"regime": "adapters"}), adapter={"rank": 2})
    plan = plan_of(raw)
    roles = list(plan.models.roles)
    assert dict(plan.models.roles) == {role: role for role in roles}
    assert plan.models.regime == "adapters"
    assert {m.base_id for m in plan.models.models.values()} == {"team"}
    assert list(plan.engine_specs) == ["team"]
    expected = AdapterSpec(rank=2)
    assert dict(plan.engine_specs["team"].adapters) == dict.fromkeys(roles, expected)
    assert {m: s.adapter for m, s in plan.trainer_specs.items()} == dict.fromkeys(roles, expected)
    again = plan_of({**raw, **_toml(settings_toml(plan.settings))})  # what a run keeps is the same plan
    assert again.models == plan.models
    assert again.identity == plan.identity
    assert again.fingerprints == plan.fingerprints


def _toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text) | {"sharing": None}


def test_adapters_written_out_share_what_is_the_bases(scripted: Settings) -> None:
    plan = plan_of(with_roles(scripted, one={"ppo": {"learning_rate": 0.5}}))
    assert plan.models.regime == "adapters"
    assert list(plan.models.models) == ["one", "two"]  # the base is no model of the team
    (spec,) = plan.engine_specs.values()
    assert (spec.base_id, spec.kind, list(spec.adapters)) == ("big", "torch", ["one", "two"])
    one, two = plan.trainer_specs["one"], plan.trainer_specs["two"]
    assert (one.base_id, one.checkpoint, one.precision) == (two.base_id, two.checkpoint, two.precision)
    assert (one.learning_rate, two.learning_rate) == (0.5, 1e-3)
    assert two.adapter == AdapterSpec(8, 8.0, ("q_proj", "v_proj"))
    assert plan.identity["models"]["one"] == {
        "checkpoint": "tiny",
        "adapter": {"rank": 4, "alpha": 32.0, "targets": "all-linear", "train_embeddings": False},
    }


def test_a_frozen_role_may_speak_with_the_base_itself(scripted: Settings) -> None:
    raw = with_roles(scripted, big={"train": False})
    raw["roles"][list(raw["roles"])[-1]] = {"model": "big"}
    plan = plan_of(raw)
    assert [m.model_id for m in plan.models.trainable] == ["one", "two"]
    assert {m.base_id for m in plan.models.models.values()} == {"big"}
    assert list(plan.engine_specs["big"].adapters) == ["one", "two"]


def test_an_adapter_may_stand_alone_on_its_checkpoint(scripted: Settings) -> None:
    plan = plan_of(with_team(scripted(), adapter={}))
    assert plan.models.models["team"].base_id == "team"
    assert plan.models.regime == "full"
    assert plan.trainer_specs["team"].adapter == plan.engine_specs["team"].adapters["team"] == AdapterSpec()


def test_check_tells_of_an_engine_with_fewer_digits_than_its_trainer(scripted: Settings) -> None:
    asked = {"trainer": {"precision": "fp32"}, "dtype": "bfloat16"}
    told = overview(plan_of(with_team(scripted(), **asked)))["models"]["team"]["note"]
    assert 'set models.team.dtype = "float32"' in told
    fine = overview(plan_of(with_team(scripted(), **asked | {"dtype": "float32"})))["models"]["team"]["note"]
    assert fine is None


def test_the_base_counts_once_in_the_estimate(scripted: Settings) -> None:
    def plan(regime: str) -> Plan:
        raw = scripted(sharing={"regime": regime})
        return plan_of(with_team(raw, checkpoint="smollm2-135m-instruct"))

    separate, shared = memory_report(plan("separate")), plan("adapters")
    memory = memory_report(shared)
    roles = list(shared.models.roles)
    assert [k for k in memory if k.startswith("engine")] == ["engine team"]
    assert [k for k in memory if "trainer base" in k] == ["trainer base team"]
    one = memory[f"trainer {roles[0]}"]
    assert one < 0.15 < memory["trainer base team"]
    assert memory["total"] < separate["total"] / 1.5
    found = overview(shared)
    assert any("adapter of rank 16 on team" in line for line in overview_lines(found))
    assert found["models"][roles[0]]["adapter_rank"] == 16
    assert found["workflow"]["regime"] == "adapters"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"one": {"base": "bg"}}, r"models.one.base is 'bg', which is not declared.*did you mean 'big'"),
        ({"one": {"base": "two"}}, "models.one.base is 'two', which is an adapter itself"),
        ({"one": {"base": "one"}}, "models.one.base is 'one', which is an adapter itself"),
        ({"one": {"adapter": None}}, "models.one has base = 'big' and no adapter"),
        ({"one": {"train": False}}, "would never differ from its base"),
        ({"one": {"kv_cache_gib": 3.0}}, r"models.one.kv_cache_gib differs.*set it in \[models.big\] only"),
        ({"one": {"engine": "scripted"}}, "models.one.engine differs"),
        ({"one": {"checkpoint": "tiny-words"}}, "models.one.checkpoint differs"),
        ({"one": {"trainer": {"ranks": 2}}}, "models.one.trainer differs"),
        ({"big": {"ppo": {"learning_rate": 1.0}}}, "models.big.ppo has no effect"),
        ({"big": {"engine": "openai", "engine_options": {}}}, "models.big has engine = .openai."),
        ({"one": {"adapter": {"targets": ["q_prj"]}}}, r"models.one.adapter.targets.*'q_prj'.*'q_proj'"),
        ({"one": {"adapter": {"targets": []}}}, "targets.*no layer is named"),
        ({"one": {"adapter": {"rank": 0}}}, "models.one.adapter.rank"),
        ({"one": {"adapter": {"rnk": 1}}}, r"unknown key models.one.adapter.rnk.*'rank'"),
        ({"big": {"trainer": {"compile": True}}}, "compile must be false for an adapter"),
        ({"big": {"engine": "vllm", "num_gpus": 1}, "one": {"adapter": {"train_embeddings": True}}}, "vLLM"),
        ({"spare": {}}, "no role speaks with model 'spare'"),
    ],
)
def test_what_can_not_stand_on_a_base_is_refused(
    scripted: Settings, changes: dict[str, Any], said: str
) -> None:
    if "vLLM" in said and find_spec("vllm") is None:
        pytest.skip("vLLM is not installed, and asking for it is refused first")
    with pytest.raises(UsageError, match=f"(?s){said}"):
        plan_of(with_roles(scripted, **changes))


def test_a_base_that_a_role_speaks_with_can_not_be_trained(scripted: Settings) -> None:
    raw = with_roles(scripted)
    raw["roles"][list(raw["roles"])[-1]] = {"model": "big"}
    with pytest.raises(UsageError, match=r"models.big is the base of adapters.*train = false"):
        plan_of(raw)


def test_the_pattern_of_the_regime_may_not_be_named_after_a_role(scripted: Settings) -> None:
    raw = scripted(sharing={"regime": "adapters"})
    raw["models"] = {roles_of(raw | {"sharing": None})[0]: raw["models"]["team"] | TORCH}
    with pytest.raises(UsageError, match=r"has the name of a role; call it \[models.base\]"):
        plan_of(raw)
