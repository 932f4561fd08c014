"""Laws of group-relative credit, against a plain loop over the same numbers."""

import math
from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.credit.assign import credit_turns
from rewards.credit.group_relative import GroupRelative
from rewards.credit.returns import add_return
from rewards.loading import load_credit
from tests.support.tables import assign_credit
from workflows.errors import SchemaError, UsageError
from workflows.trajectory import CREDIT, EPISODES, REWARDS, TURNS, rows_to_table

BY = ("task", "task_role", "task_role_step")
law = settings(max_examples=60)


def rollout(rewards_of):
    """The three tables of `{(task, sample): [(role, step, reward or reason), ...]}`."""
    turns, episodes, rewards = [], [], []
    for (task, sample), its_turns in rewards_of.items():
        group = f"00000/{task}"
        episode = f"{group}/{sample}"
        episodes.append({"task_id": task, "group_id": group, "sample": sample, "episode_id": episode})
        for index, (role, step, reward) in enumerate(its_turns):
            key = {"episode_id": episode, "turn_index": index}
            turns.append(key | {"role": role, "step": step, "model_id": "m"})
            none = isinstance(reward, str)
            rewards.append(
                key | {"reward": None if none else reward, "no_reward_reason": reward if none else None}
            )
    return rows_to_table(turns, TURNS), rows_to_table(episodes, EPISODES), rows_to_table(rewards, REWARDS)


def credit_of(rewards_of, method):
    """Rows by (task, sample, turn)."""
    table = assign_credit(*rollout(rewards_of), method)
    assert table.schema == CREDIT
    rows = table.to_pylist()
    keys = [(r["episode_id"], r["turn_index"]) for r in rows]
    assert keys == sorted(keys)
    found = {}
    for (episode, turn), row in zip(keys, rows, strict=True):
        _, task, sample = episode.split("/")
        found[task, int(sample), turn] = row
    return found


def advantages(rewards_of, method):
    return {key: row["advantage"] for key, row in credit_of(rewards_of, method).items()}


def by_loop(rewards_of, by):
    """Advantages the slow way, from the definition."""
    cells = defaultdict(lambda: defaultdict(list))
    where = {}
    for (task, sample), its_turns in rewards_of.items():
        for turn, (role, step, reward) in enumerate(its_turns):
            if not isinstance(reward, str):
                group = (task, role, step)[: BY.index(by) + 1]
                cells[group][sample].append(reward)
                where[task, sample, turn] = (group, reward)
    found = {}
    for key, (group, reward) in where.items():
        means = [math.fsum(r) / len(r) for r in cells[group].values()]
        found[key] = reward - math.fsum(means) / len(means) if len(means) > 1 else 0.0
    return found


REWARD = st.one_of(st.floats(-3, 3, width=32), st.sampled_from([0.0, 0.1, 1 / 3, -1.0, "model is frozen"]))
TURN = st.tuples(st.sampled_from(["plan", "read"]), st.sampled_from(["a", "b"]), REWARD)
ROLLOUT = st.dictionaries(
    st.tuples(st.sampled_from(["t0", "t1"]), st.integers(0, 3)),
    st.lists(TURN, min_size=1, max_size=5),
    min_size=1,
)


@law
@given(ROLLOUT, st.sampled_from(BY))
def test_advantages_equal_the_plain_loop(rewards_of, by) -> None:
    expected = by_loop(rewards_of, by)
    for key, row in credit_of(rewards_of, GroupRelative(by)).items():
        task, sample, turn = key
        reward = rewards_of[task, sample][turn][2]
        if isinstance(reward, str):
            assert (row["return"], row["advantage"], row["excluded"]) == (None, None, reward)
        else:
            assert row["advantage"] == pytest.approx(expected[key], abs=1e-12)
            assert (row["return"], row["excluded"]) == (reward, None)


@law
@given(ROLLOUT, st.sampled_from(BY), st.floats(-5, 5))
def test_shifting_all_rewards_of_a_group_changes_no_advantage(rewards_of, by, shift) -> None:
    moved = {
        (task, sample): [
            (role, step, r if isinstance(r, str) or task != "t0" else r + shift) for role, step, r in turns
        ]
        for (task, sample), turns in rewards_of.items()
    }
    before, after = (advantages(r, GroupRelative(by)) for r in (rewards_of, moved))
    for key, value in before.items():
        assert after[key] == pytest.approx(value, abs=1e-12)


@law
@given(ROLLOUT, st.sampled_from(BY), st.sampled_from([0.1, 1 / 3, -0.7, 1e-9, 12345.678]))
def test_equal_returns_give_exact_zeros(rewards_of, by, reward) -> None:
    level = {key: [(role, step, reward) for role, step, _ in turns] for key, turns in rewards_of.items()}
    assert set(advantages(level, GroupRelative(by)).values()) == {0.0}


@law
@given(ROLLOUT, st.sampled_from(BY), st.randoms(use_true_random=False))
def test_shuffling_the_tables_changes_no_bit(rewards_of, by, draw) -> None:
    tables = rollout(rewards_of)
    for method in (GroupRelative(by), GroupRelative(by, "to_go", 0.9)):
        first = assign_credit(*tables, method)
        shuffled = (t.take(draw.sample(range(t.num_rows), t.num_rows)) for t in tables)
        assert assign_credit(*shuffled, method).equals(first)


@law
@given(ROLLOUT, st.sampled_from(BY))
def test_other_groups_in_the_table_change_no_bit(rewards_of, by) -> None:
    method = GroupRelative(by)
    together = advantages(rewards_of, method)
    for task in {task for task, _ in rewards_of}:
        alone = advantages({k: v for k, v in rewards_of.items() if k[0] == task}, method)
        assert alone == {k: v for k, v in together.items() if k[0] == task}


def test_an_episode_of_ten_turns_weighs_as_much_as_one_of_one_turn() -> None:
    rewards_of = {("t", 0): [("r", "s", 1.0)] * 10, ("t", 1): [("r", "s", 0.0)]}
    found = advantages(rewards_of, GroupRelative("task"))
    assert {found["t", 0, i] for i in range(10)} == {0.5}
    assert found["t", 1, 0] == -0.5


def test_a_single_episode_gets_zero_and_is_counted() -> None:
    """Fault A6: never NaN, and not its distance from its own mean either."""
    rewards_of = {
        ("t", 0): [("r", "s", 1.0), ("r", "s", 0.0)],
        ("u", 0): [("r", "s", 1.0)],
        ("u", 1): [("r", "s", 0.0)],
    }
    method = GroupRelative("task")
    found = advantages(rewards_of, method)
    assert (found["t", 0, 0], found["t", 0, 1]) == (0.0, 0.0)
    assert (found["u", 0, 0], found["u", 1, 0]) == (0.5, -0.5)
    tables = rollout(rewards_of)
    assert credit_turns(*tables, method).groups == {
        "groups": 2,
        "groups_without_signal": 1,
        "groups_of_one_episode": 1,
    }


def test_a_group_whose_advantages_come_later_token_by_token_is_not_silent() -> None:
    tables = rollout({("t", 0): [("r", "s", 1.0)], ("t", 1): [("r", "s", 1.0)]})
    assert credit_turns(*tables, load_credit("none", {})).groups["groups_without_signal"] == 0


def test_two_tasks_are_two_groups() -> None:
    """Fault A36."""
    rewards_of = {
        ("t0", 0): [("r", "s", 1.0)],
        ("t0", 1): [("r", "s", 0.0)],
        ("t1", 0): [("r", "s", 9.0)],
        ("t1", 1): [("r", "s", 8.0)],
    }
    assert list(advantages(rewards_of, GroupRelative("task")).values()) == [0.5, -0.5, 0.5, -0.5]


def test_roles_with_rewards_of_other_scale_have_baselines_of_their_own() -> None:
    """Fault A37."""
    rewards_of = {
        ("t", 0): [("planner", "p", 0.9), ("coder", "c", 0.1)],
        ("t", 1): [("planner", "p", 0.8), ("coder", "c", 0.2)],
    }
    per_role = list(advantages(rewards_of, GroupRelative("task_role")).values())
    assert per_role == pytest.approx([0.05, -0.05, -0.05, 0.05])
    per_task = list(advantages(rewards_of, GroupRelative("task")).values())
    assert per_task == pytest.approx([0.4, -0.4, 0.3, -0.3])


def test_an_excluded_episode_is_no_part_of_its_groups_baseline() -> None:
    rewards_of = {
        ("t", 0): [("r", "s", 1.0)],
        ("t", 1): [("r", "s", 0.0)],
        ("t", 2): [("r", "s", "episode timeout")],
    }
    found = credit_of(rewards_of, GroupRelative("task"))
    assert [found["t", s, 0]["advantage"] for s in range(3)] == [0.5, -0.5, None]
    assert found["t", 2, 0]["excluded"] == "episode timeout"


# Returns.


@law
@given(st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=9), min_size=1, max_size=4), st.floats(0, 1))
def test_returns_to_go_equal_the_plain_loop(episodes, gamma) -> None:
    rows = [(f"e{e}", 2 * i, r) for e, rewards in enumerate(episodes) for i, r in enumerate(rewards)]
    frame = pl.DataFrame(rows, schema=["episode_id", "turn_index", "reward"], orient="row")
    expected = []
    for rewards in episodes:
        later, returns = 0.0, []
        for reward in reversed(rewards):
            later = reward + gamma * later
            returns.append(later)
        expected += reversed(returns)
    shuffled = frame.sample(fraction=1, shuffle=True, seed=1)
    assert add_return(shuffled, "to_go", gamma)["return"].to_list() == expected
    assert add_return(shuffled, "turn")["return"].to_list() == frame["reward"].to_list()


def test_long_episodes_do_not_underflow() -> None:
    frame = pl.DataFrame({"episode_id": ["e"] * 2000, "turn_index": range(2000), "reward": [1.0] * 2000})
    returns = add_return(frame, "to_go", 0.01)["return"]
    assert returns.is_finite().all()
    assert returns[0] == pytest.approx(1 / 0.99)


# What is refused.


def test_groups_of_one_are_refused_when_settings_are_read() -> None:
    """Fault M8."""
    with pytest.raises(UsageError, match="group_size is 1"):
        GroupRelative().check_group_size(group_size=1)
    GroupRelative().check_group_size(group_size=2)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"by": "task_roles"}, "did you mean 'task_role'"),
        ({"returns": "togo"}, "turn, to_go"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"gamma": math.nan}, "gamma is nan"),
    ],
)
def test_options_that_can_not_work_are_refused(options, what) -> None:
    with pytest.raises(UsageError, match=what):
        GroupRelative(**options)


TWO = {("t", 0): [("r", "s", 1.0), ("r", "s", "model is frozen")], ("t", 1): [("r", "s", 0.0)]}


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (lambda f: f, "no column advantage, return"),
        (lambda f: None, "returned NoneType"),
        (lambda f: GroupRelative()(f).head(1), "1 rows, 1 of them"),
        (lambda f: pl.concat([GroupRelative()(f)] * 2), "4 rows, 4 of them"),
        (lambda f: pl.concat([GroupRelative()(f).head(1)] * 2), "2 rows, 2 of them"),
        (lambda f: GroupRelative()(f).with_columns(turn_index=pl.col("turn_index") + 7), "2 rows, 0 of them"),
        (lambda f: GroupRelative()(f).with_columns(advantage=math.nan), "advantage is not finite in 2 turns"),
    ],
)
def test_a_method_that_loses_turns_or_numbers_is_named(method, what) -> None:
    with pytest.raises(SchemaError, match=what):
        assign_credit(*rollout(TWO), method)


def test_a_method_may_leave_the_advantage_to_a_later_stage() -> None:
    def returns_only(frame):
        return add_return(frame, "turn").with_columns(advantage=pl.lit(None, pl.Float64))

    found = credit_of(TWO, returns_only)
    assert (found["t", 0, 0]["return"], found["t", 0, 0]["advantage"], found["t", 0, 0]["excluded"]) == (
        1.0,
        None,
        None,
    )


def test_tables_of_different_rollouts_are_refused() -> None:
    turns, episodes, rewards = rollout(TWO)
    for wrong in (
        (turns, episodes, rewards.slice(1)),
        (turns.slice(1), episodes, rewards),
        (turns, episodes.slice(1), rewards),
    ):
        with pytest.raises(SchemaError, match="not of one rollout"):
            assign_credit(*wrong, GroupRelative())
    with pytest.raises(SchemaError, match="another row has too"):
        assign_credit(turns, rows_to_table(episodes.to_pylist() * 2, EPISODES), rewards, GroupRelative())


def test_nothing_usable_gives_rows_without_credit() -> None:
    nothing = {("t", 0): [("r", "s", "episode timeout")]}
    assert advantages(nothing, GroupRelative()) == {("t", 0, 0): None}
    empty = assign_credit(TURNS.empty_table(), EPISODES.empty_table(), REWARDS.empty_table(), GroupRelative())
    assert empty.equals(CREDIT.empty_table())
