"""The program in a model's reply."""

from __future__ import annotations

import ast
import re
from typing import Final

from workflows.tools.code.names import parse_python

_TAG: Final = re.compile(r"<code>(.*?)(?:</code>|\Z)", re.IGNORECASE | re.DOTALL)
_FENCE: Final = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1`*~*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_LONGEST: Final = 1_000_000  # characters; a longer reply is no program


def extract_code(text: str) -> str | None:
    """The program in `text`, None if there is none. The first rule that applies decides:

    1. The first `<code>` tag, in any case; to the end of the text if it is never closed. A fence that
       encloses all of it is taken off. What is in it need not parse.
    2. The last fenced block that parses as Python and is not empty; a fence that is never closed ends
       with the text. So an illustration in another language is passed over, one in Python is not.
    3. The whole text, if it parses and does anything at all.
    """
    text = text[:_LONGEST]
    if tag := _TAG.search(text):
        inner = tag.group(1).strip("\n")
        fence = _FENCE.match(inner.strip())
        whole = fence is not None and fence.end() == len(inner.strip())
        return _unless_blank(fence.group(2) if fence and whole else inner)
    blocks = [match.group(2) for match in _FENCE.finditer(text)]
    for block in reversed(blocks):
        if _does_something(block):
            return block
    return text if not blocks and _does_something(text) else None


def _unless_blank(code: str) -> str | None:
    return code if code.strip() else None


def _does_something(code: str) -> bool:
    """Parses, and is more than names and literals: prose of one word parses too."""
    tree = parse_python(code)
    return tree is not None and any(not _is_inert(statement) for statement in tree.body)


def _is_inert(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Name | ast.Constant)
