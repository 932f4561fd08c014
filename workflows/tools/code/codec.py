"""Plain values as one line of JSON, so that they can cross between processes that don't trust each other.

Covers None, bool, int of any size, float with nan and the infinities, complex, str with lone
surrogates, bytes, bytearray, list, tuple, dict, set, frozenset, range, and iterators (read to their
end). A subclass travels as its base, so nothing that a program defines, such as an `__eq__` that always
agrees, arrives at the other side. What is not on this list can't cross.

A JSON object with one key says the type: `{"t": [1, 2]}` is a tuple, `{"d": [[key, value]]}` a dict.
This file also runs inside the sandbox, where importing `json` or `typing` would double the time of a
start: it uses the C functions behind `json`, and nothing else.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

MAX_ITEMS = 1_000_000  # of an iterator
_SAFE_INT = 1 << 53
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_DICT: dict[int, int] = {}
_LIST: list[int] = []
_VIEWS = (type(_DICT.values()), type(_DICT.items()))
_KEYS = type(_DICT.keys())
_SOURCES: tuple[Any, ...] = (
    [],
    (),
    {},
    "",
    b"",
    range(0),
    range(1 << 70),
    set(),
    *(_DICT.values(), _DICT.items()),
)
_ITERATORS: tuple[Any, ...] = (
    *(type(iter(source)) for source in _SOURCES),
    *(type(x for x in _LIST), type(reversed(_LIST)), type(reversed(_DICT))),
    *(map, zip, filter, enumerate),
)


class NotPlain(TypeError):
    """A value of a type that can't cross."""


def encode(value: Any) -> str:
    """The value as one line of ASCII.

    Raises:
        NotPlain: a value, at any depth, that is not plain.
        RecursionError: nested deeper than the interpreter goes, or in itself.
    """
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        value = int.__pos__(value)
        return repr(value) if -_SAFE_INT < value < _SAFE_INT else _tag("i", f'"{value:x}"')
    if isinstance(value, str):
        return str(encode_basestring_ascii("".join((value,))))
    if isinstance(value, float):
        text = float.__repr__(value)
        return _NOT_FINITE.get(text, text)
    if isinstance(value, list):
        return _items(list.__iter__(value))
    if isinstance(value, tuple):
        return _tag("t", _items(tuple.__iter__(value)))
    if isinstance(value, dict):
        return _tag("d", _items(list(pair) for pair in dict.items(value)))
    if isinstance(value, set):
        return _tag("s", _items(set.__iter__(value)))
    if isinstance(value, frozenset):
        return _tag("z", _items(frozenset.__iter__(value)))
    return _rarer(value)


def _rarer(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return _tag("b" if isinstance(value, bytes) else "y", f'"{bytes(value).hex()}"')
    if isinstance(value, complex):
        return _tag("c", _items((value.real, value.imag)))
    if type(value) is range:
        return _tag("r", _items((value.start, value.stop, value.step)))
    if isinstance(value, _ITERATORS):
        return _tag("n", _items(value))
    if isinstance(value, _VIEWS):
        return _items(value)
    if isinstance(value, _KEYS):
        return _tag("s", _items(value))
    raise NotPlain(f"a value of type {type(value).__name__!r}")


def _tag(tag: str, text: str) -> str:
    return f'{{"{tag}":{text}}}'


def _items(values: Iterable[Any]) -> str:
    parts = []
    for value in values:
        parts.append(encode(value))
        if len(parts) > MAX_ITEMS:
            raise NotPlain(f"more than {MAX_ITEMS} items")
    return "[" + ",".join(parts) + "]"


def decode(text: str, decoders: Mapping[str, Callable[[Any], Any]] | None = None) -> Any:
    """The value of a line that `encode` wrote. Safe for any text: it makes plain values or raises.

    Args:
        decoders: what to make of each tag; the type that it stands for if None.

    Raises:
        ValueError: not such a line, at any depth.
    """
    try:
        value, end = _scanner(_DECODERS if decoders is None else decoders)(text, 0)
    except (
        StopIteration,
        ArithmeticError,
        LookupError,
        RuntimeError,
        TypeError,
        MemoryError,
        SystemError,
    ) as error:
        raise ValueError(f"not a plain value: {type(error).__name__}") from None
    if text[end:].strip():
        raise ValueError("not a plain value: there is more behind it")
    return value


def _scanner(decoders: Mapping[str, Callable[[Any], Any]]) -> Any:
    def tagged(content: dict[str, Any]) -> Any:
        ((tag, inner),) = content.items()
        return decoders[tag](inner)

    class Context:
        strict = True
        object_hook = staticmethod(tagged)
        object_pairs_hook = None
        parse_float = float
        parse_int = int
        parse_constant = float

    return make_scanner(Context)  # type: ignore[arg-type]


def _hex_int(text: str) -> int:
    return int(text, 16)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "i": _hex_int,
    "t": tuple,
    "d": dict,
    "s": set,
    "z": frozenset,
    "b": bytes.fromhex,
    "y": bytearray.fromhex,
    "c": lambda parts: complex(*parts),
    "r": lambda parts: range(*parts),
    "n": iter,
}
