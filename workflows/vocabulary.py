"""The words that tables hold: kinds of turns, what a turn did in its team, how turns and episodes ended.

A word is its text: it is written, compared and sorted as a `str`, and a table's plain text equals it. Each
has a `meaning`, one line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self


class Word(StrEnum):
    """One word of a column, with its meaning."""

    meaning: str

    def __new__(cls, text: str, meaning: str) -> Self:
        """A member, as `NAME = text, meaning` declares it."""
        word = str.__new__(cls, text)
        word._value_ = text
        word.meaning = meaning
        return word

    @classmethod
    def of(cls, text: str) -> Self:
        """The word of a column's text.

        Raises:
            ValueError: there is no such word.
        """
        for word in cls:
            if word == text:
                return word
        raise ValueError(f"{text!r} is not one of {', '.join(cls)}")


class Event(Word):
    """What kind of step a turn is a run of: column `event` of `turns`."""

    LLM = "llm", "a role was asked"
    TOOL = "tool", "a tool was asked"
    CONTROL = "control", "the workflow computed or noted a value by itself"


class Act(Word):
    """What a turn did in its team: column `act` of `turns`; null where nothing says."""

    SPAWN = "spawn", "began a branch or another member of the team"
    DELEGATE = "delegate", "handed a piece of its task to another role"
    MESSAGE = "message", "told another role something"
    AGGREGATE = "aggregate", "made one result of several"
    RETURN = "return", "gave its result back to the role that delegated"
    STOP = "stop", "ended the episode or its branch"
    CANCEL = "cancel", "ended another play before it was over"
    COMPACT = "compact", "put a summary in the place of a conversation's history"


class Ending(Word):
    """How a spawned play ended: key `ending` of the `act_detail` of its return."""

    DONE = "done", "it gave a result back"
    MALFORMED = "malformed", "what it gave back can't be read"
    BUDGET = "budget", "its budget was used up before it had a result"
    FAILED = "failed", "a call or its code failed, which is not the policy's doing"
    CANCELLED = "cancelled", "its team cancelled it"


class Move(Word):
    """What a reply chose to do: key `action` of what it parsed, where a role may choose; metrics count it."""

    SEARCH = "search", "asked for passages"
    END = "end", "wanted nothing more to be searched"
    UPDATE = "update", "put what was found in the place of what was known"
    ADD = "add", "put what was found beside what was known"


class Origin(Word):
    """Where a turn's row is from: column `origin` of `turns`."""

    SAMPLED = "sampled", "a model or a tool was asked, or the workflow computed it"
    COPIED = "copied", "served from the stored episode that this one begins with; nobody was asked"
    REPLAYED = "replayed", "the stored request was sent again, to a tool that is not deterministic"
    PROBE = "probe", "a short extra answer at a decision; no turn of the episode"
    IMPORTED = "imported", "read from a trace of another program"


SENDING: Final = frozenset({Act.SPAWN, Act.DELEGATE, Act.MESSAGE})
"""Acts that hand words to another play: a brief, a piece of work, a message."""


class Op(Word):
    """What an intervention does with a stored reply before it is delivered."""

    NONE = "none", "nothing: what a replay makes of the episode by itself"
    RESAMPLE = "resample", "the role answers the same prompt again, with another seed"
    DROP = "drop", "no reader gets it: it counts as a reply without a value"
    NULL = "null", "a placeholder that says nothing is delivered instead"
    SWAP = "swap", "what the same turn said in another play of the task is delivered instead"
    PARAPHRASE = "paraphrase", "the same in other words is delivered instead: a control"
    MASK = "mask", "one recipient does not get it, all others do"
    SHAPLEY = "shapley", "one reply is made again without some of those that it reads, for sets of them"


class Status(Word):
    """How a turn or an episode went: column `status` of `turns` and `episodes`."""

    OK = "ok", "it went as it should"
    MALFORMED = "malformed", "the reply breaks its role's format"
    TOOL_ERROR = "tool_error", "the tool refused what the policy asked for"
    TRUNCATED = "truncated", "the token limit stopped the reply"
    INFRA_ERROR = "infra_error", "an engine, a tool or the workflow's own code failed"
    TIMEOUT = "timeout", "a call or the episode ran out of time"
    CANCELLED = "cancelled", "a call was cancelled while it waited for its reply"
    NOT_DEMONSTRATED = "not_demonstrated", "the file of demonstrations has no answer to the prompt"
    CALLED_OFF = "called_off", "its own team ended its play while it waited for the reply"


POLICYS_DOING: Final = frozenset(
    {Status.OK, Status.MALFORMED, Status.TOOL_ERROR, Status.TRUNCATED, Status.CALLED_OFF}
)
"""Statuses that the policy itself brought about: rewards are computed, and the episode may be trained on.

A turn that was called off has no reply, and so nothing to train on; the other turns of its episode have."""

WITH_A_REPLY: Final = POLICYS_DOING - {Status.CALLED_OFF}
"""Statuses of a turn that has its model's reply or its tool's answer."""

NOT_THE_POLICYS_DOING: Final = frozenset(
    {Status.INFRA_ERROR, Status.TIMEOUT, Status.CANCELLED, Status.NOT_DEMONSTRATED}
)
"""All other statuses: the reward is null, and nothing of that episode is trained on."""


class StopReason(Word):
    """Why an episode ended: column `stop_reason` of `episodes`."""

    FINISHED = "finished", "no step was left to run"
    LOOP_LIMIT = "loop_limit", "finished, but a loop that wanted another round was at its limit"
    MAX_TURNS = (
        "max_turns",
        "the workflow wanted more turns than max_turns; which ones it had depends on timing",
    )
    PROMPT_TOO_LONG = (
        "prompt_too_long",
        "a prompt had no room although all that may be cut was cut; it was not sent",
    )
    CALL_FAILED = (
        "call_failed",
        "a call of a model or tool failed or timed out; what did not depend on it was finished",
    )
    WORKFLOW_ERROR = "workflow_error", "an exception in the workflow's own code, named in `error`"
    EPISODE_TIMEOUT = "episode_timeout", "the episode's time was over; calls in flight are marked timeout"
