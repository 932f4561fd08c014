"""The role that decides whether a team goes on: `stopper`, of the teams with option `learned_stop`.

It sees what the team has, and chooses between two words by how likely its model finds each. What it chose
decides the course and stands in no prompt. How it learns is `[stopping]` of the settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from workflows.prompts import Trim
from workflows.roles import Role
from workflows.state import Output
from workflows.vocabulary import Act

STOPPER: Final = "stopper"
HALT: Final = "halt"  # the step of the decision
STOP, CONTINUE = "stop", "continue"
_ASKED: Final = f"Is this the final answer?\nReply: {STOP} or {CONTINUE}"


def stopper(prompt: str, trim: Iterable[str | Trim] = ()) -> Role:
    """The role, given what it sees: a template that ends with a line break."""
    return Role(
        STOPPER,
        prompt=prompt + _ASKED,
        trim=tuple(trim),
        max_response_tokens=8,
        options=(STOP, CONTINUE),
        decides=Act.STOP,
    )


def goes_on(output: Output) -> bool:
    """Whether the decision is to continue."""
    return bool(output.value == CONTINUE)
