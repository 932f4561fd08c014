"""What a prompt, a completion and a parsed reply say in a turn's row."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

from workflows import trajectory as t
from workflows.engine import ChatReply, Completion, Sampling
from workflows.errors import WorkflowError
from workflows.parsers import Parsed, read_reply
from workflows.prompts import Prompt
from workflows.roles import Role
from workflows.vocabulary import Status

# The columns of a turn that its reply or result fills, however it came.
OF_THE_REPLY: Final = (
    *("policy_version", "team_version", "response_token_ids", "num_response_tokens", "behaviour_logprobs"),
    *("logprobs_mode", "num_cached_tokens", "response_text", "finish_reason", "parsed", "format_valid"),
    *("started_at", "first_token_at", "tool_result"),
)
_MAX_PROBLEM: Final = 500  # characters of a parser's complaint that a row keeps


def completion_fault(completion: Completion) -> str | None:
    """What makes a completion unfit to be recorded, or None. Such a row could poison an update."""
    ids, logprobs = completion.token_ids, completion.logprobs
    if not isinstance(completion.text, str):
        return f"the engine returned a {type(completion.text).__name__} as text"
    if completion.finish_reason == "abort":
        return "the engine aborted the request"
    if not ids:
        return "the engine returned no tokens"
    if not all(isinstance(i, int) and 0 <= i < 2**31 for i in ids):
        return "the engine returned a token id that is not a number from 0 to 2**31 - 1"
    if len(logprobs) != len(ids):
        return f"the engine returned {len(logprobs)} logprobs for {len(ids)} tokens"
    if not all(map(math.isfinite, logprobs)):
        return "the engine returned a logprob that is not finite"
    return None


def parse_reply(role: Role, text: str, variables: Mapping[str, Any]) -> Parsed:
    """What the role's parser says, which may be a plug-in's.

    Raises:
        WorkflowError: it returns something else than a verdict.
    """
    parsed = read_reply(role.parser, text, variables)
    if not isinstance(parsed, Parsed) or not isinstance(parsed.valid, bool):
        raise WorkflowError(f"the parser of role {role.name!r} returned {parsed!r:.200}, expected a Parsed")
    return parsed


def verdict(
    role: Role, parsed: Parsed, completion: Completion | ChatReply, sampling: Sampling
) -> tuple[Status, str | None]:
    """Status and detail of a turn that got its reply."""
    if completion.finish_reason == "length" and not role.fixed_length:
        return Status.TRUNCATED, f"stopped at the limit of {sampling.max_tokens} tokens"
    return (Status.OK, None) if parsed.valid else (Status.MALFORMED, str(parsed.problem)[:_MAX_PROBLEM])


def prompt_columns(prompt: Prompt, tokenizer_hash: str) -> dict[str, Any]:
    """The columns of a row that its prompt fills. Without ids, its context is what its messages say."""
    messages, ids = as_json(prompt.messages, "messages"), prompt.token_ids
    return {
        "messages": messages,
        "prompt_token_ids": ids,
        "num_prompt_tokens": None if ids is None else len(ids),  # None: told with the reply, if at all
        "context_hash": context_hash(tokenizer_hash, messages, ids),
        "cut": t.to_json(prompt.cut) if prompt.cut else None,
    }


def context_hash(tokenizer_hash: str, messages: str, token_ids: Sequence[int] | None) -> str:
    """Equal where equal prompts were read by equal tokenizers. Without ids, a prompt is its messages."""
    context = hashlib.blake2b(tokenizer_hash.encode(), digest_size=16)
    context.update(messages.encode() if token_ids is None else array("i", token_ids).tobytes())
    return context.hexdigest()


def _completion_columns(completion: Completion, asked_at: float) -> dict[str, Any]:
    def later(seconds: float | None) -> float | None:
        return None if seconds is None else asked_at + seconds

    return {
        "policy_version": completion.policy_version,
        "response_token_ids": list(completion.token_ids),
        "num_response_tokens": len(completion.token_ids),
        "behaviour_logprobs": list(completion.logprobs),
        "logprobs_mode": completion.logprobs_mode,
        "num_cached_tokens": completion.num_cached_tokens,
        "response_text": t.clean_text(completion.text),
        "finish_reason": completion.finish_reason,
        "started_at": later(completion.started_after),
        "first_token_at": later(completion.first_token_after),
    }


def reply_columns(reply: Completion | ChatReply, asked_at: float) -> dict[str, Any]:
    """The columns that its reply fills; `asked_at` in seconds from the episode's start.

    For a model behind an API, ids and logprobs stay null and counts of tokens are the server's own.
    """
    if isinstance(reply, Completion):
        return _completion_columns(reply, asked_at)
    return {
        "policy_version": reply.policy_version,
        "num_prompt_tokens": reply.num_prompt_tokens,
        "num_response_tokens": reply.num_response_tokens,
        "num_cached_tokens": reply.num_cached_tokens,
        "response_text": t.clean_text(reply.text),
        "finish_reason": reply.finish_reason,
        "started_at": None if reply.started_after is None else asked_at + reply.started_after,
    }


def as_json(value: Any, what: str) -> str:
    """A value as JSON text.

    Raises:
        WorkflowError: it is not JSON.
    """
    try:
        return t.clean_text(t.to_json(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise WorkflowError(f"{what} is not JSON: {error}") from None
