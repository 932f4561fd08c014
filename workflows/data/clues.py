"""`clues`: short questions for a model that knows nothing, on which workflows can be compared.

A question is two words such as "warm ki". The second is a made-up word that stands for a colour, which is
the answer; the first means nothing. What a word stands for can be learned from rewards alone. The questions
of train, dev and test are different ones, and each has every made-up word, so a team that has learned the
words answers those that it has never seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from workflows.errors import WorkflowError

COLOURS: Final = ("red", "green", "blue", "yellow", "black", "white", "brown", "pink")
CLUES: Final = ("ki", "pa", "me", "do", "ti", "lu", "no", "ba")  # by the colour that each stands for
KINDS: Final = ("big", "small", "old", "new", "warm", "cold", "soft", "hard")
SPLITS: Final = ("train", "train", "train", "train", "dev", "dev", "test", "test")


def tasks(path: str) -> Iterator[dict[str, Any]]:
    """The questions about some of the clues. `path` is how many clues there are: "8".

    Raises:
        WorkflowError: not a number from 2 to 8.
    """
    if not path.isdecimal() or not 2 <= int(path) <= len(CLUES):
        raise WorkflowError(
            f"clues has 2 to {len(CLUES)} made-up words; set [data] path to a number, got {path!r}"
        )
    for place, (clue, colour) in enumerate(list(zip(CLUES, COLOURS, strict=True))[: int(path)]):
        for number, kind in enumerate(KINDS):
            yield {
                "task_id": f"{kind}-{clue}",
                "split": SPLITS[(number + place) % len(SPLITS)],
                "inputs": {"question": f"{kind} {clue}"},
                "gold": {"answers": [colour]},
            }
