"""Whether a newcomer can speak in a place of a team, rung by rung; none of it loads a network.

A rung says what was expected and what was found. What makes the swap impossible is refused with the remedy;
what only differs is said, because it decides how the newcomer is taught.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pipeline.replacement.contexts import Contexts, Reading
from stages.weights.chat import ChatRenderer
from workflows.errors import CadreError, UsageError

Verdict = Literal["ok", "differs", "impossible"]
SAMPLE: Final = 64  # stored contexts that are rendered and encoded


@dataclass(frozen=True, slots=True)
class Rung:
    """One question about a newcomer."""

    name: str
    expected: str
    found: str
    verdict: Verdict = "ok"
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Place:
    """What the place asks for: the model's own section and its roles'."""

    model: str
    folder: str  # of the predecessor's tokenizer
    max_model_len: int
    stops: tuple[str, ...]  # texts that end a reply of one of its roles
    template_options: Mapping[str, Any]
    longest_reply: int  # most tokens of a reply of its roles


def reading_of(place: Place, folder: str) -> Reading:
    """How the newcomer in `folder` reads what its predecessor was asked and said."""
    old = ChatRenderer(place.folder, place.template_options)
    new = ChatRenderer(folder, place.template_options)
    same_words = _words(place.folder) == _words(folder)
    same_prompts = same_words and old.chat_template == new.chat_template
    return Reading(new, not same_prompts, not same_words, _end_of(old))


def ladder(place: Place, folder: str, max_positions: int, contexts: Contexts, reading: Reading) -> list[Rung]:
    """All rungs that need no engine.

    Args:
        place: whose place it is.
        folder: of the newcomer.
        max_positions: the most tokens that the newcomer's architecture knows; 0 where it does not say.
        contexts: stored turns of the predecessor.
        reading: `reading_of` the two.
    """
    sample = contexts.rows[:SAMPLE]
    return [
        _vocabulary(place, folder, reading),
        _replies(place, reading, sample),
        _template(reading, sample),
        _context_length(place, max_positions, reading, sample),
        _stops(place, reading),
    ]


def refuse_impossible(rungs: Sequence[Rung]) -> None:
    """Refuse a newcomer that one of the rungs does not let through.

    Raises:
        UsageError: the first such rung, with the remedy.
    """
    for rung in rungs:
        if rung.verdict == "impossible":
            raise UsageError(
                f"the newcomer can't take this place: {rung.name}: expected {rung.expected}, found "
                f"{rung.found}; {rung.remedy}"
            )


def format_rung(
    valid: int, judged: int, asked: int, before: float | None, least: float, is_taught: bool
) -> Rung:
    """The rung of the newcomer's own replies to stored contexts.

    Args:
        valid: how many of the `judged` parse, of `asked` contexts: a parser that also needs the prompt's
            variables can't judge a stored context.
        before: the share of the predecessor's own replies there that parsed; None where none is known.
        least: the share that must parse.
        is_taught: whether the newcomer will be taught before it speaks.
    """
    expected = "at least 1 reply that parses" if not least else f"{least:.0%} or more of the replies parse"
    if before is not None:
        expected += f" (the predecessor's: {before:.0%})"
    if not judged:
        found = f"none of {asked} can be judged without the variables of its prompt"
        return Rung("format", expected, found, "differs")
    share = valid / judged
    found = f"{valid} of {judged} parse"
    if share < least or (not valid and not is_taught):
        remedy = (
            "add the step distill, which teaches the newcomer the format, take a model that was trained for "
            "chats, or lower replace.min_format"
        )
        return Rung("format", expected, found, "impossible", remedy)
    return Rung("format", expected, found, "ok" if before is None or share >= before else "differs")


def _words(folder: str) -> Any:
    """What a tokenizer makes of text, without how whoever saved it wanted rows padded or cut."""
    content = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
    return {key: value for key, value in content.items() if key not in ("truncation", "padding", "version")}


def _vocabulary(place: Place, folder: str, reading: Reading) -> Rung:
    size = ChatRenderer(place.folder).vocab_size
    expected = f"the vocabulary of {place.model!r} ({size:,} tokens)"
    if not reading.own_words:
        return Rung("tokenizer", expected, "the same")
    found = f"another ({reading.renderer.vocab_size:,} tokens): it is taught by the text of stored turns"
    return Rung("tokenizer", expected, found, "differs")


def _replies(place: Place, reading: Reading, sample: Sequence[Mapping[str, Any]]) -> Rung:
    expected = f"{len(sample)} stored replies of {place.model!r} can be written"
    renderer = reading.renderer
    kept = sum(
        renderer.decode(renderer.encode(row["response_text"])).strip() == row["response_text"].strip()
        for row in sample
    )
    if kept == len(sample):
        return Rung("replies", expected, "all of them")
    if kept:
        return Rung("replies", expected, f"{kept} of them come back as they were", "differs")
    remedy = "its tokenizer has no words for what this place says; take a model whose tokenizer has"
    return Rung("replies", expected, "none of them comes back as it was", "impossible", remedy)


def _template(reading: Reading, sample: Sequence[Mapping[str, Any]]) -> Rung:
    expected = f"a chat template that renders {len(sample)} stored chats"
    if not reading.own_prompts:
        return Rung("chat template", expected, "the same")
    refused = ""
    rendered = 0
    for row in sample:
        try:
            rendered += bool(reading.renderer.render(json.loads(row["messages"])))
        except CadreError as error:
            refused = refused or str(error)
    if rendered < len(sample):
        remedy = "give the newcomer a chat_template.jinja that renders these chats"
        return Rung("chat template", expected, f"{rendered} rendered; {refused}", "impossible", remedy)
    return Rung("chat template", expected, "another, which renders all of them", "differs")


def _context_length(
    place: Place, max_positions: int, reading: Reading, sample: Sequence[dict[str, Any]]
) -> Rung:
    room = place.max_model_len
    expected = f"{room:,} tokens (models.{place.model}.max_model_len)"
    if max_positions and max_positions < room:
        remedy = f"pass --set models.{place.model}.max_model_len={max_positions}"
        return Rung("context length", expected, f"{max_positions:,} positions", "impossible", remedy)
    try:
        longest = max(len(reading.tokens(row)[0]) for row in sample)
    except CadreError:
        return Rung("context length", expected, "no stored chat can be rendered", "differs")
    found = f"{max_positions or room:,} positions; the longest stored prompt has {longest:,} tokens"
    if longest + place.longest_reply > room:
        found += f", and {place.longest_reply:,} more for a reply do not fit"
        return Rung("context length", expected, found, "differs")
    return Rung("context length", expected, found)


def _stops(place: Place, reading: Reading) -> Rung:
    expected = "an end of turn" + (
        f" and the stop texts {', '.join(map(repr, place.stops))}" if place.stops else ""
    )
    if _end_of(reading.renderer) is None:
        remedy = "its replies would run to their token limit; give it a chat template that ends a turn"
        verdict: Verdict = "differs" if reading.end_before is None else "impossible"
        return Rung("stop", expected, "a chat template that shows no end of a turn", verdict, remedy)
    lost = [s for s in place.stops if s not in reading.renderer.decode(reading.renderer.encode(s))]
    if lost:
        remedy = (
            f"its tokenizer can't write {lost[0]!r}; set roles.<name>.sampling.stop to a text that it can"
        )
        return Rung("stop", expected, f"no way to write {', '.join(map(repr, lost))}", "impossible", remedy)
    return Rung("stop", expected, "both" if place.stops else "an end of turn")


def _end_of(renderer: ChatRenderer) -> int | None:
    """The token that ends a turn; None where the chat template shows none."""
    try:
        return renderer.end_of_turn
    except UsageError:
        return None
