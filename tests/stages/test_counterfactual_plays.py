"""Which interventions are chosen and with which chance, what is written of their plays, and their effects."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from stages.effects import effects
from stages.players.choices import Choosing, chosen, episodes_of, key_of, ops_of, readers_of
from stages.players.counterfactuals import NOT_THE_SAME, Job, play_job
from stages.tables.parquet import Part, TableRef, TableSink
from tests.support.replays import Stage, stored, team_of
from workflows.errors import UsageError
from workflows.interventions import INTERVENTIONS, PLAYED_INTERVENTIONS
from workflows.playing.record import Played
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.trajectory import EPISODES, REWARDS, TASKS, TURNS, rows_to_table
from workflows.vocabulary import Op

OPS = [Op.RESAMPLE, Op.DROP, Op.NULL, Op.SWAP, Op.MASK]


def written(folder: Path, stage: Stage, plays: list[Played]) -> dict[str, TableRef]:
    task = {
        **stage.task,
        "source": "s",
        "gold": "{}",
        "row_hash": "",
        "inputs": json.dumps(stage.task["inputs"]),
    }
    rows = {
        "tasks": rows_to_table([task], TASKS),
        "turns": rows_to_table([t for p in plays for t in p.turns], TURNS),
        "episodes": rows_to_table([p.episode for p in plays], EPISODES),
    }
    sinks = {name: TableSink(name, str(folder / name), table.schema) for name, table in rows.items()}
    return {name: sink.ref([sink.write_part(0, rows[name])]) for name, sink in sinks.items()}


def play_all(
    folder: Path, stage: Stage, plays: list[Played], choosing: Choosing
) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
    tables = written(folder / "stored", stage, plays)
    schemas = {"turns": TURNS, "episodes": EPISODES, "played_interventions": PLAYED_INTERVENTIONS}
    sinks = {name: TableSink(name, str(folder / name), schema) for name, schema in schemas.items()}
    receipt_uri = str(folder / "shards" / "00000.json")
    job = Job(0, tables["tasks"], tables["turns"], tables["episodes"], sinks, choosing, receipt_uri)

    async def run() -> dict[str, Any]:
        return await play_job(stage.player, job, asyncio.Semaphore(4))

    receipt = asyncio.run(run())
    frames = {
        name: pl.DataFrame(sink.ref([Part(**receipt["parts"][name])]).read()) for name, sink in sinks.items()
    }
    return frames, receipt


@pytest.fixture
def debate() -> tuple[Stage, list[Played]]:
    workflow, inputs = team_of("debate")
    stage = Stage(workflow, inputs)
    return stage, [stage.play(sample=sample) for sample in range(3)]


def test_every_intervention_is_played_apart_and_says_what_came_of_it(
    debate: tuple[Stage, list[Played]], tmp_path: Path
) -> None:
    stage, plays = debate
    asked = stage.asked
    frames, receipt = play_all(tmp_path, stage, plays, Choosing(OPS, alternatives=2))
    rows, turns, episodes = (frames[n] for n in ("played_interventions", "turns", "episodes"))
    replies = sum(t["event"] == "llm" for p in plays for t in p.turns)
    assert receipt["chosen"] == rows.filter(pl.col("op") != "none").height
    assert rows.filter(op="none").height == 3  # first, each episode as it is
    assert rows.filter(op="none")["first_difference"].to_list() == [None] * 3
    assert rows.filter(op="none")["tokens"].to_list() == [0] * 3
    assert rows.filter(op="resample").height == 2 * replies
    assert rows.filter(op="drop").height == rows.filter(op="null").height == replies
    assert rows.filter(op="swap")["delivered"].null_count() == 0
    played = rows.filter(pl.col("skipped").is_null())
    assert played["play_id"].n_unique() == played.height == episodes.height
    assert set(turns["episode_id"]) == set(played["play_id"])
    assert not set(turns["episode_id"]) & {p.episode["episode_id"] for p in plays}
    assert set(turns["base_episode_id"]) == {p.episode["episode_id"] for p in plays}
    # tokens are those that the engines sampled for it
    llm = turns.filter(event="llm", origin="sampled").filter(pl.col("attempts") > 0)
    assert llm.height == stage.asked - asked
    assert played["tokens"].sum() == receipt["tokens"] == llm["num_response_tokens"].sum()
    by_play = llm.group_by("episode_id").agg(pl.col("num_response_tokens").sum())
    assert dict(by_play.iter_rows()) == {
        r["play_id"]: r["tokens"] for r in played.iter_rows(named=True) if r["tokens"]
    }
    for row in played.filter(op="resample").iter_rows(named=True):
        of_play = turns.filter(episode_id=row["play_id"], step=row["step"], branch=row["branch"])
        (target,) = of_play.filter(round=row["round"]).iter_rows(named=True)
        assert json.loads(target["sampling"])["seed"] == row["seed"]
        assert row["first_difference"] is None or row["first_difference"] >= row["turn_index"]
    assert rows["select_probability"].to_list() == [1.0] * rows.height


def test_a_budget_is_kept_on_average_and_the_chances_are_those_that_rows_say(
    debate: tuple[Stage, list[Played]],
) -> None:
    _, plays = debate
    episodes = episodes_of([row for p in plays for row in stored(p)])
    every = chosen(episodes, Choosing([Op.RESAMPLE, Op.DROP]))

    def cost(choice: Any) -> int:
        rows, turn = episodes[choice.turn["episode_id"]], choice.turn
        includes = choice.intervention.op == Op.RESAMPLE
        return sum(
            r["num_response_tokens"] or 0 for r in rows
            if r["turn_index"] > turn["turn_index"] - includes
        )  # fmt: skip

    total = sum(map(cost, every))
    taken, counts, seeds = 0, 0, 300
    for seed in range(seeds):
        some = chosen(episodes, Choosing([Op.RESAMPLE, Op.DROP], tokens=total // 4, seed=seed))
        assert {c.probability for c in some} <= {(total // 4) / total}
        taken += sum(map(cost, some))
        counts += len(some)
    assert taken / seeds == pytest.approx(total // 4, rel=0.1)
    assert counts / seeds == pytest.approx(len(every) / 4, rel=0.1)
    one, again = (chosen(episodes, Choosing(OPS, tokens=total // 4, seed=7)) for _ in range(2))
    assert [(c.turn["episode_id"], c.intervention) for c in one] == [
        (c.turn["episode_id"], c.intervention) for c in again
    ]
    generous = chosen(episodes, Choosing([Op.DROP], tokens=10**9))
    assert {c.probability for c in generous} == {1.0}


def test_a_choice_does_not_depend_on_which_other_ones_there_are(debate: tuple[Stage, list[Played]]) -> None:
    """A draw belongs to its candidate, so that the same seed takes the same ones of more episodes."""
    _, plays = debate
    rows = [row for p in plays for row in stored(p)]
    seeded = Choosing([Op.DROP], tokens=1, seed=3)
    from stages.players import choices

    draws = [choices._draw(3, c.turn, c.intervention) for c in chosen(episodes_of(rows), Choosing([Op.DROP]))]
    fewer = [row for row in rows if row["sample"] < 2]
    less = [choices._draw(3, c.turn, c.intervention) for c in chosen(episodes_of(fewer), Choosing([Op.DROP]))]
    assert less == draws[: len(less)]
    assert len(set(draws)) == len(draws)
    assert len(chosen(episodes_of(rows), seeded)) <= 1


def test_masks_go_to_those_who_read_a_reply_through_values_of_the_workflow_too() -> None:
    async def run(team: Any, task: Any) -> None:
        said = await team.call("speaker", {"text": "a"})
        note = team.note("note", {"said": said.text}, reads=[said])
        heard = await team.call("reader", {"text": str(note.value)}, reads=[note])
        await team.call("end", {"text": heard.text}, reads=[heard])

    roles = [Role(r, "{text}") for r in ("speaker", "reader", "end")]
    steps = {"speaker": "speaker", "reader": "reader", "end": "end", "note": None}
    stage = Stage(ScriptWorkflow("s", roles, run, steps=steps), {})
    rows = stored(stage.play())
    readers = {rows[index]["step"]: [r["step"] for r in of] for index, of in readers_of(rows).items() if of}
    assert readers == {"speaker": ["reader"], "note": ["reader"], "reader": ["end"]}
    masks = chosen(episodes_of(rows), Choosing([Op.MASK]))
    assert [(c.turn["step"], c.intervention.recipient) for c in masks] == [
        ("speaker", key_of(rows[2])),
        ("reader", key_of(rows[3])),
    ]


def test_an_episode_that_is_another_one_when_it_is_replayed_is_left_alone(tmp_path: Path) -> None:
    count = {"calls": 0}

    async def run(team: Any, task: Any) -> None:
        count["calls"] += 1
        await team.call("r0", {"text": str(count["calls"])})  # depends on more than the replies

    stage = Stage(ScriptWorkflow("s", [Role("r0", "{text}")], run), {})
    frames, receipt = play_all(tmp_path, stage, [stage.play(sample=s) for s in (0, 1)], Choosing([Op.DROP]))
    rows = frames["played_interventions"]
    assert receipt["unequal"] == 2
    assert receipt["skipped"] == {NOT_THE_SAME: 2}
    assert set(rows.filter(op="drop")["skipped"]) == {NOT_THE_SAME}
    assert rows.filter(op="drop")["play_id"].null_count() == 2
    assert rows.filter(op="none")["first_difference"].to_list() == [0, 0]


def test_failed_episodes_have_nothing_to_replace(tmp_path: Path) -> None:
    workflow, inputs = team_of("math")
    stage = Stage(workflow, inputs)
    play = stage.play()
    play.episode["status"] = "infra_error"
    frames, receipt = play_all(tmp_path, stage, [play], Choosing([Op.DROP]))
    assert (receipt["chosen"], receipt["episodes"], frames["turns"].height) == (0, 0, 0)


def test_an_effect_is_the_stored_return_less_that_of_the_play() -> None:
    def row(op: str, play: str | None, difference: int | None = None, episode: str = "e") -> dict[str, Any]:
        empty = dict.fromkeys(PLAYED_INTERVENTIONS.names)
        return {**empty, "episode_id": episode, "op": op, "play_id": play, "first_difference": difference}

    played = rows_to_table(
        [
            row("none", "e#none"), row("drop", "e#drop.1", 2), row("swap", None), row("null", "e#null.1"),
            row("none", "f#none", 0, "f"), row("drop", "f#drop", 1, "f"),
        ],
        PLAYED_INTERVENTIONS,
    )  # fmt: skip
    rewards = [("e#none", 0, 1.0), ("e#none", 1, 0.5), ("e#drop.1", 0, 0.25), ("e#drop.1", 1, None)]
    rewards += [("e#null.1", 0, None), ("f#none", 0, 1.0), ("f#drop", 0, 1.0)]
    table = rows_to_table(
        [{"episode_id": e, "turn_index": t, "reward": r, "reward_parts": []} for e, t, r in rewards], REWARDS
    )
    result = effects(played, table.select(["episode_id", "reward"]))
    assert result.schema.equals(INTERVENTIONS)
    numbers = [tuple(r[c] for c in ("op", "return", "base_return", "effect")) for r in result.to_pylist()]
    assert numbers == [
        ("none", 0.75, 0.75, 0.0),
        ("drop", 0.25, 0.75, 0.5),
        ("swap", None, 0.75, None),  # was not played
        ("null", None, 0.75, None),  # has no reward
        ("none", 1.0, None, None),  # its replay is another episode
        ("drop", 1.0, None, None),
    ]
    assert isinstance(result, pa.Table)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ops_of("drop,nul"), "no intervention 'nul', did you mean 'null'|did you mean 'null'"),
        (lambda: Choosing([]), "choose what to replace: resample, drop"),
        (lambda: Choosing([Op.DROP], tokens=0), "tokens = 0; use 1 or more"),
        (lambda: Choosing([Op.RESAMPLE], alternatives=0), "alternatives = 0"),
        (lambda: Choosing([Op.PARAPHRASE]), "needs a function that puts a text in other words"),
    ],
)
def test_what_can_not_be_chosen_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()
    assert ops_of("drop, resample,drop") == [Op.RESAMPLE, Op.DROP]


def test_parts_share_a_budget() -> None:
    assert Choosing([Op.DROP], tokens=100).of_parts(3).tokens == 33
    assert Choosing([Op.DROP]).of_parts(3).tokens is None
