"""The couriers' game in one process: what its two credits are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.learning.courier_team import PLAYS, SAMPLED, learned
from tests.learning.couriers import COURIERS, SYMBOLS

pytestmark = pytest.mark.slow


def test_both_teams_begin_alike_and_the_tokens_of_replays_are_counted(tmp_path: Path) -> None:
    team, (of_team,) = learned("", "team", seed=3, iterations=1)
    messages, (of_messages,) = learned(str(tmp_path / "replays"), "messages", seed=3, iterations=1)
    assert team == messages
    assert of_team == SAMPLED
    # each message is said again; where it is another one, the keeper answers again
    said = len(SYMBOLS) * COURIERS * PLAYS * COURIERS
    assert SAMPLED + said < of_messages <= SAMPLED + 2 * said
