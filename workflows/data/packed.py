"""Tests that LiveCodeBench packs into a text: base64 of zlib of a pickled JSON text."""

from __future__ import annotations

import base64
import io
import pickle
import re
import zlib
from typing import Any, Final, NoReturn

MAX_UNPACKED_BYTES: Final = 256 * 1024 * 1024
_BASE64: Final = re.compile(r"eJ[0-9A-Za-z+/]{20,}={0,2}")  # what zlib's first bytes become
_BEGINNING: Final = 4096


def unpacked(value: Any) -> Any:
    """The JSON text inside a packed one; any other value as it is.

    The pickle may hold plain values only: nothing that it names is looked up or called.
    """
    if not isinstance(value, str) or not _BASE64.match(value[:_BEGINNING]):
        return value
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(value, validate=True), MAX_UNPACKED_BYTES)
        if stream.unconsumed_tail:
            return value
        try:
            inner = _Plain(io.BytesIO(data)).load()
        except pickle.UnpicklingError:
            inner = data.decode("utf-8")  # packed without pickle
    except (ValueError, zlib.error, EOFError, IndexError, KeyError, TypeError, AttributeError):
        return value
    return inner if isinstance(inner, str) else value


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is refused: only a text is expected")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("a persistent id is refused: only a text is expected")
