"""Which round's answer a team gives: chosen at the end of an episode, and noted as a turn of its own.

A team that answers in every round gives its last answer, unless its workflow says otherwise
(`Workflow.returning`):

    first      that of the first round
    majority   the answer that came most often; of equally frequent ones the latest
    surest     that of the round in which the role that decides on a stop found a stop likeliest; of equal
               ones the earliest, and the last answer where the role was never asked

A reply of which nothing could be read is not chosen while another round has an answer. These are the rules
that `rewards.stopping.measures.returned` holds against each other on stored episodes. The choice is a
function of what the episode's turns say, so a replay makes the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workflows.graph import RETURNED, Workflow
from workflows.playing.decision import is_stop_decision
from workflows.playing.record import Record
from workflows.state import Place, TurnKey
from workflows.vocabulary import WITH_A_REPLY, Event, Status

Row = Mapping[str, Any]


def add_returned(record: Record, workflow: Workflow) -> None:
    """Note the answer that a finished episode gives, as its last turn.

    Nothing is noted where it has no answer, or gives the last one in any case.

    The row has the answer in `parsed`, the turn that gave it as its parent, and of that turn whether it kept
    its format.
    """
    if workflow.returns == "last":
        return
    rows = [row for row in record.rows if row["status"] is not None]
    answers = [row for row in rows if row["step"] == workflow.said_in and row["status"] in WITH_A_REPLY]
    if not answers:
        return
    answers.sort(key=lambda row: (row["round"], row["branch"]))
    chosen = answers[chosen_answer(answers, [r for r in rows if is_stop_decision(r)], workflow.returns)]
    parent, now = TurnKey(chosen["step"], chosen["round"], chosen["branch"]), record.now()
    place = Place(TurnKey(RETURNED, 0, ""), [parent], record.keys)
    row = record.open(Event.CONTROL, place, beyond_limit=True).row
    row.update(
        parsed=chosen["parsed"], format_valid=chosen["format_valid"], status=Status.OK, attempts=1,
        queued_at=now, started_at=now, ended_at=now,
    )  # fmt: skip


def chosen_answer(answers: Sequence[Row], decisions: Sequence[Row], returns: str) -> int:
    """The place among the answers, in the order of rounds, of the one that is given.

    Args:
        answers: rows of `turns`.
        decisions: those of stop decisions, each about the answer of its round.
        returns: an entry of `workflows.graph.RETURNS`.
    """
    readable = [place for place, row in enumerate(answers) if row["parsed"] not in (None, "null")]
    if not readable:
        return len(answers) - 1
    if returns == "first":
        return readable[0]
    if returns == "majority":
        counts = Counter(answers[place]["parsed"] for place in readable)
        most = max(counts.values())
        return next(place for place in reversed(readable) if counts[answers[place]["parsed"]] == most)
    if returns == "surest":
        stop = {(row["round"], row["branch"]): row["option_logprobs"][0]["value"] for row in decisions}
        asked = [p for p in readable if (answers[p]["round"], answers[p]["branch"]) in stop]
        if asked:
            return max(asked, key=lambda p: (stop[answers[p]["round"], answers[p]["branch"]], -p))
    return readable[-1]
