"""A game of TextArena as a tool that lives for one episode: https://pypi.org/project/textarena/, MIT.

    {"seed": 3}                      → {"player": 0, "seen": [...], "done": false}
    {"action": "[4]"}                → {"player": 1, "seen": [...], "done": false}
    {"action": "[0]"}                → {"player": null, "done": true, "rewards": {"0": 1, "1": -1}, …}

The first call deals the game; its seed is the task's, so all plays of a task begin alike. Every other call is
the move of the player whose turn it was, and the game itself judges it. `seen` is all that the player whose
turn it is has been shown so far: its own moves, and of others what the game lets it see.

The games draw from the random numbers of the whole process. Here each has numbers of its own, so that a game
takes the same course whatever else the process plays meanwhile.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workflows.errors import ToolRefusal, UsageError, did_you_mean
from workflows.hooks import ToolHooks

_NUMBERS = threading.Lock()  # who has it has the process's random numbers


@dataclass(frozen=True, slots=True)
class TextArena(ToolHooks):
    """The tool. `game` is an id of TextArena without its suffix, as "TicTacToe-v0".

    The wrappers of TextArena are left out: `seen` has what the game itself says.
    """

    game: str
    players: int = 2

    one_episode = True

    def check_ready(self) -> None:
        """Deal the game once.

        Raises:
            UsageError: the package is missing, it has no such game, or the game can't be dealt here.
        """
        try:
            import textarena
        except ImportError as error:
            raise UsageError(
                f"games are played by the package textarena, which can't be imported ({error}); "
                "pip install textarena"
            ) from None
        from textarena.envs.registration import ENV_REGISTRY

        assert textarena is not None
        if f"{self.game}-raw" not in ENV_REGISTRY:
            plain = [name for name in ENV_REGISTRY if not name.endswith(("-raw", "-train"))]
            raise UsageError(f"textarena has no game {self.game!r}{did_you_mean(self.game, plain)}")
        game = Game(self.game, self.players)
        try:
            game({"seed": 0})
        except Exception as error:
            said = next((line.strip(" *") for line in str(error).splitlines() if line.strip(" *")), "")
            raise UsageError(
                f"game {self.game!r} can't be dealt to {self.players} players here: {type(error).__name__}: "
                f"{said}; choose another game, or give it what it asks for"
            ) from error
        finally:
            game.close()

    def __call__(self, seed: int) -> Game:
        return Game(self.game, self.players)  # the deal has the seed of the task


class Game:
    """One game, from its deal to its end.

    Args:
        game: its id.
        players: how many play.
    """

    def __init__(self, game: str, players: int) -> None:
        self._game, self._players = game, players
        self._env: Any = None
        self._over = False
        self._seen: dict[int, list[str]] = defaultdict(list)
        self._numbers = _state_of(0)

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Deal the game, or make the move of the player whose turn it is.

        Raises:
            ToolRefusal: the game is over, has not begun, or has begun already.
        """
        with self._own_numbers():
            if "seed" in request:
                if self._env is not None:
                    raise ToolRefusal("the game has begun; the next call is a move")
                self._deal(int(request["seed"]))
                return self._shown()
            if self._env is None or self._over:
                raise ToolRefusal("the game is over" if self._over else "the game has not begun")
            over, _ = self._env.step(action=str(request["action"]))
            return self._ended() if over else self._shown()

    def close(self) -> None:
        """Let go of the game, finished or not."""
        if self._env is not None and not self._over:
            self._over = True
            with (
                self._own_numbers(),
                contextlib.suppress(Exception),
            ):  # it may be broken, and nobody asks it more
                self._env.close()
        self._env = None

    def _deal(self, seed: int) -> None:
        import numpy
        import textarena

        self._env = textarena.make(f"{self._game}-raw")
        random.setstate(random.Random(seed).getstate())
        numpy.random.seed(seed % 2**32)  # games seed the first of the two alone
        self._env.reset(num_players=self._players, seed=seed)

    def _shown(self) -> dict[str, Any]:
        player, news = self._env.get_observation()
        seen = self._seen[player]
        for sender, text, *_ in news:
            seen.append(text.strip() if sender < 0 else f"Player {sender}: {text.strip()}")
        return {"player": player, "seen": list(seen), "done": False}

    def _ended(self) -> dict[str, Any]:
        rewards, info = self._env.close()
        self._over = True
        if rewards is None:
            raise RuntimeError(f"game {self._game!r} ended without rewards")
        notes = {str(player): dict(of_player) for player, of_player in (info or {}).items()}
        return {
            "player": None,
            "seen": [],
            "done": True,
            "rewards": {str(player): float(value) for player, value in rewards.items()},
            "reason": next((str(n["reason"]) for n in notes.values() if n.get("reason")), None),
            "invalid": [int(player) for player, n in notes.items() if n.get("invalid_move")],
        }

    @contextlib.contextmanager
    def _own_numbers(self) -> Iterator[None]:
        """The process's random numbers are this game's inside, and what they were afterwards."""
        import numpy

        with _NUMBERS:
            kept = random.getstate(), numpy.random.get_state()
            random.setstate(self._numbers[0])
            numpy.random.set_state(self._numbers[1])
            try:
                yield
            finally:
                self._numbers = random.getstate(), numpy.random.get_state()
                random.setstate(kept[0])
                numpy.random.set_state(kept[1])


def _state_of(seed: int) -> tuple[Any, Any]:
    """The states of Python's and NumPy's generators after this seed."""
    import numpy

    return random.Random(seed).getstate(), numpy.random.RandomState(seed % 2**32).get_state()
