"""From the command line to the points of a sweep: what is made, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.experiments.points import Point, points_of, seeds_of, settings_at, split_values
from pipeline.settings.schema import Settings
from workflows.errors import UsageError

RAW: dict[str, Any] = {"models": {"team": {"checkpoint": "tiny", "adapter": {"rank": 4}}}}


def points(
    regimes: str | None = None, grid: tuple[str, ...] = (), own: tuple[str, ...] = (), **groups: list[str]
) -> list[Point]:
    return points_of(regimes, grid, own, groups)


def at(point: Point, raw: dict[str, Any] = RAW) -> Settings:
    return settings_at(raw, point, seed=7, name="n", tags={"point": point.label})


def test_every_regime_meets_every_value_in_the_order_of_the_command_line() -> None:
    found = points("separate,full", ("ppo.learning_rate=1e-6,1e-5", "rollout.group_size=2,4"))
    assert len(found) == 8
    assert found[0].label == "separate, ppo.learning_rate=1e-6, rollout.group_size=2"
    assert found[-1].label == "full, ppo.learning_rate=1e-5, rollout.group_size=4"
    settings = at(found[-1])
    assert settings.sharing is not None
    assert settings.sharing.regime == "full"
    assert (settings.ppo.learning_rate, settings.rollout.group_size) == (1e-5, 4)
    assert len({p.slug for p in found}) == 8


def test_a_point_changes_its_settings_and_nothing_else() -> None:
    raw = {"models": {"team": {"checkpoint": "tiny"}}, "ppo": {"learning_rate": 0.5}}
    point = points(grid=("rollout.group_size=3",))[0]
    changed = at(point, raw).model_dump()
    plain = settings_at(raw, Point(""), seed=7, name="n", tags={"point": point.label}).model_dump()
    assert changed.pop("rollout") == plain.pop("rollout") | {"group_size": 3}
    assert changed == plain
    assert raw == {"models": {"team": {"checkpoint": "tiny"}}, "ppo": {"learning_rate": 0.5}}


def test_an_adapter_of_the_settings_is_for_the_regime_of_adapters_only() -> None:
    full, adapters = points("full,adapters")
    assert at(full).models["team"].adapter is None
    assert at(adapters).models["team"].adapter.rank == 4  # type: ignore[union-attr]


def test_a_setting_for_one_regime_is_not_set_for_the_others() -> None:
    full, adapters = points("full,adapters", own=("adapters:ppo.learning_rate=0.5",))
    assert at(adapters).ppo.learning_rate == 0.5
    assert at(full).ppo.learning_rate == Settings().ppo.learning_rate


def test_groups_are_those_of_the_settings_or_those_that_are_spelled_out() -> None:
    own, spelled = points("groups,groups:a=x+y:b=z", front=["x"], back=["y", "z"])
    assert own.sharing == {"groups": {"front": ["x"], "back": ["y", "z"]}}
    assert spelled.sharing == {"groups": {"a": ["x", "y"], "b": ["z"]}}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2", ["1", "2"]),
        ("[1, 2],[3]", ["[1, 2]", "[3]"]),
        ('{a = "x,y"},{}', ['{a = "x,y"}', "{}"]),
        ("'a,b',c", ["'a,b'", "c"]),
    ],
)
def test_a_comma_within_a_value_is_the_values_own(text: str, values: list[str]) -> None:
    assert split_values(text) == values


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: points(), "nothing to sweep over"),
        (lambda: points("full,seperate"), r"'seperate' is not a sharing regime .did you mean 'separate'"),
        (lambda: points("full,,separate"), "empty entry"),
        (lambda: points("full,full"), "two points .* 'full'"),
        (lambda: points("groups"), r"no \[sharing\] groups"),
        (lambda: points("groups:a"), "expected a name and its roles"),
        (lambda: points("full:a=b"), "takes nothing after it"),
        (lambda: points(grid=("ppo.learning_rate",)), "expected KEY=VALUE,VALUE"),
        (lambda: points(grid=("ppo.learning_rate=1,,2",)), "expected KEY=VALUE,VALUE"),
        (lambda: points(grid=("a.b=1", "a.b=2")), "names 'a.b' twice"),
        (lambda: points(grid=("run.seed=1,2",)), "seeds are --seeds"),
        (lambda: points("full", own=("adapters:a.b=1",)), "one of the regimes of this sweep: full"),
        (lambda: at(points(grid=("ppo.lerning_rate=1",))[0]), "did you mean 'learning_rate'"),
        (lambda: seeds_of("0,x", 0), "'x' is not a whole number"),
        (lambda: seeds_of("0,0", 0), "a seed twice"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


def test_seeds_are_the_settings_own_unless_told() -> None:
    assert seeds_of(None, 5) == [5]
    assert seeds_of("0,-1,2", 5) == [0, -1, 2]
