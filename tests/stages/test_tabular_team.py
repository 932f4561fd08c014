"""Teams that can be worked out exactly, through the functions that trainers and stages call.

Units speak in turn over a small shared state: a turn is one token, whose logprobs and advantages are tables.
All expectations are sums over every state and token, so identities hold to the last digits of float64, where
the functions keep the type of their inputs, and to those of float32 through stored tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from stages.advantage import AdvantageStage
from stages.tables.parquet import TableSink
from stages.token_advantages.gae import SUMMARY, Gae, chain, gae
from stages.token_advantages.spec import TokenSpec
from stages.training.loss.batch import TokenBatch
from stages.training.loss.loss import policy_loss, terms_of
from stages.training.loss.spec import LossSpec
from stages.training.trust.measure import (
    deviation_bound,
    exact_divergence,
    surrogate,
    token_divergence,
    with_rest,
)
from tests.stages.test_score_advantage_stages import found_in, here, run, stored
from workflows.trajectory import SCORES, rows_to_table

__all__ = ["here"]
EXACT = 1e-10
ONE_STEP = Gae(turn_gamma=1.0, turn_lam=0.0, across_turns=True)
SURROGATE = LossSpec(name="ppo", clip_low=1.0, clip_high=1e9, dual_clip=None)


@dataclass(frozen=True)
class Team:
    """Policies (states, tokens) by unit, who speaks when, and the world: all float64."""

    policies: tuple[Tensor, ...]
    speakers: tuple[int, ...]
    world: Tensor  # (states, tokens, next states)
    returns: Tensor  # (states,) of the last state
    begin: Tensor  # (states,)

    def but(self, unit: int, policy: Tensor) -> Team:
        return replace(self, policies=tuple(policy if k == unit else p for k, p in enumerate(self.policies)))

    @property
    def contexts(self) -> list[Tensor]:
        """The law of the state before each turn, and after the last."""
        laws = [self.begin]
        for speaker in self.speakers:
            laws.append(torch.einsum("s,sa,sax->x", laws[-1], self.policies[speaker], self.world))
        return laws

    @property
    def values(self) -> list[Tensor]:
        """The expected return of each state before each turn, and after the last."""
        values = [self.returns]
        for speaker in reversed(self.speakers):
            values.append((self.policies[speaker] * (self.world @ values[-1])).sum(-1))
        return values[::-1]

    @property
    def advantages(self) -> list[Tensor]:
        """(states, tokens) of each turn."""
        values = self.values
        return [self.world @ values[t + 1] - values[t][:, None] for t in range(len(self.speakers))]

    @property
    def gain(self) -> float:
        """The expected return."""
        return float(self.begin @ self.values[0])

    def turns_of(self, unit: int) -> list[int]:
        return [turn for turn, speaker in enumerate(self.speakers) if speaker == unit]


def team(units: int, rounds: int = 1, seed: int = 0, states: int = 4, tokens: int = 3) -> Team:
    draw = np.random.default_rng([seed, units, rounds])
    policies = tuple(
        torch.from_numpy(draw.dirichlet(np.full(tokens, 0.7) + 0.3, states)) for _ in range(units)
    )
    return Team(
        policies,
        tuple(range(units)) * rounds,
        torch.from_numpy(draw.dirichlet(np.full(states, 0.4), (states, tokens))),
        torch.from_numpy(draw.random(states)),
        torch.from_numpy(draw.dirichlet(np.ones(states))),
    )


def updated(policy: Tensor, seed: int, size: float = 0.4) -> Tensor:
    """Another policy, some way from this one."""
    noise = torch.from_numpy(np.random.default_rng(seed).normal(size=tuple(policy.shape)))
    return (policy.log() + size * noise).softmax(-1)


def every_unit_updated(one: Team, order: Sequence[int]) -> list[Team]:
    """The team before any update and after each, in this order of the units."""
    teams = [one]
    for unit in order:
        teams.append(teams[-1].but(unit, updated(one.policies[unit], 100 + unit)))
    return teams


def loss_of(unit: int, old: Team, new: Team, contexts: list[Tensor], advantages: list[Tensor]) -> float:
    """The product's policy loss of a unit over all its turns, states and tokens, weighted by their
    probabilities under the old policy in these contexts; one response for each."""
    before, after = old.policies[unit], new.policies[unit]
    turns = old.turns_of(unit)
    weights = torch.cat([(contexts[t][:, None] * before).flatten() for t in turns])
    count = len(weights)
    row = torch.arange(count)
    sums = policy_loss(
        SURROGATE,
        TokenBatch(
            new_logprobs=after.log().flatten().repeat(len(turns)),
            old_logprobs=before.log().flatten().repeat(len(turns)),
            advantages=torch.cat([advantages[t].flatten() for t in turns]),
            mask=torch.ones(count, dtype=torch.bool),
            row=row,
            num_rows=count,
            weights=weights,
            terms=terms_of(SURROGATE, [None] * count, row),
        ),
    )
    assert sums.loss.dtype == torch.float64
    return float(sums.loss)


def surrogate_of(unit: int, old: Team, new: Team, contexts: list[Tensor], advantages: list[Tensor]) -> float:
    """What the certificate calls the surrogate, with every state and token in place of a sample."""
    ratio = (new.policies[unit].log() - old.policies[unit].log()).flatten()
    gained = sum(
        (contexts[t][:, None] * old.policies[unit]).flatten() @ surrogate(ratio, advantages[t].flatten())
        for t in old.turns_of(unit)
    )
    assert isinstance(gained, Tensor)
    assert gained.dtype == torch.float64
    return float(gained)


def divergence_of(unit: int, old: Team, new: Team, contexts: list[Tensor]) -> float:
    """KL(old ‖ new) of a unit, summed over its turns, in these contexts."""
    of_states = exact_divergence(old.policies[unit].log(), new.policies[unit].log(), "start_to_new")
    return float(sum(contexts[t] @ of_states for t in old.turns_of(unit)))


def paths(one: Team) -> list[tuple[list[int], list[int], float]]:
    """Every course: its states, its tokens and its probability."""
    states, tokens = one.policies[0].shape
    steps = len(one.speakers)
    courses = []
    for where in product(range(states), repeat=steps + 1):
        for said in product(range(tokens), repeat=steps):
            probability = float(one.begin[where[0]])
            for t, speaker in enumerate(one.speakers):
                move = one.policies[speaker][where[t], said[t]] * one.world[where[t], said[t], where[t + 1]]
                probability *= float(move)
            courses.append((list(where), list(said), probability))
    return courses


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("units", [2, 3, 5, 8])
def test_the_loss_in_the_contexts_of_after_is_the_gain(units: int, rounds: int) -> None:
    """The performance-difference identity, of each unit in turn: the loss falls by what the return gains."""
    teams = every_unit_updated(team(units, rounds), range(units))
    gains = []
    for unit, (old, new) in enumerate(pairwise(teams)):
        fell = -loss_of(unit, old, new, new.contexts, old.advantages)
        assert fell == pytest.approx(new.gain - old.gain, abs=EXACT)
        assert surrogate_of(unit, old, new, new.contexts, old.advantages) == pytest.approx(fell, abs=EXACT)
        gains.append(fell)
    # and they add up: the units' gains are the team's
    assert sum(gains) == pytest.approx(teams[-1].gain - teams[0].gain, abs=EXACT)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_a_unit_that_speaks_once_gains_what_its_own_contexts_promise(order: tuple[int, ...]) -> None:
    """Zero error for one turn a unit: on plays of before its update, with the others as they are by then."""
    teams = every_unit_updated(team(4), order)
    stale_errors = []
    for unit, old, new in zip(order, teams, teams[1:], strict=False):
        promised = surrogate_of(unit, old, new, old.contexts, old.advantages)
        assert promised == pytest.approx(new.gain - old.gain, abs=EXACT)
        assert deviation_bound(divergence_of(unit, old, new, old.contexts), 1, 1.0) == 0
        first = teams[0]
        stale = surrogate_of(unit, old, new, first.contexts, first.advantages)
        stale_errors.append(abs(stale - (new.gain - old.gain)))
    assert stale_errors[0] < EXACT  # the first has stale plays of nobody
    assert max(stale_errors) > 1e-4  # later ones promise on plays of a team that is gone


@pytest.mark.parametrize("rounds", [2, 4])
def test_a_unit_that_speaks_again_is_off_by_no_more_than_the_bound(rounds: int) -> None:
    errors = []
    for seed in range(20):
        one = team(3, rounds, seed)
        teams = every_unit_updated(one, range(3))
        reach = float(one.returns.max() - one.returns.min())
        for unit, (old, new) in enumerate(pairwise(teams)):
            error = abs(surrogate_of(unit, old, new, old.contexts, old.advantages) - (new.gain - old.gain))
            divergence = divergence_of(unit, old, new, old.contexts)
            assert error <= deviation_bound(divergence, rounds, reach) + EXACT
            errors.append(error)
    assert max(errors) > 1e-4  # the bound is not of nothing


def test_divergences_of_units_add_up_to_that_of_courses() -> None:
    """KL of the laws of whole courses: of one update it is the unit's own, and of several their sum on the
    plays of before all of them, for what the world does cancels."""
    one = team(3, 1, states=3, tokens=2)
    teams = every_unit_updated(one, range(3))

    def between(old: Team, new: Team) -> float:
        pairs = zip(paths(old), paths(new), strict=True)
        return sum(p * np.log(p / q) for (_, _, p), (_, _, q) in pairs if p > 0)

    for unit, (old, new) in enumerate(pairwise(teams)):
        assert between(old, new) == pytest.approx(divergence_of(unit, old, new, old.contexts), abs=EXACT)
    together = sum(divergence_of(unit, one, teams[-1], one.contexts) for unit in range(3))
    assert between(one, teams[-1]) == pytest.approx(together, abs=EXACT)


@pytest.mark.parametrize("direction", ["start_to_new", "new_to_start"])
def test_estimates_from_samples_are_right_on_average(direction: Any) -> None:
    old = team(1).policies[0]
    new = updated(old, 7)
    exact = exact_divergence(old.log(), new.log(), direction)
    assert exact.dtype == torch.float64
    for estimator in ("k1", "k3"):
        of_tokens = token_divergence(new.log() - old.log(), estimator, direction)
        assert torch.allclose((old * of_tokens).sum(-1), exact, atol=EXACT, rtol=0)
        assert token_divergence((new.log() - old.log()).float(), estimator, direction).dtype == torch.float32
    assert bool((token_divergence(new.log() - old.log(), "k3", direction) >= 0).all())


def test_what_was_not_looked_at_counts_as_one_token_and_never_too_much() -> None:
    old = team(1, tokens=6).policies[0]
    new = updated(old, 7)
    exact = exact_divergence(old.log(), new.log(), "start_to_new")
    ids = old.topk(2).indices
    some = exact_divergence(
        with_rest(old.log().gather(-1, ids)), with_rest(new.log().gather(-1, ids)), "start_to_new"
    )
    assert bool((some >= 0).all())
    assert bool((some <= exact + EXACT).all())
    every = exact_divergence(with_rest(old.log()), with_rest(new.log()), "start_to_new")
    assert torch.allclose(every, exact, atol=1e-9, rtol=0)


def test_in_reverse_order_cached_plays_have_the_contexts_of_now() -> None:
    """Units that speak later do not move what an earlier one sees; forward they do."""
    first = team(5)

    def moved(order: Sequence[int]) -> list[float]:
        teams = every_unit_updated(first, order)
        apart = []
        for unit, old in zip(order, teams, strict=False):
            (turn,) = old.turns_of(unit)
            apart.append(0.5 * float((old.contexts[turn] - first.contexts[turn]).abs().sum()))
        return apart

    assert moved(range(4, -1, -1)) == [0.0] * 5
    forward = moved(range(5))
    assert forward[0] == 0
    assert min(forward[1:]) > 1e-3
    # and Pinsker's shift budget is above each, with the divergences of those that were updated before
    teams = every_unit_updated(first, range(5))
    budget = 0.0
    for unit in range(5):
        assert forward[unit] <= (budget / 2) ** 0.5 + EXACT
        budget += divergence_of(unit, first, teams[-1], first.contexts)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_gae_with_exact_values_gives_the_advantages_and_the_identity(lam: float) -> None:
    old = team(2, 1, states=3, tokens=2)
    new = every_unit_updated(old, range(2))[-1]
    method = replace(ONE_STEP, turn_lam=lam)
    values, courses = old.values, paths(old)
    found = advantages_of(method, old, courses)  # (courses, turns)
    for turn in range(2):
        exact, sums, mass = old.advantages[turn], torch.zeros(3, 2), torch.zeros(3, 2)
        sums, mass = sums.double(), mass.double()
        for (where, said, probability), row in zip(courses, found, strict=True):
            sums[where[turn], said[turn]] += probability * row[turn]
            mass[where[turn], said[turn]] += probability
        assert torch.allclose(sums / mass, exact, atol=EXACT, rtol=0)
    if lam == 0:  # one step at a time: over courses of the new team they add up to what it gains
        gained = sum(p * float(row.sum()) for (_, _, p), row in zip(paths(new), found, strict=True))
        assert gained == pytest.approx(new.gain - old.gain, abs=EXACT)
    assert values[0].dtype == torch.float64


def advantages_of(method: Gae, one: Team, courses: list[tuple[list[int], list[int], float]]) -> np.ndarray:
    """By `chain` and `gae`, as the stage calls them, in float64: (courses, turns)."""
    turns, count = len(one.speakers), len(courses)
    values = np.array([[float(one.values[t][w[t]]) for t in range(turns)] for w, _, _ in courses])
    rewards = np.zeros((count, turns))
    rewards[:, -1] = [float(one.returns[where[-1]]) for where, _, _ in courses]
    own = pl.DataFrame(
        {
            "episode_id": np.repeat([f"{n:06d}" for n in range(count)], turns),
            "turn_index": np.tile(np.arange(turns, dtype=np.int32), count),
            "first_value": values.ravel(),
            "own": (rewards - values).ravel(),
            "decay": np.ones(count * turns),
            "bootstrap": np.zeros(count * turns),
        },
        schema=SUMMARY,
    )
    carry = chain(method, own)
    return gae(
        method,
        rewards.ravel(),
        values.ravel(),
        np.ones(count * turns, dtype=bool),
        np.ones(count * turns, dtype=np.int64),
        carry["next_value"].to_numpy(),
        carry["next_advantage"].to_numpy(),
    ).reshape(count, turns)


def test_the_identity_holds_through_the_tables(tmp_path: Path, here: None) -> None:
    """Every course as an episode of two models: partition and scores in, token advantages out, in float32."""
    old = team(2, 1, states=3, tokens=2)
    courses = paths(old)
    rows = [
        {
            "episode_id": f"00000/t/{number}",
            "turn_index": turn,
            "model_id": "ab"[turn],
            "role": "xy"[turn],
            "response_token_ids": [said[turn]],
            "behaviour_logprobs": [float(old.policies[turn][where[turn], said[turn]].log())],
            "advantage": 0.0,
            "reward": float(old.returns[where[-1]]) if turn == 1 else 0.0,
            "values": [float(old.values[turn][where[turn]])],
            "scored_version": 0,
        }
        for number, (where, said, _) in enumerate(courses)
        for turn in range(2)
    ]
    tables = stored(tmp_path, [_only(row, "values", "scored_version", without=True) for row in rows])
    names = ("episode_id", "turn_index", "values", "scored_version")
    for model in "ab":
        sink = TableSink(f"scores/{model}", f"{tmp_path}/scores/{model}", SCORES)
        scores = [_only(row, *names) for row in rows if row["model_id"] == model]
        parts = [sink.write_part(k, rows_to_table(scores[k::2], SCORES)) for k in range(2)]
        tables[sink.name] = sink.ref(parts)
    stage = AdvantageStage(tuple(TokenSpec(m, use="gae", gae=ONE_STEP) for m in "ab"))
    _, tables = run(stage, tables, tmp_path)
    found = found_in(tables)
    for order in ((0, 1), (1, 0)):
        teams = every_unit_updated(old, order)
        new = teams[-1]
        gained = sum(
            probability * sum(found[f"00000/t/{number}", turn]["advantages"][0] for turn in range(2))
            for number, (_, _, probability) in enumerate(paths(new))
        )
        assert gained == pytest.approx(new.gain - old.gain, abs=1e-6)


def _only(row: dict[str, Any], *names: str, without: bool = False) -> dict[str, Any]:
    return {name: value for name, value in row.items() if (name in names) != without}
