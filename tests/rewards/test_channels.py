"""Channels of credit: known numbers by unit, the declared sum, what is checked, the plain path untouched."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.channels.base import WeightedChannel
from rewards.channels.credited import InChannels, credit_in_channels
from rewards.channels.loading import BUILTIN_CHANNELS, load_channel
from rewards.channels.paths import majority_values
from rewards.credit.assign import credit_turns
from rewards.credit.group_relative import GroupRelative
from workflows.credit_tables import CREDIT_CHANNELS, MESSAGE_CREDIT
from workflows.errors import SchemaError, UsageError
from workflows.stop_tables import STOPS
from workflows.trajectory import EPISODES, REWARDS, TURNS, rows_to_table

# plan (0) → work 0 (1), work 1 (2) → answer (4), which called a tool (3) first
STEPS = (
    ("plan", "lead", ""),
    ("work", "hand", "0"),
    ("work", "hand", "1"),
    ("search", None, ""),
    ("answer", "lead", ""),
)
PARENTS = ([], [0], [0], [2], [1, 2, 3])


def episode(
    sample: int, rewards: tuple[float, float, float, float], **changes: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """One play: rewards of plan, both workers and the answer; `changes` of turns by step and branch."""
    name = f"00000/t/{sample}"
    where = {"episode_id": name, "group_id": "00000/t", "task_id": "t", "sample": sample, "iteration": 0}
    turns, given = [], iter(rewards)
    rows = []
    for index, ((step, role, branch), parents) in enumerate(zip(STEPS, PARENTS, strict=True)):
        llm = role is not None
        turns.append(
            {
                **{"episode_id": name, "turn_index": index, "step": step, "role": role, "branch": branch},
                **{"round": 0, "parents": parents, "event": "llm" if llm else "tool", "status": "ok"},
                **{
                    "model_id": "m" if llm else None,
                    "trainable": llm,
                    "num_response_tokens": 10 if llm else None,
                },
                "tool": None if llm else "search",
                "context_hash": f"{step}{branch}" if llm else None,
                "behaviour_logprobs": [-0.1] * 9 + [-5.0] if llm else None,
                **changes.get(f"{step}{branch}", {}),
            }
        )
        reward = next(given) if llm else None
        rows.append(
            {
                **{"episode_id": name, "turn_index": index, "reward": reward},
                "reward_parts": [{"name": "branch_right", "value": float(bool(reward))}]
                if step == "work"
                else [],
                "no_reward_reason": None if llm else "not an llm turn",
            }
        )
    return {"turns": turns, "episodes": [{**where, "status": "ok", "split": "train"}], "rewards": rows}


def credited(
    *plays: dict[str, list[dict[str, Any]]], tables: dict[str, pa.Table] | None = None, **channels: Any
) -> InChannels:
    """The credit of plays of one task; channels by name: (use, weight, options)."""
    rows = {name: [row for play in plays for row in play[name]] for name in plays[0]}
    mix = tuple(
        WeightedChannel(name, weight, load_channel(use, options))
        for name, (use, weight, options) in channels.items()
    )
    return credit_in_channels(
        rows_to_table(rows["turns"], TURNS),
        rows_to_table(rows["episodes"], EPISODES),
        rows_to_table(rows["rewards"], REWARDS),
        GroupRelative(),
        mix,
        tables or {},
    )


def values(made: InChannels, channel: str) -> dict[tuple[str, int], float]:
    rows = pl.DataFrame(made.channels).filter(pl.col("channel") == channel)
    return {(e[-1], i): v for e, i, v in rows.select("episode_id", "turn_index", "value").iter_rows()}


GOOD, BAD = episode(0, (1.0, 1.0, 0.0, 1.0)), episode(1, (0.0, 0.0, 0.0, 0.0))


def test_the_weighted_sum_of_the_channels_is_the_advantage() -> None:
    made = credited(
        GOOD,
        BAD,
        team=("outcome", 0.5, {}),
        role=("outcome", 2.0, {"unit": "role"}),
        own=("credit", 0.25, {}),
    )
    assert made.channels.schema == CREDIT_CHANNELS
    rows = pl.DataFrame(made.channels)
    sums = rows.group_by("episode_id", "turn_index").agg(total=(pl.col("weight") * pl.col("value")).sum())
    credit = pl.DataFrame(made.credited.table).drop_nulls("advantage")
    both = credit.join(sums, on=["episode_id", "turn_index"])
    assert both.height == credit.height == 8
    assert np.allclose(both["advantage"], both["total"])
    listed = {c["name"]: c["value"] for c in credit.row(0, named=True)["channels"]}
    assert listed == {"team": 0.375, "role": 0.5, "own": 0.5}
    assert rows["unit"].unique().sort().to_list() == ["role", "team", "turn"]


def test_one_channel_of_the_method_gives_the_bits_of_the_method() -> None:
    plays = [episode(s, (0.1 * s, 0.3, 0.7 * s, 1 / (s + 1))) for s in range(5)]
    made = credited(*plays, own=("credit", 1.0, {}))
    rows = {name: [row for play in plays for row in play[name]] for name in plays[0]}
    plain = credit_turns(
        rows_to_table(rows["turns"], TURNS),
        rows_to_table(rows["episodes"], EPISODES),
        rows_to_table(rows["rewards"], REWARDS),
        GroupRelative(),
    )
    drop = ["channels"]
    assert made.credited.table.drop_columns(drop).equals(plain.table.drop_columns(drop))


def test_units_from_the_team_to_the_turn() -> None:
    made = credited(
        GOOD,
        BAD,
        **{unit: ("outcome", 1.0, {"unit": unit}) for unit in ("team", "role", "agent", "turn", "decision")},
    )
    assert set(values(made, "team").values()) == {0.375, -0.375}
    assert values(made, "role")["0", 1] == 0.25  # both workers are one role
    assert (values(made, "agent")["0", 1], values(made, "agent")["0", 2]) == (0.5, 0.0)
    assert values(made, "turn")["0", 4] == 0.5
    # the plan alone was read by two branches, and answers for what the team did
    assert values(made, "decision") == {("0", 0): 0.375, ("1", 0): -0.375}
    # the team is one member: its values lack nothing of the team's credit
    assert made.gaps["team"] == (0.0, 0.0, 2)


def test_spawned_members_are_agents_and_their_spawner_decides() -> None:
    spawned = {"work0": {"instance": "hand/7"}, "work1": {"instance": "hand/7", "decided_by": 0}}
    made = credited(
        episode(0, (1.0, 1.0, 0.0, 1.0), **spawned),
        episode(1, (0.0, 0.0, 0.0, 0.0), **spawned),
        agent=("outcome", 1.0, {"unit": "agent"}),
        decision=("outcome", 1.0, {"unit": "decision"}),
    )
    members = pl.DataFrame(made.channels).filter(pl.col("channel") == "agent")["member"]
    assert set(members) == {"lead", "hand/7"}
    assert list(values(made, "decision")) == [("0", 0), ("1", 0)]


def test_siblings_are_plays_that_were_asked_the_very_same() -> None:
    other = episode(2, (1.0, 1.0, 1.0, 1.0), work0={"context_hash": "other"})
    made = credited(GOOD, BAD, other, siblings=("siblings", 1.0, {}))
    found = values(made, "siblings")
    assert found["0", 0] == pytest.approx(0.75 - 0.5)
    assert found["0", 1] == pytest.approx(0.75)  # against the one play with the same context
    assert found["2", 1] == 0.0  # nobody else was asked that


def test_a_call_of_a_tool_goes_to_the_reply_that_asked_for_it() -> None:
    refused = episode(1, (0.0, 0.0, 0.0, 0.0), search={"status": "tool_error"})
    made = credited(GOOD, refused, tools=("tool_calls", 1.0, {}))
    assert values(made, "tools") == {("0", 2): 0.5, ("1", 2): -0.5}
    (row, _) = pl.DataFrame(made.channels).iter_rows(named=True)
    assert (row["about"], row["member"], row["unit"]) == (3, "tool_call 3", "tool_call")
    outage = episode(1, (0.0, 0.0, 0.0, 0.0), search={"status": "infra_error"})
    assert list(values(credited(GOOD, outage, tools=("tool_calls", 1.0, {})), "tools")) == [("0", 2)]


def test_the_critical_path_pays_those_who_can_change_the_span() -> None:
    slow = episode(1, (1.0, 1.0, 1.0, 1.0), work1={"num_response_tokens": 60})
    options = {"token_seconds": 1.0, "tool_seconds": 0.0}
    made = credited(GOOD, slow, path=("critical_path", 1.0, options))
    found = values(made, "path")
    assert found["0", 0] == pytest.approx(math.log(55 / 30))
    assert found["1", 2] == pytest.approx(math.log(55 / 80))
    assert found["1", 1] == 0.0  # has 50 seconds of slack
    lost = episode(2, (0.0, 0.0, 0.0, 0.0))  # as quick as the first, and in vain
    assert values(credited(lost, slow, path=("critical_path", 1.0, options)), "path")["2", 0] == 0.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4), st.integers(0, 3))
def test_the_majoritys_shapley_values_are_those_of_all_orders_and_add_up(right: int, wrong: int) -> None:
    of_right, of_wrong = majority_values(right, wrong)
    count = right + wrong

    def worth(flags: tuple[bool, ...]) -> float:
        return 0.0 if not flags else 0.5 * ((2 * sum(flags) > len(flags)) + (2 * sum(flags) >= len(flags)))

    if count:
        totals = np.zeros(count)
        orders = list(permutations(range(count)))
        for order in orders:
            for place, player in enumerate(order):
                before = tuple(p < right for p in order[:place])
                totals[player] += worth((*before, player < right)) - worth(before)
        expected = totals / len(orders)
        assert np.allclose(expected, [of_right] * right + [of_wrong] * wrong)
    assert right * of_right + wrong * of_wrong == pytest.approx(worth((True,) * right + (False,) * wrong))


def test_shapley_shares_what_a_majority_would_answer_and_its_gap_is_the_rest() -> None:
    made = credited(GOOD, BAD, shapley=("shapley", 1.0, {}))
    found = values(made, "shapley")
    assert set(found) == {("0", 1), ("0", 2), ("1", 1), ("1", 2)}
    right, wrong = majority_values(1, 1)
    assert found["0", 1] == pytest.approx(right - 0.125)
    assert found["0", 2] == pytest.approx(wrong - 0.125)
    # the majority's credit is ±0.25, the team's ±0.375
    assert made.gaps["shapley"][1] == pytest.approx(0.25)


def test_surprise_lies_on_the_most_surprising_tokens_alone() -> None:
    made = credited(GOOD, BAD, own=("credit", 1.0, {}), forks=("surprise", 0.5, {"share": 0.1}))
    rows = pl.DataFrame(made.channels).filter(pl.col("channel") == "forks")
    assert rows.select("first_token", "end_token").unique().rows() == [(9, 10)]
    assert rows.height == 8
    with pytest.raises(UsageError, match="above 0"):
        load_channel("surprise", {"share": 0})


def test_messages_and_stops_come_from_the_tables_of_other_stages() -> None:
    credit = [
        {
            "episode_id": "00000/t/0",
            "turn_index": 1,
            "op": op,
            "credit": c,
            "first_token": f,
            "end_token": None,
        }
        for op, c, f in (("resample", 0.5, 4), ("drop", 0.25, None))
    ]
    decision = {"turn_index": 4, "advantage": -4.0, "stop_logprob": math.log(0.25)}
    stops = [
        {**decision, "episode_id": "00000/t/0", "stop_taken": False},
        {**decision, "episode_id": "00000/t/1", "stop_taken": True},
        {**decision, "episode_id": "00000/t/1", "turn_index": 0, "stop_taken": True, "excluded": "budget"},
        {**decision, "episode_id": "00000/t/1", "turn_index": None, "stop_taken": True},
    ]
    made = credited(
        GOOD,
        BAD,
        tables={
            "message_credit": rows_to_table(credit, MESSAGE_CREDIT),
            "stops": rows_to_table(stops, STOPS),
        },
        message=("message", 2.0, {}),
        difference=("difference", 1.0, {}),
        stop=("stop", 1.0, {}),
    )
    assert values(made, "message") == {("0", 1): 0.5}
    assert values(made, "difference") == {("0", 1): 0.25}
    assert values(made, "stop") == {("0", 4): 1.0, ("1", 4): -3.0}
    advantages = {
        (e[-1], i): a
        for e, i, a in pl.DataFrame(made.credited.table)
        .select("episode_id", "turn_index", "advantage")
        .iter_rows()
    }
    assert advantages["0", 1] == 1.25
    assert advantages["1", 4] == -3.0
    assert advantages["0", 0] == 0.0
    span = pl.DataFrame(made.channels).filter(pl.col("channel") == "message").row(0, named=True)
    assert (span["first_token"], span["end_token"], span["counts"]) == (4, None, True)


def test_shares_of_an_aggregate_are_held_against_what_such_messages_usually_get() -> None:
    """Each play's shares add up to its return less that with nothing read, here 0.25 in both."""
    rows = [
        {"episode_id": episode, "turn_index": turn, "op": op, "credit": share, "first_token": 1}
        for episode, shares in {"00000/t/0": (0.5, 0.25), "00000/t/1": (-0.5, 0.25)}.items()
        for turn, share in zip((0, 1), shares, strict=True)
        for op in ("shapley", "resample")
    ]
    table = rows_to_table([{**dict.fromkeys(MESSAGE_CREDIT.names), **row} for row in rows], MESSAGE_CREDIT)
    made = credited(GOOD, BAD, tables={"message_credit": table}, shares=("shapley_replayed", 1.0, {}))
    found = values(made, "shares")
    assert found == {("0", 0): 0.375, ("0", 1): 0.125, ("1", 0): -0.625, ("1", 1): 0.125}
    by_play = {e: sum(v for (play, _), v in found.items() if play == e) for e in "01"}
    assert by_play == {"0": 0.5, "1": -0.5}  # 0.75 and -0.25 less their mean: the team's credit
    assert {*pl.DataFrame(made.channels)["first_token"]} == {1}


def test_every_channel_that_ships_gives_finite_rows_of_turns_that_it_got() -> None:
    plays = [episode(s, (float(s % 2), 1.0, float(s), 0.5)) for s in range(3)]
    tables = {"message_credit": MESSAGE_CREDIT.empty_table(), "stops": STOPS.empty_table()}
    for use in BUILTIN_CHANNELS:
        made = credited(*plays, tables=tables, one=(use, 1.0, {}))
        assert made.channels.schema == CREDIT_CHANNELS
        assert pl.DataFrame(made.channels)["value"].is_finite().all()


class Own:
    """A channel of one's own."""

    unit = "turn"

    def __init__(self, **change: Any) -> None:
        self.change = change

    def __call__(self, frames: Any) -> pl.DataFrame:
        rows = frames.usable.select("episode_id", "turn_index", member=pl.lit("x"), value=pl.lit(1.0))
        return rows.with_columns(**{name: pl.lit(value) for name, value in self.change.items()})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": math.nan}, "not finite"),
        ({"turn_index": 99}, "did not get"),
        ({"first_token": 4, "end_token": 4}, "within the response"),
        ({"first_token": 0, "end_token": 11}, "which has 10"),
    ],
)
def test_rows_that_can_not_be_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    rows = {name: [row for play in (GOOD, BAD) for row in play[name]] for name in GOOD}
    with pytest.raises(SchemaError, match=words) as refused:
        credit_in_channels(
            rows_to_table(rows["turns"], TURNS),
            rows_to_table(rows["episodes"], EPISODES),
            rows_to_table(rows["rewards"], REWARDS),
            GroupRelative(),
            (WeightedChannel("mine", 1.0, Own(**change)),),
            {},
        )
    assert "'mine'" in str(refused.value)


def test_turns_that_are_not_trained_on_keep_their_rows_and_count_for_nothing() -> None:
    credit = [{"episode_id": "00000/t/0", "turn_index": 3, "op": "resample", "credit": 0.5}]
    made = credited(
        GOOD,
        BAD,
        tables={"message_credit": rows_to_table(credit, MESSAGE_CREDIT)},
        message=("message", 1.0, {}),
    )
    (row,) = pl.DataFrame(made.channels).iter_rows(named=True)
    assert (row["value"], row["counts"]) == (0.5, False)
    assert set(pl.DataFrame(made.credited.table)["advantage"].drop_nulls()) == {0.0}
