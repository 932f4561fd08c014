"""Output parsers: typed values, and no raw text posing as one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.errors import WorkflowError
from workflows.parsers import JsonKey, Parsed, Raw, Tag

free_text = st.text(max_size=60)
no_angle = st.text(alphabet=st.characters(blacklist_characters="<>"), max_size=30)
items = st.lists(st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=20), max_size=6)


@given(free_text)
def test_an_invalid_reply_has_no_value_and_says_why_and_a_valid_one_has_both(text: str) -> None:
    for parser in (Raw(), Tag("answer"), JsonKey("queries"), JsonKey("q", kind="text")):
        parsed = parser.parse(text)
        assert parsed.valid == (parsed.value is not None) == (parsed.problem is None)


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
    assert parsed == Parsed(None, False, parsed.problem)
    assert parsed.problem


def test_a_text_key_wants_one_string() -> None:
    parser = JsonKey("query", kind="text")
    assert parser.parse('so: {"query": " where "}').value == "where"
    assert not parser.parse('{"query": ["where"]}').valid
    assert not parser.parse('{"query": 3}').valid


def test_escaped_lone_surrogates_never_reach_a_file() -> None:
    value = JsonKey("queries").parse('{"queries": ["a\\ud800b"]}').value
    assert value == ["a?b"]
    json.dumps(value, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("text", ["{" * 20_000, '{"a":' * 20_000, '{"queries": ["' * 5_000, "[" * 20_000])
def test_hostile_nesting_is_invalid_not_a_crash(text: str) -> None:
    assert not JsonKey("queries").parse(text).valid


@pytest.mark.parametrize(
    "make",
    [
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
