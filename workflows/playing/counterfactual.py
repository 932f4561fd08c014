"""What would have come of an episode if one turn had said something else, to all or to one recipient.

An intervention replaces what a turn of a stored episode delivers. The workflow is played again: what comes
before the turn is served, and so is all that is asked the same in spite of it; the rest is sampled anew.

    base = Counterfactual.at(rows, Intervention(key, Op.DROP))
    played = await player.play(task, iteration=0, sample=0, base=base)

The turn's own row stays as it is stored, except where it is sampled anew: the replacement is what others get.
Everything downstream is sampled with the seeds of the stored episode, the same in every alternative: what two
plays differ in is then what was replaced, and less of it chance. Only replies of roles are replaced.

**One recipient.** Prompts are made by the workflow's code, from values that it passes on as it likes. So what
the recipient would be asked without the message is found by playing: once with the replacement for everybody,
from stored replies alone, up to the recipient's call, whose inputs are kept. These are then the recipient's
inputs in a play in which everybody else gets the stored words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from workflows.engine import ChatReply, Completion, Sampling
from workflows.errors import UsageError, WorkflowError
from workflows.playing.attempts import CallFailed
from workflows.playing.base_episode import AS_ASKED, BaseEpisode, Row, reply_of
from workflows.playing.columns import parse_reply
from workflows.playing.speaker import Speaker
from workflows.roles import Role
from workflows.state import Output, TurnKey
from workflows.vocabulary import SENDING, WITH_A_REPLY, Event, Op, Status

WORDED: Final = frozenset({Op.NULL, Op.SWAP, Op.PARAPHRASE, Op.SHAPLEY})
"""What delivers other words: `Intervention.text`."""
_OF_ACTS: Final = WORDED - {Op.SHAPLEY}


@dataclass(frozen=True, slots=True)
class Intervention:
    """One turn's output, replaced before it is delivered; with `more`, those of several turns.

    Args:
        key: the place of the turn: a reply of a role; for null, swap and paraphrase also an act that hands
            words to another play (`workflows.vocabulary.SENDING`), which then gets the others.
        op: how it is replaced.
        text: the words that are delivered instead, as if the role had said them: of null, swap,
            paraphrase and shapley.
        recipient: the place of the only turn that gets the replacement; by default every reader does.
        alternative: the number of a resampled reply, from 1: each has a seed of its own.
        more: the places of further turns that are replaced with it, of null and shapley.

    Raises:
        UsageError: these do not fit each other.
    """

    key: TurnKey
    op: Op
    text: str | None = None
    recipient: TurnKey | None = None
    alternative: int = 1
    more: tuple[TurnKey, ...] = ()

    def __post_init__(self) -> None:
        def refuse(name: str, value: object, expected: str) -> None:
            raise UsageError(
                f"intervention {self.op} at step {self.key.step!r}: {name} = {value!r}; {expected}"
            )

        if (self.text is None) == (self.op in WORDED):
            refuse(
                "text",
                self.text,
                "null, swap, paraphrase and shapley take the words to deliver, no other op does",
            )
        if self.op in (Op.MASK, Op.SHAPLEY) and self.recipient is None:
            refuse("recipient", None, f"{self.op} takes the place of the one turn that is asked otherwise")
        if self.more and self.op not in (Op.NULL, Op.SHAPLEY):
            refuse("more", self.more, "only null and shapley replace several turns; leave more out")
        if self.op in (Op.NONE, Op.RESAMPLE) and self.recipient is not None:
            refuse("recipient", self.recipient, "a resampled reply goes to all; leave recipient out")
        if self.recipient in self.keys:
            refuse("recipient", self.recipient, "a turn does not read itself; name one that reads it")
        if self.alternative < 1:
            refuse("alternative", self.alternative, "use 1 or more: 0 is the stored reply")

    @property
    def keys(self) -> tuple[TurnKey, ...]:
        """The places of all turns that are replaced."""
        return (self.key, *self.more)

    def delivered(self, output: Output, role: Role, variables: Mapping[str, Any]) -> Output:
        """What readers get instead of an output of the turn."""
        if self.op in (Op.NONE, Op.RESAMPLE):
            return output
        if self.text is None:
            return Output(None, "", False, output.key)
        parsed = parse_reply(role, self.text, variables)
        return Output(parsed.value, self.text, parsed.valid, output.key, parsed.lenient)


@dataclass(frozen=True, slots=True)
class Counterfactual(BaseEpisode):
    """A stored episode in which one turn delivers something else. `view` is what its only recipient is asked
    with, once that is known."""

    intervention: Intervention = field(kw_only=True)
    view: Mapping[str, Any] | None = None

    @classmethod
    def at(cls, rows: Iterable[Row], intervention: Intervention) -> Self:
        """The base that the turns of one episode make, with an intervention.

        Raises:
            UsageError: at the place of the intervention no role gave a reply and nothing was handed over, or
                its recipient was not asked.
        """
        base = BaseEpisode.of(rows)
        turns = [("turn", key) for key in intervention.keys]
        for name, key in (*turns, ("recipient", intervention.recipient)):
            row = base.turns.get(key) if key is not None else None
            may_be_act = name == "turn" and intervention.op in _OF_ACTS and not intervention.more
            if key is not None and (row is None or not (_has_reply(row) or (may_be_act and sends(row)))):
                raise UsageError(
                    f"intervention {intervention.op} in episode {base.episode_id}: the {name}, step "
                    f"{key.step!r} (round {key.round}, branch {key.branch!r}), is not a reply of a role; "
                    "choose a turn of event llm that did not fail, or an act that says something to others"
                )
        return cls(base.episode_id, base.seeds, base.turns, intervention=intervention)

    @property
    def for_all(self) -> Glimpse | None:
        """The play that says what the only recipient would be asked; None where there is no such one."""
        if self.intervention.recipient is None:
            return None
        everybody = replace(self.intervention, op=_to_all(self.intervention.op), recipient=None)
        return Glimpse(self.episode_id, self.seeds, self.turns, intervention=everybody)

    def seen_by(self, glimpse: Glimpse) -> Counterfactual:
        """The counterfactual, with the inputs that its recipient had in a glimpse.

        Raises:
            WorkflowError: the recipient is not asked at all without the message.
        """
        recipient = self.intervention.recipient
        assert recipient is not None
        if recipient not in glimpse.inputs_of:
            raise WorkflowError(
                f"without the message of step {self.intervention.key.step!r}, step {recipient.step!r} is not "
                "asked, so there is nothing to mask it for; drop the message for all instead"
            )
        return replace(self, view=glimpse.inputs_of[recipient])

    def reply(
        self, key: TurnKey, speaker: Speaker, context_hash: str, sampling: Sampling
    ) -> tuple[Completion | ChatReply, dict[str, Any]] | None:
        if self.intervention.op == Op.RESAMPLE and key == self.intervention.key:
            return None
        return BaseEpisode.reply(self, key, speaker, context_hash, sampling)

    def number_at(self, key: TurnKey) -> int:
        resampled = self.intervention.op == Op.RESAMPLE and key == self.intervention.key
        return self.intervention.alternative if resampled else 0

    def inputs(self, key: TurnKey, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        return variables if self.view is None or key != self.intervention.recipient else self.view

    def handed_over(self, output: Output) -> Output:
        text = self.intervention.text
        if text is None or output.key != self.intervention.key:
            return output
        return Output(text, "", True, output.key)

    def delivered(self, output: Output, role: Role, variables: Mapping[str, Any]) -> Output:
        # to one recipient alone, the replacement is in its view
        if self.intervention.recipient is not None or output.key not in self.intervention.keys:
            return output
        return self.intervention.delivered(output, role, variables)


@dataclass(frozen=True, slots=True)
class Glimpse(Counterfactual):
    """A play from stored replies alone, whatever they are asked, that notes what every turn is asked with. No
    model and no tool is asked."""

    by_place: ClassVar[bool] = True
    inputs_of: dict[TurnKey, Mapping[str, Any]] = field(default_factory=dict)

    def inputs(self, key: TurnKey, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        self.inputs_of[key] = variables
        return variables

    def reply(
        self, key: TurnKey, speaker: Speaker, context_hash: str, sampling: Sampling
    ) -> tuple[Completion | ChatReply, dict[str, Any]] | None:
        row = self.turns.get(key)
        if row is None or not _has_reply(row):
            raise CallFailed(Status.INFRA_ERROR, "this turn is not stored, and a glimpse asks nobody")
        return reply_of(row), {name: row[name] for name in AS_ASKED}

    def call(self, key: TurnKey, tool: str, request: str) -> Row | None:
        row = self.turns.get(key)
        if row is None or row["tool"] != tool or row["status"] not in (Status.OK, Status.TOOL_ERROR):
            raise CallFailed(Status.INFRA_ERROR, "this call is not stored, and a glimpse asks nobody")
        return row


def _to_all(op: Op) -> Op:
    return {Op.MASK: Op.DROP, Op.SHAPLEY: Op.NULL}.get(op, op)


def sends(row: Row) -> bool:
    """Whether a row is an act that hands words to another play."""
    return row["act"] in SENDING


def _has_reply(row: Row) -> bool:
    return row["event"] == Event.LLM and row["status"] in WITH_A_REPLY
