"""clip_cov and kl_cov: which tokens are held back, by hand, however a step is cut into forward passes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.loss.batch import Terms, TokenBatch
from stages.training.loss.covariance import (
    chosen_of,
    covariances,
    lowest,
    number_chosen,
    sort_keys,
    token_sums,
)
from stages.training.loss.policy import clip_cov, kl_cov
from stages.training.loss.spec import LossSpec
from tests.support.tiny_training import NUM_TOKENS, SMOOTH, partition, same, weights

law = settings(max_examples=60)
CLIP = LossSpec("clip_cov", cov_share=0.5, cov_low=0.2, cov_high=2.0)
KL = LossSpec("kl_cov", cov_share=0.5, cov_kl_coefficient=0.25)
LOGPROBS = np.array([-1.0, -2.0, -3.0, -6.0])  # mean -3
ADVANTAGES = np.array([2.0, 1.0, -1.0, -2.0])  # mean 0
BY_HAND = [4.0, 1.0, 0.0, 6.0]


def choose(spec, covariance, random):
    keys = sort_keys(spec, covariance, random)
    last = lowest(keys, number_chosen(spec, len(covariance)))
    return chosen_of(keys, last[-1]).tolist() if len(last) else [False] * len(covariance)


def test_the_covariance_of_a_token_is_that_of_the_paper() -> None:
    found = covariances(LOGPROBS, ADVANTAGES, token_sums(LOGPROBS, ADVANTAGES))
    assert found.tolist() == BY_HAND
    assert found.mean() == pytest.approx(np.cov(LOGPROBS, ADVANTAGES, ddof=0)[0, 1])


def test_kl_cov_takes_the_highest_and_clip_cov_draws_among_those_in_between() -> None:
    covariance = np.array(BY_HAND)
    random = np.array([0.9, 0.1, 0.2, 0.3])
    assert choose(KL, covariance, random) == [True, False, False, True]
    assert choose(LossSpec("clip_cov", cov_share=0.25), covariance, random) == [False, True, False, False]
    assert choose(LossSpec("clip_cov", cov_share=0.25), covariance, 1 - random) == [True, False, False, False]
    assert choose(LossSpec("clip_cov", cov_share=1.0), covariance, random) == [True, True, False, False]
    assert (
        choose(LossSpec("clip_cov", cov_low=7.0, cov_high=9.0, cov_share=1.0), covariance, random)
        == [False] * 4
    )


def test_equal_covariances_do_not_choose_everybody() -> None:
    assert sum(choose(KL, np.zeros(10), np.arange(10.0))) == 5


@pytest.mark.parametrize(("tokens", "number"), [(0, 0), (1, 1), (3000, 1), (10_000, 2), (10_001, 3)])
def test_a_share_is_rounded_up_to_whole_tokens(tokens, number) -> None:
    """Rounded down, the paper's 0.0002 would choose nobody in a small batch, without a word."""
    assert number_chosen(LossSpec("clip_cov", cov_share=2e-4), tokens) == number


TOKEN = st.tuples(st.floats(-9, 0), st.floats(-3, 3), st.floats(0, 1, exclude_max=True))


@law
@given(st.lists(st.lists(TOKEN, max_size=6), min_size=1, max_size=4), st.sampled_from([CLIP, KL]))
def test_parts_choose_what_the_whole_chooses(parts, spec) -> None:
    """What ranks and micro-batches do: sums are added, the lowest keys of each are gathered."""
    columns = [np.array(part, dtype=np.float64).reshape(-1, 3).T for part in parts]
    sums = sum((token_sums(logprobs, advantages) for logprobs, advantages, _ in columns), np.zeros(3))
    number = number_chosen(spec, int(sums[0]))
    if not number:
        return
    keys = [sort_keys(spec, covariances(n, a, sums), random) for n, a, random in columns]
    last = lowest(np.concatenate([lowest(each, number) for each in keys]), number)
    whole = lowest(np.concatenate(keys), number)
    assert last.tolist() == whole.tolist()
    if len(last):
        chosen = np.concatenate([chosen_of(each, last[-1]) for each in keys])
        drawn = [tuple(key) for key in np.concatenate(keys)]
        assert chosen.sum() >= len(whole)  # more only where two tokens have the same key
        assert chosen.sum() == len(whole) or len(set(drawn)) < len(drawn)


def batch(new, old, advantages, chosen):
    def tensor(values):
        return torch.tensor(values, dtype=torch.float64)

    size = len(new)
    bounds = {
        "clip_low": 0.2,
        "clip_high": 0.3,
        "kl_coefficient": 0.0,
        "entropy_coefficient": 0.0,
        "weight": 1.0,
    }
    return TokenBatch(
        new_logprobs=tensor(new).requires_grad_(),
        old_logprobs=tensor(old),
        advantages=tensor(advantages),
        mask=torch.ones(size, dtype=torch.bool),
        row=torch.zeros(size, dtype=torch.int64),
        num_rows=1,
        weights=torch.ones(size),
        terms=Terms(
            **{name: torch.full((size,), value, dtype=torch.float64) for name, value in bounds.items()}
        ),
        chosen=torch.tensor(chosen),
    )


NEW, OLD = [-1.0, -1.0, -0.5], [-1.0, -1.1, -1.0]
RATIOS = [1.0, np.exp(0.1), np.exp(0.5)]


def test_clip_cov_takes_the_gradient_of_the_chosen_and_clips_the_others() -> None:
    """Ratios 1, 1.105 and 1.649, which the clip at 1.3 stops."""
    tokens = batch(NEW, OLD, [1.0, 1.0, 1.0], [True, False, False])
    loss = clip_cov(CLIP, tokens)
    loss.losses.sum().backward()
    assert loss.losses.tolist() == pytest.approx([0.0, -RATIOS[1], -1.3])
    assert tokens.new_logprobs.grad.tolist() == pytest.approx([0.0, -RATIOS[1], 0.0])
    assert loss.clipped.tolist() == [False, False, True]


def test_kl_cov_prices_the_chosen_by_the_gradient_of_the_true_kl_and_clips_nothing() -> None:
    tokens = batch(NEW, OLD, [1.0, 1.0, -2.0], [True, True, False])
    loss = kl_cov(KL, tokens)
    loss.losses.sum().backward()
    one, two, three = RATIOS
    assert loss.losses.tolist() == pytest.approx([-1.0, -two + 0.25 * (two - 1 - 0.1), 2 * three])
    assert tokens.new_logprobs.grad.tolist() == pytest.approx([-one, -two + 0.25 * (two - 1), 2 * three])


@pytest.mark.slow
@pytest.mark.parametrize("spec", [LossSpec("clip_cov", cov_share=0.2, cov_low=1e-3), KL], ids=["clip", "kl"])
def test_an_update_holds_the_same_tokens_back_however_it_is_cut_and_says_how_many(
    start, tmp_path, spec
) -> None:
    found = []
    for number, cut in enumerate(((0,) * 6, (1, 0, 0, 1, 2, 3))):
        worker = start(loss=spec, epochs=2, shared_prefix=number == 0, **SMOOTH)
        report = worker.update(partition(tmp_path / f"p{number}", cut=cut), 0)
        found.append((weights(worker), report))
    assert same(found[0][0], found[1][0], 5e-6)
    plain = start(loss=LossSpec("clip_cov", cov_share=0.2, cov_low=98.0, cov_high=99.0), epochs=2, **SMOOTH)
    usual = plain.update(partition(tmp_path / "plain"), 0)
    for _, report in found:
        assert report.measures == {
            "covariance_fraction": pytest.approx(number_chosen(spec, NUM_TOKENS) / NUM_TOKENS)
        }
        assert report.summary["policy_loss"] != usual.summary["policy_loss"]
    assert usual.measures == {"covariance_fraction": 0.0}
    assert start(**SMOOTH).update(partition(tmp_path / "ppo"), 0).measures == {}
