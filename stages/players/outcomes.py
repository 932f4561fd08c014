"""What counterfactual plays came to: their rows, and the names that plays have among themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stages.players.choices import Choice, Row, key_of
from workflows.interventions import PLAYED_INTERVENTIONS
from workflows.playing.record import Played
from workflows.vocabulary import Op

_SAME: Final = (
    *("status", "context_hash", "response_text", "parsed", "tool", "tool_request", "tool_result"),
    "response_token_ids",
)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Rows of `played_interventions` and `played_coalitions`, and the plays that they name."""

    interventions: list[dict[str, Any]]
    coalitions: list[dict[str, Any]] = field(default_factory=list)
    plays: list[Played] = field(default_factory=list)


def merged(outcomes: Iterable[Outcomes]) -> Outcomes:
    """All of these as one."""
    every = list(outcomes)
    return Outcomes(
        [row for each in every for row in each.interventions],
        [row for each in every for row in each.coalitions],
        [play for each in every for play in each.plays],
    )


def named(played: Played, play_id: str) -> Played:
    """A play with an id, and a group, of its own: it is compared with nothing but the stored episode."""
    own = {"episode_id": play_id, "group_id": play_id}
    return Played([{**turn, **own} for turn in played.turns], {**played.episode, **own})


def intervention_row(turn: Row, choice: Choice | None = None) -> dict[str, Any]:
    """The columns that say what is done to a turn. Without a choice, it is the replay of the episode as it
    is."""
    row: dict[str, Any] = dict.fromkeys(PLAYED_INTERVENTIONS.names)
    of_turn = ("iteration", "block", "task_id", "group_id", "episode_id")
    row.update({name: turn[name] for name in of_turn}, op=str(Op.NONE), alternative=0, select_probability=1.0)
    if choice is None:
        return row
    intervention = choice.intervention
    row.update({c: turn[c] for c in ("turn_index", "step", "round", "branch", "role", "model_id")})
    row.update(
        op=str(intervention.op),
        alternative=intervention.alternative if intervention.op == Op.RESAMPLE else 0,
        recipient=None if choice.recipient is None else choice.recipient["turn_index"],
        delivered=intervention.text,
        select_probability=choice.probability,
    )
    return row


def came_of(play: Played, stored: Sequence[Row]) -> dict[str, Any]:
    """The columns that say what came of a play."""
    return {
        "play_id": play.episode["episode_id"],
        "status": play.episode["status"],
        "first_difference": first_difference(play.turns, stored),
        "tokens": play.episode["num_response_tokens"],
    }


def first_difference(turns: Sequence[Row], stored: Sequence[Row]) -> int | None:
    """The `turn_index` of the first turn of a play that is not as stored; None where all are."""
    before = {key_of(row): row for row in stored}
    for turn in turns:
        then = before.get(key_of(turn))
        if then is None or any(turn[column] != then[column] for column in _SAME):
            index: int = turn["turn_index"]
            return index
    return None


def share_of(total: int, place: int, parts: int) -> int:
    """An equal share of a whole number: the shares of all places add up to it."""
    return total // parts + (place < total % parts)
