"""GAE over tokens and turns: hand-computed vectors, and a plain loop over whole episodes."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.token_advantages.gae import CARRY, SUMMARY, Gae, chain, gae, summarise
from stages.token_advantages.ragged import suffix_sums
from stages.token_advantages.rows import on_last_token

law = settings(max_examples=80)


def floats(values):
    return np.array(values, dtype=np.float64)


def one_turn(method, rewards, values, mask):
    """Advantages of a single turn that ends the episode."""
    nothing = np.zeros(1)
    mask = np.array(mask, dtype=bool)
    return gae(method, floats(rewards), floats(values), mask, np.array([len(mask)]), nothing, nothing)


def test_masked_tokens_are_no_transitions() -> None:
    """Fault A1: the critic's junk at an observation must not leak, nor its tokens discount."""
    method = Gae(gamma=0.9, lam=0.9)
    for junk in (9.0, np.nan, np.inf):
        found = one_turn(method, [0, junk, 1], [0.2, junk, 0.4], [1, 0, 1])
        assert found.tolist() == pytest.approx([0.646, 0, 0.600])


def test_the_reward_of_a_turn_lands_on_its_last_trained_token() -> None:
    """Fault A2: with gamma 0 a reward on an observation would vanish."""
    mask, lengths = np.array([True, True, False]), np.array([3])
    rewards = on_last_token(floats([1.0]), mask, lengths)
    assert rewards.tolist() == [0, 1, 0]
    assert one_turn(Gae(gamma=0), rewards, [0, 0, 0], mask).tolist() == [0, 1, 0]


def test_a_reward_reaches_back_over_masked_tokens() -> None:
    """Fault A3: reward-to-go must not start anew at an inner token that is not trained."""
    found = one_turn(Gae(gamma=0.5), [0, 7, 1], [0, 0, 0], [1, 0, 1])
    assert found.tolist() == [0.5, 0, 1]


def test_with_all_discounts_1_the_advantage_is_the_return_minus_the_value() -> None:
    found = one_turn(Gae(), [0, 0, 0, 1], [0.1, 0.2, 0.3, 0.4], [1, 1, 1, 1])
    assert found.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.6])


TOKENS = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.booleans()), min_size=1, max_size=6)
EPISODES = st.lists(st.lists(TOKENS, min_size=1, max_size=4), min_size=1, max_size=4)
METHOD = st.builds(
    Gae,
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    turn_gamma=st.floats(0, 1),
    turn_lam=st.floats(0, 1),
    across_turns=st.booleans(),
)


def by_loop(method, turns, bootstrap):
    """Advantages of one episode, token by token from its end; masked tokens are not there at all."""
    found = [[0.0] * len(turn) for turn in turns]
    next_value, next_advantage, turn_ends = bootstrap, 0.0, True
    for t in reversed(range(len(turns))):
        if not method.across_turns:
            next_value, next_advantage = 0.0, 0.0
        turn_ends = True
        for k in reversed([k for k, token in enumerate(turns[t]) if token[2]]):
            reward, value, _ = turns[t][k]
            gamma = method.turn_gamma if turn_ends else method.gamma
            lam = method.turn_lam if turn_ends else method.lam
            advantage = reward + gamma * next_value - value + gamma * lam * next_advantage
            found[t][k] = advantage
            next_value, next_advantage, turn_ends = value, advantage, False
    return found


@settings(law, max_examples=150)
@given(EPISODES, METHOD, st.integers(1, 3), st.randoms(use_true_random=False))
def test_turns_in_the_tables_of_several_models_chain_like_one_loop(episodes, method, models, draw) -> None:
    """Each turn lies in some model's part, in any order; three numbers per turn bring them together."""
    for episode in episodes:
        for turn in episode:
            turn[0] = (*turn[0][:2], True)  # every turn trains a token
    rows = [(f"e{e}", t, tokens) for e, turns in enumerate(episodes) for t, tokens in enumerate(turns)]
    draw.shuffle(rows)
    parts = [part for m in range(models) if (part := rows[m::models])]
    columns = [arrays_of(part) for part in parts]
    summaries = [summarise(method, keys, *arrays, np.zeros(len(keys))) for keys, *arrays in columns]
    follows = chain(method, pl.concat([pl.DataFrame(schema=SUMMARY), *summaries]))
    assert follows.schema == CARRY
    for part, (keys, *arrays) in zip(parts, columns, strict=True):
        carry = keys.join(follows, on=["episode_id", "turn_index"], maintain_order="left")
        found = gae(method, *arrays, carry["next_value"].to_numpy(), carry["next_advantage"].to_numpy())
        for episode_id, turn_index, tokens in part:
            expected = by_loop(method, episodes[int(episode_id[1:])], 0.0)[turn_index]
            assert found[: len(tokens)].tolist() == pytest.approx(expected, abs=1e-9)
            found = found[len(tokens) :]


def arrays_of(part):
    keys = pl.DataFrame(
        [(e, t) for e, t, _ in part],
        schema={"episode_id": pl.String, "turn_index": pl.Int32},
        orient="row",
    )
    tokens = [token for _, _, its_tokens in part for token in its_tokens]
    rewards, values, mask = zip(*tokens, strict=True)
    lengths = np.array([len(its_tokens) for _, _, its_tokens in part])
    return keys, floats(rewards), floats(values), np.array(mask), lengths


def test_a_bootstrap_value_stands_after_the_last_turn_only() -> None:
    summary = pl.DataFrame(
        [("e", 0, 0.5, 1.0, 1.0, 9.0), ("e", 1, 0.25, 2.0, 0.5, 4.0)], schema=SUMMARY, orient="row"
    )
    method = Gae(turn_gamma=0.5, turn_lam=0.5, across_turns=True)
    follows = chain(method, summary).rows()
    # the second turn sees 4; its first token's advantage is 2 + 0.5 · 0.5 · 4 = 3
    assert follows == [("e", 0, 0.25, 3.0), ("e", 1, 4.0, 0.0)]


def test_turns_that_are_not_there_do_not_discount() -> None:
    """Turn 1 (a tool's, a frozen model's) has no row: turn 2 follows turn 0 at once."""
    summary = pl.DataFrame(
        [("e", 0, 0.5, 0.0, 1.0, 0.0), ("e", 2, 0.25, 2.0, 1.0, 0.0)], schema=SUMMARY, orient="row"
    )
    follows = chain(Gae(turn_gamma=0.5, across_turns=True), summary)
    assert follows.row(0) == ("e", 0, 0.25, 2.0)


@law
@given(st.lists(st.lists(st.floats(-5, 5), min_size=0, max_size=7), max_size=8), st.floats(0, 1))
def test_suffix_sums_equal_the_loop_row_by_row(rows, factor) -> None:
    expected = []
    for row in rows:
        total, sums = 0.0, []
        for value in reversed(row):
            total = value + factor * total
            sums.append(total)
        expected += reversed(sums)
    flat = floats([v for row in rows for v in row])
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    assert suffix_sums(flat, lengths, factor).tolist() == pytest.approx(expected, abs=1e-12)
