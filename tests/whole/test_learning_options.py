"""Options of learning that remember or choose: runs broken off and resumed, and replayed, are as unbroken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.replays.plan import replay_plan
from pipeline.replays.replayer import replay
from pipeline.replays.settings import overridden
from pipeline.replays.source import Source
from pipeline.store.run import Run
from stages.base import Quiet
from tests.whole.test_blocks import in_turn, of_blocks, same_blocks, stopped_in_the_second
from tests.whole.test_iteration import play

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

Settings = Callable[..., dict[str, Any]]
SMALL: dict[str, Any] = {"data": {"tasks_per_iteration": 2}, "rollout": {"group_size": 2}}
STEERED = {"kl_coefficient": 0.1, "kl_target": 1e-4, "kl_step": 0.5}


def critic_for_each_role(scripted: Settings, name: str) -> dict[str, Any]:
    """One model for three roles, a value head for each, the KL in the reward, short replies."""
    return scripted(
        **SMALL,
        run={"name": name},
        advantage={"use": "gae", "across_turns": True, "bootstrap_cut": True},
        critic={"heads": "role"},
        ppo={**STEERED, "kl_in": "reward"},
        roles={"answerer": {"max_response_tokens": 2}},
    )


def one_after_another(scripted: Settings, name: str) -> dict[str, Any]:
    """Two models in blocks of their own, the KL in the loss, some tokens held back, few whole checkpoints."""
    return in_turn(
        scripted,
        **SMALL,
        run={"name": name},
        ppo={**STEERED, "loss": "kl_cov", "cov_share": 0.05, "epochs": 2},
        credit={"truncated": "mask"},
        checkpoints={"every": 9},
    )


def adapters_on_one_base(scripted: Settings, name: str) -> dict[str, Any]:
    """An adapter for each role, values after replies that were cut off, a steered KL, tokens held back."""
    return scripted(
        **SMALL,
        run={"name": name},
        sharing={"regime": "adapters"},
        advantage={"use": "gae", "bootstrap_cut": True},
        critic={"kind": "head"},
        ppo={**STEERED, "loss": "clip_cov", "cov_share": 0.05, "cov_low": 1e-6},
        roles={"answerer": {"max_response_tokens": 2}},
    )


def scales(run: Run, index: int, model: str) -> tuple[float, float]:
    """What an iteration used, and what it left behind."""
    (frame,) = [b[f"kl_scale/{model}"] for b in of_blocks(run, index) if f"kl_scale/{model}" in b]
    return frame["scale"][0], frame["next_scale"][0]


@pytest.mark.parametrize(
    ("made", "models", "halts"),
    [
        (critic_for_each_role, ["team"], [("advantage", 0), ("update/team", 0)]),
        (one_after_another, ["first", "second"], [("update/first", 0), ("update/second", 1)]),
        (adapters_on_one_base, ["answerer", "reader"], [("score/answerer", 0), ("update/reader", 0)]),
    ],
)
def test_resumed_and_replayed_it_is_as_if_nothing_had_been(
    scripted: Settings, made: Any, models: list[str], halts: list[tuple[str, int]]
) -> None:
    whole, done = play(made(scripted, "whole"), iterations=2)
    for model in models:
        (first, left), (second, _) = (scales(whole, index, model) for index in (0, 1))
        assert (first, second) == (1.0, left)
        assert left != 1.0  # the policy begins at the reference, below the target
        assert done[1].metrics[f"model/{model}/kl_coefficient"] == pytest.approx(0.1 * second)
    if models == ["team"]:
        assert done[0].metrics["model/team/rows_bootstrapped"] > 0
    else:
        # a model whose turns all earned the same has no covariance
        shares = [done[0].metrics[f"model/{model}/covariance_fraction"] for model in models]
        assert 0 < max(shares) <= 0.2
    if "answerer" in models:
        assert done[0].metrics["model/answerer/rows_bootstrapped"] > 0

    same_blocks(stopped_in_the_second(made(scripted, "broken"), halts), whole, [0, 1])

    whole.read_info()
    again = replay_plan(Source(whole), overridden(whole, []), label="again", again=True)
    result = replay(again, [0, 1], Quiet())
    assert result.notes == []
    for index in (0, 1):
        for model in models:
            assert f"kl_scale/{model}" in result.done[index].tables
