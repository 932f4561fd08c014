"""Settings: one message for each wrong file, and what is written reads back the same."""

import tomllib
from pathlib import Path

import pytest

from pipeline.plan.resolve import load_and_resolve
from pipeline.settings.reading import load_settings, parse_settings, settings_toml
from pipeline.settings.schema import Settings
from workflows.errors import UsageError

ROOT = Path(__file__).parents[2]


def refused(raw: dict[str, object]) -> str:
    with pytest.raises(UsageError) as error:
        parse_settings(raw, "pipeline.toml")
    return str(error.value)


def test_the_shipped_file_is_valid_and_complete() -> None:
    settings = load_settings(ROOT / "pipeline.toml")
    assert settings.run.name == "qa"
    assert settings.rewards


@pytest.mark.parametrize(
    ("raw", "key", "hint"),
    [
        ({"rollout": {"grup_size": 4}}, "rollout.grup_size", "group_size"),
        ({"rolout": {}}, "rolout", "rollout"),
        ({"models": {"a": {"chekpoint": "x"}}}, "models.a.chekpoint", "checkpoint"),
        ({"models": {"a": {"trainer": {"rank": 1}}}}, "models.a.trainer.rank", "ranks"),
        ({"rewards": [{"use": "x", "wieght": 1}]}, "rewards.0.wieght", "weight"),
        ({"roles": {"reader": {"sampling": {"temprature": 1}}}}, "temprature", "temperature"),
    ],
)
def test_an_unknown_key_is_refused_with_a_close_match(raw: dict[str, object], key: str, hint: str) -> None:
    message = refused(raw)
    assert key in message
    assert f"did you mean {hint!r}" in message


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"rollout": {"group_size": 0}}, "rollout.group_size"),
        ({"rollout": {"call_timeout_seconds": float("inf")}}, "rollout.call_timeout_seconds"),
        ({"rollout": {"temperature": "hot"}}, "rollout.temperature"),
        ({"ppo": {"clip_low": 1.5}}, "ppo.clip_low"),
        ({"ppo": {"learning_rate": float("nan")}}, "ppo.learning_rate"),
        ({"models": {"a b": {}}}, "models"),
        ({"run": {"name": "../escape"}}, "run.name"),
        ({"models": {"a": {"trainer": {"zero_stage": 3}}}}, "zero_stage"),
        ({"data": {"max_bad_share": 2}}, "data.max_bad_share"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(raw: dict[str, object], key: str) -> None:
    assert key in refused(raw)


def test_all_problems_are_told_at_once() -> None:
    message = refused({"rollout": {"group_size": 0}, "run": {"seed": "x"}})
    assert "2 problems" in message
    assert "rollout.group_size" in message
    assert "run.seed" in message


def test_resolved_settings_read_back_to_the_same_settings() -> None:
    settings = load_settings(ROOT / "pipeline.toml", ["ppo.dual_clip=2.5", "roles.reader.format_weight=0.5"])
    assert parse_settings(tomllib.loads(settings_toml(settings))) == settings


def test_set_overrides_values_sections_and_list_entries() -> None:
    settings = load_settings(
        ROOT / "pipeline.toml",
        [
            "rollout.group_size=8",
            "run.name=other",
            "models.team.ppo.learning_rate=3e-6",
            "rewards.1.weight=0.5",
        ],
    )
    assert settings.rollout.group_size == 8
    assert settings.run.name == "other"
    ppo = load_and_resolve(settings).model_plans["team"].ppo
    assert ppo == settings.ppo.settled().model_copy(update={"learning_rate": 3e-6})
    assert settings.rewards[1].weight == 0.5


@pytest.mark.parametrize(
    "override", ["rollout", "=3", "rollout.=3", "rewards.7.weight=1", "rewards.x.weight=1", "run.name.x=1"]
)
def test_an_override_that_fits_nowhere_is_refused(override: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        load_settings(ROOT / "pipeline.toml", [override])


def test_a_missing_or_broken_file_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no settings file"):
        load_settings(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\nname = 1")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_settings(broken)


def test_defaults_are_a_run_that_works_without_a_file() -> None:
    assert parse_settings({}) == Settings()
