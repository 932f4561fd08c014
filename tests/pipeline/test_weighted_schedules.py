"""Schedules that read what updates measured: reweighted and budget, orders, coloured groups. All pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pipeline.plan.assemble import Plan, assemble
from pipeline.plan.blocks import SCHEDULE, Block
from pipeline.settings.reading import parse_settings
from pipeline.store.manifest import Manifest
from stages.advantage import AdvantageStage
from stages.base import check_chain
from stages.shift import PrefixStage, ShiftStage
from tests.pipeline.test_schedules import MODELS, slices, trained
from workflows.errors import UsageError

Settings = Callable[..., dict[str, Any]]


def plan(scripted: Settings, *, trust: bool = True, **options: Any) -> Plan:
    sections = {name: options.pop(name) for name in ("advantage", "critic", "workflow") if name in options}
    region = {"trust_region": {"radius": 0.1}} if trust else {}
    use = {"use": "sequential", "options": options}
    raw = scripted(schedule=use, data={"tasks_per_iteration": 6}, **region, **sections)
    team = raw["models"].pop("team")
    raw["models"] = {model: dict(team) for model in "abc"}
    raw["roles"] = {role: {"model": model} for role, model in MODELS.items()}
    return assemble(parse_settings(raw))


def manifest(name: str, **metrics: float) -> Manifest:
    return Manifest(name, 0, {}, {}, {}, {}, [], metrics, [], 0.0)


def measured(shift: dict[str, float], ess: dict[str, float]) -> dict[str, Manifest]:
    """A finished block that measured these shifts and effective shares."""
    numbers = {f"shift_budget/{m}": v for m, v in shift.items()} | {
        f"ess_prefix/{m}": v for m, v in ess.items()
    }
    return {"shift": manifest("shift", **numbers)}


def blocks(one: Plan, finished: Sequence[Any], earlier: Sequence[Any] = ()) -> list[Block]:
    """The blocks of an iteration, of which the first ones end as `finished`."""
    made: list[Block] = []
    schedule: Any = one.schedule
    while (block := schedule.next_block(one, 1, finished[: len(made)], earlier)) is not None:
        made.append(block)
        if len(made) > len(finished):
            break
    for block in made:
        there = {table: stage.outputs[table] for b in made for stage in b.stages for table in stage.outputs}
        check_chain(
            block.stages, {t.removeprefix("base_"): there[t.removeprefix("base_")] for t in block.shared}
        )
    return made


ALL = measured(dict.fromkeys("abc", 0.0), dict.fromkeys("abc", 1.0))


def test_reweighted_updates_share_one_rollout_and_weigh_rows_by_the_updates_before(
    scripted: Settings,
) -> None:
    made = blocks(plan(scripted, rollouts="reweighted", weight_cap=3.0), [ALL, ALL, ALL])
    assert slices(made) == [(0, 6)]
    assert [trained(block) for block in made] == [["a"], ["b"], ["c"]]
    weights = [[s for s in block.stages if isinstance(s, PrefixStage)] for block in made]
    assert weights[0] == []
    assert [(w.model_id, w.updated, w.cap) for (w,) in weights[1:]] == [
        ("b", ("a",), 3.0),
        ("c", ("a", "b"), 3.0),
    ]
    assert dict(made[2].shared) == {
        **dict.fromkeys(("turns", "rewards", "credit"), (0,)),
        **{f"{kind}/{model}": (block,) for kind in ("ratios", "trust") for block, model in enumerate("ab")},
    }
    for block in made[1:]:
        (advantage,) = (s for s in block.stages if isinstance(s, AdvantageStage))
        assert [spec.prefix for spec in advantage.specs] == [True]
        assert block.fingerprints["advantage"][trained(block)[0]]["prefix"] is True
        assert set(block.fingerprints) == {stage.name for stage in block.stages}
        assert block.fingerprints["partition"][SCHEDULE]["rollouts"] == "reweighted"
    shifts = [next(s for s in block.stages if isinstance(s, ShiftStage)).updated for block in made]
    assert shifts == [("a",), ("a", "b"), ("a", "b", "c")]


def test_fresh_updates_have_no_weights_and_shifts_of_their_own_plays_alone(scripted: Settings) -> None:
    made = blocks(plan(scripted), [ALL, ALL, ALL])
    assert not any(isinstance(s, PrefixStage | AdvantageStage) for block in made for s in block.stages)
    shifts = [next(s for s in block.stages if isinstance(s, ShiftStage)).updated for block in made]
    assert shifts == [("a",), ("b",), ("c",)]
    without = blocks(plan(scripted, trust=False), [{}, {}, {}])
    assert not any(isinstance(s, ShiftStage) for block in without for s in block.stages)


@pytest.mark.parametrize(
    ("shift", "ess", "plays"),
    [
        (0.05, 0.9, [0, 0, 0]),  # within the budget: reweighted
        (0.2, 0.9, [0, 1, 2]),  # too far
        (0.05, 0.4, [0, 1, 2]),  # too few rows that count
    ],
)
def test_a_budget_plays_anew_where_the_shift_is_too_large(
    shift: float, ess: float, plays: list[int], scripted: Settings
) -> None:
    told = measured(dict.fromkeys("abc", shift), dict.fromkeys("abc", ess))
    made = blocks(plan(scripted, rollouts="budget"), [told, told, told])
    assert [block.shared.get("turns", (block.index,))[0] for block in made] == plays
    assert slices(made) == [(2 * piece, 2) for piece in range(len(set(plays)))]
    assert [any(isinstance(s, PrefixStage) for s in block.stages) for block in made] == [
        played != block.index for block, played in zip(made, plays, strict=True)
    ]


def test_after_new_plays_a_budget_counts_the_updates_on_these_alone(scripted: Settings) -> None:
    far = measured(dict.fromkeys("abc", 0.2), dict.fromkeys("abc", 1.0))
    made = blocks(plan(scripted, rollouts="budget"), [far, ALL, ALL])
    assert [block.shared.get("turns", (block.index,))[0] for block in made] == [0, 1, 1]
    (weights,) = (s for s in made[2].stages if isinstance(s, PrefixStage))
    assert weights.updated == ("b",)


def test_the_unit_whose_rows_were_shifted_most_is_next(scripted: Settings) -> None:
    one = plan(scripted, rollouts="stale", order="lowest_ess")
    low = measured({}, {"b": 0.9, "c": 0.3})
    assert [trained(block) for block in blocks(one, [low, ALL, ALL])] == [["a"], ["c"], ["b"]]
    mark = blocks(one, [low, ALL, ALL])[-1].fingerprints["partition"][SCHEDULE]
    assert mark["order"] == ["a", "c", "b"]


def test_the_unit_that_promised_most_for_a_nat_is_first_and_one_that_is_not_known_before_it(
    scripted: Settings,
) -> None:
    one = plan(scripted, order="max_gain_per_kl")
    earlier = [
        {"update/a": manifest("update/a", surrogate=0.1, kl_seq=0.1)},
        {"update/b": manifest("update/b", surrogate=0.1, kl_seq=0.02)},
    ]
    assert [trained(b) for b in blocks(one, [ALL] * 3, earlier)] == [["c"], ["b"], ["a"]]
    assert [trained(b) for b in blocks(one, [ALL] * 3)] == [["a"], ["b"], ["c"]]


def test_units_between_which_no_path_leads_are_updated_together(scripted: Settings) -> None:
    """In a debate the debaters speak side by side, and the judge after them."""
    raw = scripted(
        schedule={"use": "sequential", "options": {"groups": "coloured"}},
        data={"tasks_per_iteration": 6},
        rewards=[{"use": "tests.support.small_teams:last_digit", "name": "digit"}],
    )
    raw["workflow"] = {"use": "tests.support.small_teams:fork"}
    team = raw["models"].pop("team")
    raw["models"] = {name: dict(team) for name in ("left", "right", "end")}
    raw["roles"] = {name: {"model": name} for name in ("left", "right", "end")}
    assert [trained(b) for b in blocks(assemble(parse_settings(raw)), [{}, {}])] == [
        ["left", "right"],
        ["end"],
    ]
    with pytest.raises(UsageError, match="no two models between whose steps no path leads"):
        plan(scripted, groups="coloured")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rollouts": "reweighted", "trust": False}, "set .trust_region. radius for all models"),
        ({"order": "lowest_ess", "trust": False}, "set .trust_region. radius"),
        ({"rollouts": "reweighted", "weight_cap": 0.5}, "weight_cap = 0.5"),
        ({"rollouts": "fresh", "weight_cap": 3.0}, "weight_cap has no effect"),
        ({"rollouts": "reweighted", "min_ess": 0.3}, "min_ess has no effect"),
        ({"rollouts": "budget", "min_ess": 1.5}, "a share of rows from 0 to 1"),
        ({"groups": "colored"}, 'expected "coloured"'),
        (
            {"rollouts": "reweighted", "advantage": {"use": "gae"}, "critic": {"learning_rate": 1e-3}},
            "reads the values of all models",
        ),
    ],
)
def test_what_would_have_no_effect_or_can_not_work_is_refused(
    options: Any, words: str, scripted: Settings
) -> None:
    with pytest.raises(UsageError, match=words):
        plan(scripted, **options)
