"""Which tokens of a reply are its message: what others got of it, by characters, as a span of sampled ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workflows.playing.spans import token_span
from workflows.thinking import after_thinking

Decode = Callable[[str, Sequence[int]], str | None]
"""The text of ids of a model; None where its engine can't say."""


def message_span(
    reply: Mapping[str, Any], acts: Sequence[Mapping[str, Any]], decode: Decode
) -> tuple[int, int] | None:
    """The tokens [first, end) of a reply that others got; None: all of it, or it can't be told.

    Args:
        reply: a row of `turns`.
        acts: rows of the acts that the reply decided. Those that name the `characters` that say them are
            the message, from the first to the last; else it is what stands outside of the reply's thoughts.
    """
    text, ids = reply["response_text"] or "", reply["response_token_ids"]
    characters = _of_acts(acts) or _outside_thoughts(text)
    if characters is None or not ids:
        return None
    return token_span(lambda some: decode(reply["model_id"], some), ids, *characters)


def sent_span(
    turn: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], decode: Decode
) -> tuple[int, int] | None:
    """The tokens of a reply, or of the reply that decided an act, that say what others got of the turn.

    Args:
        turn: the reply, or the act.
        rows: all turns of the episode.
    """
    if turn["act"] is None:
        return message_span(turn, [row for row in rows if row["decided_by"] == turn["turn_index"]], decode)
    detail = json.loads(turn["act_detail"] or "{}")
    if "tokens" in detail:
        first, end = detail["tokens"]
        return first, end
    reply = next((row for row in rows if row["turn_index"] == turn["decided_by"]), None)
    return None if reply is None else message_span(reply, [turn], decode)


def _of_acts(acts: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
    spans = [json.loads(act["act_detail"] or "{}").get("characters") for act in acts]
    named = [span for span in spans if span]
    return (min(s[0] for s in named), max(s[1] for s in named)) if named else None


def _outside_thoughts(text: str) -> tuple[int, int] | None:
    """Where what a reply says after its thoughts stands; None where it has none, or nothing after them."""
    said = after_thinking(text)
    if not said or said == text:
        return None
    start = text.rfind(said)
    return None if start < 0 else (start, start + len(said))
