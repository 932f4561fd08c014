"""What Cadre adds to traces of every format: the rows themselves, in the format's place for extensions.

They stand under the key `cadre`. Of a whole episode: `form` (the version of this form), `episode`, `task`,
`evaluation`, `workflow`, `content`, `traced`. Of a turn: `turn`, `content`, `earned` (its row of rewards),
`credit`, `traced`. A trace is read back from these, so that exporting it again gives the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipeline.traces.episode import Episode, Row
from pipeline.traces.rows import SCHEMAS, Content, reference, row_of, values_of
from workflows.trajectory import CREDIT, EPISODES, EVALUATION, REWARDS, TASKS, TURNS

OURS: Final = "cadre"  # the key within a format's place for extensions
FORM: Final = 1  # of what stands here; raised when it changes
OVERRIDES: Final = "as_exported"  # columns of a row that an import had to change, as they were
OF_TASK: Final = "task_as_exported"  # the same of a task
RESULT_REF: Final = "result_ref"  # what stands for a tool's result: every format has a place of its own
_NO_CONTENT: Final = ("trace", "event", "result")  # of what was traced: names


@dataclass(frozen=True, slots=True)
class Source:
    """Where exported episodes come from: the run's name and what is said of its workflow."""

    run: str
    workflow: Mapping[str, Any]


def of_episode(
    episode: Episode, source: Source, content: Content, held: Collection[str] = ()
) -> dict[str, Any]:
    """The extension of a whole trace; `held` are names of a trace for which the format has keys."""
    traced = dict(episode.traced.get(None, {}))
    names = {k: v for k, v in traced.pop("trace", {}).items() if k not in held}
    traced |= {"trace": names} if names else {}
    row = {**episode.row, **traced.pop(OVERRIDES, {})}
    known, said = values_of(row, EPISODES, content)
    task, task_said = values_of({**(episode.task or {}), **traced.pop(OF_TASK, {})}, TASKS, content)
    extension: dict[str, Any] = {"form": FORM, "episode": known, "task": task}
    if episode.evaluation is not None:
        values = values_of(episode.evaluation, EVALUATION, content)[0]
        extension["evaluation"] = {k: v for k, v in values.items() if k not in known}
    workflow = traced.pop("workflow", source.workflow)
    if workflow:
        extension["workflow"] = dict(workflow)
    if whole := {k: v for k, v in {"episode": said, "task": task_said}.items() if v}:
        extension["content"] = whole
    if kept := _shown(traced, content):
        extension["traced"] = kept
    return extension


def of_turn(episode: Episode, turn: Row, content: Content) -> dict[str, Any]:
    """The extension of one turn."""
    index = turn["turn_index"]
    traced = {k: v for k, v in episode.traced.get(index, {}).items() if k != RESULT_REF}
    known, said = values_of({**turn, **traced.pop(OVERRIDES, {})}, TURNS, content)
    extension: dict[str, Any] = {"turn": known}
    if said:
        extension["content"] = said
    for name, row, schema in (
        ("earned", episode.rewards.get(index), REWARDS),
        ("credit", episode.credit.get(index), CREDIT),
    ):
        if row is not None and (values := values_of(row, schema, content)[0]):
            extension[name] = values
    if kept := _shown(traced, content):
        extension["traced"] = kept
    return extension


def _shown(traced: Mapping[str, Any], content: Content) -> dict[str, Any]:
    """What a trace may show of what was traced: where content is withheld, only what can't be any."""
    return dict(traced) if content == "inline" else {k: traced[k] for k in _NO_CONTENT if k in traced}


def content_ref(episode: Episode, turn: Row, content: Content, column: str) -> str | None:
    """What stands for a turn's text: its hash, or what an imported trace had in its place."""
    if content == "none":
        return None
    kept = episode.refs.get(turn["turn_index"]) if column != "tool_result" else None
    traced = episode.traced.get(turn["turn_index"], {})
    kept = traced.get(RESULT_REF) if column == "tool_result" else kept
    return reference(turn.get(column)) or kept


def rows_from(extension: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of an extension by their names, content and all.

    Raises:
        ValueError: a value does not fit its column; the message says which row and column.
    """
    rows: dict[str, dict[str, Any]] = {}
    content = extension.get("content")
    content = content if isinstance(content, Mapping) else {}
    for name, key in (
        *(("episode", "episode"), ("task", "task"), ("evaluation", "evaluation")),
        *(("turn", "turn"), ("reward", "earned"), ("credit", "credit")),
    ):
        values = extension.get(key)
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise ValueError(f"{key} is no object")
        said = content if name == "turn" else content.get(name, {})
        try:
            rows[name] = row_of({**values, **(said if isinstance(said, Mapping) else {})}, SCHEMAS[name])
        except ValueError as error:
            raise ValueError(f"{key}.{error}") from None
    return rows
