"""That a team learns: the whole pipeline, from random weights to a language of its own.

The run is its own control: it starts at chance with the same engine, game and reward, so nothing but the
updates can lift it. A message that gets lost, credit that goes to another turn, a gradient of the wrong
sign or weights that never reach the engine all leave it below 0.75, which a team reaches at most if two
symbols share a word.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.learning.signal import play
from tests.learning.train import Learned

CHANCE = 0.4  # four symbols: a team of one language word gets 0.25, one that also says other words less


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_team_with_one_model_invents_a_language(tmp_path: Path) -> None:
    learned = play("full", "group_relative", str(tmp_path), seed=0)
    assert max(learned.curve[:3]) < CHANCE
    assert learned.reached, learned.line()


@pytest.mark.parametrize(
    ("curve", "reached"),
    [([0.2] * 120, False), ([0.2] * 30 + [0.75] * 90, False), ([1.0] * 4, False), ([0.2] + [0.96] * 5, True)],
)
def test_what_counts_as_learned(curve: list[float], reached: bool) -> None:
    assert Learned("r", 0, tuple(curve), 0.95, 5, 1.0, {}).reached == reached
