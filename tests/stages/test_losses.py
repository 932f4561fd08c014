"""Policy losses: right against float64 references, blind to masked values, the same for every cut."""

import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.loss.batch import Terms, TokenBatch
from stages.training.loss.loss import (
    denominator,
    policy_loss,
    terms_of,
    token_weights,
)
from stages.training.loss.policy import TokenLoss
from stages.training.loss.spec import LOSSES, LossSpec, RoleLoss
from workflows.errors import SchemaError

law = settings(max_examples=40)


CLIP = {"clip_low": 0.2, "clip_high": 0.3}
SOME = {"cov_share": 0.1}  # for the losses that hold back a share of the tokens


def ppo(n, o, a, mean, dual_clip=3.0):
    r = math.exp(n - o)
    clipped = min(max(r, 0.8), 1.3)
    value, slope = (-a * r, -a * r) if -a * r >= -a * clipped else (-a * clipped, 0.0)
    if dual_clip is not None and a < 0 and value > -a * dual_clip:
        value, slope = -a * dual_clip, 0.0
    return value, slope


def gspo(n, o, a, mean):
    return ppo(mean, 0.0, a, None, dual_clip=None)


def message(n, o, a, mean):
    return ppo(mean.whole, 0.0, a, None, dual_clip=None)


class Mean(float):
    """The mean log ratio of a reply, which knows the sum, too."""

    def __new__(cls, whole, count):
        made = super().__new__(cls, whole / count)
        made.whole = whole
        return made


def cispo(n, o, a, mean):
    weight = min(max(math.exp(n - o), 0.8), 1.3)
    return -weight * a * n, -weight * a


def clip_cov(n, o, a, mean):
    return (0.0, 0.0) if is_chosen(a) else ppo(n, o, a, mean, dual_clip=None)


def kl_cov(n, o, a, mean):
    r = math.exp(n - o)
    price, slope = (0.5 * (r - 1 - (n - o)), 0.5 * (r - 1)) if is_chosen(a) else (0.0, 0.0)
    return -a * r + price, -a * r + slope


def is_chosen(advantage):
    """Which tokens these tests hold back: any rule that looks at one token only."""
    return advantage > 1


def gradient_only(n, o, a, mean):
    return -a * n, -a


REFERENCES = {
    "ppo": ppo,
    "gspo": gspo,
    "message": message,
    "cispo": cispo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "policy_gradient": gradient_only,
    "supervised": gradient_only,
}


def reference(name, rows, spec):
    """The formula in plain words, token by token: summed loss, and its gradient in each new logprob."""
    loss, gradient = 0.0, []
    for tokens in rows:
        mean = Mean(sum(n - o for n, o, *_ in tokens), len(tokens))
        weight = 1 / len(tokens) if spec.normalisation == "sequence_mean" else 1.0
        for n, o, a, w, ref in tokens:
            value, slope = REFERENCES[name](n, o, a, mean)
            value, slope = w * value, w * slope
            d = n - ref
            estimate = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[spec.kl_estimator]
            loss += weight * (value + spec.kl_coefficient * estimate)
            gradient.append(weight * (slope + spec.kl_coefficient * d))
    return loss, gradient


def batch_of(rows, spec, mask=None):
    """Rows of (new, old, advantage, importance weight, reference) as a batch in float64."""
    columns = [torch.tensor(c, dtype=torch.float64) for c in zip(*(t for r in rows for t in r), strict=True)]
    new, old, advantages, importance, ref = columns
    row = torch.tensor([i for i, r in enumerate(rows) for _ in r])
    mask = torch.ones(len(row), dtype=torch.bool) if mask is None else torch.tensor(mask)
    own = spec.of(None)
    exact = Terms(
        **{f.name: torch.full((len(row),), getattr(own, f.name), dtype=torch.float64) for f in fields(Terms)}
    )
    return TokenBatch(
        new_logprobs=new.requires_grad_(),
        old_logprobs=old,
        advantages=advantages,
        mask=mask,
        row=row,
        num_rows=len(rows),
        weights=token_weights(spec, mask, row, len(rows)).double(),
        terms=exact,
        importance_weights=importance,
        reference_logprobs=ref,
        chosen=is_chosen(advantages) if spec.chooses_tokens else None,
    )


def run(rows, spec, mask=None):
    batch = batch_of(rows, spec, mask)
    sums = policy_loss(spec, batch)
    sums.loss.backward()
    return sums, batch.new_logprobs.grad.tolist()


TOKEN = st.tuples(st.floats(-6, 0), st.floats(-6, 0), st.floats(-3, 3), st.floats(0, 2), st.floats(-6, 0))


ROWS = st.lists(st.lists(TOKEN, min_size=1, max_size=6), min_size=1, max_size=4)


SPEC = st.builds(
    LossSpec,
    name=st.sampled_from(LOSSES),
    clip_low=st.just(0.2),
    clip_high=st.just(0.3),
    normalisation=st.sampled_from(["token_mean", "sequence_mean"]),
    kl_coefficient=st.sampled_from([0.0, 0.1]),
    kl_estimator=st.sampled_from(["k1", "k2", "k3"]),
    cov_share=st.just(0.1),
    cov_kl_coefficient=st.just(0.5),
)


@settings(law, max_examples=150)
@given(ROWS, SPEC)
def test_loss_and_gradient_of_every_loss_are_those_of_its_reference(rows, spec) -> None:
    sums, gradient = run(rows, spec)
    loss, expected = reference(spec.name, rows, spec)
    assert sums.loss.item() == pytest.approx(loss, rel=1e-6, abs=1e-6)
    assert gradient == pytest.approx(expected, rel=1e-6, abs=1e-6)


@law
@given(ROWS, SPEC, st.data())
def test_sums_and_gradients_add_up_over_any_cut_between_responses(rows, spec, data) -> None:
    whole, gradient = run(rows, spec)
    cut = data.draw(st.integers(0, len(rows)))
    parts = [run(part, spec) for part in (rows[:cut], rows[cut:]) if part]
    for name in ("loss", "policy", "num_tokens", "kl_old", "kl_reference", "clipped", "dual_clipped"):
        total = sum(getattr(p, name).item() for p, _ in parts)
        assert total == pytest.approx(getattr(whole, name).item(), abs=1e-6, rel=1e-6)
    assert max(p.ratio_max.item() for p, _ in parts) == whole.ratio_max.item()
    assert [g for _, part in parts for g in part] == pytest.approx(gradient, rel=1e-9, abs=1e-12)


@law
@given(ROWS, SPEC, st.floats(allow_nan=True, allow_infinity=True), st.data())
def test_what_is_masked_changes_nothing(rows, spec, junk, data) -> None:
    """Faults A4, A9, A10, A23: also NaN and infinity, also a response with no token left."""
    clean, gradient = run(rows, spec)
    which = data.draw(st.integers(0, len(rows)))
    dirty_rows = [list(r) for r in rows] + ([[]] if which == len(rows) else [])
    place = data.draw(st.integers(0, len(dirty_rows[which])))
    dirty_rows[which].insert(place, (junk,) * 5)
    mask = [not (i == which and j == place) for i, r in enumerate(dirty_rows) for j in range(len(r))]
    dirty, dirty_gradient = run(dirty_rows, spec, mask)
    for field in fields(dirty):
        assert getattr(dirty, field.name).item() == pytest.approx(
            getattr(clean, field.name).item(), rel=1e-6, abs=1e-9
        )
    assert dirty_gradient.pop(mask.index(False)) == 0
    assert dirty_gradient == pytest.approx(gradient, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_no_token_at_all_gives_zero_and_a_finite_gradient(name) -> None:
    """Faults A10, A11: there is a graph, so that a rank without rows still runs backward."""
    sums, gradient = run(
        [[(math.nan, math.inf, 1.0, 1.0, 0.0)]], LossSpec(name, kl_coefficient=1.0, **SOME), [False]
    )
    assert (sums.loss.item(), sums.num_tokens.item(), gradient) == (0, 0, [0.0])
    assert denominator(LossSpec(name, **SOME), 0, 0) == 1


def ppo_token(n, o, a, **spec):
    sums, (gradient,) = run([[(n, o, a, 1.0, 0.0)]], LossSpec(**{**CLIP, **spec}))
    return sums, gradient


def test_dual_clip_bounds_a_negative_advantage_and_nothing_else() -> None:
    """Fault A30."""
    ten = math.log(10)
    sums, gradient = ppo_token(ten, 0.0, -1.0)
    assert (sums.loss.item(), sums.dual_clipped.item(), gradient) == (pytest.approx(3), 1, 0)
    assert ppo_token(ten, 0.0, -1.0, dual_clip=None)[0].loss.item() == pytest.approx(10)
    assert ppo_token(ten, 0.0, 1.0)[0].loss.item() == pytest.approx(-1.3)


def test_a_ratio_beyond_all_limits_stays_finite_and_is_pushed_back() -> None:
    sums, gradient = ppo_token(0.0, -500.0, -1.0, dual_clip=None)
    assert math.isfinite(sums.loss.item())
    assert gradient > 0  # descent lowers the new logprob


@pytest.mark.parametrize("name", LOSSES)
def test_a_policy_that_has_not_moved_is_not_clipped_and_gets_the_policy_gradient(name) -> None:
    same = [[(-1.0, -1.0, 0.5, 1.0, 0.0), (-2.0, -2.0, -0.25, 1.0, 0.0)]]
    sums, gradient = run(same, LossSpec(name, **SOME))
    assert (sums.clipped.item(), sums.kl_old.item(), sums.ratio_max.item()) == (0, 0, 1)
    assert gradient == pytest.approx([-0.5, 0.25])


def test_gspo_clips_whole_responses_and_cispo_clips_no_gradient_away() -> None:
    far = [[(0.0, -1.0, 1.0, 1.0, 0.0), (-1.0, -1.0, 1.0, 1.0, 0.0)]]  # ratios e and 1, mean e^0.5
    sums, gradient = run(far, LossSpec("gspo", **CLIP))
    assert (sums.clipped.item(), gradient) == (2, [0, 0])
    near = [[(-0.85, -1.0, 1.0, 1.0, 0.0), (-1.85, -2.0, 1.0, 1.0, 0.0)]]  # ratios 1.16 each, 1.35 together
    assert run(near, LossSpec("gspo", **CLIP))[0].clipped.item() == 0
    sums, gradient = run(near, LossSpec("message", **CLIP))
    assert (sums.clipped.item(), gradient) == (2, [0, 0])
    sums, gradient = run(far, LossSpec("ppo", **CLIP))
    assert (sums.clipped.item(), gradient) == (1, [0, -1])
    sums, gradient = run(far, LossSpec("cispo", **CLIP))
    assert (sums.clipped.item(), gradient) == (1, pytest.approx([-1.3, -1]))


def test_normalisations_divide_by_what_they_say_whatever_the_cut() -> None:
    """Faults A13 to A16: 1 token of loss 1 and 9 of loss 0 give 0.1, however they are cut."""
    rows = [[(-1.0, 0.0, 1.0, 1.0, 0.0)], [(0.0, 0.0, 0.0, 1.0, 0.0)] * 9]
    for normalisation, expected in (("token_mean", 0.1), ("sequence_mean", 0.5), ("fixed_length", 1 / 40)):
        spec = LossSpec("policy_gradient", normalisation=normalisation, fixed_length=20)
        for cut in ([rows], [[r] for r in rows]):
            sums = [run(part, spec)[0] for part in cut]
            mean = sum(s.loss.item() for s in sums) / denominator(
                spec, sum(s.num_tokens.item() for s in sums), 2
            )
            assert mean == pytest.approx(expected)


def test_entropy_is_a_bonus_and_is_measured_without_one() -> None:
    rows = [[(-1.0, -1.0, 0.0, 1.0, 0.0), (-1.0, -1.0, 0.0, 1.0, 0.0)]]
    for coefficient in (0.0, 0.5):
        spec = LossSpec(entropy_coefficient=coefficient)
        entropies = torch.tensor([1.0, 3.0], dtype=torch.float64, requires_grad=True)
        sums = policy_loss(spec, replace(batch_of(rows, spec), entropies=entropies))
        assert sums.entropy.item() == 4
        assert sums.loss.item() == pytest.approx(-4 * coefficient)
        if coefficient:
            (gradient,) = torch.autograd.grad(sums.loss, entropies)
            assert gradient.tolist() == [-0.5, -0.5]


def test_importance_weights_scale_the_policy_loss_and_are_counted() -> None:
    rows = [[(-1.0, -1.0, 1.0, 0.0, 0.0), (-1.0, -1.0, 1.0, 2.0, 0.0)]]
    sums, gradient = run(rows, LossSpec())
    assert gradient == [0, -2]
    assert sums.importance_weight.item() == 2
    assert (sums.importance_weight_max.item(), sums.importance_masked.item()) == (2, 1)


def test_each_role_has_its_own_terms() -> None:
    spec = LossSpec(kl_coefficient=0.1, roles={"b": RoleLoss(clip_high=9.0, kl_coefficient=0.0, weight=3.0)})
    rows = [[(0.0, -1.0, 1.0, 1.0, -1.0)]] * 2
    batch = batch_of(rows, spec)
    sums = policy_loss(spec, replace(batch, terms=terms_of(spec, ["a", "b"], batch.row)))
    sums.loss.backward()
    a, b = batch.new_logprobs.grad.tolist()
    assert a == pytest.approx(0.1)  # clipped; the KL is left
    assert b == pytest.approx(-3 * math.e, rel=1e-6)
    assert spec.of("nobody") == spec.of(None)


def test_a_loss_of_ones_own_is_called_by_its_path_and_checked() -> None:
    rows = [[(-1.0, -1.0, 2.0, 1.0, 0.0)]]
    sums, gradient = run(rows, LossSpec(f"{__name__}:my_loss"))
    assert (sums.loss.item(), gradient) == (2.0, [-4.0])
    with pytest.raises(SchemaError, match="return one loss for each of the 1 tokens"):
        run(rows, LossSpec(f"{__name__}:summed"))


def my_loss(spec, batch):
    return batch.advantages * batch.new_logprobs**2


def summed(spec, batch):
    return TokenLoss(batch.new_logprobs.sum()[None, None])


def test_what_the_loss_needs_must_be_there() -> None:
    rows = [[(-1.0, -1.0, 2.0, 1.0, 0.0)]]
    spec = LossSpec(kl_coefficient=0.1)
    with pytest.raises(SchemaError, match="reference_logprobs"):
        policy_loss(spec, replace(batch_of(rows, spec), reference_logprobs=None))
    with pytest.raises(SchemaError, match="chosen tokens"):
        policy_loss(LossSpec("kl_cov", **SOME), replace(batch_of(rows, LossSpec()), chosen=None))
    assert spec.needs_reference
    assert LossSpec(roles={"a": RoleLoss(entropy_coefficient=1.0)}).needs_entropy
    assert not LossSpec().needs_reference
