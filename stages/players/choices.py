"""Which stored replies are replaced, how, and with which probability: the plan of counterfactual plays. Pure.

A choice is one intervention in one stored turn. Each candidate is chosen by a seeded draw of its own, with a
probability that is known and above 0, so that sums over what was played, each divided by its probability, are
right on average whatever the budget.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from stages.players.coalitions import coalitions
from workflows.errors import UsageError, did_you_mean
from workflows.playing.counterfactual import Counterfactual, Intervention, sends
from workflows.state import TurnKey
from workflows.trajectory import seed_for
from workflows.vocabulary import WITH_A_REPLY, Event, Op

Row = Mapping[str, Any]
Candidate = tuple[Row, Intervention, Row | None, int]
"""A turn, what could be delivered instead, its only recipient if there is one, and the tokens that it may
take. Of shapley, the turn is the recipient itself."""
PLACEHOLDER: Final = "(no message)"
PERMUTATIONS: Final = 8
OF_ACTS: Final = (Op.NULL, Op.SWAP, Op.PARAPHRASE)
"""What can be done with one act of a reply."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """Which interventions there are to choose from.

    Args:
        ops: what is done with a reply.
        alternatives: resampled replies of each turn.
        roles: whose replies; all roles' where it is empty.
        tokens: response tokens that the plays of a table may take, on average; None: all are chosen.
        seed: of the draws.
        placeholder: what `null` delivers.
        paraphrase: other words for a text, of `paraphrase`.
        acts: each act that hands words to another play is replaced on its own, and not the reply that decided
            it.
        permutations: orders of the inputs of one reply that `shapley` samples, where all sets of them would
            take more plays.

    Raises:
        UsageError: a number out of range, or `paraphrase` among the ops and nothing that does it.
    """

    ops: Sequence[Op]
    alternatives: int = 1
    roles: frozenset[str] = frozenset()
    tokens: int | None = None
    seed: int = 0
    placeholder: str = PLACEHOLDER
    paraphrase: Callable[[str], str] | None = None
    permutations: int = PERMUTATIONS
    acts: bool = False

    def __post_init__(self) -> None:
        if not self.ops or Op.NONE in self.ops:
            raise UsageError("choose what to replace: " + ", ".join(op for op in Op if op != Op.NONE))
        for name in ("alternatives", "tokens", "permutations"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} = {value}; use 1 or more")
        if Op.PARAPHRASE in self.ops and self.paraphrase is None:
            raise UsageError(
                "paraphrase needs a function that puts a text in other words; name one with "
                "--paraphrase, or counterfactuals.paraphrase: package.module:function"
            )

        if self.acts and (other := [op for op in self.ops if op not in OF_ACTS]):
            raise UsageError(
                f'{other[0]} replaces a reply as a whole, and with unit = "act" each act of a reply is '
                f'replaced on its own; use {", ".join(OF_ACTS)}, or unit = "reply"'
            )

    def of_parts(self, count: int) -> Choosing:
        """The choosing of one of so many parts: each has an equal share of the tokens."""
        if self.tokens is None or count < 2:
            return self
        return replace(self, tokens=max(1, self.tokens // count))


@dataclass(frozen=True, slots=True)
class Choice:
    """One intervention that is to be played: `turn` and `recipient` are rows of the stored episode."""

    turn: Row
    intervention: Intervention
    recipient: Row | None
    probability: float


def ops_of(words: str) -> list[Op]:
    """The ops that a list like "drop,null" names.

    Raises:
        UsageError: there is none of that name.
    """
    known = [str(op) for op in Op if op != Op.NONE]
    names = [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no intervention {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}"
            )
    return [op for op in Op if op in names]


def episodes_of(turns: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of turns by episode, in the order of turns; episodes in the order of their ids."""
    episodes: dict[str, list[Row]] = defaultdict(list)
    for row in turns:
        episodes[row["episode_id"]].append(row)
    return {e: sorted(episodes[e], key=lambda row: row["turn_index"]) for e in sorted(episodes)}


def chosen(episodes: Mapping[str, Sequence[Row]], choosing: Choosing) -> list[Choice]:
    """What is played of these episodes: each candidate with a probability that the budget sets.

    A candidate is expected to take the response tokens of its own turn (where that is sampled anew) and of
    all that come after it.
    """
    candidates = [
        (turn, intervention, recipient, cost)
        for rows in episodes.values()
        for turn, intervention, recipient, cost in candidates_of(rows, episodes, choosing)
    ]
    total = sum(cost for *_, cost in candidates)
    budget = total if choosing.tokens is None else choosing.tokens
    probability = min(1.0, budget / total) if total else 1.0
    return [
        Choice(turn, intervention, recipient, probability)
        for turn, intervention, recipient, _ in candidates
        if _draw(choosing.seed, turn, intervention) < probability
    ]


def _draw(seed: int, turn: Row, intervention: Intervention) -> float:
    """A number from 0 to below 1 that belongs to one candidate."""
    parts = (turn["episode_id"], turn["turn_index"], intervention.op, intervention.alternative)
    return seed_for(seed, "interventions", *parts, *(intervention.recipient or ())) / 2**63


def candidates_of(
    rows: Sequence[Row], episodes: Mapping[str, Sequence[Row]], choosing: Choosing
) -> Iterator[Candidate]:
    """The interventions that can be made in one episode, each with the tokens that it may take."""
    readers = readers_of(rows)
    deciding = {row["decided_by"] for row in rows if sends(row)} if choosing.acts else set()
    for turn in rows:
        is_act = choosing.acts and sends(turn) and turn["decided_by"] is not None
        is_whole = _is_reply(turn) and turn["turn_index"] not in deciding
        if not (is_act or is_whole) or (choosing.roles and turn["role"] not in choosing.roles):
            continue
        after = sum(_tokens(row) for row in rows if row["turn_index"] > turn["turn_index"])
        key = key_of(turn)
        for op in choosing.ops:
            if op == Op.RESAMPLE:
                for number in range(1, choosing.alternatives + 1):
                    yield turn, Intervention(key, op, alternative=number), None, after + _tokens(turn)
            elif op == Op.MASK:
                for reader in readers[turn["turn_index"]]:
                    left = sum(_tokens(row) for row in rows if row["turn_index"] >= reader["turn_index"])
                    yield turn, Intervention(key, op, recipient=key_of(reader)), reader, left
            elif op == Op.SHAPLEY:
                continue  # of the reader, below
            elif (words := _words(op, turn, episodes, choosing)) is not None or op == Op.DROP:
                yield turn, Intervention(key, op, text=words), None, after
    if Op.SHAPLEY in choosing.ops:
        yield from _games(rows, readers, choosing)


def inputs_of(rows: Sequence[Row], intervention: Intervention) -> list[Row]:
    """The turns of an episode that an intervention replaces, in the order of turns."""
    return [row for row in rows if key_of(row) in intervention.keys]


def _games(
    rows: Sequence[Row], readers: Mapping[int, Sequence[Row]], choosing: Choosing
) -> Iterator[Candidate]:
    """Replies that read two others or more: each is both the turn and the recipient of its candidate."""
    read_by: dict[int, list[Row]] = defaultdict(list)
    for turn in rows:
        if _is_reply(turn) and (not choosing.roles or turn["role"] in choosing.roles):
            for reader in readers.get(turn["turn_index"], ()):
                read_by[reader["turn_index"]].append(turn)
    for reader in rows:
        inputs = read_by[reader["turn_index"]]
        if len(inputs) < 2:
            continue
        first, *more = map(key_of, inputs)
        game = Intervention(
            first, Op.SHAPLEY, choosing.placeholder, recipient=key_of(reader), more=tuple(more)
        )
        left = sum(_tokens(row) for row in rows if row["turn_index"] >= reader["turn_index"])
        plays = len(coalitions(len(inputs), choosing.permutations, 0)) - 1  # all inputs: as it is stored
        yield reader, game, reader, plays * left


def readers_of(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """By turn: the replies of roles that read it, directly or by values that the workflow made of it."""
    at = {row["turn_index"]: row for row in rows}
    readers: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if not _is_reply(row):
            continue
        read, ahead = set[int](), list(row["parents"] or ())
        while ahead:
            parent = ahead.pop()
            if parent in read:
                continue
            read.add(parent)
            if at[parent]["event"] == Event.CONTROL:
                ahead += at[parent]["parents"] or ()
        for parent in sorted(read):
            readers[parent].append(row)
    return readers


def key_of(row: Row) -> TurnKey:
    return TurnKey(row["step"], row["round"], row["branch"])


def counterfactual(rows: Sequence[Row], choice: Choice) -> Counterfactual:
    """The base that plays a choice."""
    return Counterfactual.at(rows, choice.intervention)


def _words(op: Op, turn: Row, episodes: Mapping[str, Sequence[Row]], choosing: Choosing) -> str | None:
    """What is delivered instead; None for ops without words, and where there are no others to swap with."""
    if op == Op.NULL:
        return choosing.placeholder
    if op == Op.PARAPHRASE:
        assert choosing.paraphrase is not None
        said = _said(turn)
        return None if said is None else choosing.paraphrase(said)
    return _sibling(turn, episodes) if op == Op.SWAP else None


def _sibling(turn: Row, episodes: Mapping[str, Sequence[Row]]) -> str | None:
    """What the same turn said in the next play of the same task that has it."""
    group = {e: rows for e, rows in episodes.items() if rows[0]["group_id"] == turn["group_id"]}
    order = sorted(group, key=lambda e: (group[e][0]["sample"], e))
    place = order.index(turn["episode_id"])
    for other in [*order[place + 1 :], *order[:place]]:
        for row in group[other]:
            if key_of(row) == key_of(turn) and (_is_reply(row) or sends(row)):
                return _said(row)
    return None


def _said(turn: Row) -> str | None:
    """The words of a reply, or of an act; None where an act hands over something else."""
    said: Any = turn["response_text"] if _is_reply(turn) else json.loads(turn["parsed"] or "null")
    return said if isinstance(said, str) else None


def _is_reply(row: Row) -> bool:
    return row["event"] == Event.LLM and row["status"] in WITH_A_REPLY


def _tokens(row: Row) -> int:
    return int(row["num_response_tokens"] or 0)
