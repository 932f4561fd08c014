"""What the player needs from a model: render a chat to ids, ids in, ids and logprobs out.

Engines themselves live in `stages.engines`; a workflow sees only this protocol, and so never
imports a tokenizer, vLLM or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict


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

    def as_dict(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
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
    extra: dict[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """One model as the player sees it."""

    model_id: str
    base_id: str
    policy_version: int  # of the weights that a request sent now would be asked of
    max_model_len: int  # prompt and response together, in tokens
    logprobs_mode: str  # e.g. processed_logprobs (temperature applied) or raw_logprobs
    tokenizer_hash: str
    trainable: bool

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a chat, with the opening of the assistant's turn at the end."""
        ...

    async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion.

        Raises:
            InfraError: the engine failed; worth a retry.
        """
        ...
