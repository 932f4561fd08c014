"""What a turn answered, and the gold answers that it is compared with: read in this one place.

A turn's `parsed` is the value of its reply or, where it breaks its format, what its parser's lenient
rule reads. Which of the two it is, and whether that may count, is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import numpy as np
import polars as pl

from rewards.base import PlayedEpisode
from rewards.grading import qa
from rewards.part import Flags, Numbers, PlayedPart, Rows
from workflows.data.fields import truth_texts
from workflows.errors import UsageError, did_you_mean
from workflows.thinking import after_thinking
from workflows.vocabulary import Status

Malformed = Literal["raw", "zero"]
"""What counts of a turn that kept no format or was cut off: what can be read of it, or nothing.

"raw" takes the lenient reading, or where the role's parser has none the whole text but its thoughts.
"zero" takes nothing.
"""

Share = Literal["full", "split"]
"""Each receiver gets all of an outcome, or an equal share of it."""

MALFORMED: Final[tuple[Malformed, ...]] = get_args(Malformed)
SHARES: Final[tuple[Share, ...]] = get_args(Share)


def kept_format(turn: Mapping[str, Any]) -> bool:
    """Whether a reply has its role's format and was not cut off. A role without a format breaks none."""
    return turn["format_valid"] is not False and turn["status"] != Status.TRUNCATED


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
        return after_thinking(str(turn["response_text"] or ""))
    return _as_text(parsed, turn["step"], key)


def _as_text(parsed: Any, step: str, key: str | None) -> str:
    if key is not None:
        if not isinstance(parsed, Mapping) or key not in parsed:
            raise ValueError(f"step {step!r} parsed no mapping with {key!r}")
        parsed = parsed[key]
    if isinstance(parsed, str):
        return parsed
    if isinstance(parsed, bool):
        return "true" if parsed else "false"  # as JSON writes it
    if not isinstance(parsed, int | float):
        raise ValueError(
            f"step {step!r} parsed {type(parsed).__name__}, not text or a number; "
            "let its parser return the answer alone, or name its key"
        )
    return str(parsed)


def last_turn(episode: PlayedEpisode, step: str) -> Mapping[str, Any] | None:
    """The last turn of a step, or None if it never ran."""
    return next((turn for turn in reversed(episode.turns) if turn["step"] == step), None)


def golds_of(episode: PlayedEpisode, mode: qa.Mode) -> qa.Golds:
    """The gold answers of an episode's task that can be matched. True and false are yes and no, too.

    Raises:
        ValueError: there is none, so that no score would mean anything.
    """
    return _usable(episode.gold, mode)


def _usable(gold: Mapping[str, Any], mode: qa.Mode) -> qa.Golds:
    answers = gold.get("answers")
    if not isinstance(answers, list):
        raise ValueError(f"gold has no list of answers; it has {sorted(gold) or 'nothing'}")
    texts = [t for g in answers for t in (truth_texts(g) if isinstance(g, bool) else [str(g)])]
    return qa.Golds.for_reward(texts, mode)


def shared(episode: PlayedEpisode, outcome: float, share: Share) -> list[float | None]:
    """`outcome` for each turn that this reward goes to, or with "split" an equal part of it."""
    receivers = episode.trainable()
    values: list[float | None] = [None] * len(episode.turns)
    for position in receivers:
        values[position] = outcome / len(receivers) if share == "split" else outcome
    return values


# The functions below do it for all episodes of a part. Where an answer or gold is missing they give NaN or
# None: the one-episode form, which is then asked, says why.


def last_rows(part: PlayedPart, step: str) -> Rows:
    """`last_turn` of each episode as a row of the part; -1 if it never ran."""
    rows = part.rows(pl.col("step") == step)
    last = np.full(part.num_episodes, -1, np.intp)
    last[part.episode[rows]] = rows  # ascending: the last one stays
    return last


def answers_at(
    part: PlayedPart, rows: Rows, malformed: Malformed = "raw", key: str | None = None
) -> list[str | None]:
    """`answer_of` the turns at these rows; None where it raises."""
    answers: list[str | None] = []
    texts = part.turns["response_text"]
    counts = [True] * len(rows) if malformed == "raw" else kept_formats(part)[rows].tolist()
    decoded = part.decoded("parsed")
    for row, counted in zip(rows.tolist(), counts, strict=True):
        parsed = decoded[row]
        if parsed is not None and counted:
            try:
                answers.append(_as_text(parsed, "", key))
            except ValueError:
                answers.append(None)
        else:
            answers.append(after_thinking(texts[row] or "") if counted else "")
    return answers


def grades_of(
    answers: Sequence[str | None],
    tasks: Rows,
    golds: Sequence[qa.Golds | None],
    grade: Callable[[qa.Golds, str], float],
) -> Numbers:
    """What `grade` gives each answer against the golds of its task; NaN without answer or golds.

    Plays of one task often say the same, which is graded once.
    """
    known: dict[tuple[int, str | None], float] = {}
    grades = []
    for said in zip(tasks.tolist(), answers, strict=True):
        if said not in known:
            task, answer = said
            of_task = golds[task]
            known[said] = math.nan if answer is None or of_task is None else grade(of_task, answer)
        grades.append(known[said])
    return np.array(grades, np.float64)


def golds_by_task(part: PlayedPart, mode: qa.Mode) -> list[qa.Golds | None]:
    """`golds_of` each task; None where it raises."""
    golds: list[qa.Golds | None] = []
    for gold in part.tasks.gold:
        try:
            golds.append(_usable(gold, mode))
        except Exception:  # gold of any form; what is wrong with it is said where it is an episode's
            golds.append(None)
    return golds


def last_grades(
    part: PlayedPart,
    step: str,
    key: str | None,
    malformed: Malformed,
    golds: Sequence[qa.Golds | None],
    grade: Callable[[qa.Golds, str], float],
) -> Numbers:
    """What the last answer of each episode is worth; a team that gives none is graded on no text."""
    last = last_rows(part, step)
    ran = np.flatnonzero(last >= 0)
    answers: list[str | None] = [""] * part.num_episodes
    for episode, answer in zip(ran, answers_at(part, last[ran], malformed, key), strict=True):
        answers[episode] = answer
    return grades_of(answers, part.task, golds, grade)


def shared_by_columns(part: PlayedPart, outcomes: Numbers, share: Share) -> pl.Series:
    """`shared` of the outcome of each episode; one that is NaN is NaN for all its turns."""
    values = outcomes[part.episode]
    given = part.receives | np.isnan(values)
    if share == "split":
        receivers = np.bincount(part.episode[part.receives], minlength=part.num_episodes)
        values = values / np.maximum(receivers, 1)[part.episode]
    return part.series(values, given)


def kept_formats(part: PlayedPart) -> Flags:
    """`kept_format` of each turn."""
    kept = pl.col("format_valid").fill_null(True) & pl.col("status").ne_missing(Status.TRUNCATED)
    return part.turns.select(kept).to_series().to_numpy()


def refuse_unknown(option: str, value: str, known: Sequence[str]) -> None:
    """Refuse a value that an option does not have.

    Raises:
        UsageError: it is none of `known`.
    """
    if value not in known:
        raise UsageError(
            f"option {option} is {value!r}{did_you_mean(str(value), known)}; use one of {', '.join(known)}"
        )


def check_number(name: str, value: Any, least: float | None = None) -> None:
    """Refuse what is not a finite number of at least `least`."""
    bad = isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    if bad or (least is not None and value < least):
        raise UsageError(
            f"option {name} is {value!r}; use a number"
            + (f" of at least {least:g}" if least is not None else "")
        )
