"""Where a model behind an OpenAI-compatible API is, and how it is asked: `engine_options` as a type.

    [models.judge]
    engine = "openai"
    train = false
    engine_options = { base_url = "http://127.0.0.1:8000/v1", model = "name", api_key_env = "JUDGE_API_KEY" }

The key itself is never a setting. It is read from the environment of the process that sends requests,
where they are sent; it is in no table, log, error or pickle.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final
from urllib.parse import urlsplit

from workflows.errors import UsageError, did_you_mean

PACE: Final = frozenset({"api_key_env", "timeout_seconds", "max_concurrency", "requests_per_minute"})
_OMITTABLE: Final = ("temperature", "top_p", "stop", "seed")
_OURS: Final = (
    *_OMITTABLE,
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "top_k",
    "min_p",
    "n",
    "stream",
)
_CONNECT_SECONDS: Final = 5.0
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRETS: Final = re.compile(r"api.?key|authorization|bearer|secret|password", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one address.

    Args:
        base_url: up to and including `/v1`.
        model: its name there.
        api_key_env: the environment variable that holds the key; None: no key is sent.
        timeout_seconds: for one attempt, from sending to the whole answer.
        max_concurrency: requests under way at once, of all players together.
        requests_per_minute: how fast requests are sent at most, by all players together.
        max_tokens_key: what the server calls the limit of the answer; some want `max_completion_tokens`.
        omit: sampling keys that the server refuses, of temperature, top_p, stop and seed.
        extra: further keys of the request's body, sent as they are.
        tokenizer: a checkpoint whose tokenizer and chat template count the tokens of prompts; None:
            they are estimated, one for every three bytes. Prose and code have fewer, long numbers and
            many scripts have more: for these, name a tokenizer.
    """

    base_url: str
    model: str
    api_key_env: str | None = None
    timeout_seconds: float = 120.0
    max_concurrency: int = 64
    requests_per_minute: float | None = None
    max_tokens_key: str = "max_tokens"
    omit: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None

    def check_answers(self) -> None:
        """Open and close a connection to the server.

        Raises:
            UsageError: nobody takes it within a few seconds.
        """
        parts = urlsplit(self.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise UsageError(
                f"no server answers at {self.base_url} ({error}); start it, or correct "
                "engine_options.base_url"
            ) from None

    def key(self) -> str | None:
        """The key, from the environment of this process.

        Raises:
            UsageError: the variable is not set, or holds what can't be a key.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise UsageError(
                f"the environment variable {self.api_key_env}, which should hold the key of "
                f"{self.base_url}, is not set here; set it where Cadre is started, on a cluster on every node"
            )
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise UsageError(
                f"the environment variable {self.api_key_env} holds white space or letters that no key has; "
                "set it to the key alone"
            )
        return key

    @property
    def described(self) -> str:
        """For people. The key is not in it, only whether there is one."""
        key = "no key"
        if self.api_key_env is not None:
            state = "set" if os.environ.get(self.api_key_env, "").strip() else "not set here"
            key = f"key from {self.api_key_env} ({state})"
        counted = f"counted by {self.tokenizer}" if self.tokenizer else "estimated, 3 bytes each"
        return f"{self.model} at {self.base_url}, {key}, prompt tokens {counted}"


def read_endpoint(options: Mapping[str, Any], who: str) -> Endpoint:
    """`engine_options` of an openai engine; `who` is whose they are.

    Raises:
        UsageError: an option that is missing, unknown, of another kind, or that looks like a secret.
            Its value is never part of the message where it could be one.
    """
    known = [f.name for f in fields(Endpoint)]
    for name in options:
        if _SECRETS.search(name) and name not in known:
            raise UsageError(
                f"{who}: engine_options has {name!r}, but keys are no settings: they would be kept with the "
                'run; put the key into an environment variable and name that: api_key_env = "MY_API_KEY"'
            )
        if name not in known:
            raise UsageError(
                f"{who}: the openai engine has no option {name!r}{did_you_mean(name, known)}; it has: "
                f"{', '.join(known)}"
            )
    for name in ("base_url", "model"):
        if options.get(name) is None:
            raise UsageError(
                f"{who}: the openai engine needs {name}; for example engine_options = "
                '{ base_url = "http://127.0.0.1:8000/v1", model = "name" }'
            )
    for name, expected, fits in _CHECKS:
        if name in options and options[name] is not None and not fits(options[name]):
            raise UsageError(f"{who}: option {name} of the openai engine must be {expected}")
    omit, extra = tuple(options.get("omit", ())), dict(options.get("extra", {}))
    for name in extra:
        if name in _OURS or _SECRETS.search(name):
            raise UsageError(
                f"{who}: extra of the openai engine may not have {name!r}: sampling belongs to the roles, "
                "and keys to the environment"
            )
    given = {**options, "omit": omit, "extra": extra, "base_url": options["base_url"].rstrip("/")}
    return Endpoint(**given)


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _address(value: Any) -> bool:
    if not _text(value):
        return False
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain


_CHECKS: Final = (
    ("base_url", "an address such as http://127.0.0.1:8000/v1, without user, password and '?'", _address),
    ("model", "the name of a model", _text),
    (
        "api_key_env",
        "the name of an environment variable (letters, digits and _), not the key itself",
        lambda v: isinstance(v, str) and _NAME.fullmatch(v) is not None,
    ),
    ("timeout_seconds", "a number above 0", _number),
    ("max_concurrency", "a whole number of at least 1", lambda v: _number(v) and isinstance(v, int)),
    ("requests_per_minute", "a number above 0", _number),
    ("max_tokens_key", "the name of a key, such as max_completion_tokens", _text),
    (
        "omit",
        f"a list of some of {', '.join(_OMITTABLE)}",
        lambda v: isinstance(v, list | tuple) and all(name in _OMITTABLE for name in v),
    ),
    ("extra", "a table", lambda v: isinstance(v, Mapping)),
    ("tokenizer", "a checkpoint: a shipped name, a folder, a URL or a hub id", _text),
)
