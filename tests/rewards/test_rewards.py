"""Rewards on played episodes, and who gets none and why."""

import json
import math
import pickle
import random
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from rewards.credit.assign import assign_credit
from rewards.credit.group_relative import GroupRelative
from rewards.exact_match import ExactMatch
from rewards.f1_by_round import F1ByRound
from rewards.format import Format
from rewards.length import Length
from rewards.loading import BUILTIN_CREDIT, BUILTIN_REWARDS, load_credit, load_reward, reward_takes
from rewards.scoring.score import TURNS_SEEN, WeightedReward, WeightedRewards, kind_of, score_turns
from rewards.token_f1 import TokenF1
from workflows.errors import SchemaError, UsageError
from workflows.trajectory import (
    EPISODES,
    NOT_THE_POLICYS_DOING,
    REWARDS,
    STATUSES,
    TASKS,
    TURNS,
    named_values,
    rows_to_table,
)

BOTH = WeightedRewards(
    (WeightedReward("token_f1", 2.0, TokenF1()), WeightedReward("format", 0.5, Format({"reader": 3.0})))
)


def task(task_id="t", answers=("Paris",)):
    gold = json.dumps({"answers": list(answers)})
    return {"task_id": task_id, "inputs": json.dumps({"question": "?"}), "gold": gold}


def episode(episode_id="t/0", status="ok"):
    return {"episode_id": episode_id, "task_id": episode_id.split("/")[0], "status": status}


def llm(index, step="answer", parsed="Paris", episode_id="t/0", **other):
    return {
        "episode_id": episode_id,
        "turn_index": index,
        "step": step,
        "role": step,
        "event": "llm",
        "model_id": "m",
        "trainable": True,
        "status": "ok",
        "parsed": None if parsed is None else json.dumps(parsed),
        "format_valid": parsed is not None,
        "response_text": str(parsed),
        "num_response_tokens": 7,
    } | other


def tool(index, episode_id="t/0", **other):
    return {
        "episode_id": episode_id,
        "turn_index": index,
        "step": "retrieve",
        "event": "tool",
        "status": "ok",
        "tool": "bm25",
        "tool_request": '{"queries":["x"]}',
        "tool_result": '{"passages":[]}',
        "trainable": False,
        "metrics": named_values({"hits": 2.0}),
    } | other


def tables(turns, episodes=None, tasks=None):
    return (
        rows_to_table(tasks or [task()], TASKS),
        rows_to_table(turns, TURNS),
        rows_to_table(episodes or [episode()], EPISODES),
    )


def score(turns, episodes=None, tasks=None, rewards=BOTH, **options):
    """Rows of the rewards table by key."""
    table = score_turns(*tables(turns, episodes, tasks), rewards, **options)
    assert table.schema == REWARDS
    rows = table.to_pylist()
    keys = [(r["episode_id"], r["turn_index"]) for r in rows]
    assert keys == sorted((t["episode_id"], t["turn_index"]) for t in turns)
    for row in rows:  # a number, or the reason why there is none
        assert (row["reward"] is None) != (row["no_reward_reason"] is None)
    return dict(zip(keys, rows, strict=True))


def parts(row):
    return {p["name"]: p["value"] for p in row["reward_parts"]}


def only(reward, name="mine"):
    return WeightedRewards((WeightedReward(name, 1.0, reward),))


# The two rewards.


def test_every_trainable_turn_shares_the_outcome_and_answers_for_its_own_format() -> None:
    rows = score(
        [llm(0, "plan", ["q"]), tool(1), llm(2, "reader", None), llm(3, "answer", "Paris France")],
    )
    outcome = 2 / 3  # one of two words, all of the gold
    assert parts(rows["t/0", 0]) == {"token_f1": pytest.approx(outcome), "format": 0.0}
    assert parts(rows["t/0", 2]) == {"token_f1": pytest.approx(outcome), "format": -3.0}
    assert rows["t/0", 0]["reward"] == pytest.approx(2.0 * outcome)
    assert rows["t/0", 2]["reward"] == pytest.approx(2.0 * outcome + 0.5 * -3.0)
    assert rows["t/0", 1]["reward"] is None
    assert rows["t/0", 1]["reward_parts"] == []
    assert math.copysign(1, parts(rows["t/0", 3])["format"]) == 1  # 0, not -0


def test_a_split_outcome_adds_up_to_the_whole() -> None:
    turns = [llm(0, "plan", ["q"]), tool(1), llm(2, "judge", "x", trainable=False), llm(3), llm(4)]
    rows = score(turns, rewards=only(TokenF1(share="split")))
    shares = [r["reward"] for r in rows.values() if r["reward"] is not None]
    assert shares == [pytest.approx(1 / 3)] * 3


def test_the_last_answer_counts_by_turn_index_and_not_by_row_order() -> None:
    turns = [llm(5, parsed="Paris"), llm(0, parsed="Rome")]
    assert score(turns, rewards=only(TokenF1()))["t/0", 0]["reward"] == 1.0


@pytest.mark.parametrize(
    "last",
    [
        llm(1, parsed=None, status="malformed", response_text="Paris"),
        llm(1, parsed="Paris", format_valid=False, status="malformed"),
        llm(1, parsed="Paris", status="truncated"),
        llm(1, step="reader", parsed="Paris"),
    ],
    ids=["nothing parsed", "broken format", "cut off", "no answer step"],
)
def test_no_valid_answer_earns_nothing_where_formats_are_strict(last) -> None:
    rows = score([llm(0, "plan", ["q"]), last], rewards=only(TokenF1(malformed="zero")))
    assert [r["reward"] for r in rows.values()] == [0.0, 0.0]


def test_an_answer_without_its_format_is_scored_as_it_stands() -> None:
    last = llm(1, parsed=None, status="malformed", format_valid=False, response_text="It is Paris")
    rows = score([llm(0, "plan", ["q"]), last], rewards=only(TokenF1()))
    assert [r["reward"] for r in rows.values()] == [0.5, 0.5]


def test_the_best_of_several_golds_counts_and_numbers_are_answers() -> None:
    tasks = [task(answers=["Lutetia", "7", "the city of Paris"])]
    assert score([llm(0, parsed="city of Paris")], tasks=tasks)["t/0", 0]["reward"] == 2.0
    assert score([llm(0, parsed=7)], tasks=tasks)["t/0", 0]["reward"] == 2.0


@pytest.mark.parametrize("answers", [[], ["  "], "Paris"])
def test_a_task_without_usable_gold_is_no_zero(answers) -> None:
    gold = json.dumps({"answers": answers})
    rows = score([llm(0)], tasks=[task() | {"gold": gold}])
    assert rows["t/0", 0]["reward"] is None
    assert kind_of(rows["t/0", 0]["no_reward_reason"]) == "reward 'token_f1' failed"


def test_an_answer_that_is_no_text_is_no_zero() -> None:
    for parsed in (["Paris"], {"answer": "Paris"}, True):
        reason = score([llm(0, parsed=parsed)])["t/0", 0]["no_reward_reason"]
        assert "parser return the answer alone" in reason


def test_truncated_turns_break_their_format_and_a_role_without_format_breaks_none() -> None:
    turns = [llm(0, "plan", ["q"], status="truncated"), llm(1, format_valid=None)]
    rows = score(turns, rewards=only(Format()))
    assert [r["reward"] for r in rows.values()] == [-1.0, 0.0]


def test_what_a_broken_turn_was_read_as_is_scored_or_nothing() -> None:
    lenient = llm(0, parsed="Paris", format_valid=False, status="malformed", response_text="Paris, I guess")
    assert score([lenient], rewards=only(TokenF1()))["t/0", 0]["reward"] == 1.0
    assert score([lenient], rewards=only(TokenF1(malformed="zero")))["t/0", 0]["reward"] == 0.0
    unread = lenient | {"parsed": None}
    assert score([unread], rewards=only(TokenF1()))["t/0", 0]["reward"] == 0.5


def test_an_answer_may_stand_under_a_key() -> None:
    plan = llm(0, "plan", {"steps": [], "answer": "Paris"})
    assert score([plan], rewards=only(TokenF1("plan", "answer")))["t/0", 0]["reward"] == 1.0
    for parsed in ({"steps": []}, "Paris", {"answer": ["Paris"]}):
        row = score([llm(0, "plan", parsed)], rewards=only(TokenF1("plan", "answer")))["t/0", 0]
        assert kind_of(row["no_reward_reason"]) == "reward 'mine' failed"


@pytest.mark.parametrize(
    ("answer", "golds", "mode", "expected"),
    [
        ("the city of Paris", ["Rome", "city of Paris"], "strict", 1.0),
        ("It is Paris", ["Paris"], "strict", 0.0),
        ("3.5", ["35"], "strict", 0.0),
        ("3.5", ["35"], "official_squad", 1.0),
        (7, ["7"], "strict", 1.0),
    ],
)
def test_an_exact_match_is_all_or_nothing(answer, golds, mode, expected) -> None:
    turns = [llm(0, "plan", ["q"]), tool(1), llm(2, parsed=answer)]
    tasks = [task(answers=golds)]
    assert score(turns, tasks=tasks, rewards=only(ExactMatch(mode=mode)))["t/0", 0]["reward"] == expected
    halves = score(turns, tasks=tasks, rewards=only(ExactMatch(mode=mode, share="split")))
    assert [halves["t/0", i]["reward"] for i in (0, 2)] == [expected / 2] * 2


def test_a_format_may_be_a_bonus_instead_of_a_penalty() -> None:
    turns = [llm(0, "plan", ["q"]), llm(1, "reader", None), llm(2, "reader", "x", status="truncated")]
    reward = Format({"plan": 0.2, "reader": 0.1}, valid=1, invalid=0)
    assert [r["reward"] for r in score(turns, rewards=only(reward)).values()] == [0.2, 0.0, 0.0]


def test_tokens_beyond_the_budget_cost() -> None:
    turns = [llm(i, num_response_tokens=n) for i, n in enumerate((3, 10, 11, 40))] + [tool(4)]
    rows = score(turns, rewards=only(Length(cost=0.5, budget=10, most=4)))
    assert [r["reward"] for r in rows.values()] == [0.0, 0.0, -0.5, -4.0, None]
    assert math.copysign(1, rows["t/0", 0]["reward"]) == 1  # 0, not -0
    assert score(turns, rewards=only(Length(cost=0.5)))["t/0", 0]["reward"] == -1.5
    unknown = score([llm(0, num_response_tokens=None)], rewards=only(Length()))["t/0", 0]
    assert "no count of response tokens" in unknown["no_reward_reason"]


# Whom a reward goes to.


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
            assert [r["reward"] is None for r in mine] == [False, True, False]
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


@dataclass(frozen=True)
class Returns:
    """Gives what it is told for episode t/0, and ones for the others."""

    answer: object

    def __call__(self, played):
        if played.episode_id != "t/0":
            return [1.0] * len(played.turns)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ZeroDivisionError("by\nzero"), "failed: ZeroDivisionError: by zero"),
        ([1.0], "wrong number of values: 1 for 2 turns"),
        ([1.0, 2.0, 3.0], "wrong number of values: 3 for 2 turns"),
        ([1.0, math.nan], "no finite number: nan"),
        ([-math.inf, 1.0], "no finite number: -inf"),
        (["1.0", 1.0], "no finite number: '1.0'"),
        (1.0, "failed: TypeError"),
        (None, "failed: TypeError"),
        ({0: 1.0, 1: 2.0}, "it gave a dict, expected one value per turn"),
        ({1.0, 2.0}, "it gave a set"),
        ("12", "it gave a str"),
        ([10**400, 1.0], "no finite number: 'a number (int) that no float can hold'"),
        ([Fraction(10**400), 1.0], "no finite number: 'a number (Fraction) that no float can hold'"),
        ([1j, 1.0], "no finite number: 1j"),
        ([[1.0], 1.0], "no finite number: [1.0]"),
    ],
)
def test_a_reward_that_fails_costs_one_episode_and_says_which_reward(answer, why) -> None:
    rewards = WeightedRewards(
        (WeightedReward("mine", 1.0, Returns(answer)), WeightedReward("format", 1.0, Format()))
    )
    turns = [llm(i, episode_id=e) for e in ("t/0", "t/1") for i in (0, 1)]
    rows = score(turns, [episode(), episode("t/1")], rewards=rewards)
    for index in (0, 1):
        broken = rows["t/0", index]
        assert broken["reward"] is None
        assert broken["reward_parts"] == []
        assert "reward 'mine'" in broken["no_reward_reason"]
        assert why in broken["no_reward_reason"]
        assert rows["t/1", index]["reward"] == 1.0
    assert len({kind_of(r["no_reward_reason"]) for k, r in rows.items() if k[0] == "t/0"}) == 1


def test_numbers_of_any_library_and_lazy_ones_are_numbers() -> None:
    for answer in (
        np.array([1.0, 0.5]),
        (np.float32(1), Fraction(1, 2)),
        iter([True, 0.5]),
        pl.Series([1.0, 0.5]),
    ):
        rows = score([llm(0), llm(1)], rewards=only(Returns(answer)))
        assert [r["reward"] for r in rows.values()] == [1.0, 0.5]


def test_a_reward_that_fails_half_way_through_its_numbers_has_failed() -> None:
    def half():
        yield 1.0
        raise LookupError("gone")

    reason = score([llm(0), llm(1)], rewards=only(Returns(half())))["t/0", 0]["no_reward_reason"]
    assert reason == "reward 'mine' failed: LookupError: gone"


def test_a_reward_can_not_change_what_the_next_one_sees() -> None:
    def writes(played):
        played.turns[0]["parsed"] = "Paris"
        return [0.0]

    reason = score([llm(0, parsed="Rome")], rewards=only(writes))["t/0", 0]["no_reward_reason"]
    assert kind_of(reason) == "reward 'mine' failed"


def test_cancellation_is_not_taken_for_a_failed_reward() -> None:
    def cancelled(played):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score([llm(0)], rewards=only(cancelled))


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


def test_many_failures_are_few_kinds() -> None:
    def fails(played):
        raise ValueError(f"episode {played.episode_id} is odd")

    ids = [f"t/{s}" for s in range(9)]
    rows = score([llm(0, episode_id=e) for e in ids], [episode(e) for e in ids], rewards=only(fails))
    assert Counter(kind_of(r["no_reward_reason"]) for r in rows.values()) == {"reward 'mine' failed": 9}


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
        (lambda: ExactMatch(malformed="raww"), "malformed is 'raww'; did you mean 'raw'"),
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


# Loading by name or path.


def test_built_in_names_load_with_their_options() -> None:
    assert load_reward("token_f1", {"share": "split"}) == TokenF1(share="split")
    assert load_reward("format", {"weights": {"answer": 0.5}}) == Format({"answer": 0.5})
    assert load_credit("group_relative", {"by": "task"}) == GroupRelative("task")
    needed = {"rejection": {"best": True}}
    for names, load in ((BUILTIN_REWARDS, load_reward), (BUILTIN_CREDIT, load_credit)):
        for name, path in names.items():
            options = needed.get(name, {})
            assert load(name, options) == load(path, options)


def test_whether_a_reward_has_an_option_is_known_without_making_it(acme) -> None:
    assert reward_takes("token_f1", "answer_step")
    assert not reward_takes("format", "answer_step")
    assert reward_takes("acme_rewards:length", "scale")
    for use in ("no_such", "no.such:thing", "acme_rewards:lenght"):
        assert not reward_takes(use, "answer_step")


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """A user's own module."""
    (tmp_path / "acme_rewards.py").write_text(
        "class Constant:\n"
        "    def __init__(self, value):\n        self.value = value\n"
        "    def __call__(self, episode):\n        return [self.value] * len(episode.turns)\n"
        "def length(episode, scale=1.0):\n"
        "    return [scale * len(t['response_text'] or '') for t in episode.turns]\n"
        "def number():\n    return 3\n"
        "def flat(turns):\n    return turns\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "acme_rewards"


def test_a_class_or_a_plain_function_of_the_episode_is_a_reward(acme) -> None:
    for use, options, expected in (("Constant", {"value": 4}, 4.0), ("length", {"scale": 0.5}, 2.5)):
        reward = pickle.loads(pickle.dumps(load_reward(f"{acme}:{use}", options)))
        assert score([llm(0)], rewards=only(reward))["t/0", 0]["reward"] == expected


@pytest.mark.parametrize(
    ("use", "options", "what"),
    [
        ("tokenf1", {}, "did you mean 'token_f1'"),
        ("token_f1", {"modes": "strict"}, "did you mean 'mode'"),
        ("token_f1", {"mode": "loose"}, "mode is 'loose'"),
        ("acme_rewards:length", {"size": 1}, "size"),
        ("acme_rewards:Constant", {}, "needs option 'value'"),
        ("acme_rewards:number", {}, "can't be called with episode"),
        ("acme_rewards:lenght", {}, "did you mean 'length'"),
    ],
)
def test_a_reward_that_can_not_be_loaded_is_refused_before_anything_runs(acme, use, options, what) -> None:
    with pytest.raises(UsageError, match=what):
        load_reward(use, options)


def test_a_credit_method_that_adds_nothing_is_named(acme) -> None:
    turns, episodes = tables([llm(0)])[1:]
    rewards = score_turns(*tables([llm(0)]), BOTH)
    with pytest.raises(SchemaError, match="credit method flat returned no column"):
        assign_credit(turns, episodes, rewards, load_credit(f"{acme}:flat", {}))
