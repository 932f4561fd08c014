"""The arithmetic of gradients by role, by hand: shares, cosines, redundancy, caps, copies and damping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.training.gradients.measures import Products, pair_measures, role_measures
from stages.training.gradients.shaping import capped_norms, copies_factor, damping_factor, role_factors
from stages.training.gradients.spec import ShapingSpec


def compared(**vectors):
    """The products of vectors by "role" or "role_branch"."""
    parts = [tuple(name.split("_")) if "_" in name else (name, "") for name in vectors]
    rows = np.array(list(vectors.values()), dtype=float)
    return Products(parts, rows @ rows.T)


def row_of(products, role=None, branch=None):
    return next(r for r in role_measures(products) if (r["role"], r["branch"]) == (role, branch))


def test_two_roles_at_a_right_angle() -> None:
    products = compared(a=[3, 0], b=[0, 4])
    a, whole = row_of(products, "a"), row_of(products)
    assert (a["gradient_norm"], a["gradient_share"]) == (3, pytest.approx(3 / 7))
    assert a["cosine_whole"] == pytest.approx(3 / 5)
    assert (whole["gradient_norm"], whole["interference"]) == (5, 2)
    assert whole["redundancy"] == pytest.approx(5 / 7)
    assert pair_measures(products) == [
        {"role": "a", "branch": None, "other_role": "b", "other_branch": None, "cosine": 0}
    ]


def test_roles_that_cancel_interfere_with_all_that_they_have() -> None:
    whole = row_of(compared(a=[2, 0], b=[-2, 0]))
    assert (whole["gradient_norm"], whole["interference"], whole["redundancy"]) == (0, 4, 0)
    assert row_of(compared(a=[2, 0], b=[-2, 0]), "a")["cosine_whole"] is None  # the whole has no direction


def test_a_role_without_a_gradient_has_no_cosine_and_no_share_of_nothing() -> None:
    products = compared(a=[0, 0], b=[1, 0])
    assert row_of(products, "a")["cosine_whole"] is None
    assert row_of(products, "a")["gradient_share"] == 0
    assert pair_measures(products) == []
    assert row_of(compared(a=[0, 0]), "a")["gradient_share"] is None


def test_copies_that_agree_and_copies_that_do_not() -> None:
    same = row_of(compared(a_0=[1, 0], a_1=[1, 0], b=[0, 1]), "a")
    assert (same["copies"], same["redundancy"], same["copies_cosine"]) == (2, 1, 1)
    apart = row_of(compared(a_0=[1, 0], a_1=[0, 1], b=[0, 1]), "a")
    assert apart["redundancy"] == pytest.approx(1 / math.sqrt(2))
    assert apart["copies_cosine"] == 0
    assert "copies" not in row_of(compared(a=[1, 0], b=[0, 1]), "a")
    one = row_of(compared(a_0=[1, 0], a_1=[1, 0], b=[0, 1]), "a", "1")
    assert (one["gradient_share"], one["cosine_whole"]) == (0.5, 1)


def test_copies_that_agree_count_as_the_root_of_their_number() -> None:
    assert copies_factor(1.0, 4) == 0.5  # 4 equal vectors of length 1: 4 · 0.5 = √4
    assert copies_factor(1 / math.sqrt(4), 4) == pytest.approx(1)  # independent: as they are
    assert copies_factor(0.1, 4) == 1  # copies that cancel are never made longer
    assert copies_factor(None, 4) == copies_factor(0.0, 4) == 1
    factors = role_factors(compared(a_0=[1, 0], a_1=[1, 0], b=[0, 1]), ShapingSpec(damp_copies=True))
    assert factors == {"a": pytest.approx(1 / math.sqrt(2)), "b": 1}


def test_a_cap_on_shares_by_hand() -> None:
    assert capped_norms({"a": 9.0, "b": 1.0}, 0.6) == {"a": pytest.approx(1.5), "b": 1}  # 1.5 of 2.5
    assert capped_norms({"a": 1.0, "b": 1.0}, 0.6) == {"a": 1, "b": 1}
    assert capped_norms({"a": 8.0, "b": 8.0, "c": 1.0}, 0.4) == {
        "a": pytest.approx(2), "b": pytest.approx(2), "c": 1,
    }  # fmt: skip
    assert capped_norms({"a": 9.0, "b": 1.0}, 0.2) == {"a": 1, "b": 1}  # no lower than equal
    assert capped_norms({"a": 9.0, "b": 0.0}, 0.5) == {"a": 9, "b": 0}  # nobody to share with
    assert role_factors(compared(a=[9, 0], b=[0, 1]), ShapingSpec(max_role_share=0.6)) == {
        "a": pytest.approx(1 / 6), "b": 1,
    }  # fmt: skip
    assert role_factors(compared(a=[9, 0], b=[0, 1]), ShapingSpec()) == {"a": 1, "b": 1}


def test_the_cap_comes_after_the_copies() -> None:
    products = compared(a_0=[2, 0], a_1=[2, 0], b=[0, 1])  # a: 4, and 2√2 once its copies count as √2
    factors = role_factors(products, ShapingSpec(damp_copies=True, max_role_share=0.6))
    assert 4 * factors["a"] == pytest.approx(1.5)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=6), st.floats(0.05, 0.95))
def test_no_share_is_above_the_cap_and_no_length_grows(norms: list[float], cap: float) -> None:
    before = {str(k): norm for k, norm in enumerate(norms)}
    after = capped_norms(before, cap)
    limit = max(cap, 1 / len(norms))
    assert max(after.values()) <= limit * sum(after.values()) * (1 + 1e-9)
    assert all(after[role] <= before[role] * (1 + 1e-9) for role in before)
    if max(norms) <= cap * sum(norms):
        assert after == before


def test_damping_by_hand() -> None:
    assert damping_factor(1.0, 0.3) == pytest.approx(0.7)
    assert damping_factor(0.5, 0.3) == pytest.approx(0.85)
    assert damping_factor(-1.0, 0.3) == damping_factor(None, 0.3) == 1


class Held:
    """A gradient of one piece."""

    is_sliced = False

    def __init__(self, *numbers):
        import torch

        self.pieces = [torch.tensor(numbers)]

    def copy(self):
        return [piece.clone() for piece in self.pieces]

    def scale(self, factor):
        self.pieces[0] *= factor


def test_damping_goes_by_the_running_mean_of_what_it_scaled() -> None:
    from stages.training.gradients.held import CoherenceDamping

    damping = CoherenceDamping(0.5, 4)  # τ = 3/4
    first = Held(2.0, 0.0)
    assert damping.apply(first) == 1  # begun with the first gradient
    assert damping.mean[0].tolist() == [2, 0]
    again = Held(4.0, 0.0)
    assert damping.apply(again) == 0.5
    assert again.pieces[0].tolist() == [2, 0]
    assert damping.mean[0].tolist() == [2, 0]  # 3/4 · 2 + 1/4 · 2: with the scaled gradient
    assert damping.apply(Held(0.0, 8.0)) == 1
    assert damping.mean[0].tolist() == [1.5, 2]
    other = CoherenceDamping(0.5, 4)
    other.restore(damping.state(), other_device())
    assert other.apply(Held(3.0, 4.0)) == pytest.approx(1 - 0.5 * (4.5 + 8) / (5 * 2.5))


def other_device():
    import torch

    return torch.device("cpu")


def test_a_projection_keeps_products_even_where_one_place_of_every_layer_is_heavy() -> None:
    """The same few hidden units have most of the gradient in every layer, as in real models."""
    import torch

    from stages.training.gradients.projection import SIZE, Projection

    generator = torch.Generator().manual_seed(0)
    sizes = [500_000, 3_000_000] + [576] * 60
    projection = Projection(sizes, 7, torch.device("cpu"))

    def vector() -> list[torch.Tensor]:
        pieces = [torch.randn(size, generator=generator) for size in sizes]
        for piece in pieces:
            piece[3] *= 300
        return pieces

    one, other = vector(), vector()
    both = [a + b for a, b in zip(one, other, strict=True)]
    flat = [torch.cat(pieces) for pieces in (one, other, both)]
    sketches = []
    for pieces in (one, other, both):
        sketches.append(torch.zeros(SIZE))
        for index, piece in enumerate(pieces):
            projection.add(sketches[-1], piece, index)
    assert torch.allclose(sketches[0] + sketches[1], sketches[2], atol=1e-2)  # linear
    for a in range(3):
        for b in range(3):
            true = float(flat[a] @ flat[b] / (flat[a].norm() * flat[b].norm()))
            seen = float(sketches[a] @ sketches[b] / (flat[a].norm() * flat[b].norm()))
            assert seen == pytest.approx(true, abs=0.032)
