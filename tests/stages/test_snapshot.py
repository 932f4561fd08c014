"""A network's state is put back bit for bit, and gone towards in part; with torch's optimizer alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from stages.training.snapshot import NetworkState


def network(seed: int = 0) -> SimpleNamespace:
    """What a snapshot sees of a network in plain fp32: an engine whose optimizer is torch's own."""
    torch.manual_seed(seed)
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.5, fused=True)
    return SimpleNamespace(layer=layer, engine=SimpleNamespace(optimizer=optimizer))


def step(one: SimpleNamespace, scale: float = 1.0) -> None:
    (scale * one.layer(torch.ones(4, 3)).square().sum()).backward()
    one.engine.optimizer.step()
    one.engine.optimizer.zero_grad()


def numbers(one: SimpleNamespace) -> list[torch.Tensor]:
    state = one.engine.optimizer.state
    moments = [v.clone() for p in one.layer.parameters() for v in state[p].values()]
    return [p.detach().clone() for p in one.layer.parameters()] + moments


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("steps", [0, 2])
def test_what_follows_a_restore_is_what_would_have_followed(steps: int) -> None:
    one, other = network(), network()
    for each in (one, other):
        for _ in range(steps):
            step(each)
    state = NetworkState(one)
    for _ in range(3):
        step(one, 9.0)
    state.keep(0.5)
    state.restore()
    for each in (one, other):
        step(each)
    assert equal(numbers(one), numbers(other))


def test_a_share_lies_on_the_line_and_the_moments_are_those_of_the_whole_step() -> None:
    one = network()
    start = [p.detach().clone() for p in one.layer.parameters()]
    state = NetworkState(one)
    step(one)
    whole = numbers(one)
    state.keep(0.25)
    for old, new, now in zip(start, whole, one.layer.parameters(), strict=False):
        torch.testing.assert_close(now.detach(), old + 0.25 * (new - old))
    assert equal(numbers(one)[2:], whole[2:])
    state.keep(1.0)
    assert equal(numbers(one), whole)
