"""What the player needs from a model: render a chat to ids, ids in, ids and logprobs out.

A model behind an API of messages is another kind, `ChatEngine`: messages in, text out, never trained.
Engines themselves live in `stages.engines`; a workflow sees only these protocols, and so never
imports a tokenizer, vLLM or torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, runtime_checkable

TASK: Final[ContextVar[str]] = ContextVar("TASK", default="")
"""Id of the task that is played here, whose calls begin alike; empty outside of any episode. Engines with
replicas read it (`stages.engines.routing`)."""


class Message(TypedDict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one completion is sampled. `max_tokens` goes to the engine: nothing is decoded and thrown away."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    stop: tuple[str, ...] = ()
    seed: int | None = None
    min_p: float = 0.0  # 0: off

    def as_dict(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            **({"min_p": self.min_p} if self.min_p else {}),  # rows of older versions have no such key
            "stop": list(self.stop),
            "seed": self.seed,
        }


@dataclass(slots=True)
class Completion:
    """What an engine returned for one prompt.

    `token_ids` are the sampled ids, the end token included where the model wrote it; `logprobs`
    are the sampler's log-probabilities of exactly these ids, as many. Times are seconds from the
    arrival of the request at the engine.
    """

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: Literal["stop", "length", "abort"]
    policy_version: int
    logprobs_mode: str
    num_cached_tokens: int | None = None
    started_after: float | None = None
    first_token_after: float | None = None


@dataclass(frozen=True, slots=True)
class Weighed:
    """How likely a model finds each of several given continuations of one prompt.

    `logprobs` has a list for each continuation, a number for each of its tokens: of the model's whole
    distribution at the temperature that was asked for, over all tokens and not over the options alone.
    """

    logprobs: list[list[float]]
    policy_version: int
    logprobs_mode: str
    num_cached_tokens: int | None = None
    started_after: float | None = None

    @property
    def renormalised(self) -> list[float]:
        """The log-probability of each option as a whole, given that it is one of them: they sum to 1."""
        sums = [math.fsum(tokens) for tokens in self.logprobs]
        highest = max(sums)
        total = highest + math.log(math.fsum(math.exp(one - highest) for one in sums))
        return [one - total for one in sums]


class Engine(Protocol):
    """One model as the player sees it.

    Roles that choose among options (`workflows.roles.Role.options`) need `weigh` and `encode`, no others.
    """

    model_id: str
    base_id: str
    policy_version: int  # of the weights that a request sent now would be asked of
    max_model_len: int  # prompt and response together, in tokens
    logprobs_mode: str  # e.g. processed_logprobs (temperature applied) or raw_logprobs
    tokenizer_hash: str
    trainable: bool

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a chat, with the opening of the assistant's turn at the end.

        Special tokens that contents spell are text: they never become control ids.
        """
        ...

    def special_tokens_in(self, messages: Sequence[Message]) -> int:
        """How many special tokens the contents of a chat spell."""
        ...

    def render_after(self, chat: Sequence[Message], message: Message) -> list[int]:
        """The ids that follow an assistant's reply to `chat` when `message` comes next.

        The first id ends the reply's turn, whatever the reply says; then come `message` and the opening of
        the assistant's next turn. Roles that keep a conversation need it, no others.

        Raises:
            UsageError: the chat template shows no end of a reply, or this engine can't say.
        """
        ...

    async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion.

        Raises:
            InfraError: the engine failed; worth a retry.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text as the beginning of a reply; special tokens that it spells are text."""
        ...

    async def weigh(
        self, prompt_token_ids: Sequence[int], options: Sequence[Sequence[int]], temperature: float
    ) -> Weighed:
        """How likely each of two or more continuations is. Nothing is sampled.

        At temperature 0 the numbers are those of temperature 1.

        Raises:
            InfraError: the engine failed; worth a retry.
            UsageError: the request can't be served, and could not be later.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a model behind an API returned for one chat.

    Which ids it read and sampled is not known, and they are never made up from the text. The counts
    of tokens are the server's own, None where it tells none.
    """

    text: str
    finish_reason: Literal["stop", "length", "content_filter"]
    policy_version: int
    num_prompt_tokens: int | None = None
    num_response_tokens: int | None = None
    num_cached_tokens: int | None = None
    started_after: float | None = None  # seconds from the call until the request was sent


@runtime_checkable
class ChatEngine(Protocol):
    """A model that takes messages and gives text. Without ids and logprobs there is nothing to train on."""

    model_id: str
    base_id: str
    policy_version: int
    max_model_len: int  # prompt and response together, in tokens
    trainable: bool  # False

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """How long the chat is as a prompt: exact or a careful estimate, for making prompts fit only.

        The row of a prompt that does not fit, and so is never sent, has this number.
        """
        ...

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> ChatReply:
        """Sample one reply.

        Raises:
            InfraError: the server failed or is busy; worth a retry.
            UsageError: the server refuses the request, and would refuse it again.
        """
        ...


class EngineHooks:
    """What an engine may do beyond answering. A class of engines may inherit from it, or have it or not."""

    __slots__ = ()

    async def reach(self) -> None:
        """Called once in each player, before any episode: see that the model answers and takes its key.

        Raises:
            RunFailed: it does not; by default nothing is asked.
        """

    def decode(self, token_ids: Sequence[int]) -> str | None:
        """The text of sampled ids, to find which of them said what; None: the engine can't say."""
        return None


AnyEngine: TypeAlias = Engine | ChatEngine
