"""Losses of stop decisions: exact gradients, and decisions that were not the policy's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rewards.stopping.traces import Traces, expected, logit_gradient
from stages.training.loss.spec import LossSpec
from stages.training.loss.stopping import StopBatch, stop_loss
from tests.learning.stop_toy import by_hazard, by_values, drawn, play
from workflows.errors import UsageError

HAZARD = LossSpec(stop_loss="hazard")


def batch(counts: list[int], seed: int = 0) -> StopBatch:
    """Traces with so many decisions each, every one with numbers of its own."""
    random = torch.Generator().manual_seed(seed)
    total = sum(counts)

    def numbers(count: int) -> torch.Tensor:
        return torch.randn(count, generator=random)

    return StopBatch(
        stop_logprobs=(numbers(total) - 2).requires_grad_(),
        continue_logprobs=(numbers(total) - 2).requires_grad_(),
        old_logits=numbers(total),
        utility=numbers(total),
        continued=numbers(total),
        weight=torch.ones(total),
        trace=torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)),
        ends=numbers(len(counts)),
        num_traces=len(counts),
    )


def test_the_toy_of_the_specification_comes_out() -> None:
    toy = play(0, traces=30_000, updates=200)
    assert toy.error < 4
    assert toy.value[0] == pytest.approx(0.373, abs=0.006)
    assert toy.value[1] == pytest.approx(0.373, abs=0.012)
    assert all(5.7 < ratio < 7.3 for ratio in toy.ratios)
    assert toy.learned > toy.fixed
    assert toy.learned == pytest.approx(0.383, abs=0.006)


def test_the_loss_and_the_tables_have_one_algebra() -> None:
    luck = np.random.default_rng(3)
    right, seen = drawn(luck, 500)
    rule = np.array([-2.0, 3.0])
    value, gradient = by_hazard(right, seen, rule)
    other, by_backward_pass = by_values(right, seen, rule)
    assert value == pytest.approx(other)
    assert gradient == pytest.approx(by_backward_pass, abs=1e-6)


def test_hazard_of_a_batch_is_the_sum_over_its_traces() -> None:
    whole = batch([3, 1, 4])
    sums = stop_loss(HAZARD, whole)
    sums.loss.backward()
    total, gradient = 0.0, []
    for trace in range(3):
        mine = whole.trace == trace
        fields = ("old_logits", "utility", "continued", "weight")
        one = StopBatch(
            stop_logprobs=whole.stop_logprobs.detach()[mine].requires_grad_(),
            continue_logprobs=whole.continue_logprobs.detach()[mine],
            **{name: getattr(whole, name)[mine] for name in fields},
            trace=torch.zeros(int(mine.sum()), dtype=torch.int64),
            ends=whole.ends[trace : trace + 1],
            num_traces=1,
        )
        part = stop_loss(HAZARD, one)
        part.loss.backward()
        total += float(part.value)
        gradient.append(one.stop_logprobs.grad)
    assert float(sums.value) == pytest.approx(total)
    assert whole.stop_logprobs.grad is not None
    assert torch.allclose(whole.stop_logprobs.grad, torch.cat(gradient), atol=1e-6)  # type: ignore[arg-type]


def with_an_idle_decision(one: StopBatch, place: int) -> StopBatch:
    """The batch with a further decision of the first trace, which was not the policy's."""

    def put(values: torch.Tensor, value: float) -> torch.Tensor:
        new = torch.tensor([value], dtype=values.dtype)
        return torch.cat([values.detach()[:place], new, values.detach()[place:]])

    return StopBatch(
        stop_logprobs=put(one.stop_logprobs, -0.1).requires_grad_(),
        continue_logprobs=put(one.continue_logprobs, -0.2).requires_grad_(),
        old_logits=put(one.old_logits, 0.3),
        utility=put(one.utility, 9.0),
        continued=put(one.continued, -9.0),
        weight=put(one.weight, 0.0),
        trace=put(one.trace, 0),
        ends=one.ends,
        num_traces=one.num_traces,
    )


@pytest.mark.parametrize("name", ["hazard", "all_action"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_decision_that_never_stops_changes_nothing_bit_for_bit(name: str, place: int) -> None:
    spec = LossSpec(stop_loss=name)
    plain = batch([3, 4])
    more = with_an_idle_decision(plain, place)
    one, other = stop_loss(spec, plain), stop_loss(spec, more)
    one.loss.backward()
    other.loss.backward()
    assert float(one.loss.detach()) == float(other.loss.detach())
    for field in ("stop_logprobs", "continue_logprobs"):
        mine, theirs = getattr(plain, field).grad, getattr(more, field).grad
        assert theirs[place] == 0
        assert torch.equal(mine, torch.cat([theirs[:place], theirs[place + 1 :]]))


def test_a_point_with_no_chance_of_a_stop_changes_no_value_bit_for_bit() -> None:
    luck = np.random.default_rng(1)
    chance, utility = luck.random((5, 4)), luck.random((5, 4))
    chance[:, -1] = 1
    more, worth = np.insert(chance, 2, 0.0, axis=1), np.insert(utility, 2, 7.0, axis=1)
    assert (expected(chance, utility) == expected(more, worth)).all()
    assert (logit_gradient(chance, utility) == np.delete(logit_gradient(more, worth), 2, axis=1)).all()
    assert (logit_gradient(more, worth)[:, 2] == 0).all()


def test_all_action_has_the_gradient_of_p_times_the_advantage_at_the_weights_that_played() -> None:
    one = batch([5])
    logits = (one.stop_logprobs - one.continue_logprobs).detach()
    one = replace(one, old_logits=logits)
    stop_loss(LossSpec(stop_loss="all_action"), one).loss.backward()
    p = logits.sigmoid()
    want = -(p * (1 - p)) * (one.utility - one.continued)
    assert torch.allclose(one.stop_logprobs.grad, want, atol=1e-6)  # type: ignore[arg-type]
    assert torch.allclose(one.continue_logprobs.grad, -want, atol=1e-6)  # type: ignore[arg-type]


def test_all_action_holds_a_probability_that_moved_as_far_as_the_clip_lets_it() -> None:
    one = replace(batch([1]), utility=torch.tensor([1.0]), continued=torch.tensor([0.0]))
    far = replace(one, old_logits=(one.stop_logprobs - one.continue_logprobs).detach() - 3)
    stop_loss(LossSpec(stop_loss="all_action"), far).loss.backward()
    assert one.stop_logprobs.grad is not None
    assert float(one.stop_logprobs.grad) == 0


def test_there_is_no_other_stop_loss() -> None:
    with pytest.raises(UsageError, match="did you mean 'hazard'"):
        LossSpec(stop_loss="hasard")


def test_a_trace_takes_what_it_has() -> None:
    ones = np.ones((2, 3))
    traces = Traces(
        np.array([2, 1]), ones, ones, ones * 0.5, ones > 0, ones * np.nan, -np.ones((2, 3), dtype=np.int64)
    )
    assert traces.chance.tolist() == [[0.5, 0.5, 1.0], [0.5, 1.0, 0.0]]
    assert traces.utility(0.5).tolist() == [[0.5, 0.5, 0.5], [0.5, 0.5, 0.0]]
