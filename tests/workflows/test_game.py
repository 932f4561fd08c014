"""Games: players take turns, the game itself judges and pays, and each game draws its own random numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewards.base import PlayedEpisode
from rewards.loading import load_reward
from tests.support.games import ARENA, needs, stand_in
from workflows.data.tasks import load_tasks
from workflows.errors import ToolRefusal, UsageError, WorkflowError
from workflows.loading import load_workflow
from workflows.playing.record import Played
from workflows.teams.game import build, seeds
from workflows.testing import play_once
from workflows.tools.textarena import TextArena

OWN = ("tool_result", "parsed")


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Any]:
    with stand_in(ARENA, tmp_path):
        from textarena.envs import registration

        yield registration


def takes(number: str) -> Any:
    return lambda *_: f"<move>[{number}]</move>"


def play(workflow: Any, replies: dict[str, Any], seed: int = 3) -> Played:
    return play_once(workflow, {"seed": seed}, replies)


def rewarded(played: Played, **options: Any) -> dict[str, set[float | None]]:
    """The reward of each player's moves, by step."""
    turns = [{**t, **{n: json.loads(t[n]) if t[n] else None for n in OWN}} for t in played.turns]
    values = load_reward("game_score", options)(PlayedEpisode("e", "ok", {}, {}, turns))
    found: dict[str, set[float | None]] = {}
    for turn, value in zip(turns, values, strict=True):
        found.setdefault(str(turn["step"]), set()).add(value)
    return found


def test_players_move_in_turn_and_each_is_paid_what_the_game_pays_it(arena: Any) -> None:
    workflow = build("Stones-v0", ["white", "black"])
    played = play(workflow, {"white": takes("1"), "black": takes("2")})
    assert played.episode["status"] == "ok", played.episode["error"]
    moves = [(t["step"], t["role"]) for t in played.turns if t["event"] == "llm"]
    assert moves[:3] == [("move_0", "white"), ("move_1", "black"), ("move_0", "white")]
    paid = rewarded(played)
    assert paid["deal"] == paid["play"] == {None}
    assert paid["move_0"] | paid["move_1"] == {1.0, -1.0}
    assert arena.Stones.opened == arena.Stones.ended


def test_self_play_is_one_role_in_all_seats(arena: Any) -> None:
    played = play(build("Stones-v0"), {"player": takes("1")})
    moves = [t for t in played.turns if t["event"] == "llm"]
    assert {t["role"] for t in moves} == {"player"}
    assert {t["step"] for t in moves} == {"move_0", "move_1"}
    paid = rewarded(played)
    assert sorted(v for s in ("move_0", "move_1") for v in paid[s] if v is not None) == [-1.0, 1.0]


def test_a_player_sees_all_that_it_was_shown_and_no_more(arena: Any) -> None:
    played = play(build("Stones-v0", ["white", "black"]), {"white": takes("1"), "black": takes("1")})
    last = [t for t in played.turns if t["step"] == "move_1"][-1]
    (said,) = [m["content"] for m in json.loads(last["messages"])[-1:]]
    assert "You are Player 1." in said
    assert "You are Player 0." not in said
    assert "Player 0: [1]" in said


def test_an_invalid_move_is_the_players_own_doing(arena: Any) -> None:
    played = play(build("Stones-v0", ["white", "black"]), {"white": takes("1"), "black": lambda *_: "eh?"})
    assert played.episode["status"] == "ok"
    assert rewarded(played)["move_0"] == {1.0}
    assert rewarded(played)["move_1"] == {-1.0}
    assert rewarded(played, invalid=-0.5)["move_1"] == {-1.5}


def test_a_game_that_breaks_is_a_failure_of_its_episode_and_is_closed(arena: Any) -> None:
    played = play(build("Stones-v0"), {"player": lambda *_: "<move>crash</move>"})
    assert played.episode["status"] == "infra_error"
    assert "the game is broken" in played.episode["error"]
    assert arena.Stones.opened == arena.Stones.ended


def test_a_game_that_is_left_unfinished_pays_nobody_and_is_closed(arena: Any) -> None:
    played = play(build("Stones-v0", max_moves=1), {"player": takes("1")})
    assert played.episode["status"] == "ok"
    assert rewarded(played)["move_0"] == {0.0}
    assert rewarded(played, unfinished=-1.0)["move_0"] == {-1.0}
    assert arena.Stones.opened == arena.Stones.ended


def course(game: Any, seed: int) -> Iterator[list[str]]:
    state = game({"seed": seed})
    while not state["done"]:
        yield state["seen"]
        state = game({"action": "[1]"})


def test_a_game_takes_its_course_whatever_is_drawn_meanwhile_and_leaves_no_trace(arena: Any) -> None:
    tool = TextArena("Stones-v0")
    alone = [list(seen) for seen in course(tool(0), 5)]
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    one, other = course(tool(1), 5), course(tool(2), 6)
    beside = []
    for seen in one:
        beside.append(list(seen))
        next(other, None)
    assert beside == alone
    assert (random.random(), np.random.random()) == expected
    assert [list(seen) for seen in course(tool(0), 6)] != alone


def test_calls_out_of_turn_are_refused(arena: Any) -> None:
    game = TextArena("Stones-v0")(0)
    with pytest.raises(ToolRefusal, match="has not begun"):
        game({"action": "[1]"})
    game({"seed": 1})
    with pytest.raises(ToolRefusal, match="has begun"):
        game({"seed": 1})
    game({"action": "nonsense"})
    with pytest.raises(ToolRefusal, match="is over"):
        game({"action": "[1]"})


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (TextArena("Stonse-v0"), "no game 'Stonse-v0'.*did you mean 'Stones-v0'"),
        (
            TextArena("Words-v0"),
            r"'Words-v0' can't be dealt to 2 players here: LookupError: Resource 'words'",
        ),
        (TextArena("Stones-v0", 3), "to 3 players here: AssertionError: two play"),
    ],
)
def test_what_can_not_be_played_is_refused_before_a_run(arena: Any, tool: TextArena, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tool.check_ready()
    TextArena("Stones-v0").check_ready()


def test_without_the_package_it_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "textarena", None)
    with pytest.raises(UsageError, match="pip install textarena"):
        TextArena("Stones-v0").check_ready()


def test_deals_of_splits_are_disjoint_and_stay_when_others_grow() -> None:
    loaded = load_tasks("train=30&dev=4&test=4", format="seeds")
    rows = [(r["split"], json.loads(r["inputs"])["seed"]) for r in loaded.tasks.to_pylist()]
    assert len({seed for _, seed in rows}) == len(rows) == 38
    more = [(r["split"], r["inputs"]["seed"]) for r in seeds("train=300&dev=4&test=4")]
    assert set(rows) <= set(more)
    for path, said in (("train=x", "train is a number"), ("tain=3", "no split 'tain'")):
        with pytest.raises(UsageError, match=said):
            list(seeds(path))


def test_options_that_can_not_work_are_refused() -> None:
    for options, said in (({"players": []}, "the role of each seat"), ({"max_moves": 0}, "max_moves")):
        with pytest.raises(WorkflowError, match=said):
            build(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be a number"):
        load_reward("game_score", {"invalid": "much"})


@needs("textarena")
@pytest.mark.parametrize(
    ("game", "players"), [("TicTacToe-v0", 2), ("KuhnPoker-v0", 2), ("GuessTheNumber-v0", 1)]
)
def test_games_of_the_package_itself_are_played_to_their_end(game: str, players: int) -> None:
    options = {"game": game, "players": ["player"] * players, "max_moves": 60}
    workflow = load_workflow("workflows.teams.game:build", options)
    workflow.tools["game"].check_ready()  # type: ignore[union-attr]
    played = play(workflow, {"player": takes("4")})
    assert played.episode["status"] == "ok", played.episode["error"]
    end = json.loads(next(t["tool_result"] for t in reversed(played.turns) if t["tool_result"]))
    assert end["done"]
    assert set(end["rewards"]) == {str(p) for p in range(players)}
    again = play(workflow, {"player": takes("4")})
    assert [t["tool_result"] for t in again.turns] == [t["tool_result"] for t in played.turns]
