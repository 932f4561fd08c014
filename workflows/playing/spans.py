"""Which sampled ids of a reply say a part of its text. Nothing is encoded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def token_span(
    decode: Callable[[Sequence[int]], str | None], ids: Sequence[int], start: int, end: int
) -> tuple[int, int] | None:
    """The shortest run [first, end) of ids whose text has the characters [start, end) of the text of all.

    A character that several ids spell has all of them. None where the engine can't decode, or the text of the
    ids is shorter.
    """
    if decode(ids[:1]) is None or not 0 <= start < end:
        return None
    text = decode(ids) or ""
    if len(text) < end:
        return None

    def fewest(enough: Callable[[str], bool]) -> int:
        """The smallest number of ids for whose text `enough` holds."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(decode(ids[:middle]) or "") else (middle + 1, high)
        return low

    # the first id is the one with which the text grows beyond `start`; the last one ends the last character,
    # which reads otherwise as long as ids of it are missing
    return fewest(lambda some: len(some) > start) - 1, fewest(lambda some: some[:end] == text[:end])
