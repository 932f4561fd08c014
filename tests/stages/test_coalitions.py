"""Shapley values of the inputs of one reply, by playing it again with sets of them nulled."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.effects import coalition_returns, effects, shapley_values
from stages.message_credit import message_credit
from stages.players.choices import Choosing, candidates_of, episodes_of, inputs_of
from stages.players.coalitions import coalitions, is_exact
from stages.players.counterfactuals import Job, play_job
from stages.tables.parquet import Part, TableSink
from tests.stages.test_counterfactual_plays import written
from tests.support.replays import Stage, stored
from workflows.credit_tables import MESSAGES
from workflows.errors import UsageError
from workflows.interventions import PLAYED_COALITIONS, PLAYED_INTERVENTIONS
from workflows.playing.counterfactual import Intervention
from workflows.playing.record import Played
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import TurnKey
from workflows.trajectory import EPISODES, REWARDS, TURNS, rows_to_table
from workflows.vocabulary import Op

WORTH = {"alpha": 0.5, "beta": 0.25, "gamma": 0.0}


def by_all_orders(count: int, value: Any) -> list[float]:
    """Shapley values as they are defined."""
    parts: list[list[float]] = [[] for _ in range(count)]
    for order in itertools.permutations(range(count)):
        for place, each in enumerate(order):
            parts[each].append(value(frozenset(order[: place + 1])) - value(frozenset(order[:place])))
    return [fmean(of_one) for of_one in parts]


def summed(weights: Any, value: Any, count: int) -> list[float]:
    return [sum(w[each] * value(frozenset(some)) for some, w in weights.items()) for each in range(count)]


@given(st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_exact_weights_are_the_mean_over_all_orders(count: int, seed: int) -> None:
    luck = random.Random(seed)
    game = {
        frozenset(s): luck.random() for n in range(count + 1) for s in itertools.combinations(range(count), n)
    }
    found = summed(coalitions(count, 1000, 0), game.__getitem__, count)
    assert found == pytest.approx(by_all_orders(count, game.__getitem__), abs=1e-12)


@given(st.integers(2, 9), st.integers(1, 9), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_values_add_up_to_the_total_however_many_orders_are_drawn(count: int, orders: int, seed: int) -> None:
    weights = coalitions(count, orders, seed)
    assert is_exact(count, orders) == (len(weights) == 2**count)
    assert len(weights) <= max(orders * (count - 1) + 2, 2**count if is_exact(count, orders) else 0)
    sums = {some: sum(w) for some, w in weights.items()}
    assert sums.pop(()) == pytest.approx(-1)
    assert sums.pop(tuple(range(count))) == pytest.approx(1)
    assert all(total == pytest.approx(0, abs=1e-12) for total in sums.values())


def test_drawn_orders_are_right_on_average() -> None:
    """Of a game whose inputs only count together; each seed is a draw of its own."""

    def value(some: frozenset[int]) -> float:
        return float({0, 1} <= some) + 0.5 * (2 in some)

    drawn = [summed(coalitions(7, 4, seed), value, 7) for seed in range(400)]
    means = [fmean(column) for column in zip(*drawn, strict=True)]
    assert means == pytest.approx([0.5, 0.5, 0.5, 0, 0, 0, 0], abs=0.06)


def panel(speakers: int = 3) -> ScriptWorkflow:
    """Some speak at the same time, and one sums up what they said."""

    async def run(team: Any, task: Any) -> None:
        async def say(branch: Any, number: int) -> Any:
            return await branch.call("speaker", {"text": f"speaker {number}"})

        said = await team.each(range(speakers), say)
        end = await team.call("end", {"text": [each.text for each in said]}, reads=said)
        await team.call("close", {"text": end.text}, reads=[end])

    roles = [Role(name, "{text}") for name in ("speaker", "end", "close")]
    return ScriptWorkflow("panel", roles, run)


def says(messages: Any, sampling: Any) -> str:
    """Speakers have a word each; the sum names the words that it got."""
    text = str(messages[-1]["content"])
    for place, word in enumerate(WORTH):
        if text == f"speaker {place}":
            return word
    return " ".join(word for word in WORTH if word in text) or "nobody"


def rewards_of(turns: list[dict[str, Any]], spoiled: str | None = None) -> list[dict[str, Any]]:
    """The words in the sum earn; two of them together earn a quarter more."""
    sums = {t["episode_id"]: t["response_text"] for t in turns if t["step"] == "end"}
    rows = []
    for turn in turns:
        said = sums[turn["episode_id"]]
        worth = sum(w for word, w in WORTH.items() if word in said)
        worth += 0.25 * (("alpha" in said) and ("beta" in said))
        missing = spoiled is not None and said == spoiled
        row = {"episode_id": turn["episode_id"], "turn_index": turn["turn_index"]}
        rows.append({**row, "reward": None if missing else worth})
    return rows


def played(
    folder: Path, stage: Stage, plays: list[Played], choosing: Choosing, rewarded: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables of a part, with the rewards of its plays, and the receipt."""
    tables = written(folder / "stored", stage, plays)
    schemas = {
        "turns": TURNS,
        "episodes": EPISODES,
        "played_interventions": PLAYED_INTERVENTIONS,
        "played_coalitions": PLAYED_COALITIONS,
        **({"messages": MESSAGES} if rewarded else {}),
    }
    sinks = {name: TableSink(name, str(folder / name), schema) for name, schema in schemas.items()}
    scored = None
    if rewarded:
        sink = TableSink("rewards", str(folder / "rewards"), REWARDS)
        rows = rewards_of([turn for play in plays for turn in play.turns])
        scored = sink.ref([sink.write_part(0, rows_to_table(rows, REWARDS))])
    job = Job(
        *(0, tables["tasks"], tables["turns"], tables["episodes"], sinks, choosing),
        str(folder / "shards" / "00000.json"),
        rewards=scored,
    )

    async def run() -> dict[str, Any]:
        return await play_job(stage.player, job, asyncio.Semaphore(4))

    receipt = asyncio.run(run())
    return {n: sink.ref([Part(**receipt["parts"][n])]).read() for n, sink in sinks.items()}, receipt


def valued(tables: dict[str, Any], spoiled: str | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Interventions with their effects, and the sets with their returns."""
    rewards = rows_to_table(rewards_of(tables["turns"].to_pylist(), spoiled), REWARDS)
    sets = coalition_returns(tables["played_coalitions"], rewards)
    return pl.DataFrame(effects(tables["played_interventions"], rewards, sets)), pl.DataFrame(sets)


def test_an_aggregate_is_played_with_sets_of_its_inputs_and_their_values_add_up(tmp_path: Path) -> None:
    stage = Stage(panel(), {"question": "?"}, reply=says)
    plays = [stage.play(sample=sample) for sample in range(2)]
    asked = stage.asked
    tables, receipt = played(tmp_path, stage, plays, Choosing([Op.SHAPLEY]))
    rows, sets = valued(tables)
    shares = rows.filter(op="shapley")
    assert shares.height == receipt["chosen"] == 2 * 3  # nobody reads the closing words, and these read one
    for of_one in shares.partition_by("episode_id"):
        assert of_one.sort("turn_index")["effect"].to_list() == pytest.approx([0.625, 0.375, 0.0])
        assert of_one["base_return"].to_list() == [1.0] * 3
        assert of_one["effect"].sum() == pytest.approx(1.0)  # all that the team earned: nothing said earns 0
    assert sets.height == 2 * 8
    assert sets["exact"].all()
    none = sets.filter(pl.col("present").list.len() == 0)
    assert none["return"].to_list() == [0.0, 0.0]
    # what the speakers said is copied, and tokens are those that were sampled anew, in both tables
    turns = pl.DataFrame(tables["turns"])
    new = turns.filter(event="llm", origin="sampled")
    assert set(new["step"]) == {"end", "close"}
    assert stage.asked - asked == new.height
    assert (
        sets["tokens"].sum()
        == shares["tokens"].sum()
        == receipt["tokens"]
        == new["num_response_tokens"].sum()
    )
    assert set(sets["play_id"]) | set(rows.filter(op="none")["play_id"]) == set(turns["episode_id"])


def test_a_set_without_a_return_leaves_its_values_unknown(tmp_path: Path) -> None:
    stage = Stage(panel(), {"question": "?"}, reply=says)
    tables, _ = played(tmp_path, stage, [stage.play()], Choosing([Op.SHAPLEY]))
    rows, sets = valued(tables, spoiled="alpha beta")
    assert sets["return"].null_count() == 1
    assert rows.filter(op="shapley")["effect"].to_list() == [None] * 3


def test_many_inputs_are_sampled_in_orders_of_the_seed(tmp_path: Path) -> None:
    stage = Stage(panel(6), {"question": "?"}, reply=says)
    play = stage.play()
    tables, _ = played(tmp_path, stage, [play], Choosing([Op.SHAPLEY], permutations=2, seed=5))
    rows, sets = valued(tables)
    assert not sets["exact"].any()
    assert 2 + 5 < sets.height <= 2 + 2 * 5
    assert rows.filter(op="shapley")["effect"].sum() == pytest.approx(1.0)
    again, _ = played(tmp_path / "b", stage, [play], Choosing([Op.SHAPLEY], permutations=2, seed=5))
    assert again["played_coalitions"].equals(tables["played_coalitions"])
    other, _ = played(tmp_path / "c", stage, [play], Choosing([Op.SHAPLEY], permutations=2, seed=6))
    assert other["played_coalitions"]["present"] != tables["played_coalitions"]["present"]
    values = shapley_values(coalition_returns(tables["played_coalitions"], rows_to_table([], REWARDS)))
    assert values["value"].null_count() == 6


def test_within_an_iteration_a_game_is_chosen_whole_and_its_credit_is_that_of_messages(
    tmp_path: Path,
) -> None:
    stage = Stage(panel(), {"question": "?"}, reply=says)
    plays = [stage.play(sample=sample) for sample in range(4)]
    tables, receipt = played(
        tmp_path, stage, plays, Choosing([Op.SHAPLEY], tokens=120, seed=1), rewarded=True
    )
    messages = pl.DataFrame(tables["messages"])
    assert messages.height == 4 * 3
    assert (
        messages.group_by("episode_id").agg(pl.col("is_chosen").n_unique())["is_chosen"].to_list() == [1] * 4
    )
    chance = messages["select_probability"].unique().to_list()
    assert len(chance) == 1
    assert 0 < chance[0] < 1
    assert (messages["select_probability"] * messages["tokens"]).sum() == pytest.approx(120)
    rows, _ = valued(tables)
    credit = message_credit(messages, rows, "zero", None).table
    chosen = messages.filter("is_chosen").height
    assert 0 < chosen == receipt["chosen"]
    known = pl.DataFrame(credit).filter(pl.col("replays") == 1)
    assert known["credit"].sum() == pytest.approx(chosen / 3 / chance[0])  # each game adds up to 1, over p
    assert pl.DataFrame(credit).filter(pl.col("replays") == 0)["credit"].to_list() == [0.0] * (12 - chosen)


def test_inputs_can_be_those_of_some_roles_alone() -> None:
    stage = Stage(panel(), {"question": "?"}, reply=says)
    episodes = episodes_of(stored(stage.play()))
    (rows,) = episodes.values()
    (game,) = candidates_of(rows, episodes, Choosing([Op.SHAPLEY]))
    assert [turn["response_text"] for turn in inputs_of(rows, game[1])] == list(WORTH)
    assert game[0]["step"] == "end"
    assert not list(candidates_of(rows, episodes, Choosing([Op.SHAPLEY], roles=frozenset({"end"}))))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipient": None}, "takes the place of the one turn"),
        ({"text": None}, "take the words to deliver"),
        ({"op": Op.DROP, "text": None}, "only null and shapley replace several"),
        ({"recipient": TurnKey("b", 0, "")}, "does not read itself"),
    ],
)
def test_a_game_that_can_not_be_is_refused(change: dict[str, Any], words: str) -> None:
    game = {
        "op": Op.SHAPLEY,
        "text": "-",
        "recipient": TurnKey("end", 0, ""),
        "more": (TurnKey("b", 0, ""),),
    }
    with pytest.raises(UsageError, match=words):
        Intervention(TurnKey("a", 0, ""), **{**game, **change})
