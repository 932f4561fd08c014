"""The wording that every message shares."""

import pytest

from workflows.errors import did_you_mean


@pytest.mark.parametrize("got", ["taem", "nothing like it"])
def test_a_message_goes_on_behind_a_hint_and_without_one(got: str) -> None:
    """A hint stands in brackets: behind it comes whatever came before, and no sentence ends in "?;"."""
    message = f"no model {got!r}{did_you_mean(got, ['team', 'critic'])}; declared: team, critic"
    assert "?;" not in message
    assert ("(did you mean 'team'?)" in message) == (got == "taem")
