"""Credit of messages from some replays: unbiased, better with a good guess, and where the budget goes."""

from __future__ import annotations

import asyncio
import math
import random
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.message_credit import Cheap, diagnostics, fit_of, heard, merged_fits, message_credit, summary
from stages.players.choices import Choosing, episodes_of
from stages.players.counterfactuals import Job, play_job
from stages.players.selection import probabilities, selected
from stages.tables.parquet import Part, TableRef, TableSink
from tests.stages.test_counterfactual_plays import written
from tests.support.replays import Stage, stored, team_of
from workflows.credit_tables import MESSAGE_CREDIT, MESSAGES
from workflows.interventions import INTERVENTIONS, PLAYED_INTERVENTIONS
from workflows.playing.record import Played
from workflows.trajectory import EPISODES, REWARDS, TURNS, rows_to_table
from workflows.vocabulary import Op


def message(k: int, p: float, effect: float | None, cheap: float = 0.0, **more: Any) -> dict[str, Any]:
    """A message with its true effect, which `tables` may play."""
    key = {"episode_id": f"00000/t{k // 4}/{k % 4}", "turn_index": 1, "op": "resample", "alternative": 1}
    row = {**key, "recipient": None, "group_id": f"00000/t{k // 4}", "role": "r", "step": "s", **more}
    return {**row, "select_probability": p, "cheap": cheap, "effect": effect, "tokens": 10}


def tables(rows: list[dict[str, Any]], chosen: list[bool]) -> tuple[pl.DataFrame, pl.DataFrame]:
    messages = [
        {**{c: row.get(c) for c in MESSAGES.names}, "is_chosen": c}
        for row, c in zip(rows, chosen, strict=True)
    ]
    played = [
        {
            **dict.fromkeys(INTERVENTIONS.names),
            **{c: row[c] for c in ("episode_id", "turn_index", "op", "alternative", "recipient")},
            **{"select_probability": row["select_probability"], "effect": row["effect"], "play_id": "p"},
            "first_difference": 2,
        }
        for row, is_chosen in zip(rows, chosen, strict=True)
        if is_chosen
    ]
    return (
        pl.DataFrame(rows_to_table(messages, MESSAGES)),
        pl.DataFrame(rows_to_table(played, INTERVENTIONS)),
    )


def credit_of(rows: list[dict[str, Any]], chosen: list[bool], cheap: Cheap) -> list[float]:
    messages, played = tables(rows, chosen)
    fits = merged_fits([fit_of(messages, played)])
    table = message_credit(messages, played, cheap, fits).table
    assert table.schema == MESSAGE_CREDIT
    at = {row["episode_id"]: row["credit"] for row in table.to_pylist()}
    return [at[row["episode_id"]] for row in rows]


@pytest.mark.parametrize("cheap", ["zero", "team", "fitted"])
def test_it_is_right_on_average_whatever_is_expected(cheap: Cheap) -> None:
    luck = random.Random(1)
    rows = [
        message(
            k, 0.2 + 0.6 * luck.random(), effect := luck.gauss(0, 1), cheap=0.8 * effect + luck.gauss(0, 0.3)
        )
        for k in range(40)
    ]
    totals = np.zeros(40)
    rounds = 400
    for _ in range(rounds):
        chosen = [luck.random() < row["select_probability"] for row in rows]
        totals += credit_of(rows, chosen, cheap)
    truth = np.array([row["effect"] for row in rows])
    errors = totals / rounds - truth
    assert abs(errors.mean()) < 0.05
    assert np.abs(errors).max() < 0.45  # every message, not only their mean
    assert np.corrcoef(totals, truth)[0, 1] > 0.97


def test_a_good_guess_takes_variance_away() -> None:
    luck = random.Random(2)
    rows = [message(k, 0.25, e := luck.gauss(0, 1), cheap=2 * e + luck.gauss(0, 0.2)) for k in range(80)]
    spread: dict[str, list[float]] = {"zero": [], "fitted": []}
    for _ in range(40):
        chosen = [luck.random() < 0.25 for _ in rows]
        for cheap in ("zero", "fitted"):
            got = credit_of(rows, chosen, cheap)  # type: ignore[arg-type]
            spread[cheap].append(fmean((g - row["effect"]) ** 2 for g, row in zip(got, rows, strict=True)))
    assert fmean(spread["fitted"]) < 0.25 * fmean(spread["zero"])


def test_alternatives_are_averaged_and_recipients_summed() -> None:
    rows = [
        message(0, 1.0, 0.25),
        message(0, 1.0, 0.75, alternative=2),
        message(0, 1.0, 0.5, op="mask", alternative=0, recipient=3),
        message(0, 1.0, 0.125, op="mask", alternative=0, recipient=4),
    ]
    table = message_credit(*tables(rows, [True] * 4), "zero", None).table.to_pylist()
    assert {row["op"]: (row["credit"], row["effect"], row["candidates"]) for row in table} == {
        "resample": (0.5, 0.5, 2),
        "mask": (0.625, 0.3125, 2),
    }


def test_a_replay_without_a_return_is_not_known_and_counted() -> None:
    rows = [message(0, 0.5, None, cheap=0.3), message(1, 0.5, 0.1, cheap=0.3)]
    credit = message_credit(*tables(rows, [True, True]), "team", None)
    assert credit.table["credit"].to_pylist() == [0.3, pytest.approx(0.3 + (0.1 - 0.3) / 0.5)]
    metrics, _ = diagnostics([summary(credit)])
    assert (metrics["resample/messages"], metrics["resample/replays"], metrics["resample/unknown"]) == (
        2,
        1,
        1,
    )
    nothing, notes = diagnostics([summary(message_credit(*tables(rows, [False] * 2), "team", None))])
    assert "resample/effect_mean" not in nothing
    assert not notes


def test_diagnostics_tell_harm_and_a_control_that_is_none() -> None:
    rows = [message(k, 1.0, -1.0 + 0.1 * a, alternative=a) for k in range(2) for a in (1, 2)]
    rows += [message(k, 1.0, 1.0 + 0.1 * a, alternative=a) for k in (2, 3) for a in (1, 2)]
    rows += [message(k, 1.0, 0.4 + 0.01 * k, op="paraphrase", alternative=0) for k in range(8)]
    metrics, notes = diagnostics([summary(message_credit(*tables(rows, [True] * len(rows)), "zero", None))])
    assert metrics["resample/harmful_rate"] == 0.5
    assert metrics["resample/changed_rate"] == 1.0
    assert metrics["resample/within_context_variance"] == pytest.approx(0.005)
    assert metrics["paraphrase/effect_mean"] == pytest.approx(0.435)
    assert "paraphrases" in notes[0]
    cheap = [message(k, 1.0, float(k % 3), cheap=2.0 * (k % 3)) for k in range(9)]
    found, _ = diagnostics([summary(message_credit(*tables(cheap, [True] * 9), "team", None))])
    assert found["resample/fidelity"] == pytest.approx(1.0)


def test_influence_is_what_readers_make_of_messages() -> None:
    """Two replacements of one message change the reply of its reader once; another message is not heard."""
    rows = [message(0, 1.0, 0.0, alternative=a, reader=2) for a in (1, 2)]
    rows.append(message(1, 1.0, 0.0, reader=2))
    messages, played = tables(rows, [True] * 3)
    played = played.with_columns(play_id=pl.Series(["p1", "p2", "p3"]))

    def said(episode: str, text: str) -> dict[str, Any]:
        return {
            "episode_id": episode,
            "turn_index": 2,
            "step": "keep",
            "round": 0,
            "branch": "",
            "response_text": text,
        }

    turns = pl.DataFrame([said("00000/t0/0", "a"), said("00000/t0/1", "a")])
    plays = pl.DataFrame([said("p1", "b"), said("p2", "a"), said("p3", "a")])
    (total, count) = heard(messages, played, turns, plays)["resample"]
    assert count == 2
    assert total == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    metrics, _ = diagnostics(
        [summary(message_credit(messages, played, "zero", None))], [{"resample": (total, 2)}]
    )
    assert metrics["resample/influence"] == total / 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9).map(float), st.integers(1, 50)), min_size=1, max_size=12),
    st.integers(1, 400),
    st.floats(0.05, 1),
)
def test_chances_are_above_0_and_cost_the_budget(
    scored: list[tuple[float, int]], tokens: int, explore: float
) -> None:
    wanted, costs = [w for w, _ in scored], [c for _, c in scored]
    chances = probabilities(wanted, costs, tokens, explore)
    assert all(0 < p <= 1 for p in chances)
    spent = sum(p * c for p, c in zip(chances, costs, strict=True))
    assert spent <= min(tokens, sum(costs)) * (1 + 1e-9)
    sure = all(p == 1 or not w for p, w in zip(chances, wanted, strict=True))
    assert sure or spent == pytest.approx(min(tokens, sum(costs)), rel=1e-6)
    for one, other in ((a, b) for a in range(len(costs)) for b in range(len(costs))):
        if wanted[one] > wanted[other]:
            assert chances[one] >= chances[other]


@pytest.fixture(scope="module")
def debate() -> tuple[Stage, list[Played]]:
    stage = Stage(*team_of("debate"))
    return stage, [stage.play(sample=sample) for sample in range(4)]


def test_messages_are_chosen_with_the_chance_that_their_rows_say(debate: tuple[Stage, list[Played]]) -> None:
    _, plays = debate
    episodes = episodes_of([row for p in plays for row in stored(p)])
    returns = {e: float(k % 2) for k, e in enumerate(episodes)}
    every = selected(episodes, returns, Choosing([Op.RESAMPLE]), 0.2)
    assert all(s.is_chosen and s.probability == 1.0 for s in every)
    total = sum(s.candidate[3] for s in every)
    seeds, counts, spent = 200, [0] * len(every), 0
    for seed in range(seeds):
        some = selected(episodes, returns, Choosing([Op.RESAMPLE], tokens=total // 5, seed=seed), 0.2)
        counts = [n + s.is_chosen for n, s in zip(counts, some, strict=True)]
        spent += sum(s.candidate[3] for s in some if s.is_chosen)
        assert all(s.probability > 0 for s in some)
    assert spent / seeds == pytest.approx(total // 5, rel=0.1)
    chances = [s.probability for s in some]
    assert counts == pytest.approx([seeds * p for p in chances], abs=4 * seeds**0.5 / 2)
    # nobody reads what the judge says: it is no message
    assert "judge" not in {s.candidate[0]["step"] for s in every}
    # without a return, nothing is known of an episode
    few = selected(episodes, dict(list(returns.items())[:2]), Choosing([Op.DROP]), 0.2)
    assert {s.candidate[0]["episode_id"] for s in few} == set(list(returns)[:2])


def test_a_part_that_was_played_is_not_played_again(
    debate: tuple[Stage, list[Played]], tmp_path: Path
) -> None:
    stage, plays = debate
    stored_tables = written(tmp_path / "stored", stage, plays)
    rewards = rows_to_table(
        [
            {"episode_id": t["episode_id"], "turn_index": t["turn_index"], "reward": float(k % 2)}
            for k, p in enumerate(plays)
            for t in p.turns
        ],
        REWARDS,
    )
    sink = TableSink("rewards", str(tmp_path / "rewards"), REWARDS)
    ref: TableRef = sink.ref([sink.write_part(0, rewards)])
    schemas = {"turns": TURNS, "episodes": EPISODES, "played_interventions": PLAYED_INTERVENTIONS}
    sinks = {n: TableSink(n, str(tmp_path / n), s) for n, s in {**schemas, "messages": MESSAGES}.items()}
    of_stored = (stored_tables[name] for name in ("tasks", "turns", "episodes"))
    uri = str(tmp_path / "shards" / "00000.json")
    job = Job(0, *of_stored, sinks, Choosing([Op.DROP]), uri, rewards=ref, explore=0.2)

    def play() -> dict[str, Any]:
        return asyncio.run(play_job(stage.player, job, asyncio.Semaphore(4)))

    first, asked = play(), stage.asked
    assert asked > 0
    assert play() == first
    assert stage.asked == asked
    messages = pl.DataFrame(sinks["messages"].ref([Part(**first["parts"]["messages"])]).read())
    assert messages.height == first["chosen"] > 0
    assert set(messages["select_probability"]) == {1.0}
    assert pvariance(messages["cheap"].to_list()) > 0
    assert first["stored_tokens"] == sum(t["num_response_tokens"] or 0 for p in plays for t in p.turns)
