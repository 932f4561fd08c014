"""`check` finds what a workflow reads and tasks lack, and templates that render no chat of a role."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.plan.task_fields import check_task_fields
from pipeline.settings.reading import parse_settings
from workflows.data.tasks import load_tasks
from workflows.errors import UsageError
from workflows.graph import Workflow
from workflows.loading import load_workflow
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.steps import ControlStep, Edge, LlmStep, ToolStep
from workflows.task_reads import task_reads

ROLE = Role("r", "{text}")


def _rows(path: Path, *inputs: dict[str, Any]) -> str:
    rows = ({"inputs": one, "gold": {"answers": ["x"]}} for one in inputs)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _reads(source: Any) -> Workflow:
    return Workflow("w", [ROLE], [LlmStep("a", "r", {"text": source})])


class Callable_:
    def __call__(self, state: Any) -> Any:
        return state.task["qestion"]

    def method(self, state: Any) -> Any:
        return state.task["qestion"]


def _with(state: Any, more: int) -> Any:
    return [state.task["qestion"] for _ in range(more)]


def _outer() -> Any:
    def inner(state: Any) -> Any:
        return state.task["qestion"]

    return lambda state: inner(state).upper()


async def _script(team: Any, task: Any) -> None:
    await team.call("r", {"text": task["qestion"]})


CHECK = [LlmStep("a", "r", {"text": "task.question"}), LlmStep("b", "r", {"text": "item"})]
TYPOS = {
    "path": _reads("task.qestion"),
    "nested": _reads("task.qestion.text"),
    "lambda": _reads(lambda state: state.task["qestion"]),
    "partial": _reads(functools.partial(_with, more=2)),
    "closure": _reads(_outer()),
    "request": Workflow("w", [], [ToolStep("t", "x", lambda s: {"q": s.task["qestion"]})], tools={"x": len}),
    "compute": Workflow("w", [], [ControlStep("t", lambda s: s.task["qestion"])]),
    "for_each": Workflow(
        "w", [ROLE], [LlmStep("a", "r", {"text": "item"}, for_each=lambda s: s.task["qestion"])]
    ),
    "when": Workflow(
        "w",
        [ROLE],
        [LlmStep("a", "r", {"text": "task.question"}), LlmStep("b", "r", {"text": "task.question"})],
        [Edge("a", "b", when=lambda s: s.task["qestion"] == "x")],
    ),
    "script": ScriptWorkflow("w", [ROLE], _script),
}


@pytest.mark.parametrize("name", TYPOS)
def test_a_field_that_no_task_has_is_refused_with_the_closest_name(tmp_path: Path, name: str) -> None:
    tasks = load_tasks(_rows(tmp_path / "t.jsonl", {"question": "Q?"}, {"question": "R?"}))
    with pytest.raises(UsageError, match=r"reads task\.qestion.*did you mean 'question'\?.*have: question"):
        check_task_fields(TYPOS[name], tasks, "train")


def test_what_is_tested_for_or_asked_with_get_may_be_missing() -> None:
    def careful(state: Any) -> Any:
        return state.task["hint"] if "hint" in state.task else state.task.get("other", "")

    assert [read.path for read in task_reads(_reads(careful))] == []
    assert [read.path for read in task_reads(_reads("task.a.b"))] == [("a", "b")]


def test_a_field_that_some_tasks_lack_is_noted_with_their_number(tmp_path: Path) -> None:
    tasks = load_tasks(_rows(tmp_path / "t.jsonl", {"question": "Q?", "hint": {"x": 1}}, {"question": "R?"}))
    notes = check_task_fields(_reads("task.hint.x"), tasks, "train").notes
    assert notes == {"tasks of split 'train' without task.hint.x, which step 'a' (input 'text') reads": 1}


@pytest.mark.parametrize("use", ["qa_decompose", "math", "code", "mask", "signal", "debate", "single"])
def test_built_in_workflows_read_what_their_tasks_have(use: str) -> None:
    expected = {"math": "problem", "code": "problem", "signal": "symbol"}.get(use, "question")
    options = {"prompt": "{question}"} if use == "single" else {}
    assert (expected,) in [read.path for read in task_reads(load_workflow(use, options))]


def test_questions_for_a_team_of_mathematics_are_refused_by_check(scripted: Any) -> None:
    raw = scripted()
    raw["workflow"] = {"use": "math"}
    raw["roles"] = {role: {"model": "team"} for role in load_workflow("math", {}).roles}
    with pytest.raises(UsageError, match=r"reads task\.problem, which no task of split 'train' has"):
        assemble(parse_settings(raw))


def test_the_tasks_of_an_evaluation_are_compared_too(scripted: Any, tmp_path: Path) -> None:
    path = _rows(tmp_path / "dev.jsonl", {"qestion": "Q?"})
    plan = assemble(parse_settings(scripted(evaluate={"path": path, "split": "dev"})))
    with pytest.raises(UsageError, match=r"reads task\.question.*did you mean 'qestion'"):
        assemble_evaluation(plan)


def test_a_template_that_refuses_a_roles_chat_is_found_before_anything_starts(
    scripted: Any, tiny: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny, folder)
    raw = scripted()
    raw["models"]["team"] |= {"engine": "torch", "checkpoint": str(folder), "engine_options": {}}
    raw["models"]["team"]["max_model_len"] = 512
    assemble(parse_settings(raw))
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no such chat') }}")
    with pytest.raises(UsageError, match=r"role '\w+': the chat template of .* refuses .*no such chat"):
        assemble(parse_settings(raw))
