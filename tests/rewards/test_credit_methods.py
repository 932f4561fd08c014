"""Laws of the credit methods beside group_relative, and hand-computed vectors of what others got wrong."""

import math
import pickle
from collections import defaultdict
from statistics import NormalDist, stdev

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.credit.moments import Moments, merged
from rewards.credit.reinforce_pp import ReinforcePP
from rewards.credit.running_baseline import RunningBaseline
from rewards.credit.silent import SILENT, LeaveOutSilent
from rewards.loading import BUILTIN_CREDIT, load_credit
from tests.support.tables import assign_credit, named_values
from workflows.errors import UsageError
from workflows.trajectory import BASELINES, EPISODES, REWARDS, TURNS, rows_to_table

law = settings(max_examples=60)
NO_BASELINES = pl.DataFrame(BASELINES.empty_table())


def frame(*turns):
    """Turns of (task, sample, role, reward); the index counts within the episode."""
    seen: dict[str, int] = defaultdict(int)
    rows = []
    for task, sample, role, reward in turns:
        group = f"00000/{task}"
        episode = f"{group}/{sample}"
        rows.append(
            {
                "episode_id": episode,
                "turn_index": seen[episode],
                "group_id": group,
                "role": role,
                "step": role,
                "context_hash": f"{task}{role}",
                "num_response_tokens": 5 + 3 * sample + seen[episode],
                "reward": reward,
                "greedy": False,
            }
        )
        seen[episode] += 1
    schema = {"turn_index": pl.Int32, "reward": pl.Float64}
    return pl.DataFrame(rows, schema_overrides=schema).sort("episode_id", "turn_index")


def advantages(method, *turns):
    """In the order of `turns`, whose episodes must come in the order of their ids."""
    return method(frame(*turns))["advantage"].to_list()


def group(*rewards, role="a", task="t"):
    return [(task, sample, role, reward) for sample, reward in enumerate(rewards)]


def test_grpo_divides_the_difference_and_not_the_mean() -> None:
    """Fault A5."""
    assert advantages(load_credit("grpo", {}), *group(1, 0, 0, 1)) == pytest.approx(
        [0.866, -0.866, -0.866, 0.866], abs=1e-3
    )


def test_rloo_leaves_the_episode_out_of_its_own_baseline() -> None:
    assert advantages(load_credit("rloo", {}), *group(1, 0, 0.5)) == pytest.approx([0.75, -0.75, 0.0])


def test_ranks_forget_by_how_much() -> None:
    method = load_credit("rank_normal", {})
    scores = [NormalDist().inv_cdf((rank - 0.375) / 3.25) for rank in (1, 2, 3)]
    for rewards in ((0.0, 0.1, 0.2), (0.0, 1.0, 1000.0)):
        assert advantages(method, *group(*rewards)) == pytest.approx(scores)
    assert advantages(method, *group(1, 1, 0))[0] == advantages(method, *group(1, 1, 0))[1]


def test_the_exact_context_is_a_group_of_its_own() -> None:
    turns = [("t", 0, "a", 1.0), ("t", 1, "a", 0.0), ("t", 2, "a", 0.5)]
    rows = frame(*turns).with_columns(context_hash=pl.Series(["x", "x", "y"]))
    found = load_credit("group_relative", {"by": "context"})(rows)["advantage"]
    assert found.to_list() == [0.5, -0.5, 0.0]


@pytest.mark.parametrize("use", ["group_relative", "dr_grpo", "rloo", "grpo", "rank_normal"])
def test_roles_of_different_scale_have_their_own_baselines(use) -> None:
    """Fault A37: with one baseline the planner would always be good and the coder always bad."""
    turns = [("t", 0, "plan", 0.9), ("t", 0, "code", 0.1), ("t", 1, "plan", 0.8), ("t", 1, "code", 0.2)]
    found = advantages(load_credit(use, {}), *turns)
    assert found[0] == pytest.approx(-found[2])
    assert found[1] == pytest.approx(-found[3])
    assert found[0] > 0 > found[1]
    if use in ("group_relative", "dr_grpo"):
        assert found == pytest.approx([0.05, -0.05, -0.05, 0.05])


def test_tasks_are_groups_of_their_own() -> None:
    """Faults A35, A36."""
    turns = [*group(1, 0, task="t"), *group(5, 3, task="u")]
    for use, expected in (("group_relative", [0.5, -0.5, 1, -1]), ("rloo", [1, -1, 2, -2])):
        assert advantages(load_credit(use, {}), *turns) == expected


COMPARING = ["group_relative", "dr_grpo", "grpo", "rloo", "opo", "rank_normal"]
REWARD = st.one_of(st.floats(-3, 3, width=32), st.sampled_from([0.0, 0.1, 1 / 3]))
TURNS_OF = st.lists(
    st.tuples(st.sampled_from("tu"), st.integers(0, 3), st.sampled_from("ab"), REWARD),
    min_size=1,
    max_size=12,
)


@law
@given(TURNS_OF, st.sampled_from([*COMPARING, "reinforce_pp"]), st.floats(-5, 5))
def test_a_shift_of_all_rewards_changes_nothing_and_nothing_is_ever_nan(turns, use, shift) -> None:
    """And A6: a single value has a deviation of 0, not NaN."""
    method = load_credit(use, {})
    before = advantages(method, *turns)
    assert all(math.isfinite(a) for a in before)
    rounded = [(t, s, r, round(reward, 3)) for t, s, r, reward in turns]
    moved = [(t, s, r, reward + round(shift, 3)) for t, s, r, reward in rounded]
    if use not in ("rank_normal",):  # rounding may make or break a tie
        assert advantages(method, *moved) == pytest.approx(advantages(method, *rounded), abs=1e-5)


@law
@given(TURNS_OF, st.sampled_from([*COMPARING, "reinforce_pp", "running_baseline"]), REWARD)
def test_equal_rewards_give_exact_zeros(turns, use, reward) -> None:
    """Faults A6, A7: also where the mean of equal numbers would round."""
    equal = [(t, s, r, reward) for t, s, r, _ in turns]
    found = advantages(load_credit(use, {}), *equal)
    if use == "running_baseline":
        assert found == pytest.approx([0.0] * len(equal), abs=1e-12)
    else:
        assert found == [0.0] * len(equal)


@law
@given(TURNS_OF, st.sampled_from(list(BUILTIN_CREDIT)), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(turns, use, draw) -> None:
    method = load_credit(use, {"best": True} if use == "rejection" else {})
    rows = frame(*turns)
    order = list(range(rows.height))
    draw.shuffle(order)
    keys = ["episode_id", "turn_index"]
    columns = [*keys, "return", "advantage"]
    assert method(rows[order]).sort(keys).select(columns).equals(method(rows).sort(keys).select(columns))


@pytest.mark.parametrize("use", COMPARING)
def test_a_group_of_one_episode_is_refused_when_the_settings_are_read(use) -> None:
    """Faults A6, M8."""
    with pytest.raises(UsageError, match="group_size"):
        load_credit(use, {}).check_group_size(group_size=1)
    load_credit(use, {}).check_group_size(group_size=2)
    with pytest.raises(UsageError, match="group_size"):
        load_credit("reinforce_pp", {"baseline": "group"}).check_group_size(group_size=1)
    load_credit("reinforce_pp", {}).check_group_size(group_size=1)


# Methods that know all parts.


def in_parts(method, parts, before=NO_BASELINES, iteration=0):
    """Advantages over all parts in order, and the baselines after them."""
    surveys = [method.survey(frame(*turns)) for turns in parts]
    bound = pickle.loads(pickle.dumps(method.bound(surveys, before)))  # it travels to workers
    found = [a for turns in parts for a in advantages(bound, *turns)]
    return found, method.after(surveys, before, iteration) if hasattr(method, "after") else None


def test_reinforce_pp_normalises_over_all_parts_per_role() -> None:
    parts = [[*group(1, 0, task="t")], [*group(3, 8, task="u")]]
    found, _ = in_parts(ReinforcePP(), parts)
    deviation = stdev([1, 0, 3, 8])
    assert found == pytest.approx([(r - 3) / deviation for r in (1, 0, 3, 8)])
    found, _ = in_parts(ReinforcePP(baseline="group"), parts)
    deviation = stdev([0.5, -0.5, -2.5, 2.5])
    assert found == pytest.approx([r / deviation for r in (0.5, -0.5, -2.5, 2.5)])
    roles = [[("t", 0, "a", 1.0), ("t", 0, "b", 100.0), ("t", 1, "a", 2.0), ("t", 1, "b", 300.0)]]
    per_role, _ = in_parts(ReinforcePP(), roles)
    assert per_role == pytest.approx([-0.7071, -0.7071, 0.7071, 0.7071], abs=1e-4)
    together, _ = in_parts(ReinforcePP(per="all"), roles)
    assert together[0] < 0 < together[3]


@law
@given(st.lists(TURNS_OF, min_size=1, max_size=3), st.sampled_from(["ema", "mean"]))
def test_a_running_baseline_is_the_mean_of_earlier_iterations(parts, kind) -> None:
    """Each drawn part is an iteration here."""
    method, before = RunningBaseline(kind, decay=0.5), NO_BASELINES
    means, counts = {}, {}
    for iteration, turns in enumerate(parts):
        found, before = in_parts(method, [turns], before, iteration)
        by_role = defaultdict(list)
        for *_, role, reward in turns:
            by_role[role].append(reward)
        now = {role: math.fsum(rs) / len(rs) for role, rs in by_role.items()}
        ordered = frame(*turns)
        for advantage, reward, role in zip(found, ordered["reward"], ordered["role"], strict=True):
            assert advantage == pytest.approx(reward - means.get(role, now[role]), abs=1e-9)
        for role, mean in now.items():
            n = len(by_role[role])
            if role not in means:
                means[role], counts[role] = mean, n
            elif kind == "ema":
                means[role] = 0.5 * means[role] + 0.5 * mean
                counts[role] = 0.5 * counts[role] + n  # what is forgotten counts for less
            else:
                counts[role] += n
                means[role] += (mean - means[role]) * n / counts[role]
        assert before["key"].to_list() == sorted(means)
        assert before["mean"].to_list() == pytest.approx([means[r] for r in sorted(means)], abs=1e-9)
        assert before["count"].to_list() == pytest.approx([counts[r] for r in sorted(means)])
        assert before.to_arrow().cast(BASELINES).schema == BASELINES


def test_a_role_that_pauses_keeps_its_baseline() -> None:
    method = RunningBaseline()
    _, after = in_parts(method, [group(1, 3)])
    _, later = in_parts(method, [group(9, role="b")], after, 1)
    assert later.rows() == [("a", 2.0, 2.0, 0), ("b", 9.0, 1.0, 1)]


@law
@given(st.lists(st.lists(st.floats(-9, 9, width=32), max_size=6), max_size=5))
def test_moments_of_parts_merge_to_those_of_the_whole(parts) -> None:
    whole = Moments.of(np.array([v for part in parts for v in part]))
    total = Moments()
    for part in parts:
        total = total.merge(Moments.of(np.array(part)))
    assert (total.count, total.low, total.high) == (whole.count, whole.low, whole.high)
    assert (total.mean, total.squares) == pytest.approx((whole.mean, whole.squares), abs=1e-6)
    assert merged([]) == {}


@pytest.mark.parametrize("number", [0.1, 1 / 3, -7.7])
def test_equal_numbers_have_no_deviation_whatever_their_mean_rounds_to(number) -> None:
    for count in (3, 6, 7, 11):
        values = np.full(count, number)
        moments = Moments.of(values).merge(Moments.of(values[:2]))
        assert moments.deviation == 0.0
        assert moments.whiten(values).tolist() == [0.0] * count


# What is imitated, and what is left out.


def test_rejection_keeps_what_earned_it() -> None:
    turns = group(0.2, 0.9, 0.9, 1.0)
    assert advantages(load_credit("rejection", {"at_least": 0.9}), *turns) == [0, 1, 1, 1]
    assert advantages(load_credit("rejection", {"best": True}), *turns) == [0, 0, 0, 1]
    tied = group(0.9, 0.9, 0.1)
    assert advantages(load_credit("rejection", {"best": True}), *tied) == [1, 0, 0]
    assert advantages(load_credit("rejection", {"best": True, "at_least": 1}), *tied) == [0, 0, 0]
    with pytest.raises(UsageError, match="at_least"):
        load_credit("rejection", {})


def test_none_gives_returns_and_no_advantage() -> None:
    found = load_credit("none", {"returns": "to_go"})(frame(("t", 0, "a", 1.0), ("t", 0, "b", 2.0)))
    assert found["return"].to_list() == [3, 2]
    assert found["advantage"].to_list() == [None, None]


def tables(*turns):
    rows = frame(*turns)
    keys = rows.select("episode_id", "turn_index", "role", "step").to_dicts()
    episodes = rows.select("episode_id", "group_id").unique(maintain_order=True).to_dicts()
    rewards = [
        {k: row[k] for k in ("episode_id", "turn_index")}
        | {"reward": row["reward"], "reward_parts": named_values({"f1": math.floor(row["reward"])})}
        for row in rows.iter_rows(named=True)
    ]
    return rows_to_table(keys, TURNS), rows_to_table(episodes, EPISODES), rows_to_table(rewards, REWARDS)


def test_silent_groups_are_left_out_by_the_reward_that_decides() -> None:
    """Fault A39: equal accuracies with different lengths are no signal."""
    turns = [*group(1.1, 1.2, task="t"), *group(0.0, 1.0, task="u"), *group(0.5, 0.5, task="v")]
    for leave_out, silent in (
        (None, []),
        (LeaveOutSilent(), ["v"]),
        (LeaveOutSilent("f1"), ["t", "v"]),
    ):
        found = assign_credit(*tables(*turns), load_credit("group_relative", {}), leave_out).to_pylist()
        out = {row["episode_id"].split("/")[1] for row in found if row["excluded"] == SILENT}
        assert sorted(out) == silent
        assert len(found) == 6


@pytest.mark.parametrize("use", list(BUILTIN_CREDIT))
def test_options_that_can_not_be_are_refused(use) -> None:
    options = {"best": True} if use == "rejection" else {}
    with pytest.raises(UsageError, match="gamma is 2"):
        load_credit(use, {**options, "gamma": 2})
    with pytest.raises(UsageError, match="'to_go'"):
        load_credit(use, {**options, "returns": "togo"})
    with pytest.raises(UsageError, match="no option"):
        load_credit(use, {**options, "moments": {}, "baselines": {}})
