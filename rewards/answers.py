"""What a turn answered, and the gold answers that it is compared with: read in this one place.

A turn's `parsed` is the value of its reply or, where it breaks its format, what its parser's lenient
rule reads. Which of the two it is, and whether that may count, is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

from rewards.base import PlayedEpisode
from rewards.grading import qa
from workflows.errors import UsageError, did_you_mean
from workflows.trajectory import TRUNCATED

Malformed = Literal["raw", "zero"]
"""What counts of a turn that kept no format or was cut off: what can be read of it, or nothing.

"raw" takes the lenient reading, or the whole text where the role's parser has none. "zero" takes nothing.
"""

Share = Literal["full", "split"]
"""Each receiver gets all of an outcome, or an equal share of it."""

MALFORMED: Final[tuple[Malformed, ...]] = get_args(Malformed)
SHARES: Final[tuple[Share, ...]] = get_args(Share)


def kept_format(turn: Mapping[str, Any]) -> bool:
    """Whether a reply has its role's format and was not cut off. A role without a format breaks none."""
    return turn["format_valid"] is not False and turn["status"] != TRUNCATED


def answer_of(turn: Mapping[str, Any] | None, malformed: Malformed = "raw", key: str | None = None) -> str:
    """The answer of a turn as text; empty where there is none.

    Args:
        turn: as rewards see it, `parsed` decoded; None if the step never ran.
        key: where the answer stands in what was parsed, for a parser that gives a mapping.

    Raises:
        ValueError: what was parsed is not text or a number.
    """
    if turn is None or (malformed == "zero" and not kept_format(turn)):
        return ""
    parsed = turn["parsed"]
    if parsed is None:
        return str(turn["response_text"] or "")
    if key is not None:
        if not isinstance(parsed, Mapping) or key not in parsed:
            raise ValueError(f"step {turn['step']!r} parsed no mapping with {key!r}")
        parsed = parsed[key]
    if isinstance(parsed, bool) or not isinstance(parsed, str | int | float):
        raise ValueError(
            f"step {turn['step']!r} parsed {type(parsed).__name__}, not text or a number; "
            "let its parser return the answer alone, or name its key"
        )
    return str(parsed)


def last_turn(episode: PlayedEpisode, step: str) -> Mapping[str, Any] | None:
    """The last turn of a step, or None if it never ran."""
    return next((turn for turn in reversed(episode.turns) if turn["step"] == step), None)


def golds_of(episode: PlayedEpisode, mode: qa.Mode) -> list[str]:
    """The gold answers of an episode's task that `mode` can match.

    Raises:
        ValueError: there is none, so that no score would mean anything.
    """
    answers = episode.gold.get("answers")
    if not isinstance(answers, list):
        raise ValueError(f"gold has no list of answers; it has {sorted(episode.gold) or 'nothing'}")
    if golds := [str(g) for g in answers if qa.usable(str(g), mode)]:
        return golds
    raise ValueError(f"gold has no answer that mode {mode!r} can match")


def shared(episode: PlayedEpisode, outcome: float, share: Share) -> list[float | None]:
    """`outcome` for each turn that this reward goes to, or with "split" an equal part of it."""
    receivers = episode.trainable()
    values: list[float | None] = [None] * len(episode.turns)
    for position in receivers:
        values[position] = outcome / len(receivers) if share == "split" else outcome
    return values


def refuse_unknown(option: str, value: str, known: Sequence[str]) -> None:
    """Refuse a value that an option does not have.

    Raises:
        UsageError: it is none of `known`.
    """
    if value not in known:
        raise UsageError(
            f"option {option} is {value!r}{did_you_mean(str(value), known)}; use one of {', '.join(known)}"
        )
