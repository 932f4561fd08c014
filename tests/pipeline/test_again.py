"""The command line that a refusal names to go on."""

import sys

import pytest

from pipeline.settings.program import again, hint


@pytest.mark.parametrize(
    ("typed", "verb", "says"),
    [
        (
            "run train -n 9 -c a.toml --set x.y=1 --new",
            "evaluate",
            "run evaluate -c a.toml --set x.y=1 --redo rollout",
        ),
        (
            "run train --config=a.toml --redo update",
            "evaluate",
            "run evaluate --config=a.toml --redo rollout",
        ),
        ("run evaluate -c a.toml --json", "evaluate", "run evaluate -c a.toml --json --redo rollout"),
        ("run train -n 9 --redo update", None, "run train -n 9 --redo rollout"),
        ("show qa", "evaluate", "run evaluate --redo rollout"),
        ("show qa", None, "run iteration --redo rollout"),
    ],
)
def test_the_command_that_allows_it_has_the_same_settings(
    monkeypatch: pytest.MonkeyPatch, typed: str, verb: str | None, says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeline/__main__.py", *typed.split()])
    assert again("--redo rollout", verb) == hint(says)
