"""`--set`: dotted names, text as text, unset and appended entries, and messages that name the option."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.resolve import load_and_resolve
from pipeline.settings.keys import dotted, split_key
from pipeline.settings.reading import load_settings, parse_settings, settings_toml
from pipeline.settings.schema import Settings
from workflows.errors import UsageError

FILE = """
[run]
name = "signal"
[workflow]
use = "signal"
[models."qwen2.5-0.5b"]
checkpoint = "tiny"
[sharing]
regime = "full"
[[rewards]]
use = "token_f1"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "signal.toml"
    file.write_text(FILE)
    return file


def at(settings: Settings, *path: str) -> Any:
    value: Any = settings.model_dump(mode="json")
    for step in path:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


@pytest.mark.parametrize(
    "key",
    [
        'models."qwen2.5-0.5b".ppo.learning_rate',
        "models.'qwen2.5-0.5b'.ppo.learning_rate",
        ' models . "qwen2.5-0.5b" . ppo.learning_rate ',
    ],
)
def test_a_name_with_dots_is_set_in_quotes(file: Path, key: str) -> None:
    settings = load_settings(file, [f"{key}=1e-4"])
    assert at(settings, "models", "qwen2.5-0.5b", "ppo", "learning_rate") == 1e-4
    assert parse_settings(tomllib.loads(settings_toml(settings))) == settings


@pytest.mark.parametrize("key", ["models.qwen2.5-0.5b.train", "models.qwen2.5-0.5b.ppo.epochs"])
def test_a_name_that_was_cut_at_its_dots_is_told_with_its_quotes(file: Path, key: str) -> None:
    with pytest.raises(UsageError, match=r"--set 'models\.\"qwen2\.5-0\.5b\"\.\w+.*=…'"):
        load_settings(file, [f"{key}=1"])


@pytest.mark.parametrize("path", [("a",), ("a.b", "c"), ('a"b', "c d", "ü.=", "0")])
def test_every_path_is_read_back_from_its_dotted_key(path: tuple[str, ...]) -> None:
    assert split_key(dotted(path) + "=1", "") == (path, "=1")


@pytest.mark.parametrize(
    "word", ["1e5", "5", "true", "None", "none", "2024-01-01", "inf", "nan", "0x10", "null"]
)
@pytest.mark.parametrize(
    "path",
    [
        ("run", "name"),
        ("tracking", "experiment"),
        ("tracking", "tags", "day"),
        ("models", "qwen2.5-0.5b", "checkpoint"),
        ("data", "path"),
        ("data", "columns", "question"),
        ("rewards", "0", "name"),
    ],
)
def test_text_stays_text_where_the_key_holds_text(file: Path, path: tuple[str, ...], word: str) -> None:
    for written in (word, f'"{word}"', f" {word} "):
        settings = load_settings(file, [f"{dotted(path)}={written}"])
        assert at(settings, *path) == word


def test_lists_and_tables_are_toml_beside_text(file: Path) -> None:
    assert at(load_settings(file, ['data.path=["a", "b"]']), "data", "path") == ["a", "b"]
    assert at(load_settings(file, ['data.path={train = "a"}']), "data", "path") == {"train": "a"}
    assert at(
        load_settings(file, ["roles.sender.sampling.stop.0=1e5"]), "roles", "sender", "sampling", "stop"
    ) == ["1e5"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("2024-01-01", ["2024-01-01", "date", "quotes"]),
        ("12:00:00", ["12:00:00", "time", "quotes"]),
        ("[1, {at = 2024-01-01T00:00:00Z}]", ["x.1.at", "date"]),
        ("nan", ["not a finite number"]),
        ("-inf", ["not a finite number"]),
        ("None", ["None", "leave nothing after the ="]),
        ("null", ["null", "leave nothing after the ="]),
        ("True", ["True", "write true"]),
        ("FALSE", ["FALSE", "write false"]),
    ],
)
@pytest.mark.parametrize(
    "key",
    ["workflow.options", 'models."qwen2.5-0.5b".template_options', "rewards.0.options", "schedule.options"],
)
def test_options_refuse_what_a_file_of_json_cannot_hold(
    file: Path, key: str, value: str, words: list[str]
) -> None:
    override = f"{key}.x={value}"
    with pytest.raises(UsageError) as refused:
        load_settings(file, [override])
    for word in ("--set", key, *words):
        assert word in str(refused.value)


def test_what_json_cannot_hold_is_refused_in_a_file_by_its_key(file: Path) -> None:
    file.write_text(FILE + "[rewards.options]\nsince = 2024-01-01\n")
    with pytest.raises(UsageError, match=r"signal\.toml: rewards\.0\.options\.since = 2024-01-01 is a date"):
        load_settings(file)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_objects_from_python_are_refused_by_type(value: object) -> None:
    with pytest.raises(UsageError, match=rf"workflow\.options\.x = a value of type {type(value).__name__}"):
        parse_settings({"workflow": {"options": {"x": value}}})


@pytest.mark.parametrize("key", ["rollout.group_size", "ppo.learning_rate", "rewards.0.weight", "run.seed"])
def test_true_is_not_a_number(file: Path, key: str) -> None:
    with pytest.raises(UsageError, match=f"{key} = true, expected a number"):
        load_settings(file, [f"{key}=true"])


def test_a_message_about_an_override_names_it_and_not_the_file(file: Path) -> None:
    for override in ("rollout.grup_size=4", "rollout.group_size=x", "rewards.0.wieght=1", "run.name=a/b"):
        with pytest.raises(UsageError) as refused:
            load_settings(file, ["run.seed=1", override])
        assert str(refused.value).startswith(f"--set {override!r}: ")
        assert "signal.toml" not in str(refused.value)


def test_each_of_several_problems_names_where_it_was_set(file: Path) -> None:
    file.write_text(FILE + "[rollout]\nplayers = 0\n")
    with pytest.raises(UsageError) as refused:
        load_settings(file, ["rollout.grup_size=4", "run.seed=x"])
    lines = str(refused.value).splitlines()
    assert lines[0] == "3 problems"
    assert any("signal.toml: rollout.players" in line for line in lines)
    assert any("--set 'rollout.grup_size=4': unknown key" in line for line in lines)
    assert any("--set 'run.seed=x': run.seed" in line for line in lines)


@pytest.mark.parametrize("value", ["", "none", "None", "null"])
def test_a_key_is_taken_out_so_that_another_can_stand(file: Path, value: str) -> None:
    settings = load_settings(file, [f"sharing.regime={value}", 'sharing.groups.all=["sender","receiver"]'])
    assert settings.sharing is not None
    assert settings.sharing.regime is None
    assert load_and_resolve(settings).models.roles == {"sender": "all", "receiver": "all"}


def test_sections_entries_and_numbers_are_taken_out(file: Path) -> None:
    file.write_text(FILE + "[critic]\nkind = 'head'\n[ppo]\nfixed_length = 9\nloss = 'gspo'\n")
    assert load_settings(file, ["critic="]).critic is None
    assert load_settings(file, ["critic=none"]).critic is None
    assert load_settings(file, ["ppo.fixed_length=none"]).ppo.fixed_length is None
    assert load_settings(file, ["ppo.loss="]).ppo.loss == "ppo"
    assert load_settings(file, ["rewards.0="]).rewards == ()
    assert load_settings(file, ["evaluate.tasks=", "roles.sender.model="]).evaluate.tasks is None
    with pytest.raises(UsageError, match=r"--set 'ppo\.los='"):
        load_settings(file, ["ppo.los="])


def test_none_is_a_word_where_it_is_one(file: Path) -> None:
    settings = load_settings(file, ["credit.use=none", "tracking.uri=none", "ppo.importance=none"])
    assert (settings.credit.use, settings.tracking.uri, settings.ppo.importance) == ("none", "none", "none")


@pytest.mark.parametrize(
    "overrides",
    [
        ["rewards.1.use=format", "rewards.1.weight=0.5"],
        ['rewards.1={use = "format", weight = 0.5}'],
        ['rewards+={use = "format", weight = 0.5}'],
    ],
)
def test_an_entry_is_appended_to_a_list(file: Path, overrides: list[str]) -> None:
    settings = load_settings(file, overrides)
    assert [(r.use, r.weight) for r in settings.rewards] == [("token_f1", 1.0), ("format", 0.5)]


def test_a_list_that_the_file_lacks_begins_with_its_default(tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.write_text("")
    assert [r.use for r in load_settings(file, ["rewards.2.use=length"]).rewards] == [
        "token_f1",
        "format",
        "length",
    ]
    assert load_settings(file, ["rewards.1.weight=0.2"]).rewards[1].weight == 0.2
    assert (
        load_settings(file, ["evaluate.rewards.0.use=exact_match"]).evaluate.rewards[0].use == "exact_match"
    )
    assert load_settings(file, ["sandbox.packages+=/opt/x"]).sandbox.packages == ("/opt/x",)
    assert load_settings(file, ["ppo.betas.1=0.95"]).ppo.betas == (0.9, 0.95)


@pytest.mark.parametrize("override", ["rewards.7.use=x", "rewards.x.use=x", "run.name+=x", "rewards+="])
def test_what_can_not_be_appended_is_refused(file: Path, override: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        load_settings(file, [override])


def test_a_value_of_several_lines_is_no_second_key(file: Path) -> None:
    settings = load_settings(file, ['workflow.options.x=1\nrun = "y"'])
    assert settings.workflow.options["x"] == '1\nrun = "y"'


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.name=a/b", ["letters", "digits", "'a/b'"]),
        ("advantage.use=grpo", ['[credit] use = "grpo"']),
        ("advantage.use=form_credit", ["did you mean 'from_credit'"]),
        ("ppo.schedule=cosin", ["did you mean 'cosine'"]),
    ],
)
def test_a_wrong_word_is_refused_in_words_with_what_was_meant(
    file: Path, override: str, words: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        load_settings(file, [override])
    for word in words:
        assert word in str(refused.value)
    assert "^[" not in str(refused.value)
