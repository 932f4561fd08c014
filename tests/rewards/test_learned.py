"""A reward model's score as a reward: both forms agree, failures are never zeros, weights are opened once."""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from rewards.learned import Learned
from rewards.loading import load_reward
from rewards.scoring.opened import opened
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from rewards.testing import check_forms
from tests.support.stored_plays import a_play, stored
from workflows.errors import InfraError, UsageError


@dataclass(frozen=True)
class ByLength:
    """Scores a text by its length."""

    opened_by: list[str] = field(default_factory=list)
    is_open: bool = False
    breaks: bool = False

    def __call__(self, texts):
        if self.breaks:
            raise InfraError("the process died")
        return [len(text) / 100 - 5 for text in texts]

    def check_ready(self):
        pass

    @contextmanager
    def opened(self):
        self.opened_by.append("opened")
        yield replace(self, is_open=True)
        self.opened_by.append("closed")


@pytest.fixture
def tables(tmp_path):
    refs = stored(str(tmp_path), [[(a_play(0), 1.0), (a_play(1), 0.0)]])
    return [refs[name].read() for name in ("tasks", "turns", "episodes")]


def test_both_forms_give_the_same_and_a_cut_bounds_it(tables) -> None:
    check_forms(Learned("m", "answer", scorer=ByLength()), *tables)
    scored = score_turns(*tables, listed(Learned("m", most=0.5, scorer=ByLength())))
    numbers = {value for value in scored["reward"].to_pylist() if value is not None}
    assert numbers <= {0.5, -0.5}


def listed(reward) -> WeightedRewards:
    return WeightedRewards((WeightedReward("learned", 1.0, reward),))


def test_a_scorer_that_fails_is_a_reason_and_never_a_zero(tables) -> None:
    scored = score_turns(*tables, listed(Learned("m", scorer=ByLength(breaks=True))))
    assert scored["reward"].null_count == scored.num_rows
    assert any("the process died" in reason for reason in scored["no_reward_reason"].to_pylist())


def test_weights_are_opened_once_for_all_lists_and_closed() -> None:
    reward, other = Learned("m", scorer=ByLength()), load_reward("exact_match", {})
    first = WeightedRewards((WeightedReward("a", 1.0, reward), WeightedReward("b", 1.0, other)))
    second = WeightedRewards((WeightedReward("a", 0.5, reward),))
    with opened([first, second]) as (one, two):
        assert one.items[0].reward is two.items[0].reward
        assert one.items[0].reward.scorer.is_open
        assert one.items[1].reward is other
        assert reward.scorer.opened_by == ["opened"]
    assert reward.scorer.opened_by == ["opened", "closed"]


def test_what_can_not_be_used_is_refused() -> None:
    with pytest.raises(UsageError, match="most"):
        Learned("m", most=0)
    with pytest.raises(UsageError, match="workers"):
        Learned("m", workers=0)
    with pytest.raises(UsageError, match="nothing that computes"):
        Learned("m").check_ready()
    with pytest.raises(UsageError, match="model"):
        load_reward("learned", {})
