"""Weights of teammates' updates, by hand and by law: whose turns they have, and what they give back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from stages.advantage import Job, advantage_part
from stages.base import Context
from stages.shift import (
    SEEN,
    PrefixStage,
    ShiftStage,
    effective_share,
    log_weights,
    prefix_weights,
    shift_of,
    stale_of,
)
from stages.tables.parquet import TableRef, TableSink
from stages.token_advantages.part import NO_WEIGHT
from stages.token_advantages.spec import TokenSpec
from workflows.trajectory import (
    CREDIT,
    PARTITION,
    PREFIX_WEIGHTS,
    RATIOS,
    SHIFT,
    TOKEN_ADVANTAGES,
    TRUST,
    TURNS,
    rows_to_table,
    schema_of,
)


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


def test_rows_that_are_all_far_from_likely_are_not_taken_for_usable() -> None:
    far = ratios({("e0", 0): -40.0, ("e1", 0): -60.0})
    row = shift_of("b", turns("ab", "ab"), far, {"a": 50.0})
    assert row["ess_prefix"] == pytest.approx(0.5)
    assert row["clipped_share"] == 1


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


def stored(folder: Path, name: str, table: pa.Table) -> TableRef:
    sink = TableSink(name, f"{folder}/{name}", schema_of(name))
    return sink.ref([sink.write_part(0, table)])


def test_stages_write_what_is_measured_and_advantages_are_weighed_by_it(tmp_path: Path) -> None:
    played, moved = turns("ab", "ab", "ab"), {("e0", 0): 0.5, ("e1", 0): -0.5}
    full = [{**row, "block": 0} for row in played.iter_rows(named=True)]
    credit = [{k: row[k] for k in ("episode_id", "turn_index")} | {"advantage": 2.0} for row in full]
    trusted = {"decision": "accepted", "kept_share": 1.0, "per_episode": 0.125, "model_id": "a"}
    tables = {
        "turns": stored(tmp_path, "turns", rows_to_table(full, TURNS)),
        "credit": stored(tmp_path, "credit", rows_to_table(credit, CREDIT)),
        "ratios/a": stored(tmp_path, "ratios/a", ratios(moved).to_arrow().cast(RATIOS)),
        "trust/a": stored(tmp_path, "trust/a", rows_to_table([trusted], TRUST)),
    }
    shift = ShiftStage(("a", "b"), ("a",))
    sink = TableSink("shift", f"{tmp_path}/shift", SHIFT)
    result = shift.run(tables, {"shift": sink}, Context(3))
    assert result.metrics["shift_budget/b"] == 0.25
    rows = sink.ref(result.parts["shift"]).read().to_pylist()
    assert [(row["model_id"], row["iteration"], row["unscored"]) for row in rows] == [
        ("a", 3, 0),
        ("b", 3, 1),
    ]
    assert rows[0]["surrogate_cached"] == rows[0]["surrogate_fresh"] is not None

    older = {**tables, "ratios/a": TableRef("ratios/a", "", RATIOS, ())}  # its update wrote none
    assert shift.does_without == ("ratios",)
    again = TableSink("shift", f"{tmp_path}/older", SHIFT)
    unknown = again.ref(shift.run(older, {"shift": again}, Context(3)).parts["shift"]).read().to_pylist()
    assert [(row["unscored"], row["shift_budget"], row["surrogate_cached"]) for row in unknown] == [
        (0, 0.0, None),
        (3, 0.25, None),
    ]

    prefix = PrefixStage("b", ("a",), 1.5)
    sink = TableSink(prefix.table, f"{tmp_path}/prefix", PREFIX_WEIGHTS)
    result = prefix.run(tables, {prefix.table: sink}, Context(3))
    (account,) = result.accounts
    account.check()
    assert (result.metrics["rows"], result.metrics["unscored"]) == (3, 1)
    assert result.metrics["capped_share"] == 0.5
    tables[prefix.table] = sink.ref(result.parts[prefix.table])
    part = [
        {"episode_id": f"e{k}", "turn_index": 1, "role": "b", "response_token_ids": [1, 2], "advantage": 2.0}
        | {"behaviour_logprobs": [-1.0, -1.0]}
        for k in range(3)
    ]
    tables["partition/b"] = stored(tmp_path, "partition/b", rows_to_table(part, PARTITION))
    sink = TableSink("token_advantages/b", f"{tmp_path}/advantages", TOKEN_ADVANTAGES)
    job = Job(TokenSpec("b", clip=1.0, prefix=True), 0)
    receipt = advantage_part(0, [job], tables, {"token_advantages/b": sink}, {})
    weighed = sink.ref([receipt["part"]]).read().to_pylist()
    assert [row["advantages"] for row in weighed] == [
        pytest.approx([1.5, 1.5]),
        pytest.approx([math.exp(-0.5)] * 2),
        None,
    ]
    assert receipt["excluded"] == {NO_WEIGHT: 1}
