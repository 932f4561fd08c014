"""Conversations of roles: a role's earlier turns of the episode, kept as the ids that went in and came out.

A role with `conversation=True` sees its earlier turns as chat messages: user and assistant alternate, and
what the workflow gives it next is the next user message. A conversation belongs to a role and a branch.

**Tokens.** Sampled ids are never rendered anew. The prompt of a later turn is

    ids of the earlier prompt + ids of the earlier reply + ids from the end of that reply on

where the last part is what the chat template writes there (`workflows.engine.Engine.render_after`), without
the end of the turn where the reply has sampled that itself. So each prompt of a conversation begins with
the prompt and the reply before it, whatever the text of the reply would be encoded to (docs/design.md, R4).

**Order.** The turns of one conversation follow each other: one that may run beside another of its
conversation is refused. A turn waits for the reply of the one before it. A turn that failed leaves nothing
in the conversation.

**Length.** A conversation that has no room for the next turn is refused as prompt_too_long, after the trims
of the role. With `when_full="drop_oldest"` the oldest reply goes first, with the message that followed it,
then the next; the first message, which has the task, and the newest reply stay. What is left begins a new
lineage, of which each id is still the one that was asked or sampled.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workflows.engine import ChatEngine, Message
from workflows.errors import WorkflowError
from workflows.playing.speaker import Speaker
from workflows.prompts import Prompt, PromptTooLong, Trim, fit_prompt
from workflows.state import Place, TurnKey


@dataclass(slots=True)
class Talk:
    """One conversation, as far as it has come.

    `opening` and `opening_ids` are the chat of its first prompt; then `replies` and, between each two of
    them, `messages`. Ids are None where the model takes messages.
    """

    name: str
    opening: list[Message] = field(default_factory=list)
    opening_ids: list[int] | None = None
    replies: list[tuple[str, list[int]]] = field(default_factory=list)  # text and sampled ids
    messages: list[tuple[Message, list[int]]] = field(default_factory=list)  # and the ids around each
    num_turns: int = 0  # that were asked, failed ones too
    lineage: int = 0
    last: TurnKey | None = None
    last_over: asyncio.Event | None = None

    @property
    def chat(self) -> list[Message]:
        """All messages up to the newest reply."""
        chat = [*self.opening]
        for index, (text, _) in enumerate(self.replies):
            chat.append({"role": "assistant", "content": text})
            if index < len(self.messages):
                chat.append(self.messages[index][0])
        return chat

    @property
    def ids(self) -> list[int]:
        """The ids of `chat`, as they were asked and sampled."""
        ids = [*(self.opening_ids or ())]
        for index, (_, reply) in enumerate(self.replies):
            ids += reply
            if index < len(self.messages):
                ids += self.messages[index][1]
        return ids

    def without_oldest(self, number: int) -> Talk:
        """The conversation without its oldest replies, each with the message that followed it."""
        return Talk(self.name, self.opening, self.opening_ids, self.replies[number:], self.messages[number:])


class Seat:
    """The place of one turn in its conversation: `await prompt(…)`, `spoke(…)`, and `leave()` in any case."""

    def __init__(self, talk: Talk, key: TurnKey):
        self._talk = talk
        self._before = talk.last_over
        self._over = talk.last_over = asyncio.Event()
        self._index = talk.num_turns
        talk.num_turns += 1
        talk.last = key
        weakref.finalize(self, self._over.set)  # a call that is cancelled before it begins leaves too

    async def prompt(self, speaker: Speaker, variables: Mapping[str, Any]) -> Prompt:
        """The prompt of this turn, once the turn before it is over.

        Raises:
            PromptTooLong: the conversation has no room for it.
        """
        if self._before is not None:
            await self._before.wait()
        if not self._talk.replies:
            return first_prompt(speaker, variables)
        if speaker.role.when_full == "refuse":
            return _next_prompt(self._talk, speaker, variables, speaker.role.trims)
        return self._shortened(speaker, variables)

    def _shortened(self, speaker: Speaker, variables: Mapping[str, Any]) -> Prompt:
        """The prompt with as many of the oldest replies as it has room for."""
        talk = self._talk
        for dropped in range(len(talk.messages) + 1):
            kept, is_last = talk.without_oldest(dropped), dropped == len(talk.messages)
            try:  # where only the newest reply is left, the trims give way too
                prompt = _next_prompt(kept, speaker, variables, speaker.role.trims if is_last else ())
            except PromptTooLong:
                if is_last:
                    raise
                continue
            if dropped:
                talk.replies, talk.messages = kept.replies, kept.messages
                talk.lineage += 1
            return prompt
        raise AssertionError("the last attempt returns or raises")

    def columns(self, prompt: Prompt) -> dict[str, Any]:
        """The columns of the turn's row. Where ids are not known, nothing is said of their lineage."""
        talk = self._talk
        lineages = [f"{talk.name}#{number}" for number in (talk.lineage, talk.lineage - 1) if number >= 0]
        lineage, parent = [*lineages, None][:2] if prompt.token_ids is not None else (None, None)
        return {
            "conversation": talk.name,
            "conversation_turn": self._index,
            "lineage": lineage,
            "lineage_parent": parent,
        }

    def spoke(self, prompt: Prompt, text: str, response_ids: Sequence[int]) -> None:
        """Put this turn's message and reply into the conversation."""
        talk = self._talk
        if talk.replies:
            new = (prompt.token_ids or [])[len(talk.ids) :]
            talk.messages.append((prompt.messages[-1], new))
        else:
            talk.opening, talk.opening_ids = prompt.messages, prompt.token_ids
        talk.replies.append((text, list(response_ids)))

    def leave(self) -> None:
        """Let the next turn of the conversation begin."""
        self._over.set()


class Conversations:
    """The conversations of one episode.

    Args:
        precedes: whether a turn is certain to come before a turn at a place.
    """

    def __init__(self, precedes: Callable[[TurnKey, Place], bool]):
        self._precedes = precedes
        self._talks: dict[tuple[str, str], Talk] = {}

    def check(self, role: str, place: Place) -> None:
        """Refuse a turn that may run beside another turn of its conversation.

        Raises:
            WorkflowError: naming both turns.
        """
        talk = self._talks.get((role, place.key.branch))
        if talk is not None and talk.last is not None and not self._precedes(talk.last, place):
            raise WorkflowError(
                f"role {role!r} keeps a conversation, and its step {place.key.step!r} does not come after "
                f"its step {talk.last.step!r} (round {talk.last.round}), so that they have no order; add "
                "an edge between them, or let each run in a branch of its own"
            )

    def compact(self, role: str, branch: str) -> tuple[str, str, str] | None:
        """Forget what a role said in a branch; its next turn begins with its prompt, as a new lineage.

        Returns:
            The conversation, its new lineage and the one before; None where there is nothing to forget.
        """
        talk = self._talks.get((role, branch))
        if talk is None or not talk.replies:
            return None
        talk.replies, talk.messages = [], []
        talk.lineage += 1
        return talk.name, f"{talk.name}#{talk.lineage}", f"{talk.name}#{talk.lineage - 1}"

    def seat(self, role: str, key: TurnKey) -> Seat:
        """The next place in the conversation of a role in the branch of a turn."""
        name = f"{role}/{key.branch}" if key.branch else role
        return Seat(self._talks.setdefault((role, key.branch), Talk(name)), key)


def first_prompt(speaker: Speaker, variables: Mapping[str, Any]) -> Prompt:
    """The prompt of a role that has no earlier turn to go on with."""
    return fit_prompt(
        lambda given: speaker.role.messages(given, demonstrations=speaker.settings.demonstrations),
        variables,
        speaker.role.trims,
        speaker.render,
        speaker.max_prompt_tokens,
    )


def _next_prompt(talk: Talk, speaker: Speaker, variables: Mapping[str, Any], trims: Sequence[Trim]) -> Prompt:
    chat, ids = talk.chat, talk.ids
    reply = talk.replies[-1][1]

    def render(messages: Sequence[Message]) -> list[int] | int:
        if isinstance(speaker.engine, ChatEngine):
            return speaker.render(messages)
        after = speaker.render_after(messages[:-2], messages[-1])
        # a reply that sampled the end of its turn has it already
        return ids + (after[1:] if reply and reply[-1] == after[0] else after)

    return fit_prompt(
        lambda given: [*chat, speaker.role.next_message(given)],
        variables,
        trims,
        render,
        speaker.max_prompt_tokens,
    )
