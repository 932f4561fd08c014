"""`signal`: two roles that have to invent a language. The smallest game that a team can't win alone.

    speak ─ message ─→ name

The sender sees one of a few symbols and says one word; the receiver hears that word only and names the
symbol. Both earn 1 if it is right (reward `exact_match`), else nothing, so words get their meaning from
training alone. It is the check that a whole pipeline learns: a model of random weights starts at
chance, and credit that goes to the wrong role, a message that is lost on the way, or weights that never
reach the engine all keep it there.

A signalling game in the sense of Lewis (Convention, 1969).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from workflows.errors import WorkflowError
from workflows.graph import Edge, LlmStep, Workflow
from workflows.roles import Role
from workflows.state import State

SYMBOLS: Final = ("red", "green", "blue", "yellow", "black", "white", "brown", "pink")


def build() -> Workflow:
    """The game. Its tasks come from `tasks`: `[data] format = "workflows.teams.signal:tasks"`."""
    return Workflow(
        "signal",
        roles=[
            Role("sender", prompt="see {symbol} say", max_response_tokens=1, fixed_length=True),
            Role("receiver", prompt="hear {message} name", max_response_tokens=1, fixed_length=True),
        ],
        steps=[
            LlmStep("speak", "sender", {"symbol": "task.symbol"}),
            LlmStep("name", "receiver", {"message": message}),
        ],
        edges=[Edge("speak", "name")],
        answer_step="name",
    )


def message(state: State) -> str:
    """What the sender said, as it said it; nothing where it fell silent."""
    return state["speak"].text


def tasks(path: str) -> Iterator[dict[str, Any]]:
    """One task a symbol, in the splits train and dev alike. `path` is how many symbols there are: "4".

    Raises:
        WorkflowError: not a number from 2 to 8.
    """
    if not path.isdecimal() or not 2 <= int(path) <= len(SYMBOLS):
        raise WorkflowError(
            f"signal has 2 to {len(SYMBOLS)} symbols; set [data] path to a number, got {path!r}"
        )
    for split in ("train", "dev"):
        for symbol in SYMBOLS[: int(path)]:
            yield {
                "task_id": f"{symbol}-{split}",
                "split": split,
                "inputs": {"symbol": symbol},
                "gold": {"answers": [symbol]},
            }
