"""What an output or a value is compared by."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.tools.code.checkers import JSON_DECODERS, check_output, check_value, same_value
from workflows.tools.code.codec import NotPlain, decode, encode
from workflows.tools.code.codetests import CallCase, CodeTests, StdioCase, Whitespace


def right(expected: str, got: str, given: str = "", **fields: Any) -> bool:
    case = StdioCase(given, expected)
    return check_output(CodeTests("stdio", (case,), **fields), case, got) is None


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("1000000007", "1000000500", False),
        ("123456789012345678", "123456789012345679", False),
        ("1000000", "1000001", False),
        ("7", "07", False),
        ("7", "7.0", False),
        ("7", "+7", False),
        ("0.5", "0.5000001", True),
        ("0.5", "0.50001", False),
        ("1000000.0", "1000000.5", True),
        ("1000000.0", "1000002.0", False),
        ("3.0", "3", True),
        ("1e3", "1000", True),
        ("0.1", "nan", False),
        ("0.1", "0_1", False),
        ("nan", "nan", True),
        ("inf", "Infinity", False),
        ("YES", "yes", True),
        ("Yes\n1 2", "YES\n1 2", True),
        ("YES", "NO", False),
        ("Yesterday", "yesterday", False),
        ("abc", "ABC", False),
        ("1 2\n", "  1   2 ", True),
        ("1 2\n3", "1\n2 3", True),
        ("1 2", "1 2 3", False),
        ("1 2", "1", False),
        ("", "", True),
        ("", "\n \n", True),
        ("", "0", False),
        ("0", "", False),
        ("1\r\n2", "1\n2", True),
    ],
)
def test_words(expected: str, got: str, same: bool):
    assert right(expected, got) is same


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("1 2\n3", "1\n2 3", False),
        ("1 2\n3\n", "1 2  \n3\n\n\n", True),
        ("a\n\nb", "a\nb", False),
        ("0.5\nYES", "0.50000001\nyes", True),
    ],
)
def test_line_structure_is_a_choice_of_the_task(expected: str, got: str, same: bool):
    lines: Whitespace = "lines"
    assert right(expected, got, whitespace=lines) is same
    assert right(expected, got) is True


@settings(max_examples=50)
@given(st.lists(st.integers(), min_size=1, max_size=9), st.randoms())
def test_unordered_words_are_equal_in_any_order_and_only_with_the_same_counts(
    numbers: list[int], random: Any
):
    shuffled = list(numbers)
    random.shuffle(shuffled)
    expected, got = " ".join(map(str, numbers)), "\n".join(map(str, shuffled))
    assert right(expected, got, checker="unordered_tokens")
    assert not right(expected, f"{got} {numbers[0]}", checker="unordered_tokens")
    assert not right(expected, f"{got} x", checker="unordered_tokens")


@pytest.mark.parametrize(
    ("output", "same"),
    [
        ("YES\noc\nNO\n", True),
        ("yes\noc\nno", True),
        ("YES\nco\nNO", False),  # the same string
        ("YES\nox\nNO", False),
        ("NO\nNO", False),
        ("YES\noc\nYES\naaa", False),
        ("YES\noc", False),
        ("YES\noc\nNO\nNO", False),
        ("YES", False),
        ("", False),
    ],
)
def test_rearranged_strings(output: str, same: bool):
    assert right("whatever", output, "2\nco\naaa\n", checker="cf_rearrange_string") is same


@given(st.integers(), st.integers())
def test_integers_are_equal_only_to_themselves(a: int, b: int):
    assert right(str(a), str(b)) is (a == b)
    assert same_value(a, b) is (a == b)


few = settings(max_examples=50)
atoms = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=9)
plain = st.recursive(
    atoms | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.booleans(), inner, max_size=3)
    ),
    max_leaves=6,
)


@few
@given(plain)
def test_plain_values_cross_unchanged(value: Any):
    line = encode(value)
    assert "\n" not in line
    assert line.isascii()
    assert repr(decode(line)) == repr(value)  # repr tells nan, -0.0, True from 1, and types


@few
@given(st.sets(atoms.filter(lambda x: x == x)))
def test_sets_cross_unchanged(value: set[Any]):
    for kind in (set, frozenset):
        back = decode(encode(kind(value)))
        assert type(back) is kind
        assert back == value


def test_odd_values_cross_unchanged():
    for value in ["\ud800", "\x00\n\u2028", 10**5000, -(2**53), 2**53, range(3), bytearray(b"x")]:
        back = decode(encode(value))
        assert type(back) is type(value)
        assert back == value


def test_a_subclass_arrives_as_its_base():
    class Number(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

        def __repr__(self) -> str:
            return "999"

    class Text(str):
        def __str__(self) -> str:
            return "other"

    for given_value, base in [
        (Number(7), 7),
        (Text("x"), "x"),
        ([Number(7)], [7]),
        ({Text("k"): 1}, {"k": 1}),
    ]:
        back = decode(encode(given_value))
        assert type(back) is type(base)
        assert repr(back) == repr(base)


def test_iterators_cross_by_their_items_and_what_is_not_plain_does_not():
    assert list(decode(encode(x * x for x in range(3)))) == [0, 1, 4]
    assert list(decode(encode(map(str, [1])))) == ["1"]
    assert decode(encode({"a": 1}.items())) == [("a", 1)]
    for value in (object(), print, int, [object()], {1: object()}):
        with pytest.raises(NotPlain):
            encode(value)


GARBAGE = (
    *("", "x", "[1", "[1] 2", "{}", "[" * 10**5, "1" * 5000),
    *('{"t":1,"s":[]}', '{"z":[[1]]}', '{"q":1}', '{"i":"g"}', '{"c":[1,2,3]}', '{"r":["a"]}', '{"d":[1]}'),
)


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_refused_and_nothing_else_happens(line: str):
    with pytest.raises(ValueError, match=r"\S"):
        decode(line)


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ([1, 2], (1, 2), True),
        ([[1, "a"]], [(1, "a")], True),
        (3, 3.0, True),
        (3, 3.0000001, False),
        (0.3, 0.1 + 0.2, True),
        (2.0, 2, True),
        (True, 1, True),
        (True, "True", False),
        ("1", 1, False),
        (1, "1", False),
        (None, None, True),
        (None, False, False),
        ({"1": [1]}, {1: (1,)}, True),
        ({"null": 1, "true": 2}, {None: 1, True: 2}, True),
        ([1], {1}, False),
        ([1], range(1, 2), False),
        ([1], 1, False),
        (1, [1], False),
        (float("nan"), float("nan"), True),
        (float("inf"), float("inf"), True),
        (1.5, float("nan"), False),
        ([], [], True),
        ([], None, False),
        ("", None, False),
    ],
)
def test_values(expected: Any, got: Any, same: bool):
    crossed = decode(encode(got), JSON_DECODERS)
    assert (check_value(CallCase((), expected), crossed) is None) is same


def test_a_wrong_value_of_any_size_can_be_told():
    assert not same_value(1.5, 10**400)
    for value in (10**5000, [10**5000], "x" * 10**6):
        assert "expected" in str(check_value(CallCase((), 0), value))


def test_the_only_item_of_a_wrapped_value():
    assert check_value(CallCase((), [3], wrapped=True), 3) is None
    assert check_value(CallCase((), [3], wrapped=True), [3]) is None
    assert check_value(CallCase((), [3], wrapped=True), [[3]]) is not None
    assert check_value(CallCase((), [[3]], wrapped=True), [3]) is None
    assert check_value(CallCase((), [[3]]), [3]) is not None
    assert check_value(CallCase((), [3, 4], wrapped=True), 3) is not None


@few
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    )
)
def test_every_json_value_equals_itself(value: Any):
    assert same_value(value, decode(encode(json.loads(json.dumps(value))), JSON_DECODERS))
