"""What a trust region hands on, and the arithmetic of what it judges by; no network."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stages.training.trust.measure import Message, measured
from stages.training.trust.spec import (
    ACCEPTED,
    PARTLY,
    REJECTED,
    TrustSpec,
    TrustState,
    state_after,
    state_before,
    state_recorded,
)
from workflows.errors import UsageError


def message(divergence: float, gain: float = 0.0, tokens: int = 2) -> Message:
    each = (divergence / tokens,) * tokens
    return Message(divergence, divergence, math.log1p(gain), 1.0, tokens, each)


ROWS = {("a", 0): message(0.2, 0.1), ("a", 1): message(0.4, 0.3), ("b", 0): message(0.9, -0.2, tokens=3)}


@pytest.mark.parametrize(
    ("measure", "mean", "most"),
    [
        ("token", 1.5 / 7, 0.3),
        ("message", 0.5, 0.9),
        ("episode", 0.75, 0.9),
    ],
)
def test_a_divergence_is_of_tokens_messages_or_episodes_by_mean_or_quantile(
    measure: Any, mean: float, most: float
) -> None:
    assert measured(TrustSpec(1.0, measure=measure), ROWS).divergence == pytest.approx(mean)
    assert measured(TrustSpec(1.0, measure=measure, quantile=1.0), ROWS).divergence == pytest.approx(most)


def test_the_order_in_which_ranks_answer_changes_no_bit() -> None:
    backwards = dict(reversed(ROWS.items()))
    assert measured(TrustSpec(1.0), backwards) == measured(TrustSpec(1.0), ROWS)


def test_the_certificate_is_the_surrogate_of_episodes_less_noise_and_bound() -> None:
    spec = TrustSpec(1.0, reject=True, certificate=True, z=2.0, return_range=3.0)
    found = measured(spec, ROWS)
    gains = [0.4, -0.2]  # of episodes: sums over their messages
    assert found.surrogate == pytest.approx(0.1)
    assert found.error == pytest.approx(0.6 / math.sqrt(2) / math.sqrt(2))
    assert found.turns == 2
    assert sum(gains) / 2 == pytest.approx(found.surrogate)
    bound = 2 * math.sqrt(0.75 / 2) * 3.0
    assert found.certificate(spec) == pytest.approx(0.1 - 2 * found.error - bound)


def test_a_rejected_update_halves_the_radius_and_one_accepted_whole_doubles_it_up_to_the_setting() -> None:
    spec, state = TrustSpec(0.1, reject=True), TrustState()
    shrinks = []
    for decision in (REJECTED, REJECTED, PARTLY, ACCEPTED, ACCEPTED, ACCEPTED):
        state = state_after(spec, state, decision, 0.1)
        shrinks.append(state.shrink)
    assert shrinks == [0.5, 0.25, 0.25, 0.5, 1.0, 1.0]
    assert state.scale == 1.0


@pytest.mark.parametrize(("divergence", "scale"), [(0.151, 2.0), (0.149, 1.0), (0.067, 1.0), (0.066, 0.5)])
def test_a_coefficient_follows_where_the_divergence_leaves_the_band(divergence: float, scale: float) -> None:
    assert state_after(TrustSpec(0.1, penalty=1.0), TrustState(), ACCEPTED, divergence).scale == scale


def test_a_coefficient_stays_within_reason() -> None:
    up = down = TrustState()
    for _ in range(40):
        up = state_after(TrustSpec(0.1, penalty=1.0), up, ACCEPTED, 9.0)
        down = state_after(TrustSpec(0.1, penalty=1.0), down, ACCEPTED, 0.0)
    assert (up.scale, down.scale) == (1024.0, 1 / 1024)


def test_numbers_of_candidates_only_grow() -> None:
    assert TrustState().candidate(0) == 1
    assert TrustState(spent=4).candidate(2) == 5  # 3 and 4 were rejected
    assert TrustState(spent=4).candidate(7) == 8  # trained without a trust region in between
    row = {"candidate_version": 5, "steps": 3, "kept_share": 0.5, "shrink": 0.5, "scale": 2.0}
    row |= {"spent_before": 4, "next_shrink": 1.0, "next_scale": 4.0}
    assert state_before([row]) == TrustState(1.0, 4.0, 5)
    assert state_before([]) == TrustState()
    again = state_recorded([row])
    assert (again.shrink, again.scale, again.candidate(2)) == (0.5, 2.0, 5)
    assert again.identity == TrustState(0.5, 2.0, 4).identity


@pytest.mark.parametrize(
    ("problem", "values"),
    [
        ("radius", {"radius": 0.0}),
        ("radius", {"radius": math.inf}),
        ("share", {"radius": 1.0, "share": 0.0}),
        ("episode", {"radius": 1.0, "share": 0.5, "measure": "episode"}),
        ("certificate", {"radius": 1.0, "share": 0.5, "certificate": True}),
    ],
)
def test_what_no_update_can_keep_to_is_refused(problem: str, values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=problem):
        TrustSpec(**values)
