"""Whom a reward goes to, who gets none and why, and which tables are refused."""

import math
import random

import pyarrow as pa
import pytest

from rewards.exact_match import ExactMatch
from rewards.f1_by_round import F1ByRound
from rewards.format import Format
from rewards.length import Length
from rewards.scoring.joined import TURNS_SEEN
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from rewards.token_f1 import TokenF1
from tests.support.scored_turns import BOTH, Returns, episode, llm, only, parts, score, tables, task, tool
from workflows.errors import SchemaError, UsageError
from workflows.trajectory import (
    EPISODES,
    NOT_THE_POLICYS_DOING,
    REWARDS,
    STATUSES,
    TASKS,
    TURNS,
)
from workflows.vocabulary import Status


def test_a_reward_goes_to_the_roles_and_steps_that_it_names() -> None:
    turns = [
        llm(0, "plan", ["q"]),
        tool(1),
        llm(2, "reader", "x"),
        llm(3, "again", "y", role="reader"),
        llm(4),
    ]
    readers, again = frozenset({"reader"}), frozenset({"again", "answer"})
    rewards = WeightedRewards(
        (
            WeightedReward("all", 1.0, TokenF1()),
            WeightedReward("readers", 10.0, TokenF1(), roles=readers),
            WeightedReward("again", 100.0, TokenF1(), steps=again),
            WeightedReward("both", 1000.0, TokenF1(), roles=readers, steps=again),
            WeightedReward("nobody", 5.0, TokenF1(), roles=readers, steps=frozenset({"answer"})),
        )
    )
    rows = score(turns, rewards=rewards)
    assert [rows["t/0", i]["reward"] for i in range(5)] == [1.0, None, 11.0, 1111.0, 101.0]
    assert parts(rows["t/0", 0]) == {"all": 1.0, "readers": None, "again": None, "both": None, "nobody": None}
    alone = score(turns, rewards=WeightedRewards(rewards.items[1:2]))
    assert alone["t/0", 0]["no_reward_reason"] == "no reward values this turn"


def test_a_split_outcome_is_divided_among_those_whom_it_goes_to() -> None:
    turns = [llm(0, "plan", ["q"]), llm(1, "reader", "x"), llm(2, "reader", "x", trainable=False), llm(3)]
    item = WeightedReward("mine", 1.0, TokenF1(share="split"), roles=frozenset({"reader", "answer"}))
    rows = score(turns, rewards=WeightedRewards((item,)))
    assert [r["reward"] for r in rows.values()] == [None, 0.5, None, 0.5]


def test_values_for_turns_that_are_not_addressed_are_dropped_whatever_the_reward_gives() -> None:
    item = WeightedReward("mine", 1.0, Returns([1.0, 2.0]), steps=frozenset({"answer"}))
    rows = score([llm(0, "plan", ["q"]), llm(1)], rewards=WeightedRewards((item,)))
    assert [r["reward"] for r in rows.values()] == [None, 2.0]


def test_a_reward_of_weight_zero_is_kept_and_makes_no_reward() -> None:
    metric = WeightedReward("metric", 0.0, TokenF1())
    rows = score([llm(0)], rewards=WeightedRewards((metric,)))
    assert rows["t/0", 0]["reward"] is None
    assert rows["t/0", 0]["no_reward_reason"] == "no reward values this turn"
    both = score([llm(0)], rewards=WeightedRewards((metric, WeightedReward("format", 1.0, Format()))))
    assert both["t/0", 0]["reward"] == 0.0
    assert parts(both["t/0", 0]) == {"metric": 1.0, "format": 0.0}


# Who gets none.


@pytest.mark.parametrize("status", STATUSES)
def test_what_is_not_the_policys_doing_gives_no_reward_to_the_whole_episode(status) -> None:
    healthy = [llm(0, episode_id="t/1"), llm(1, episode_id="t/1")]
    for turns, of_episode in (
        ([llm(0), tool(1), llm(2)], status),
        ([llm(0), tool(1, status=status), llm(2)], "ok"),
        ([llm(0), tool(1), llm(2, status=status, parsed=None)], "ok"),
    ):
        rows = score([*turns, *healthy], [episode(status=of_episode), episode("t/1")])
        mine = [rows["t/0", i] for i in range(3)]
        if status in NOT_THE_POLICYS_DOING:
            assert [r["reward"] for r in mine] == [None] * 3
            assert all(status in r["no_reward_reason"] for r in mine)
            assert len({r["no_reward_reason"] for r in mine}) == 1
        else:
            unsaid = status == Status.CALLED_OFF and turns[2]["status"] == status  # a turn without a reply
            assert [r["reward"] is None for r in mine] == [False, True, unsaid]
        assert [rows["t/1", i]["reward"] for i in (0, 1)] == [2.0, 2.0]


def test_tools_and_frozen_models_get_no_reward() -> None:
    turns = [tool(0), llm(1, event="control"), llm(2, "judge", "x", trainable=False), llm(3)]
    reasons = [r["no_reward_reason"] for r in score(turns).values()]
    assert reasons == ["not an llm turn", "not an llm turn", "model is frozen", None]


def test_truncated_turns_are_malformed_or_left_out_by_rule() -> None:
    turns = [llm(0, "plan", None, status="truncated"), llm(1)]
    as_malformed, left_out = (score(turns, truncated=rule) for rule in ("as_malformed", "exclude"))
    assert as_malformed["t/0", 0]["reward"] == 2.0 * 1.0 + 0.5 * -1.0
    assert left_out["t/0", 0]["no_reward_reason"] == "truncated"
    assert as_malformed["t/0", 1]["reward"] == left_out["t/0", 1]["reward"] == 2.0
    with pytest.raises(UsageError, match="as_malformed, exclude"):
        score(turns, truncated="drop")


def test_null_parts_do_not_count_and_nothing_but_nulls_is_no_reward() -> None:
    rewards = WeightedRewards(
        (
            WeightedReward("mine", 3.0, Returns([None, None, 0])),
            WeightedReward("too", 1.0, Returns([2, None, True])),
        )
    )
    rows = score([llm(0), llm(1), llm(2)], rewards=rewards)
    assert [r["reward"] for r in rows.values()] == [2.0, None, 1.0]
    assert rows["t/0", 1]["no_reward_reason"] == "no reward values this turn"
    assert parts(rows["t/0", 0]) == {"mine": None, "too": 2.0}


def test_a_reward_sees_the_decoded_turn_its_task_and_no_token_lists() -> None:
    seen = []

    def look(played):
        seen.append(played)
        return [0.0] * len(played.turns)

    score([tool(0), llm(1, parsed={"k": [1]})], rewards=only(look))
    (played,) = seen
    assert (played.inputs, played.gold) == ({"question": "?"}, {"answers": ["Paris"]})
    assert [set(t) for t in played.turns] == [set(TURNS_SEEN.names)] * 2
    assert played.turns[0]["tool_request"] == {"queries": ["x"]}
    assert played.turns[0]["metrics"] == {"hits": 2.0}
    assert played.turns[1]["parsed"] == {"k": [1]}
    assert played.trainable() == [1]


def test_scoring_twice_and_in_any_row_order_gives_the_same_table() -> None:
    draw = random.Random(3)
    ids = [f"t{k}/{s}" for k in range(5) for s in range(4)]
    turns = [
        llm(i, draw.choice(["plan", "answer"]), draw.choice(["Paris", "Rome in Italy", None]), e)
        for e in ids
        for i in range(draw.randint(1, 6))
    ]
    episodes = [episode(e, draw.choice(["ok", "ok", "timeout"])) for e in ids]
    tasks = [task(f"t{k}", ["Paris", f"Rome {k}"]) for k in range(5)]
    first = score_turns(*tables(turns, episodes, tasks), BOTH)
    for _ in range(3):
        for rows in (turns, episodes, tasks):
            draw.shuffle(rows)
        again = score_turns(*tables(turns, episodes, tasks), BOTH)
        assert again.equals(first)
    assert first.num_rows == len(turns)


# What is refused.


@pytest.mark.parametrize(
    ("turns", "episodes", "tasks", "what"),
    [
        ([llm(0, episode_id="t/9")], [episode()], [task()], "'t/9'"),
        ([llm(0)], [episode()], [task("u")], "'t'"),
        ([llm(0), llm(0)], [episode()], [task()], "two rows of turn 0"),
        ([llm(0)], [episode(), episode()], [task()], "two rows of episode_id"),
        ([llm(0)], [episode()], [task(), task()], "two rows of task_id"),
    ],
)
def test_tables_that_do_not_belong_together_are_refused(turns, episodes, tasks, what) -> None:
    with pytest.raises(SchemaError, match=what):
        score(turns, episodes, tasks)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: WeightedRewards(()), "no reward"),
        (lambda: WeightedRewards((*BOTH.items, *BOTH.items)), "two rewards are named 'format'"),
        (lambda: WeightedRewards((WeightedReward("x", math.nan, Format()),)), "'x' has weight nan"),
        (lambda: Format({"answer": -1.0}), "role 'answer' is -1.0"),
        (lambda: Format({"answer": "much"}), "role 'answer' is 'much'"),
        (lambda: TokenF1(share="half"), "share is 'half'"),
        (lambda: TokenF1(mode="loose"), "mode is 'loose'"),
        (lambda: ExactMatch(malformed="raww"), "malformed is 'raww' .did you mean 'raw'"),
        (lambda: Format(valid=0, invalid=1), "valid and invalid are 0 and 1"),
        (lambda: Format(invalid=-math.inf), "finite"),
        (lambda: Length(cost=-1), "cost is -1"),
        (lambda: Length(budget=math.nan), "budget is nan"),
        (lambda: Length(most="1"), "most must be a number"),
        (lambda: F1ByRound(round_steps="update"), "round_steps must be a list"),
        (lambda: F1ByRound(share="half"), "share is 'half'"),
    ],
)
def test_options_that_can_not_work_are_refused(make, what) -> None:
    with pytest.raises(UsageError, match=what):
        make()


def test_no_turns_give_an_empty_table_of_the_same_schema() -> None:
    empty = score_turns(TASKS.empty_table(), TURNS.empty_table(), EPISODES.empty_table(), BOTH)
    assert empty.equals(REWARDS.empty_table())
    assert isinstance(empty, pa.Table)
