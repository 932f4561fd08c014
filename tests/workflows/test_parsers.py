"""Output parsers: typed values, and no raw text posing as one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.errors import WorkflowError
from workflows.parsers import JsonKey, Parsed, Raw, StrictTags, Tag, read_reply, tagged

free_text = st.text(max_size=60)
no_angle = st.text(alphabet=st.characters(blacklist_characters="<>"), max_size=30)
items = st.lists(st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=20), max_size=6)

PARSERS = (
    Raw(),
    Tag("answer"),
    JsonKey("queries"),
    JsonKey("q", kind="text"),
    JsonKey("ids", kind="numbers", may_be_empty=True),
    StrictTags("code"),
    StrictTags(("A", "B"), choices={"A": ("yes", "no")}, lenient="last", missing="empty"),
)


@given(free_text)
def test_an_invalid_reply_has_no_value_and_says_why_and_a_valid_one_has_both(text: str) -> None:
    for parser in PARSERS:
        parsed = parser.parse(text)
        assert parsed.valid == (parsed.value is not None) == (parsed.problem is None)
        assert not (parsed.valid and parsed.lenient is not None)
        assert parsed.best == (parsed.value if parsed.valid else parsed.lenient)
        json.dumps(parsed.best)


@given(no_angle, no_angle, free_text)
def test_a_tag_gives_the_first_content_whatever_stands_around_it(
    before: str, content: str, after: str
) -> None:
    parsed = Tag("answer").parse(f"{before}<answer>{content}</answer>{after}")
    assert parsed.value == (content.strip() or None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<a>x</a>", "x"),
        ("</a><a>x</a>", "x"),  # the first close after the first open
        ("<a>x</a><a>y</a>", "x"),
        ("<a>\n x \n</a>", "x"),
        ("<a>{}</a>", "{}"),
        ("<A>x</A>", None),  # case counts
        ("<a>x", None),
        ("<a> </a><a>y</a>", None),
        ("x", None),
        ("", None),
    ],
)
def test_tag_cases(text: str, value: str | None) -> None:
    assert Tag("a").parse(text).value == value


@given(items, st.integers(1, 4))
def test_a_list_is_cleaned_of_blanks_and_cut(values: list[str], max_items: int) -> None:
    parsed = JsonKey("queries", max_items).parse(json.dumps({"queries": values}))
    wanted = [v.strip() for v in values if v.strip()][:max_items]
    assert parsed.value == (wanted or None)


@given(items.filter(lambda values: any(v.strip() for v in values)), no_angle)
def test_text_around_the_object_and_braces_in_its_strings_change_nothing(
    values: list[str], noise: str
) -> None:
    noise = noise.replace("{", "(")
    parser = JsonKey("queries")
    text = json.dumps({"note": "} {", "queries": values})
    assert parser.parse(f"{noise} {{not json}} {text} {noise}") == parser.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"queries": "one"}',  # a string is no list: its letters are not queries
        '{"queries": ["one", 2]}',
        '{"queries": [["one"]]}',
        '{"queries": {"0": "one"}}',
        '{"queries": null}',
        '{"queries": []}',
        '{"queries": [" ", ""]}',
        '{"other": ["one"]}',
        '["one"]',
        "one, two",
        '{"queries": ["one"',
        '{"queries": ["' + "1" * 5000 + '"' + "}",
        '{"queries": ' + "1" * 5000 + "}",  # more digits than Python converts
    ],
)
def test_what_is_not_a_list_of_strings_is_invalid(text: str) -> None:
    parsed = JsonKey("queries").parse(text)
    assert parsed == Parsed(None, False, parsed.problem, parsed.lenient)
    assert parsed.problem
    assert parsed.lenient == ([] if text in ('{"queries": []}', '{"queries": [" ", ""]}') else None)


def test_a_text_key_wants_one_string() -> None:
    parser = JsonKey("query", kind="text")
    assert parser.parse('so: {"query": " where "}').value == "where"
    assert not parser.parse('{"query": ["where"]}').valid
    assert not parser.parse('{"query": 3}').valid


@pytest.mark.parametrize("text", ["who wrote it", '{"query": 3}', '{"query": " "}', '{"other": "x"}'])
def test_a_text_key_and_a_tag_read_leniently_give_the_whole_reply(text: str) -> None:
    for parser in (JsonKey("query", kind="text"), Tag("query")):
        assert parser.parse(f" {text}\n") == Parsed(None, False, parser.parse(text).problem, text)
        assert parser.parse(" \n").lenient is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"ids": [2, 1]}', [2, 1]),
        ('{"ids": []}', []),
        ('{"ids": [1, 2, 3, 4]}', [1, 2, 3]),
        ('{"ids": ["1"]}', None),
        ('{"ids": [1.0]}', None),
        ('{"ids": [true]}', None),
        ('{"ids": 1}', None),
        ("[1]", None),
    ],
)
def test_numbers_are_whole_and_may_be_none_where_that_is_said(text: str, value: list[int] | None) -> None:
    assert JsonKey("ids", 3, kind="numbers", may_be_empty=True).parse(text).value == value
    assert JsonKey("ids", 3, kind="numbers").parse(text).value == (value or None)


def test_escaped_lone_surrogates_never_reach_a_file() -> None:
    value = JsonKey("queries").parse('{"queries": ["a\\ud800b"]}').value
    assert value == ["a?b"]
    json.dumps(value, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("text", ["{" * 20_000, '{"a":' * 20_000, '{"queries": ["' * 5_000, "[" * 20_000])
def test_hostile_nesting_is_invalid_not_a_crash(text: str) -> None:
    assert not JsonKey("queries").parse(text).valid


@given(no_angle.filter(str.strip), no_angle.filter(str.strip))
def test_strict_tags_want_each_tag_once_and_nothing_outside(one: str, other: str) -> None:
    pair = StrictTags(("A", "B"))
    both = {"A": one.strip(), "B": other.strip()}
    for text in (f"<a>{one}</A> <B>{other}</b>\n", f"<B>{other}</B><A>{one}</A>"):
        assert pair.parse(text) == Parsed(both, True)
        assert StrictTags(("B", "A")).parse(text).value == both
        for broken in (f"x{text}", f"{text}x", f"{text}<a>y</a>", f"{text}</b>", f"<a>{text}", text * 2):
            parsed = pair.parse(broken)
            assert not parsed.valid
            assert parsed.lenient is not None
    assert StrictTags("a").parse(f" <A>{one}</A> ").value == one.strip()


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("<code>x</code>y", "x", "x"),
        ("<code>x</code><CODE>y</CODE>", "x", "y"),
        ("<code> </code>\n<code>y</code>", "y", "y"),
        ("<code></code>", "<code></code>", None),
        ("<code>x", "<code>x", None),
        (" x\n", "x", None),
        ("", None, None),
    ],
)
def test_strict_tags_read_leniently_the_first_or_last_or_else_the_text_or_nothing(
    text: str, first: str | None, last: str | None
) -> None:
    assert StrictTags("code").parse(text).lenient == first
    assert StrictTags("code", lenient="last", missing="empty").parse(text).lenient == last


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<B>x</B>", "no <A>"),
        ("<A>yes<B>x</B>", "<A> is not closed"),
        ("<A>yes</A><A>no</A><B>x</B>", "<A> more than once"),
        ("<A>yes</A><B>x</B></A>", "<A> more than once"),
        ("<A> </A><B>x</B>", "<A> is empty"),
        ("<A>maybe</A><B>x</B>", "<A> is none of yes, no"),
        ("<A>yes</A><B>x</B>!", "text outside the tags"),
        ("<A>yes<B>x</B></A>", "<B> inside <A>"),
        ("<A>yes<B>x</A>y</B>", "<B> inside <A>"),
    ],
)
def test_strict_tags_say_what_is_wrong(text: str, problem: str) -> None:
    parser = StrictTags(("A", "B"), choices={"A": ("yes", "no")})
    assert parser.parse(text).problem == problem


def test_a_choice_has_its_own_spelling_and_what_is_none_reads_as_nothing() -> None:
    parser = StrictTags(("A", "B"), choices={"A": ("yes", "no")}, lenient="last", missing="empty")
    assert parser.parse("<a>YES</a><b>x</b>").value == {"A": "yes", "B": "x"}
    assert parser.parse("<a>maybe</a><b>x</b>").lenient == {"A": "", "B": "x"}
    assert parser.parse("nothing").lenient == {"A": "", "B": ""}


@given(st.lists(st.sampled_from(["<a>", "</a>", "<A>", "x", "</A>", "<b>"]), max_size=12).map("".join))
def test_tagged_is_the_shortest_match_from_the_left(text: str) -> None:
    found = [(span.content, span.start, span.end) for span in tagged("a", text)]
    pattern = re.compile(r"<a>(.*?)</a>", re.IGNORECASE)
    assert found == [(m[1].strip(), m.start(), m.end()) for m in pattern.finditer(text)]


def test_many_open_tags_are_read_in_no_time() -> None:
    text = "<code>" * 100_000
    assert StrictTags("code").parse(text).problem == "<code> is not closed"


def test_a_parser_may_look_at_what_was_asked() -> None:
    class Echo:
        def parse(self, text: str) -> Parsed:
            return Parsed(text, True)

        def parse_for(self, text: str, variables: Mapping[str, Any]) -> Parsed:
            return Parsed(text in variables["words"], True)

    assert read_reply(Echo(), "a", {"words": ["a", "b"]}).value is True
    assert read_reply(Raw(), " a ", {"words": []}).value == "a"


@pytest.mark.parametrize(
    "make",
    [
        lambda: StrictTags(()),
        lambda: StrictTags(("a", "A")),
        lambda: StrictTags("a b"),
        lambda: StrictTags("a", choices={"b": ("x",)}),
        lambda: StrictTags("a", lenient="any"),  # type: ignore[arg-type]
        lambda: StrictTags("a", missing="none"),  # type: ignore[arg-type]
        lambda: Tag(""),
        lambda: Tag("a b"),
        lambda: Tag("<a>"),
        lambda: JsonKey("q", max_items=0),
        lambda: JsonKey("q", kind="number"),  # type: ignore[arg-type]
    ],
)
def test_a_parser_that_can_never_match_is_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WorkflowError):
        make()
