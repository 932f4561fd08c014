"""Chat completions as they travel: the request's body, and what the answer's says. No network here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from stages.engines.openai.endpoint import Endpoint
from stages.engines.openai.finish import kind_of
from workflows.engine import ChatReply, Message, Sampling


class NotAnAnswer(Exception):
    """The body of an answer does not hold a reply."""


def request_body(endpoint: Endpoint, messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
    """The JSON body of one request.

    Temperature and top_p are always sent, because servers have defaults of their own. `top_k` and `min_p` are
    not a part of OpenAI's API (vLLM knows them), so they are sent only where they are on. Seeds are folded
    to 31 bits: some servers keep 32, and a gateway that reads numbers as floats loses what is beyond 53.
    """
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [dict(message) for message in messages],
        endpoint.max_tokens_key: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.min_p:
        body["min_p"] = sampling.min_p
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = sampling.seed % 2**31
    return {k: v for k, v in body.items() if k not in endpoint.omit} | dict(endpoint.extra)


def read_answer(answer: Any, started_after: float) -> ChatReply:
    """The reply in an answer's JSON.

    A refusal is what the model said. Content that is null, as of a reasoning model that never came to
    its answer, is an empty text, and the role's parser has the say.

    Raises:
        NotAnAnswer: there is no reply in it, or the server says that it failed.
    """
    if not isinstance(answer, dict):
        raise NotAnAnswer(f"the answer is a {type(answer).__name__} where an object is expected")
    if answer.get("error"):  # some gateways report failures with status 200
        raise NotAnAnswer(f"the answer is an error: {words_of(answer)}")
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, dict) and choice.get("error"):  # OpenRouter, when a provider fails midway
        raise NotAnAnswer(f"choices[0] is an error: {words_of(choice)}")
    message = choice.get("message") if isinstance(choice, dict) else None
    if choice is None or not isinstance(message, dict):
        raise NotAnAnswer("the answer has no choices[0].message")
    kind = kind_of(choice.get("finish_reason"))
    if kind == "failed":
        raise NotAnAnswer(f"the server gave the request up: finish_reason {choice['finish_reason']!r}")
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    return ChatReply(
        text=_text(message),
        finish_reason=kind,
        policy_version=0,  # whatever the server has; it is never trained
        num_prompt_tokens=_count(usage.get("prompt_tokens")),
        num_response_tokens=_count(usage.get("completion_tokens")),
        num_cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        started_after=started_after,
    )


def model_names(listing: Any) -> list[str]:
    """The names in the answer of `/models`; none where it is something else."""
    entries = listing.get("data") if isinstance(listing, dict) else None
    entries = entries if isinstance(entries, list) else []
    return [str(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry]


def words_of(answer: Any) -> str:
    """What an error's body says, in one line."""
    words: Any = answer
    if isinstance(answer, dict):
        words = next((answer[key] for key in ("error", "message", "detail") if answer.get(key)), answer)
    if isinstance(words, dict) and words.get("message"):
        words = words["message"]
    return " ".join(str(words).split())


def retry_after(value: str | None, now: float) -> float:
    """Seconds that a `Retry-After` header asks for; 0 where there is none. `now` in epoch seconds."""
    if value is None:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (TypeError, ValueError):
        return 0.0


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        content = message.get("refusal") or ""
    if isinstance(content, list):  # parts, of which text is what a parser can read
        parts = [p.get("text") for p in content if isinstance(p, dict)]
        content = "".join(p for p in parts if isinstance(p, str))
    if not isinstance(content, str):
        raise NotAnAnswer(f"choices[0].message.content is a {type(content).__name__}")
    return content


def _count(value: Any) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if known else None
