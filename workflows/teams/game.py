"""`game`: players in turn, until the game says that it is over. Needs the package textarena.

    deal → move_0 → play → move_1 → play → move_0 → … → play: rewards of each player

Each seat has a step of its own, `move_0`, `move_1`, …, and a role: one role for all seats is self-play, a
role for each trains players apart, and a role whose model is not trained is an opponent that stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from workflows.errors import UsageError, WorkflowError
from workflows.parsers import Tag
from workflows.prompts import Trim
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.team import Team
from workflows.tools.textarena import TextArena

SPLITS: Final = ("train", "dev", "test")
SEEDS_APART: Final = 1_000_000


def build(
    game: str = "TicTacToe-v0",
    players: Sequence[str] = ("player", "player"),
    max_moves: int = 40,
    max_response_tokens: int = 48,
) -> ScriptWorkflow:
    """The workflow; its tasks have a `seed`, which deals the game (`[data] format = "seeds"`).

    Args:
        game: an id of TextArena.
        players: the role of each seat, as many as play; one name for several is self-play.
        max_moves: after so many the game is left unfinished, and nobody is paid.
        max_response_tokens: of a move.

    Raises:
        WorkflowError: an option of the wrong kind.
    """
    seats = list(players) if isinstance(players, list | tuple) else []
    if not seats or not all(isinstance(role, str) and role.isidentifier() for role in seats):
        raise WorkflowError(f"option players names the role of each seat; got {players!r}")
    if isinstance(max_moves, bool) or not isinstance(max_moves, int) or max_moves < 1:
        raise WorkflowError(f"option max_moves must be a whole number of at least 1, got {max_moves!r}")

    async def play(team: Team, task: Mapping[str, Any]) -> None:
        state = await team.tool("deal", {"seed": task["seed"]})
        for _ in range(max_moves):
            move = await team.call(
                f"move_{state.value['player']}", {"seen": state.value["seen"]}, reads=[state]
            )
            state = await team.tool("play", {"action": str(move.best or move.text)}, reads=[move])
            if state.value["done"]:
                return

    moves = {f"move_{seat}": role for seat, role in enumerate(seats)}
    return ScriptWorkflow(
        "game",
        [_player(role, max_response_tokens) for role in dict.fromkeys(seats)],
        play,
        tools={"game": TextArena(game, len(seats))},
        steps={"deal": "game", **moves, "play": "game"},
    )


def _player(name: str, max_response_tokens: int) -> Role:
    return Role(
        name,
        prompt="{seen}\n\nYour move, in the form that the game asks for: <move>your move</move>",
        parser=Tag("move"),
        demonstrations=(
            ({"seen": ["Take 1, 2 or 3 stones, for example [2]. 2 stones are left."]}, "<move>[2]</move>"),
        ),
        trim=(Trim("seen", drop="first"),),
        max_response_tokens=max_response_tokens,
    )


def seeds(path: str) -> Iterator[dict[str, Any]]:
    """Deals as tasks: "train=256&dev=64&test=64" says how many of each split; no seed is in two.

    Raises:
        UsageError: another split, or not a number.
    """
    counts = dict(parse_qsl(path, keep_blank_values=True))
    first = 0
    for split in SPLITS:  # the seeds of a split stay its own, however many the others have
        count = str(counts.pop(split, "0"))
        if not count.isdecimal() or int(count) > SEEDS_APART:
            raise UsageError(
                f"[data] path = {path!r}: {split} is a number from 0 to {SEEDS_APART}, got {count!r}"
            )
        for number in range(int(count)):
            yield {
                "task_id": f"{split}-{number}",
                "split": split,
                "inputs": {"seed": first + number},
                "gold": {"judge": "the game"},
            }
        first += SEEDS_APART
    if counts:
        raise UsageError(
            f"[data] path = {path!r}: no split {next(iter(counts))!r}; expected train, dev, test"
        )
