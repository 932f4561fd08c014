"""Optional hooks: one mixin declares each with its default, and every plug-in answers through it."""

from __future__ import annotations

import ast
import asyncio
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rewards.base import CreditHooks, RewardHooks, SurveyedCredit
from rewards.credit.group_relative import GroupRelative
from rewards.credit.reinforce_pp import ReinforcePP
from rewards.credit.running_baseline import RunningBaseline
from workflows.engine import EngineHooks
from workflows.errors import UsageError
from workflows.hooks import ToolHooks, hooks_of
from workflows.parsers import Parsed, ParserHooks, Raw, invalid, read_reply
from workflows.thinking import AfterThinking

MIXINS = (ToolHooks, ParserHooks, EngineHooks, RewardHooks, CreditHooks)
REPOSITORY = Path(__file__).parents[2]


def names_of(mixin: type) -> list[str]:
    return [name for name in vars(mixin) if not name.startswith("_") and name != "OLD_NAMES"]


def test_a_plain_function_and_a_plain_class_have_the_defaults() -> None:
    class Bare:
        def __call__(self, request: Any) -> Any:
            return request

    for plugin in (lambda request: request, Bare()):
        tool, credit = hooks_of(plugin, ToolHooks), hooks_of(plugin, CreditHooks)
        assert tool.keeps_time is False
        assert tool.start() is None
        tool.check_ready()
        hooks_of(plugin, RewardHooks).check_ready()
        credit.check_group_size(group_size=1)
        assert credit.group_keys == ("group_id",)
        assert not credit.gives_weights
        assert not credit.keeps_baselines
        asyncio.run(hooks_of(plugin, EngineHooks).reach())


def test_a_class_without_the_mixin_is_asked_for_what_it_has() -> None:
    class Tool:
        def __init__(self) -> None:
            self.keeps_time = True
            self.loaded = False

        async def start(self) -> None:
            self.loaded = True

    tool = Tool()
    hooks = hooks_of(tool, ToolHooks)
    assert hooks.keeps_time is True
    asyncio.run(hooks.start())  # type: ignore[arg-type]
    assert tool.loaded
    hooks.check_ready()  # the default: it has none


def test_hooks_may_be_attributes_properties_and_methods() -> None:
    class Method:
        gives_weights = True

        def __init__(self, keys: tuple[str, ...]):
            self.keys = keys

        @property
        def group_keys(self) -> tuple[str, ...]:
            return self.keys

    method = Method(("group_id", "role"))
    hooks = hooks_of(method, CreditHooks)
    assert hooks.gives_weights
    assert hooks.group_keys == ("group_id", "role")
    method.keys = ("group_id",)
    assert hooks.group_keys == ("group_id",)  # asked of the plug-in each time


@pytest.mark.parametrize("base", [object, ToolHooks, RewardHooks])
def test_a_hook_by_its_old_name_is_read_with_one_note(base: type) -> None:
    class Old(base):  # type: ignore[misc]
        def check(self) -> None:
            raise UsageError("no sandbox here")

    with pytest.warns(UserWarning, match=r"Old\.check is read as check_ready") as notes:
        hooks = hooks_of(Old(), RewardHooks if base is RewardHooks else ToolHooks)
    assert len(notes) == 1
    with pytest.raises(UsageError, match="no sandbox here"):
        hooks.check_ready()


def test_an_old_credit_method_is_asked_with_the_group_size_by_name() -> None:
    class Old:
        def check(self, group_size: int) -> None:
            raise UsageError(f"groups of {group_size}")

    with pytest.warns(UserWarning, match="check is read as check_group_size"):
        hooks = hooks_of(Old(), CreditHooks)
    with pytest.raises(UsageError, match="groups of 3"):
        hooks.check_group_size(group_size=3)


@pytest.mark.parametrize("base", [object, ToolHooks])
def test_the_new_name_counts_where_both_are_there_and_says_nothing(base: type) -> None:
    class Both(base):  # type: ignore[misc]
        asked = ""

        def check(self) -> None:
            self.asked = "check"

        def check_ready(self) -> None:
            self.asked = "check_ready"

    tool = Both()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hooks_of(tool, ToolHooks).check_ready()
    assert tool.asked == "check_ready"


def test_what_built_in_methods_say_of_themselves() -> None:
    assert hooks_of(GroupRelative(by="task_role_step"), CreditHooks).group_keys == (
        "group_id",
        "role",
        "step",
    )
    for method in (GroupRelative(), ReinforcePP(baseline="group")):
        with pytest.raises(UsageError, match="group_size is 1"):
            hooks_of(method, CreditHooks).check_group_size(1)
    hooks_of(ReinforcePP(), CreditHooks).check_group_size(1)
    assert hooks_of(RunningBaseline(), CreditHooks).keeps_baselines
    assert isinstance(RunningBaseline(), SurveyedCredit)
    assert not isinstance(GroupRelative(), SurveyedCredit)


class OnlyParse:
    """A user's parser that has nothing but `parse`."""

    def parse(self, text: str) -> Parsed:
        return Parsed(text.upper(), True)


@dataclass(frozen=True)
class Asked:
    """A parser whose verdict depends on the prompt's variables."""

    def parse(self, text: str) -> Parsed:
        return invalid("asked without its variables")

    def parse_for(self, text: str, variables: Mapping[str, Any]) -> Parsed:
        return Parsed(f"{text} of {variables['total']}", True)


def test_a_parser_needs_parse_alone_and_may_ask_for_the_prompts_variables() -> None:
    assert read_reply(OnlyParse(), "three", {}).value == "THREE"
    assert read_reply(Raw(), " three ", {}).value == "three"
    assert read_reply(Asked(), "three", {"total": 5}).value == "three of 5"


def test_a_parser_behind_thoughts_still_sees_what_was_asked() -> None:
    reply = "hm, hm</think>three"
    assert read_reply(AfterThinking(Asked()), reply, {"total": 5}).value == "three of 5"
    assert read_reply(AfterThinking(OnlyParse()), reply, {}).value == "THREE"


def test_no_hook_is_looked_up_anywhere_but_in_hooks() -> None:
    hooks = {name for mixin in MIXINS for name in names_of(mixin)} | {"survey"}
    looked_up = []
    for room in ("pipeline", "stages", "rewards", "workflows"):
        for file in sorted((REPOSITORY / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in ("getattr", "hasattr")
                    and isinstance(node.args[1], ast.Constant)
                    and node.args[1].value in hooks
                ):
                    looked_up.append(f"{file.relative_to(REPOSITORY)}:{node.lineno} {node.args[1].value}")
    assert not looked_up, "ask hooks_of(plugin, mixin) instead"
