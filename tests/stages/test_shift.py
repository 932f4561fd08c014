"""Weights of teammates' updates, by hand and by law: whose turns they have, and what they give back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from stages.shift import (
    SEEN,
    effective_share,
    log_weights,
    prefix_weights,
    shift_of,
    stale_of,
)
from workflows.trajectory import RATIOS, SHIFT


def turns(*episodes: str) -> pl.DataFrame:
    """A turn for each letter of an episode, of the model of that letter."""
    rows = [
        (f"e{number}", place, "llm", model, True)
        for number, episode in enumerate(episodes)
        for place, model in enumerate(episode)
    ]
    return pl.DataFrame(rows, schema=list(SEEN), orient="row").with_columns(
        pl.col("turn_index").cast(pl.Int32)
    )


def ratios(rows: dict[tuple[str, int], float]) -> pl.DataFrame:
    return pl.DataFrame(
        [(episode, turn, log) for (episode, turn), log in rows.items()],
        schema=pl.DataFrame(RATIOS.empty_table()).schema,
        orient="row",
    )


LOGS = {("e0", 0): 0.5, ("e0", 2): -0.25, ("e1", 0): 0.1, ("e1", 2): 0.2}


def test_a_weight_has_the_turns_of_updated_teammates_before_a_row_and_no_others() -> None:
    logs = log_weights("b", turns("abab", "abab"), ratios(LOGS), {"a": 0.1})
    assert logs["prefix"].to_list() == pytest.approx([0.5, 0.25, 0.1, 0.3])
    assert logs["suffix"].to_list() == pytest.approx([-0.25, 0, 0.2, 0])
    own = log_weights("a", turns("abab", "abab"), ratios(LOGS), {"a": 0.1})
    assert own["prefix"].to_list() == own["suffix"].to_list() == [0, 0, 0, 0]


def test_a_row_after_a_turn_without_a_ratio_has_no_weight_and_is_counted() -> None:
    known = ratios({key: log for key, log in LOGS.items() if key != ("e0", 2)})
    weights = prefix_weights("b", turns("abab", "abab"), known, {"a": 0.1}, 2.0)
    assert weights["weight"].to_list() == pytest.approx([math.exp(0.5), None, math.exp(0.1), math.exp(0.3)])
    row = shift_of("b", turns("abab", "abab"), known, {"a": 0.1})
    assert (row["rows"], row["unscored"], row["teammates"]) == (4, 1, 1)


def test_weights_are_cut_at_the_cap_and_where_nothing_moved_all_are_1() -> None:
    weights = prefix_weights("b", turns("abab", "abab"), ratios(LOGS), {"a": 0.1}, 1.2)
    assert weights["weight"].to_list() == pytest.approx([1.2, 1.2, math.exp(0.1), 1.2])
    still = shift_of("b", turns("abab"), ratios({}), {})
    assert (still["ess_prefix"], still["ess_joint"], still["tv_hat"], still["shift_budget"]) == (1, 1, 0, 0)


def test_effective_shares_go_from_one_row_to_all() -> None:
    assert effective_share(np.array([3.0, 3.0, 3.0])) == pytest.approx(1)
    assert effective_share(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_share(np.array([])) is None


def test_a_budget_has_the_teammates_that_speak_before_a_unit() -> None:
    played, moved = turns("abc"), {"a": 0.02, "b": 0.08, "c": 0.18}
    zero = ratios({("e0", k): 0.0 for k in range(3)})
    budgets = {unit: shift_of(unit, played, zero, moved)["shift_budget"] for unit in "abc"}
    assert budgets == pytest.approx({"a": 0, "b": 0.1, "c": math.sqrt(0.05)})
    assert shift_of("c", played, zero, moved)["shift_budget_triangle"] == pytest.approx(0.1 + 0.2)


def chain(count: int, seed: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """Plays of a speaker a and a listener b over bits, both updated, and what is exact of them.

    a says 1 with probability p, b repeats it with probability q; the return is 1 where b says 1.
    """
    p, p_new, q, q_new = 0.4, 0.6, 0.7, 0.8
    random = np.random.default_rng(seed)
    a = random.random(count) < p
    b = np.where(random.random(count) < q, a, ~a)
    log_a = np.where(a, math.log(p_new / p), math.log((1 - p_new) / (1 - p)))
    log_b = np.where(a == b, math.log(q_new / q), math.log((1 - q_new) / (1 - q)))
    rows = {
        (f"e{k:06d}", place): float(log[k]) for k in range(count) for place, log in enumerate((log_a, log_b))
    }
    played = pl.DataFrame(
        [(f"e{k:06d}", place, "llm", "ab"[place], True) for k in range(count) for place in (0, 1)],
        schema=list(SEEN),
        orient="row",
    ).with_columns(pl.col("turn_index").cast(pl.Int32))
    credit = played.select("episode_id", "turn_index").with_columns(
        advantage=pl.Series(np.repeat(b.astype(float), 2))
    )
    gain = lambda of_a: of_a * (q_new - q) + (1 - of_a) * (q - q_new)  # noqa: E731
    of_a = (p_new - p) * (2 * q - 1), (p_new - p) * (2 * q_new - 1)
    return played, ratios(rows), credit, {"b": (gain(p), gain(p_new)), "a": of_a}


@pytest.mark.parametrize("unit", ["a", "b"])
def test_weights_turn_what_stale_plays_promise_into_what_fresh_ones_would(unit: str) -> None:
    played, logs, credit, exact = chain(8_000, 1)
    found = stale_of(unit, played, logs, {"a": 0.08, "b": 0.03}, credit)
    cached, fresh = exact[unit]  # b's contexts have moved, and a's continuations
    assert found["surrogate_cached"] == pytest.approx(cached, abs=0.02)
    assert found["surrogate_fresh"] == pytest.approx(fresh, abs=0.02)
    assert found["stale_low"] < found["surrogate_cached"] - found["surrogate_fresh"] < found["stale_high"] < 0
    assert abs(cached - fresh) > 0.03


def test_a_unit_that_did_not_move_promises_nothing_and_every_column_is_one_of_the_table() -> None:
    played, logs, credit, _ = chain(50, 2)
    assert stale_of("b", played, logs, {"a": 0.08}, credit) == {}
    row = shift_of("b", played, logs, {"a": 0.1, "b": 0.1}) | stale_of(
        "b", played, logs, {"a": 0.1, "b": 0.1}, credit
    )
    assert set(row) | {"iteration", "block"} == set(SHIFT.names)
