"""The workflow reading: who sees what, with one hop and with two."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workflows.errors import UsageError
from workflows.loading import load_workflow
from workflows.teams.reading import NOTHING
from workflows.testing import play_once

ONE = {
    "statements": ["Ana keeps the pens in the attic.", "Ben keeps the cups in the hall."],
    "question": "Q?",
}
SAID = {
    "finder": "<sentence>Ana keeps the pens in the attic.</sentence>",
    "follower": "<sentence>The tin is in the attic.</sentence>",
    "answerer": "<answer>the attic</answer>",
}


def seen(played: Any) -> dict[str, str]:
    """The last message of each step."""
    return {turn["step"]: json.loads(turn["messages"])[-1]["content"] for turn in played.turns}


def test_the_answerer_sees_what_was_copied_and_not_the_text() -> None:
    played = play_once(load_workflow("reading", {}), ONE, SAID)
    assert list(seen(played)) == ["find", "answer"]
    assert "Ben keeps the cups in the hall." in seen(played)["find"]
    assert seen(played)["answer"].startswith("Ana keeps the pens in the attic.\nQuestion: Q?\n")
    assert "Ben" not in seen(played)["answer"]


def test_with_two_hops_the_follower_sees_text_and_first_sentence_and_the_answerer_both_sentences() -> None:
    played = play_once(load_workflow("reading", {"hops": 2}), ONE, SAID)
    assert list(seen(played)) == ["find", "follow", "answer"]
    assert "Known: Ana keeps the pens in the attic.\n" in seen(played)["follow"]
    assert "Ben keeps the cups in the hall." in seen(played)["follow"]
    assert seen(played)["answer"].startswith("Ana keeps the pens in the attic.\nThe tin is in the attic.\n")


def test_a_reply_without_its_tag_is_handed_on_as_it_stands_and_an_empty_one_as_nothing() -> None:
    bare = play_once(load_workflow("reading", {}), ONE, SAID | {"finder": "in the attic"})
    assert seen(bare)["answer"].startswith("in the attic\n")
    assert bare.turns[0]["format_valid"] is False
    empty = play_once(load_workflow("reading", {}), ONE, SAID | {"finder": ""})
    assert seen(empty)["answer"].startswith(f"{NOTHING}\n")


@pytest.mark.parametrize("hops", [0, 3, True, "2"])
def test_another_number_of_hops_is_refused(hops: Any) -> None:
    with pytest.raises(UsageError, match=f"option hops must be 1 or 2, got {hops!r}"):
        load_workflow("reading", {"hops": hops})
