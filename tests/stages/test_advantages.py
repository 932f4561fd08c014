"""From a part and its scores to token advantages: masks, KL in the reward, importance weights, whitening."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.credit.moments import Moments
from stages.token_advantages.gae import Gae, chain
from stages.token_advantages.importance import Importance, importance_ratios, importance_weights
from stages.token_advantages.kl import kl_per_token
from stages.token_advantages.part import (
    moments_of,
    summary_of,
    token_advantages,
    whitened,
    why_excluded,
)
from stages.token_advantages.rows import read_rows, token_table
from stages.token_advantages.spec import RewardKl, TokenSpec
from workflows.errors import SchemaError, UsageError
from workflows.trajectory import PARTITION, SCORES, TOKEN_ADVANTAGES, rows_to_table

law = settings(max_examples=60)
SPEC = TokenSpec("m")


def part(*turns):
    """A partition part and its scores from (advantage, reward, role, [per token: old, reference, value])."""
    partition, scores = [], []
    for index, (advantage, reward, role, tokens) in enumerate(turns):
        key = {"episode_id": f"e{index}", "turn_index": 0}
        old, ref, values = ([t[i] for t in tokens] for i in range(3))
        partition.append(
            key
            | {
                "role": role,
                "response_token_ids": list(range(len(tokens))),
                "behaviour_logprobs": [0.0] * len(tokens),
                "advantage": advantage,
                "reward": reward,
            }
        )
        scores.append(key | {"old_logprobs": old, "reference_logprobs": ref, "values": values})
    return rows_to_table(partition, PARTITION), rows_to_table(scores[::-1], SCORES)


def rows_of(*turns, needs=("old", "reference", "values")):
    return read_rows(*part(*turns), needs)


TOKEN = st.tuples(st.floats(-3, 0, width=32), st.floats(-3, 0, width=32), st.floats(-2, 2, width=32))
TURN = st.tuples(
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.sampled_from(["a", "b"]),
    st.lists(TOKEN, min_size=1, max_size=5),
)


def tokens_of(rows, spec):
    carry = chain(spec.gae, summary_of(rows, spec)) if spec.use == "gae" else None
    tokens = token_advantages(rows, spec, carry)
    if spec.whiten != "none":
        tokens = whitened(tokens, rows, spec, moments_of(tokens, rows, spec))
    return tokens


def test_scores_are_joined_by_key_and_every_token_gets_its_turns_advantage() -> None:
    rows = rows_of((0.5, 1.0, "a", [(-1, 0, 0), (-2, 0, 0)]), (-0.25, 0.0, "b", [(-3, 0, 0)]), needs=("old",))
    assert rows.scores["old"].tolist() == [-1, -2, -3]
    assert tokens_of(rows, SPEC).advantages.tolist() == [0.5, 0.5, -0.25]


@law
@given(st.lists(TURN, min_size=1, max_size=4), st.data())
def test_masked_tokens_change_nothing_and_get_nothing(turns, data) -> None:
    """Faults A1, A4, A23, A24: for every method at once. A token is put in anywhere and masked."""
    spec = TokenSpec(
        "m",
        use=data.draw(st.sampled_from(["from_credit", "gae"])),
        gae=Gae(0.9, 0.8, 0.7, 0.6, across_turns=data.draw(st.booleans())),
        whiten=data.draw(st.sampled_from(["none", "model", "role"])),
        reward_kl=RewardKl(0.1, {"b": 0.3}),
        importance=Importance(data.draw(st.sampled_from(["none", "truncated", "masked"]))),
    )
    clean = rows_of(*turns)
    place = data.draw(st.integers(0, len(clean.mask)))
    row = min(int(np.searchsorted(np.cumsum(clean.lengths), place)), len(turns) - 1)
    lengths = clean.lengths.copy()
    lengths[row] += 1
    dirty = replace(
        clean,
        lengths=lengths,
        mask=np.insert(clean.mask, place, False),
        behaviour=np.insert(clean.behaviour, place, np.nan),
        scores={need: np.insert(v, place, np.nan) for need, v in clean.scores.items()},
    )
    expected, found = tokens_of(clean, spec), tokens_of(dirty, spec)
    for name in ("advantages", "returns", "importance", "kl"):
        before, after = getattr(expected, name), getattr(found, name)
        assert (before is None) == (after is None)
        if before is not None:
            assert np.delete(after, place).tolist() == pytest.approx(before.tolist(), abs=1e-9)
            assert after[place] == (1 if name == "importance" else 0)


def test_kl_in_the_reward_is_paid_by_each_token_for_itself_and_what_follows() -> None:
    tokens = [(-1, -1.5, 0), (-1, -1, 0), (-1, -2, 0)]  # KL of .5, 0, 1
    rows = rows_of((1.0, 0.0, "a", tokens), (1.0, 0.0, "b", tokens))
    spec = TokenSpec("m", reward_kl=RewardKl(0.1, {"b": 0.0}))
    found = tokens_of(rows, spec)
    assert found.advantages.tolist() == pytest.approx([0.85, 0.9, 0.9, 1, 1, 1])
    assert found.kl.tolist() == [0.5, 0, 1, 0.5, 0, 1]  # fault A29: the KL itself is what is logged
    assert spec.needs == {"old", "reference"}


def test_kl_in_the_reward_of_gae_is_part_of_the_token_rewards() -> None:
    tokens = [(-1, -1.5, 0.2), (-1, -1, 0.4)]
    rows = rows_of((9.0, 1.0, "a", tokens))
    found = tokens_of(rows, TokenSpec("m", use="gae", reward_kl=RewardKl(0.1)))
    assert found.advantages.tolist() == pytest.approx([1 - 0.05 - 0.2, 1 - 0.4])
    assert found.returns.tolist() == pytest.approx([0.95, 1.0])


def test_kl_values_and_masks() -> None:
    """Faults A4, A28."""
    old, zero = np.array([0.5, 99.0, -0.5]), np.zeros(3)
    mask = np.array([True, False, True])
    assert kl_per_token(old, zero, mask, "k1").tolist() == [0.5, 0, -0.5]
    assert kl_per_token(old, zero, mask, "k2").tolist() == [0.125, 0, 0.125]
    assert kl_per_token(old, zero, mask, "k3").tolist() == pytest.approx([0.10653, 0, 0.14872], abs=1e-5)


def test_importance_weights_by_token_and_by_sequence() -> None:
    old, mask, lengths = np.log([3.0, 0.5, 1.0, 0.1]), np.ones(4, dtype=bool), np.array([2, 2])

    def weights(*options):
        method = Importance(*options)
        ratios = importance_ratios(method, old, np.zeros(4), mask, lengths)
        return importance_weights(method, ratios, mask).tolist()

    assert weights("truncated", "token", 2.0) == pytest.approx([2, 0.5, 1, 0.1])
    assert weights("masked", "token", 2.0, 0.2) == pytest.approx([0, 0.5, 1, 0])
    assert weights("truncated", "sequence", 2.0) == pytest.approx([1.5, 1.5, 0.1, 0.1])
    assert weights("masked", "sequence", 2.0, 0.2) == pytest.approx([1.5, 1.5, 0, 0])


@law
@given(st.lists(TURN, min_size=1, max_size=5), st.sampled_from(["model", "role"]), st.integers(0, 5))
def test_whitening_gives_mean_0_and_deviation_1_however_the_parts_are_cut(turns, whiten, cut) -> None:
    """Fault A42; and A6: one value, or equal ones, never become NaN."""
    spec = TokenSpec("m", whiten=whiten)
    rows = rows_of(*turns)
    whole = tokens_of(rows, spec)
    assert np.isfinite(whole.advantages).all()
    where = np.arange(len(turns)) < cut
    merged: dict[str, Moments] = {}
    for piece in (rows.take(where), rows.take(~where)):
        if len(piece.lengths):
            for key, moments in moments_of(token_advantages(piece, spec, None), piece, spec).items():
                merged[key] = merged.get(key, Moments()).merge(moments)
    again = whitened(token_advantages(rows, spec, None), rows, spec, merged)
    assert again.advantages.tolist() == pytest.approx(whole.advantages.tolist(), abs=1e-6)
    roles = rows.frame["role"].to_numpy()[np.repeat(np.arange(len(turns)), rows.lengths)]
    for role in set(roles) if whiten == "role" else {None}:
        mine = whole.advantages[roles == role] if role else whole.advantages
        raw = token_advantages(rows, spec, None).advantages
        raw = raw[roles == role] if role else raw
        if raw.min() == raw.max():
            assert not mine.any()
        elif raw.std() > 1e-3:
            assert mine.mean() == pytest.approx(0, abs=1e-6)
            assert mine.std(ddof=1) == pytest.approx(1, abs=1e-4)


def test_what_a_critic_learns_is_not_whitened() -> None:
    rows = rows_of((0, 1.0, "a", [(0, 0, 0.25), (0, 0, 0.5)]), (0, 0.0, "a", [(0, 0, 0.75)]))
    plain = tokens_of(rows, TokenSpec("m", use="gae"))
    white = tokens_of(rows, TokenSpec("m", use="gae", whiten="model"))
    assert plain.returns.tolist() == white.returns.tolist() == [1, 1, 0]
    assert plain.advantages.tolist() == [0.75, 0.5, -0.75]
    assert white.advantages.mean() == pytest.approx(0, abs=1e-9)


def test_rows_that_can_not_be_used_say_why() -> None:
    rows = rows_of(
        (None, 1.0, "a", [(0, 0, 0)]),
        (0.0, None, "a", [(0, 0, 0)]),
        (1.0, 1.0, "a", []),
        (1.0, 1.0, "a", [(0, 0, 0)]),
    )
    assert why_excluded(rows, SPEC) == ["no advantage", None, "no response tokens", None]
    assert why_excluded(rows, TokenSpec("m", use="gae")) == [None, "no reward", "no response tokens", None]
    assert why_excluded(rows, TokenSpec("m", imitate=True)) == [
        "no advantage",
        "weight 0: nothing to imitate",
        "no response tokens",
        None,
    ]
    negative = rows_of((-1.0, 1.0, "a", [(0, 0, 0)]))
    with pytest.raises(SchemaError, match=r"negative advantage, the first is \('e0', 0\)"):
        why_excluded(negative, TokenSpec("m", imitate=True))


def test_the_table_has_every_row_in_its_place() -> None:
    rows = rows_of(
        (0.5, 1.0, "a", [(0, 0, 0)] * 2), (None, 1.0, "a", [(0, 0, 0)]), (-1.0, 1.0, "a", [(0, 0, 0)])
    )
    excluded = why_excluded(rows, SPEC)
    used = rows.take(np.array([reason is None for reason in excluded]))
    table = token_table(rows.frame, used, tokens_of(used, SPEC).columns(), excluded)
    assert table.schema == TOKEN_ADVANTAGES
    assert table["episode_id"].to_pylist() == ["e0", "e1", "e2"]
    assert table["advantages"].to_pylist() == [[0.5, 0.5], None, [-1.0]]
    assert table["returns"].to_pylist() == table["importance_weights"].to_pylist() == [None] * 3
    assert table["excluded"].to_pylist() == [None, "no advantage", None]


def test_scores_that_do_not_fit_their_rows_are_refused_by_name() -> None:
    partition, scores = part((1.0, 1.0, "a", [(0, 0, 0)] * 2), (1.0, 1.0, "a", [(0, 0, 0)]))
    with pytest.raises(SchemaError, match="1 have no score"):
        read_rows(partition, scores.slice(1), ["values"])
    swapped = scores.set_column(0, "episode_id", [["e0", "e1"]])
    with pytest.raises(SchemaError, match=r"\('e0', 0\) has 2 response tokens but 1 values"):
        read_rows(partition, swapped, ["values"])
    _, broken = part((1.0, 1.0, "a", [(0, 0, 0), (0, 0, math.nan)]), (1.0, 1.0, "a", [(0, 0, 0)]))
    with pytest.raises(SchemaError, match=r"\('e0', 0\) has values that are not finite"):
        read_rows(partition, broken, ["values"])


def test_empty_parts_pass_through() -> None:
    rows = rows_of()
    for spec in (SPEC, TokenSpec("m", use="gae", whiten="role", importance=Importance("masked"))):
        tokens = tokens_of(rows, spec)
        assert token_table(rows.frame, rows, tokens.columns(), []).num_rows == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"use": "gea"}, "'gae'"),
        ({"whiten": "roles"}, "'role'"),
        ({"gae": Gae(turn_lam=1.5)}, "turn_lam is 1.5"),
        ({"reward_kl": RewardKl(-1.0)}, "kl_coefficient is -1"),
        ({"reward_kl": RewardKl(estimator="k4")}, "k1, k2, k3"),
        ({"importance": Importance("trunc")}, "'truncated'"),
        ({"importance": Importance("masked", cap=0.5, floor=0.5)}, "floor < cap"),
        ({"imitate": True, "use": "gae"}, "supervised"),
        ({"imitate": True, "whiten": "model"}, "supervised"),
        ({"imitate": True, "reward_kl": RewardKl(0.1)}, "supervised"),
        ({"imitate": True, "importance": Importance("masked")}, "supervised"),
    ],
)
def test_specs_that_can_not_be_are_refused(wrong, words) -> None:
    with pytest.raises(UsageError, match=words):
        TokenSpec("m", **wrong)


def test_what_is_needed_follows_from_what_is_asked() -> None:
    assert not SPEC.does_something
    assert TokenSpec("m", whiten="role").does_something
    assert TokenSpec("m", use="gae").needs == {"values"}
    assert TokenSpec("m", importance=Importance("truncated")).needs == {"old"}
