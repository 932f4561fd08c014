"""What a game pays its players: for each seat's moves its own reward, as the game gives it at its end."""

from __future__ import annotations

from dataclasses import dataclass

from rewards.base import PlayedEpisode
from workflows.errors import UsageError


@dataclass(frozen=True, slots=True)
class GameScore:
    """The game's reward of a player, for every trainable turn of that player's step (of `game`).

    A game that reached no end pays nobody: `unfinished` for every move.

    Options:
        play_step: the step whose last result has `rewards`, by player.
        move_step: the beginning of the names of the players' steps; the player's number follows.
        unfinished: what every move of a game without an end gets.
        invalid: added to the reward of a player whose invalid move ended the game.

    Raises:
        UsageError: a number that is none.
        ValueError: the game paid other players than those who moved; the episode is then excluded.
    """

    play_step: str = "play"
    move_step: str = "move_"
    unfinished: float = 0.0
    invalid: float = 0.0

    def __post_init__(self) -> None:
        for name in ("unfinished", "invalid"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"option {name} of game_score must be a number, got {value!r}")

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        states = [t["tool_result"] for t in episode.turns if t["step"] == self.play_step and t["tool_result"]]
        end = states[-1] if states and states[-1].get("done") else None
        values: list[float | None] = [None] * len(episode.turns)
        for position in episode.trainable():
            step = str(episode.turns[position]["step"])
            if not step.startswith(self.move_step):
                continue
            if end is None:
                values[position] = self.unfinished
                continue
            player = step.removeprefix(self.move_step)
            if player not in end["rewards"]:
                raise ValueError(f"player {player} moved, and the game pays {', '.join(end['rewards'])}")
            fault = self.invalid if int(player) in end.get("invalid", []) else 0.0
            values[position] = float(end["rewards"][player]) + fault
        return values
