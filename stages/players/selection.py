"""Which messages of an iteration are replayed: those whose credit is least known for their tokens. Pure.

A replay of message i is expected to sample c tokens. With p the chance that it is played, the doubly robust
credit has the variance σ²/p, so for a budget of tokens Σ p c the sum of variances is least with p in
proportion to σ / √c (Neyman's allocation with costs), where σ is expected to be

    spread     the deviation of the returns of plays that had the very same context, else of the task's plays
  × influence  the share that the message has of what its readers read, at most 1

A part of the budget (`explore`) is spread evenly, so that every p is above 0. Choices are systematic within
strata (role, step): one draw for all, so that each stratum gets its share of the tokens, and each candidate
exactly its p.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Final

from stages.players.choices import Candidate, Choice, Choosing, Row, candidates_of, readers_of
from workflows.trajectory import seed_for
from workflows.vocabulary import Event, Op

_STEPS: Final = 60  # halvings of the interval that the scale of the chances is in: to the last bit


@dataclass(frozen=True, slots=True)
class Scored:
    """A message that could be replaced, with what it may teach and cost, and the chance of its replay."""

    candidate: Candidate
    spread: float
    influence: float
    cheap: float  # team credit of its episode
    reader: int  # turn_index of the first reply that reads it
    probability: float = 1.0
    is_chosen: bool = True

    @property
    def choice(self) -> Choice:
        turn, intervention, recipient, _ = self.candidate
        return Choice(turn, intervention, recipient, self.probability)

    @property
    def stratum(self) -> tuple[str, ...]:
        turn, intervention, *_ = self.candidate
        return (str(intervention.op), str(turn["role"]), str(turn["step"]))


def selected(
    episodes: Mapping[str, Sequence[Row]], returns: Mapping[str, float], choosing: Choosing, explore: float
) -> list[Scored]:
    """Every candidate of these episodes, each with its probability above 0 and whether it is chosen.

    Candidates are messages: replies that some other reply reads. Episodes without a return have none.

    Args:
        episodes: turns by episode, of whole groups.
        returns: of the episodes that have one.
        choosing: what is done with messages; its `tokens` are the budget, None: all are chosen.
        explore: share of the budget that is spread evenly, above 0.
    """
    scored = _scored({e: rows for e, rows in episodes.items() if e in returns}, returns, choosing)
    costs = [max(1, s.candidate[3]) for s in scored]
    wanted = [s.spread * s.influence / math.sqrt(cost) for s, cost in zip(scored, costs, strict=True)]
    chances = probabilities(wanted, costs, choosing.tokens, explore)
    order = sorted(range(len(scored)), key=lambda i: (scored[i].stratum, i))
    offset = seed_for(choosing.seed, "messages", *sorted(episodes)[:1]) / 2**63
    chosen, cumulated = set[int](), offset
    for place in order:
        before, cumulated = cumulated, cumulated + chances[place]
        if chances[place] >= 1 or math.floor(cumulated) > math.floor(before):
            chosen.add(place)
    return [
        replace(s, probability=chance, is_chosen=place in chosen)
        for place, (s, chance) in enumerate(zip(scored, chances, strict=True))
    ]


def probabilities(
    wanted: Sequence[float], costs: Sequence[int], tokens: int | None, explore: float
) -> list[float]:
    """Chances in proportion to `wanted`, mixed with even ones, whose expected cost is `tokens`.

    All are 1 where the budget covers everything. Where nothing is wanted, or all that is wanted is sure, the
    rest of the budget stays with the even part.
    """
    total = sum(costs)
    if tokens is None or tokens >= total:
        return [1.0] * len(costs)
    even = tokens / total
    most = max(wanted, default=0.0)
    if not most:
        return [even] * len(costs)
    wanted = [want / most for want in wanted]

    def chances(scale: float) -> list[float]:
        return [min(1.0, explore * even + (1 - explore) * scale * want) for want in wanted]

    low, high = 0.0, 1.0
    while sum(p * c for p, c in zip(chances(high), costs, strict=True)) < tokens:
        low, high = high, 2 * high
        if high > 1e18:  # all that is wanted is sure already
            return chances(high)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        spent = sum(p * c for p, c in zip(chances(middle), costs, strict=True))
        low, high = (middle, high) if spent < tokens else (low, middle)
    return chances(low)


def _scored(
    episodes: Mapping[str, Sequence[Row]], returns: Mapping[str, float], choosing: Choosing
) -> list[Scored]:
    """Every candidate with its spread, influence and team credit."""
    of_group: dict[str, list[float]] = defaultdict(list)
    of_context: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for episode_id, rows in episodes.items():
        of_group[rows[0]["group_id"]].append(returns[episode_id])
        for row in rows:
            if row["event"] == Event.LLM:
                of_context[_context(row)][episode_id] = returns[episode_id]
    scored = []
    for episode_id, rows in episodes.items():
        readers = readers_of(rows)
        read_by = defaultdict[int, int](int)  # how many replies each reader reads
        for turn_index, of_turn in readers.items():
            if any(row["turn_index"] == turn_index and row["event"] == Event.LLM for row in rows):
                for reader in of_turn:
                    read_by[reader["turn_index"]] += 1
        for candidate in candidates_of(rows, episodes, choosing):
            turn, intervention, recipient, _ = candidate
            reading = [recipient] if recipient is not None else readers[turn["turn_index"]]
            if not reading:
                continue  # nobody reads it: it is no message
            is_game = intervention.op == Op.SHAPLEY  # all that the reader reads, with contexts of their own
            influence = min(1.0, sum(1 / max(1, read_by[r["turn_index"]]) for r in reading))
            same = [] if is_game else [*of_context[_context(turn)].values()]
            group = of_group[turn["group_id"]]
            spread = pstdev(same) if len(same) > 1 else pstdev(group)
            influence = 1.0 if is_game else influence
            first = min(reader["turn_index"] for reader in reading)
            scored.append(Scored(candidate, spread, influence, returns[episode_id] - fmean(group), first))
    return scored


def _context(row: Row) -> tuple[object, ...]:
    return (row["group_id"], row["step"], row["round"], row["branch"], row["context_hash"])
