"""Which tokens of a reply are its message: what others got of it, by characters, as a span of sampled ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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


def token_span(
    decode: Callable[[Sequence[int]], str | None], ids: Sequence[int], start: int, end: int
) -> tuple[int, int] | None:
    """The shortest run of ids whose text has the characters [start, end) of the text of all of them.

    The ids are those that were sampled; nothing is encoded again. None where the engine can't decode, or the
    text of the ids is shorter.
    """
    if decode(ids[:1]) is None or len(decode(ids) or "") < end or not 0 <= start < end:
        return None

    def fewest(enough: Callable[[int], bool]) -> int:
        """The smallest number of ids for which `enough` holds of the length of their text."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(len(decode(ids[:middle]) or "")) else (middle + 1, high)
        return low

    # the first id is the one with which the text grows beyond `start`
    return fewest(lambda length: length > start) - 1, fewest(lambda length: length >= end)


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
