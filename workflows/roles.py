"""Roles: who speaks, with which prompt, and how the reply is read.

A role is logical: which model speaks for it is the model map's business (`workflows.models`), how it
samples is the settings' (`RoleSettings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from workflows.engine import Message
from workflows.errors import UsageError, WorkflowError, did_you_mean
from workflows.parsers import Parser, Raw, read_reply
from workflows.prompts import Template, Trim, parse_template
from workflows.vocabulary import Act


@dataclass(frozen=True)
class Role:
    """One speaker of a workflow.

    Args:
        name: as in `[roles.<name>]` of the settings.
        prompt: template of the user's message (see `workflows.prompts`).
        parser: reads the reply.
        system: text of a system message; None leaves it to the model's chat template.
        demonstrations: pairs of (variables of the prompt, or the user's text as it is) and the
            assistant's text; shown as earlier turns of the chat. A small model follows an output
            format far more often after one of them.
        trim: variables that may be cut, in this order, when the prompt is too long. A name is short for
            `Trim(name)`: whole items of a list go, the last first. Nothing else is ever cut.
        max_response_tokens: default limit of one reply.
        fixed_length: a reply that has `max_response_tokens` is whole, not cut off: for roles whose every
            reply is that long, such as one word.
        conversation: the role keeps a conversation: its earlier turns of the episode stand in its prompt as
            chat messages, token for token. Each branch of an episode has one of its own. See
            `workflows.playing.conversation`.
        follow_up: template of the user's message from a conversation's second turn on; None: `prompt`.
        when_full: what happens when a conversation has no room for another turn. "refuse": the turn is not
            sent, and the episode ends with prompt_too_long. "drop_oldest": the oldest replies go, each with
            the message that followed it; the first message stays.
        options: the replies that the role chooses from, two or more; empty: it says what it likes. Nothing is
            sampled token by token: the engine says how likely each option is, and one is drawn of them alone.
        decides: the act that the first of its two options does and the second leaves: `Act.STOP` ends what
            the workflow goes on with otherwise. Turns of the role have the act in their rows.

    Raises:
        WorkflowError: a bad template, a demonstration that lacks a variable or that the role's own
            parser refuses, or a `trim` name that the prompt does not use.
    """

    name: str
    prompt: str
    parser: Parser = field(default_factory=Raw)
    system: str | None = None
    demonstrations: tuple[tuple[Mapping[str, Any] | str, str], ...] = ()
    trim: tuple[str | Trim, ...] = ()
    max_response_tokens: int = 128
    fixed_length: bool = False
    conversation: bool = False
    follow_up: str | None = None
    when_full: Literal["refuse", "drop_oldest"] = "refuse"
    options: tuple[str, ...] = ()
    decides: Act | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise WorkflowError(f"a role's name is letters, digits and '_'; got {self.name!r}")
        if self.max_response_tokens < 1:
            raise WorkflowError(f"{self._where} max_response_tokens must be at least 1")
        self._check_conversation()
        self._check_options()
        try:
            variables = self.variables
            for index, (user, assistant) in enumerate(self.demonstrations):
                self._user_text(user)
                parsed = read_reply(self.parser, assistant, user if isinstance(user, Mapping) else {})
                if not parsed.valid:
                    raise WorkflowError(
                        f"demonstration {index} breaks the role's own format: {parsed.problem}"
                    )
        except WorkflowError as error:
            raise WorkflowError(f"{self._where} {error}") from None
        names = [rule.variable for rule in self.trims]
        for name in names:
            if name not in variables:
                raise WorkflowError(
                    f"{self._where} trim names {name!r}, which its prompt does not use"
                    f"{did_you_mean(name, variables)}"
                )
            if names.count(name) > 1:
                raise WorkflowError(f"{self._where} trim names {name!r} twice")

    def _check_conversation(self) -> None:
        if self.when_full not in ("refuse", "drop_oldest"):
            raise WorkflowError(
                f"{self._where} when_full is 'refuse' or 'drop_oldest', not {self.when_full!r}"
            )
        for name, default in (("follow_up", None), ("when_full", "refuse")):
            if not self.conversation and getattr(self, name) != default:
                raise WorkflowError(f"{self._where} {name} is for conversations; set conversation=True too")

    def _check_options(self) -> None:
        if self.decides is not None and len(self.options) != 2:
            raise WorkflowError(
                f"{self._where} decides {str(self.decides)!r} takes two options, the first of which does it; "
                f"got {self.options!r}"
            )
        if not self.options:
            return
        if len(self.options) < 2 or len(set(self.options)) < len(self.options) or not all(self.options):
            raise WorkflowError(
                f"{self._where} options are two or more different texts that are not empty; "
                f"got {self.options!r}"
            )
        if self.conversation:
            raise WorkflowError(
                f"{self._where} a role with options keeps no conversation: what it chose would stand in its "
                "later prompts; set conversation=False"
            )

    @property
    def _where(self) -> str:
        return f"role {self.name!r}:"

    @property
    def template(self) -> Template:
        return parse_template(self.prompt)

    @property
    def follow_up_template(self) -> Template:
        """The template of the user's message from the second turn of a conversation on."""
        return self.template if self.follow_up is None else parse_template(self.follow_up)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the prompt and of the follow-up, each once: what a step of the role gives."""
        return tuple(dict.fromkeys([*self.template.variables, *self.follow_up_template.variables]))

    @property
    def trims(self) -> tuple[Trim, ...]:
        return tuple(Trim(rule) if isinstance(rule, str) else rule for rule in self.trim)

    def messages(self, variables: Mapping[str, Any], *, demonstrations: bool = True) -> list[Message]:
        """The chat for these variables: system, demonstrations as earlier turns, then the prompt."""
        return [*self._opening(demonstrations), {"role": "user", "content": self.template.render(variables)}]

    def next_message(self, variables: Mapping[str, Any]) -> Message:
        """The user's message of a later turn of the role's conversation."""
        return {"role": "user", "content": self.follow_up_template.render(variables)}

    def least_messages(self, *, demonstrations: bool = True) -> list[Message]:
        """The chat with every variable empty: no prompt of this role can be shorter."""
        return [*self._opening(demonstrations), {"role": "user", "content": self.template.literal}]

    def _opening(self, demonstrations: bool) -> list[Message]:
        chat: list[Message] = []
        if self.system is not None:
            chat.append({"role": "system", "content": self.system})
        for user, assistant in self.demonstrations if demonstrations else ():
            chat.append({"role": "user", "content": self._user_text(user)})
            chat.append({"role": "assistant", "content": assistant})
        return chat

    def _user_text(self, user: Mapping[str, Any] | str) -> str:
        return user if isinstance(user, str) else self.template.render(user)


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """How a role samples: what `[roles.<name>]` sets beside its model.

    `max_response_tokens=None` takes the role's own; `max_prompt_tokens=None` takes what the engine's
    context leaves beside the response.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_response_tokens: int | None = None
    max_prompt_tokens: int | None = None
    demonstrations: bool = True
    stop: tuple[str, ...] = ()
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise UsageError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise UsageError(f"top_k must be 0 (off) or more, got {self.top_k}")
        if not 0 <= self.min_p < 1:
            raise UsageError(f"min_p must lie in [0, 1), got {self.min_p}")
        for name in ("max_response_tokens", "max_prompt_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
