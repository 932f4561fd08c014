"""Chats as data sets hold them: lists of messages, JSON text of such a list, ShareGPT's turns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from workflows.data.fields import NO_PROBLEM, Unusable, at, decoded, given, problem_text

_ROLES: Final = {"human": "user", "gpt": "assistant", "model": "assistant"}
_CHAT_TEXT: Final = re.compile(r"\s*\[\s*\{\s*[\"'](?:role|content|from)[\"']\s*:")


def chat(value: Any) -> list[Mapping[str, Any]] | None:
    """The messages of a chat, None where the value isn't one.

    A chat is a list of `{role, content}` (or ShareGPT's `{from, value}`), an object whose `messages`
    or `conversations` is one, or JSON text of these.
    """
    if isinstance(value, str) and not ('"' in value or "'" in value):
        return None
    value = decoded(value)
    if isinstance(value, Mapping):
        if _is_message(value):
            return [value]
        value = value.get("messages") or value.get("conversations")
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return value
    return None


def last_user_text(value: Any) -> str | None:
    """What the user says last in a chat; None where that is nothing, or the value isn't a chat."""
    texts = [text for role, text in _said(value) if role == "user" and text.strip()]
    return texts[-1] if texts else None


def joined_texts(value: Any) -> str | None:
    """All that is said in a chat, or a text as it is; None where that is nothing."""
    if isinstance(value, str) and chat(value) is None:
        return value if value.strip() else None
    return "\n\n".join(text for _, text in _said(value) if text.strip()) or None


def _said(value: Any) -> Iterator[tuple[str, str]]:
    messages = chat(value) or (value if isinstance(value, list) else [])
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        content = message.get("content", message.get("value"))
        if isinstance(content, list):  # parts: [{type: "text", text: …}, …]
            content = "".join(str(at(part, "text") or "") for part in content)
        if isinstance(content, str):
            role = str(message.get("role", message.get("from")))
            yield _ROLES.get(role, role), content


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ("role" in value or ("from" in value and "value" in value))


def asked(value: Any, what: str = "question") -> str:
    """What a question or a problem asks: a text as it is, or what the user says last in a chat.

    Raises:
        Unusable: it is nothing, no text, or a chat that can't be read.
    """
    if chat(value) is not None:
        text = last_user_text(value)
        if text is None:
            raise Unusable(NO_PROBLEM, f"the {what} is a chat in which the user says nothing: {value!r:.60}")
        return text
    if isinstance(value, str) and _CHAT_TEXT.match(value):
        raise Unusable(NO_PROBLEM, f"the {what} is the text of a chat that can't be decoded: {value!r:.60}")
    return problem_text(value, what)


def first_asked(row: Mapping[str, Any], paths: Iterable[str]) -> Any:
    """The first value at these paths that asks: a text, or a chat with a user's words; None without one."""
    return next(
        (v for v in given(row, paths) if (isinstance(v, str) and v.strip()) or last_user_text(v)), None
    )
