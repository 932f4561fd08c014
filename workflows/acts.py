"""Acts: what a decision of a team led to. Each is a row of `turns`, below the turn that decided it.

One reply may spawn three helpers and send a message: that is one turn of event `llm` and four rows of event
`control` whose column `act` is set. A row with an act has in

    step            the act's word; `round` counts the acts of that word in that branch
    branch          the branch of the play that acts; `instance` and `role` say whose play that is
    parents         the turn that decided the act, and all turns whose output went into it
    decided_by      turn_index of the turn that decided it; null where the workflow's code did by itself
    recipients      the plays that it is for, in order; `TRUNK` is the one that nobody spawned
    parsed          what was handed over, as JSON (below)
    act_detail      JSON object with the keys below that apply, and `number`: the place of the act among the
                    play's acts that the same turn decided, from 0
    option_logprobs of a choice that was measured: the log-probability of each option, renormalised
    modelled_at     when it happened, in modelled seconds or logical ticks (`workflows.pace`)

A **play** is the trunk, or what one spawn began. Its id, the `instance` of all of its rows, is role and
branch: `helper/0`, and `helper/0.1` for the second that `helper/0` spawned. Rows of the trunk have null. A
branch is never used for two plays, so the id of a play depends on who spawned it, and as which of its
helpers, and on no timing.

What was handed over (`parsed`), what `act_detail` has, and who the recipients are:

    spawn      the brief; `instance`, `branch`, `depth` (1: spawned by the trunk), `role`, `budget`; the new
               play
    delegate   the piece of work; the play that gets it, which is under way
    message    what is said; one or several plays
    return     the result, null where there is none; `ending`, `reason`, and the play's `turns` and `tokens`;
               the spawner
    aggregate  the one result; `of`: the plays whose results went in, `how`
    stop       why, or what it stops with; `source`: an entry of `STOP_SOURCES`
    cancel     why; the plays that end, those that they spawned among them
    compact    the summary; `conversation`, `lineage` (the new chain), `lineage_parent`

The first turns of a spawned play read its brief, so the spawn is their parent. A return is decided by the
turn whose value it gives back, where it is one; what reads the result has the return as its parent. So the
way from a decision to what came of it is a path along `parents`: lead, spawn, helper's turns, return, lead.

`act_detail` may have further keys. `characters`, where a parser knows it, is the span [start, end) of the
deciding reply's text that says the act, and `tokens` the span of its sampled ids that spell these; several
acts of one reply have spans of their own.

Two more rows of event `control` are not acts, and their `act` is null: what a play waited for and what it
read, which the workflow does and no decision says. Both have `instance` and `modelled_at`.

    join       parents: the returns that it gave. parsed: `want` (a number), `of` (all plays that it waited
               for), `first` (those that it gave, in the order in which they ended), `order` (see
               `workflows.pace`)
    receive    parents: the messages that it gave. parsed: `messages`, the number of them
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from workflows.vocabulary import Act, Ending

TRUNK: Final = "trunk"
"""Stands among `recipients` for the play that nobody spawned, whose `instance` is null."""

JOIN: Final = "join"
RECEIVE: Final = "receive"
"""Steps of the two control rows that no act is behind."""

STOP_SOURCES: Final = ("learned", "rule", "budget", "env", "human", "error")
"""What a stop came from: key `source` of its `act_detail`. Only what is learned may be trained."""

ACT_COLUMNS: Final = (
    *("turn_index", "act", "instance", "role", "decided_by", "recipients", "parsed", "act_detail"),
    *("option_logprobs", "modelled_at"),
)
"""The columns of `turns` that `acted` reads."""


@dataclass(frozen=True, slots=True)
class Acted:
    """One row that has an act, with its JSON read."""

    turn_index: int
    act: Act
    instance: str | None  # of the play that acted
    role: str | None
    decided_by: int | None
    recipients: tuple[str, ...]
    value: Any  # what was handed over
    detail: Mapping[str, Any]
    options: Mapping[str, float]  # log-probability of each option; empty where none was measured
    modelled_at: float | None

    @property
    def spawned(self) -> str:
        """The id of the play that a spawn began.

        Raises:
            KeyError: it is no spawn.
        """
        return str(self.detail["instance"])

    @property
    def ending(self) -> Ending:
        """How the play of a return ended.

        Raises:
            KeyError: it is no return.
        """
        return Ending.of(self.detail["ending"])


def acted(turns: Iterable[Mapping[str, Any]]) -> list[Acted]:
    """The rows that have an act, in their order; rows need `ACT_COLUMNS`."""
    return [
        Acted(
            row["turn_index"],
            Act.of(row["act"]),
            row["instance"],
            row["role"],
            row["decided_by"],
            tuple(row["recipients"] or ()),
            json.loads(row["parsed"] or "null"),
            json.loads(row["act_detail"] or "{}"),
            {option["name"]: option["value"] for option in row["option_logprobs"] or ()},
            row["modelled_at"],
        )
        for row in turns
        if row["act"] is not None
    ]


def instance_of(role: str, branch: str) -> str:
    """The id of the play of a role that was spawned into a branch."""
    return f"{role}/{branch}"


def spawner_of(instance: str) -> str | None:
    """The branch of the play that spawned this one; "" for the trunk.

    Raises:
        ValueError: it is not the id of a spawned play.
    """
    _, slash, branch = instance.partition("/")
    if not slash or not branch:
        raise ValueError(f"a spawned play's id is role/branch, as in helper/0.1; got {instance!r}")
    return branch.rpartition(".")[0]
