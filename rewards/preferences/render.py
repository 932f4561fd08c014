"""A played episode as text: what a reward model reads. Pure, and equal for equal episodes.

The text has what the team did and said, and nothing that says how good it was: no reward, no gold, no
metric, and no key of a tool's result that a game pays its players by (`HIDDEN`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rewards.base import PlayedEpisode
from workflows.trajectory import to_json
from workflows.vocabulary import Event, Status

RENDERING: Final = 1
"""Counts up where an episode's text changes: a model reads only texts like those that it learned from."""

HIDDEN: Final = frozenset({"reward", "rewards", "score", "scores", "gold", "return", "correct"})
"""Keys of values that are left out, at any depth: what a tool or a game may say of how good a play is."""

HEAD_SHARE: Final = 4  # a quarter of what fits is kept of a text's beginning, the rest of its end
_END: Final = "[end]"


def render(episode: PlayedEpisode, answer_step: str | None = None) -> str:
    """The task, every turn with its place and role in the team, and the answer at the end.

    Args:
        episode: a played episode, as rewards see it.
        answer_step: the step whose last value is the team's answer; without it, the last reply of a role.
    """
    lines = ["[task]"]
    # short fields first: what is cut, is cut behind the beginning
    fields = sorted(((name, _text(value)) for name, value in episode.inputs.items() if name not in HIDDEN))
    lines += [f"{name}: {text}" for name, text in sorted(fields, key=lambda field: len(field[1]))]
    for turn in episode.turns:
        lines += [_place(turn), *_said(turn)]
    lines += ["[answer]", _answer(episode.turns, answer_step), _END]
    return "\n".join(lines)


def cut_middle(token_ids: Sequence[int], most: int) -> tuple[list[int], int]:
    """The tokens without their middle where they are more than `most`, and how many were removed.

    The task stands at a text's beginning and the answer at its end; both stay.
    """
    removed = max(0, len(token_ids) - most)
    if not removed:
        return list(token_ids), 0
    head = most // HEAD_SHARE
    return [*token_ids[:head], *token_ids[len(token_ids) - (most - head) :]], removed


def _place(turn: Mapping[str, Any]) -> str:
    """Who this is in the team, and what kind of act: `[lead · plan · spawn]`."""
    who = turn["instance"] or turn["role"] or turn["tool"] or "team"
    words = [str(who), str(turn["step"])]
    words += [str(turn["act"])] if turn["act"] else []
    words += [f"round {turn['round']}"] if turn["round"] else []
    words += [f"branch {turn['branch']}"] if turn["branch"] else []
    words += [str(turn["status"])] if turn["status"] not in (None, Status.OK) else []
    return f"[{' · '.join(words)}]"


def _said(turn: Mapping[str, Any]) -> list[str]:
    if turn["event"] == Event.LLM:
        return [turn["response_text"] or ""]
    if turn["event"] == Event.TOOL:
        return [f"asked: {_text(turn['tool_request'])}", f"got: {_text(turn['tool_result'])}"]
    return [_text(turn["parsed"])]


def _answer(turns: Sequence[Mapping[str, Any]], answer_step: str | None) -> str:
    """The last value of the answer's step; of no such step, what a role said last."""
    last = [turn for turn in turns if answer_step is not None and turn["step"] == answer_step]
    last = last or [turn for turn in turns if turn["event"] == Event.LLM]
    if not last:
        return ""
    said = last[-1]["parsed"] if last[-1]["parsed"] is not None else last[-1]["response_text"]
    return _text(said)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(_shown(value))


def _shown(value: Any) -> Any:
    """A JSON value without keys that say how good a play was."""
    if isinstance(value, Mapping):
        return {key: _shown(each) for key, each in value.items() if str(key).lower() not in HIDDEN}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return value
