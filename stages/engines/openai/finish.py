"""Why a reply ended, in the words of many APIs, as one of four kinds.

OpenAI, vLLM, SGLang, llama.cpp, Mistral, DeepSeek, Anthropic, Gemini, Cohere, Bedrock, Zhipu and the
gateways before them write the same few things in their own words and capitals.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

Kind = Literal["stop", "length", "content_filter", "failed"]

_STOPPED: Final = frozenset(
    {"stop", "eos", "eos_token", "stop_sequence", "stop_str", "end_turn", "end", "complete", "completed"}
    | {"finished", "tool_calls", "tool_call", "tool_use", "function_call", "malformed_function_call", "null"}
)
_LENGTH: Final = re.compile(
    r"length|max_(?:\w+_)?tokens?|token_limit|token_budget|context_window|max_context|truncat|incomplete"
)
_FILTERED: Final = re.compile(
    r"filter|safety|recitation|blocklist|prohibited|spii|sensitive|guardrail|refus|moderation|toxic|policy"
)
_FAILED: Final = re.compile(
    r"error|abort|cancel|insufficient|resource|overload|timeout|timed_out|deadline|unavailable|fail|network"
    r"|interrupt|preempt|repetition_killed"
)


def kind_of(reason: Any) -> Kind:
    """The kind of a `finish_reason`, whatever its capitals and signs.

    "failed" is the server's doing, never the model's: a reply to be asked for again. No reason at all, and
    a word that nobody knows, count as an end of the model's own.
    """
    words = re.sub(r"[^a-z0-9]+", "_", str(reason or "stop").lower()).strip("_")
    if words in _STOPPED:
        return "stop"
    if _FILTERED.search(words):
        return "content_filter"
    if _FAILED.search(words) and not _LENGTH.search(words):
        return "failed"
    return "length" if _LENGTH.search(words) else "stop"
