"""Templates, roles, and prompts that have to fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.engine import Message
from workflows.errors import UsageError, WorkflowError
from workflows.parsers import Tag
from workflows.prompts import CUT_MARK, PromptTooLong, Trim, fit_prompt, parse_template, render_value
from workflows.roles import Role, RoleSettings

QUESTION = "What is the capital?"


def render_text(text: str, **variables: Any) -> str:
    return parse_template(text).render(variables)


@given(st.text(max_size=40))
def test_values_are_inserted_as_they_are(value: str) -> None:
    assert render_text("<{a}>", a=value) == f"<{value}>"


@given(st.text(max_size=40))
def test_any_text_can_be_written_with_doubled_braces(text: str) -> None:
    template = parse_template(text.replace("{", "{{").replace("}", "}}"))
    assert template.render({}) == text
    assert template.variables == ()


def test_paths_reach_into_mappings_and_lists() -> None:
    documents = [{"title": "Chad"}, {"title": "Peru"}]
    assert render_text("{d.1.title}, {d.0.title}", d=documents) == "Peru, Chad"
    assert parse_template("{b.x} {a} {b.y}").variables == ("b", "a")


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("{a}", {}),
        ("{a.b}", {"a": {}}),
        ("{a.b}", {"a": None}),
        ("{a.2}", {"a": [1, 2]}),
        ("{a.0}", {"a": "text"}),  # letters of a text are not items
        ("{a.x}", {"a": [1]}),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error_not_an_empty_text(
    text: str, variables: dict[str, Any]
) -> None:
    with pytest.raises(WorkflowError, match="leads nowhere"):
        render_text(text, **variables)


@pytest.mark.parametrize("text", ["{", "}", "{a", "{}", "{a b}", "{0}", "{a.}", "{{a}", 'JSON: {"k": 1}'])
def test_lone_braces_are_refused(text: str) -> None:
    with pytest.raises(WorkflowError, match="lone"):
        parse_template(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("x", "x"),
        (3, "3"),
        (True, "true"),
        ([], ""),
        (["a", None, ["b", "c"]], "a\n\nb\nc"),
        ({"text": "t", "content": "c", "title": "n"}, "t"),
        ({"content": "c", "document": "d"}, "d"),
        ({"title": "n", "snippet": "s"}, "n: s"),
        ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
        ([{"text": "t"}, {"x": 1}], 't\n{"x":1}'),
    ],
)
def test_how_values_are_written(value: Any, text: str) -> None:
    assert render_value(value) == text


# --- prompts that have to fit: one id for each character ---


def character_ids(messages: Sequence[Message]) -> list[int]:
    return [ord(c) for message in messages for c in message["content"]]


def role(**changes: Any) -> Role:
    return Role(
        **{
            "name": "reader",
            "prompt": "{first}\n{second}\n{question}\nUse <answer>.",
            "parser": Tag("answer"),
            "trim": ("first", "second"),
            **changes,
        }
    )


lines = st.lists(st.text(alphabet="abc", max_size=12), max_size=8)


@given(lines, lines, st.integers(0, 120))
def test_a_prompt_fits_and_keeps_its_question_and_rules_and_drops_no_more_than_needed(
    first: list[str], second: list[str], room: int
) -> None:
    given_ = {"first": first, "second": second, "question": QUESTION}

    def text_without(dropped: int) -> str:
        a = first[: max(0, len(first) - dropped)]
        b = second[: max(0, len(second) - max(0, dropped - len(first)))]
        return parse_template(role().prompt).render({**given_, "first": a, "second": b})

    fitting = [d for d in range(len(first) + len(second) + 1) if len(text_without(d)) <= room]
    if not fitting:
        with pytest.raises(PromptTooLong, match=f"exceed {room} after trimming"):
            fit_prompt(role().messages, given_, role().trims, character_ids, room)
        return
    prompt = fit_prompt(role().messages, given_, role().trims, character_ids, room)
    text = prompt.messages[-1]["content"]
    assert len(prompt.token_ids) <= room
    assert prompt.token_ids == character_ids(prompt.messages)
    assert text.endswith(f"{QUESTION}\nUse <answer>.")
    assert text == text_without(min(fitting))
    assert sum(cut["items"] for cut in prompt.cut.values()) == min(fitting)
    assert all(cut["items"] for cut in prompt.cut.values())


def test_a_long_list_is_cut_by_bisection() -> None:
    calls = 0

    def counted(messages: Sequence[Message]) -> list[int]:
        nonlocal calls
        calls += 1
        return character_ids(messages)

    many = {"first": ["x" * 9] * 1000, "second": [], "question": QUESTION}
    prompt = fit_prompt(role().messages, many, role().trims, counted, 1000)
    assert prompt.cut["first"]["items"] == 1000 - (1000 - len(f"\n\n{QUESTION}\nUse <answer>.")) // 10
    assert calls <= 2 + math.ceil(math.log2(1000))


def test_only_a_list_can_be_trimmed() -> None:
    variables = {"first": "one text", "second": [], "question": QUESTION}
    with pytest.raises(WorkflowError, match="must be a list"):
        fit_prompt(role().messages, variables, role().trims, character_ids, 10)


@given(lines, st.sampled_from(["last", "first"]), st.integers(0, 60))
def test_a_history_loses_its_oldest_items_and_documents_their_last(
    items: list[str], drop: Any, room: int
) -> None:
    variables = {"first": items, "second": [], "question": QUESTION}
    room += len(f"\n\n{QUESTION}\nUse <answer>.")
    prompt = fit_prompt(role().messages, variables, [Trim("first", drop)], character_ids, room)
    dropped = prompt.cut.get("first", {"items": 0})["items"]
    kept = items[dropped:] if drop == "first" else items[: len(items) - dropped]
    expected = parse_template(role().prompt).render({**variables, "first": kept})
    assert prompt.messages[-1]["content"] == expected


words = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=10).map(" ".join)


@given(words | st.lists(words, max_size=4), st.sampled_from(["last", "first"]), st.integers(0, 100))
def test_words_go_from_one_end_and_leave_a_mark(value: Any, drop: Any, room: int) -> None:
    """What is kept is a run of whole words from the other end, and the mark stands where text is missing."""
    variables = {"first": value, "second": [], "question": QUESTION}
    room += len(f"{CUT_MARK}\n\n{QUESTION}\nUse <answer>.")
    prompt = fit_prompt(role().messages, variables, [Trim("first", drop, "word")], character_ids, room)
    text = prompt.messages[-1]["content"]
    assert len(text) <= room
    assert text.endswith(f"{QUESTION}\nUse <answer>.")
    whole = render_value(value).split()
    kept = [w for w in text.removesuffix(f"\n\n{QUESTION}\nUse <answer>.").split() if w != CUT_MARK]
    assert kept == (whole[len(whole) - len(kept) :] if drop == "first" else whole[: len(kept)])
    assert (len(kept) < len(whole)) <= ("first" in prompt.cut)
    if isinstance(value, str) and prompt.cut:
        assert (text.startswith(CUT_MARK)) if drop == "first" else (CUT_MARK in text)
        assert prompt.cut["first"] == {"words": len(whole) - len(kept)}


def test_words_are_cut_by_bisection_and_no_more_than_the_mark_asks_for() -> None:
    text = " ".join(["word"] * 1000)
    variables = {"first": text, "second": [], "question": QUESTION}
    rest = len(f"\n\n{QUESTION}\nUse <answer>.")
    prompt = fit_prompt(role().messages, variables, [Trim("first", by="word")], character_ids, 500 + rest)
    kept = 1000 - prompt.cut["first"]["words"]
    assert 5 * kept + len(CUT_MARK) <= 500 < 5 * (kept + 1) + len(CUT_MARK)


def test_lone_surrogates_are_gone_before_a_tokenizer_sees_them() -> None:
    variables = {"first": ["a\ud800"], "second": [], "question": QUESTION}
    prompt = fit_prompt(role().messages, variables, (), character_ids, 1000)
    prompt.messages[-1]["content"].encode("utf-8")


# --- roles ---


def test_demonstrations_are_earlier_turns_of_the_chat() -> None:
    shown = {"first": "f", "second": "s", "question": "q"}
    speaker = role(
        system="Be brief.", demonstrations=((shown, "<answer>1</answer>"), ("as is", "<answer>2</answer>"))
    )
    now: Mapping[str, Any] = {"first": [], "second": [], "question": QUESTION}
    chat = speaker.messages(now)
    assert [m["role"] for m in chat] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert chat[1]["content"] == "f\ns\nq\nUse <answer>."
    assert chat[3]["content"] == "as is"
    assert chat[-1] == role().messages(now)[-1]
    assert [m["role"] for m in speaker.messages(now, demonstrations=False)] == ["system", "user"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "the reader"}, "letters"),
        ({"prompt": "{"}, "role 'reader': prompt has a lone"),
        ({"trim": ("frist",)}, "did you mean 'first'"),
        ({"trim": (Trim("frist"),)}, "did you mean 'first'"),
        ({"trim": ("first", Trim("first", "first"))}, "'first' twice"),
        ({"demonstrations": (({"first": "f"}, "<answer>1</answer>"),)}, "leads nowhere"),
        ({"demonstrations": (("q", "no tag"),)}, "demonstration 0 breaks the role's own format: no <answer>"),
        ({"max_response_tokens": 0}, "max_response_tokens"),
    ],
)
def test_a_role_that_can_not_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        role(**changes)


@pytest.mark.parametrize("options", [{"drop": "oldest"}, {"by": "token"}])
def test_a_rule_of_trimming_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(WorkflowError, match=f"got .*{next(iter(options.values()))}"):
        Trim("first", **options)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"max_response_tokens": 0},
        {"max_prompt_tokens": 0},
    ],
)
def test_sampling_out_of_range_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))):
        RoleSettings(**values)
