"""Stop decisions of played episodes as a table: what a stop at each point scores and is worth. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Literal

import numpy as np

from rewards.stopping.traces import Traces, continue_values, survival
from workflows.acts import STOP_SOURCES
from workflows.stop_tables import STOPS
from workflows.vocabulary import Act, Event, Status

Row = Mapping[str, Any]
Cost = Literal["tokens", "turns", "decisions"]
LEARNED, BUDGET = STOP_SOURCES[0], STOP_SOURCES[2]

NOT_CHOSEN: Final = "nobody chose it"
UNSEEN: Final = "what going on comes to was not seen"
NO_SCORE: Final = "a probe of its trace has no score"
NO_TRACE: Final = "the episode failed"

TURNS_SEEN: Final = (
    *("episode_id", "turn_index", "step", "round", "branch", "event", "role", "model_id", "policy_version"),
    *("context_hash", "num_response_tokens", "parsed", "act", "act_detail", "option_logprobs", "modelled_at"),
)


@dataclass(frozen=True, slots=True)
class StopSpec:
    """How stops are valued: score minus `price` a unit of `cost`. `held_back`: traces go on to their end, and
    a decision is worth what the policy would get of the rest of its trace; else what the episode came to.
    """

    cost: Cost = "tokens"
    price: float = 0.0
    held_back: bool = True
    answer_step: str | None = None
    epsilon: float = 0.0


def stop_tables(
    episodes: Iterable[Row],
    turns: Iterable[Row],
    returns: Mapping[str, float],
    played: Iterable[Row],
    probe_turns: Iterable[Row],
    probe_returns: Mapping[str, float],
    spec: StopSpec,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of `STOPS` and of `PROBES`; returns are means over the rewarded turns of an episode, by its id.

    Episodes without a decision have no rows; those that are not ok have rows with what was decided, and
    nothing that was measured.
    """
    of_episode, of_play = _by_episode(turns), _by_episode(probe_turns)
    probes = [_scored(row, of_play.get(row["play_id"], []), probe_returns, spec) for row in played]
    at: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for probe in probes:
        at[probe["episode_id"], probe["turn_index"]].append(probe)
    rows: list[dict[str, Any]] = []
    for episode in sorted(episodes, key=lambda e: str(e["episode_id"])):
        its_turns = of_episode.get(episode["episode_id"], [])
        if any(map(_decides, its_turns)):
            rows += _of_trace(episode, its_turns, returns.get(episode["episode_id"]), at, spec)
    return rows, probes


def returns_of(rewards: Iterable[Row]) -> dict[str, float]:
    """The mean reward of each episode over its turns that have one."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in rewards:
        if row["reward"] is not None:
            values[row["episode_id"]].append(row["reward"])
    return {name: fmean(of_episode) for name, of_episode in values.items()}


def _by_episode(turns: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for turn in turns:
        found[turn["episode_id"]].append(turn)
    return {name: sorted(rows, key=lambda t: int(t["turn_index"])) for name, rows in found.items()}


def _decides(turn: Row) -> bool:
    return turn["option_logprobs"] is not None and _detail(turn).get("decides") == Act.STOP


def _detail(turn: Row) -> dict[str, Any]:
    detail: dict[str, Any] = json.loads(turn["act_detail"] or "{}")
    return detail


def _scored(row: Row, turns: Sequence[Row], returns: Mapping[str, float], spec: StopSpec) -> dict[str, Any]:
    usable = row["status"] == Status.OK and row["skipped"] is None
    return {
        **row,
        "score": returns.get(row["play_id"]) if usable else None,
        "cost": _cost(_spent(turns), spec) if turns and row["kind"] == "continue" else None,
        "answer": _answer(turns, spec),
    }


def _answer(turns: Sequence[Row], spec: StopSpec) -> str | None:
    said = [t["parsed"] for t in turns if t["step"] == spec.answer_step]
    return said[-1] if said else None


def _spent(turns: Sequence[Row]) -> dict[str, Any]:
    """What the team spent on these turns; the decisions themselves cost nothing."""
    mine = [t for t in turns if not _decides(t)]
    times = [t["modelled_at"] for t in turns if t["modelled_at"] is not None]
    return {
        "tokens": sum(t["num_response_tokens"] or 0 for t in mine),
        "turns": sum(t["event"] != Event.CONTROL for t in mine),
        "decisions": len(turns) - len(mine),
        "seconds": max(times, default=None),
    }


def _cost(spent: Mapping[str, Any], spec: StopSpec) -> float:
    return float(spent[spec.cost])


def _of_trace(
    episode: Row,
    turns: Sequence[Row],
    value: float | None,
    probes: Mapping[tuple[str, int], list[dict[str, Any]]],
    spec: StopSpec,
) -> list[dict[str, Any]]:
    """The decision points of one episode, the end of it last."""
    ok = episode["status"] == Status.OK
    rows: list[dict[str, Any]] = []
    for turn in filter(_decides, turns):
        before = [t for t in turns if t["turn_index"] < turn["turn_index"]]
        row = _point(episode, len(rows), before, spec)
        names = (
            "turn_index",
            "step",
            "round",
            "branch",
            "role",
            "model_id",
            "policy_version",
            "context_hash",
        )
        row.update({name: turn[name] for name in names})
        taken = turn["act"] == Act.STOP
        stop, on = (option["value"] for option in turn["option_logprobs"])
        here = probes.get((episode["episode_id"], turn["turn_index"]), [])
        row.update(
            stop_taken=taken,
            held_back=bool(_detail(turn).get("held_back")),
            stop_source=LEARNED,
            stop_logprob=stop,
            continue_logprob=on,
            probe_tokens=sum(p["tokens"] or 0 for p in here),
        )
        if ok:
            _measure(row, here, value if taken else None, turns, spec)
        rows.append(row)
    if not rows[-1]["stop_taken"]:
        rows.append(_end(episode, len(rows), turns, value if ok else None, spec))
    for place, row in enumerate(rows):
        row["points_left"] = len(rows) - 1 - place
    _value(rows, probes, spec, ok)
    return rows


def _point(episode: Row, number: int, before: Sequence[Row], spec: StopSpec) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(STOPS.names)
    row.update({name: episode[name] for name in ("iteration", "block", "task_id", "group_id", "episode_id")})
    spent = _spent(before)
    row.update(
        decision=number,
        stop_available=True,
        cost=_cost(spent, spec),
        tokens=spent["tokens"],
        turns=spent["turns"],
        seconds=spent["seconds"],
        agreement=_agreement(before),
        price=spec.price,
        probe_tokens=0,
        weight=0.0,
    )
    return row


def _end(
    episode: Row, number: int, turns: Sequence[Row], value: float | None, spec: StopSpec
) -> dict[str, Any]:
    """Where the episode ends by itself: nobody chose it, so it is censored and not trained on."""
    row = _point(episode, number, turns, spec)
    row.update(
        stop_taken=True,
        held_back=False,
        stop_source=BUDGET if episode["status"] == Status.OK else STOP_SOURCES[-1],
        score=value,
        scores=[] if value is None else [value],
        answer=_answer(turns, spec),
    )
    return row


def _measure(
    row: dict[str, Any], probes: Sequence[Row], value: float | None, turns: Sequence[Row], spec: StopSpec
) -> None:
    """The score of a stop at a decision: the episode's own where it stopped, else the mean of its probes."""
    if row["stop_taken"]:
        scores, answer = [value], _answer(turns, spec)
    else:
        stops = sorted((p for p in probes if p["kind"] == "stop"), key=lambda p: int(p["sample"]))
        scores, answer = [p["score"] for p in stops], stops[0]["answer"] if stops else None
    row["answer"] = answer
    known = [score for score in scores if score is not None]
    if known and len(known) == len(scores):
        row.update(scores=known, score=fmean(known))


def _agreement(before: Sequence[Row]) -> float | None:
    """The share of the newest answers of branches that say the most frequent one; None without branches."""
    newest: dict[str, str | None] = {}
    for turn in before:
        if turn["event"] == Event.LLM and turn["branch"]:
            newest[turn["branch"]] = turn["parsed"]
    said = Counter(answer for answer in newest.values() if answer is not None)
    if len(newest) < 2 or not said:
        return None
    return max(said.values()) / len(newest)


def _value(
    rows: list[dict[str, Any]],
    probes: Mapping[tuple[str, int], list[dict[str, Any]]],
    spec: StopSpec,
    ok: bool,
) -> None:
    """Utilities, what going on is worth, and weights; a trace with a gap has no weight at all."""
    for row in rows:
        if row["score"] is not None:
            row["utility"] = row["score"] - spec.price * row["cost"]
    known = all(row["utility"] is not None for row in rows)
    chance = np.array([[1.0 if r is rows[-1] else np.exp(r["stop_logprob"]) for r in rows]])
    for row, alive in zip(rows, survival(chance)[0], strict=True):
        row["survival"] = float(alive) if spec.held_back else 1.0
    if known and spec.held_back:
        utility = np.array([[row["utility"] for row in rows]])
        for row, ahead in zip(rows[:-1], continue_values(chance, utility)[0], strict=False):
            row["continue_value"] = float(ahead)
    elif not spec.held_back:
        for row in rows:
            row["continue_value"] = _realised(row, rows[-1], probes, spec)
    for row in rows:
        if row["utility"] is not None and row["continue_value"] is not None:
            row["advantage"] = row["utility"] - row["continue_value"]
        row["excluded"] = _excluded(row, ok, known, spec)
        if row["excluded"] is None:
            row["weight"] = 1 / spec.epsilon if row["stop_taken"] else 1.0


def _realised(
    row: Row, last: Row, probes: Mapping[tuple[str, int], list[dict[str, Any]]], spec: StopSpec
) -> float | None:
    """What going on came to: the utility of the episode, or where it stopped, of the play that went on."""
    if row["turn_index"] is None:
        return None
    if not row["stop_taken"]:
        value: float | None = last["utility"]
        return value
    for probe in probes.get((row["episode_id"], row["turn_index"]), []):
        if probe["kind"] == "continue" and probe["score"] is not None:
            return float(probe["score"] - spec.price * probe["cost"])
    return None


def _excluded(row: Row, ok: bool, known: bool, spec: StopSpec) -> str | None:
    if not ok:
        return NO_TRACE
    if row["stop_source"] != LEARNED:
        return NOT_CHOSEN
    if spec.held_back and not known:
        return NO_SCORE
    if row["advantage"] is None:
        return NO_SCORE if row["utility"] is None else UNSEEN
    return None


def traces_of(rows: Iterable[Row]) -> Traces:
    """The traces of rows of `STOPS` all of whose points have a score."""
    by_episode: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_episode[row["episode_id"]].append(row)
    whole = [
        sorted(points, key=lambda r: int(r["decision"]))
        for _, points in sorted(by_episode.items())
        if all(point["score"] is not None for point in points)
    ]
    size = (len(whole), max((len(points) for points in whole), default=1))
    score, cost, stop = (np.zeros(size) for _ in range(3))
    learned, agreement = np.zeros(size, dtype=np.bool_), np.full(size, np.nan)
    answer, numbers = np.full(size, -1, dtype=np.int64), dict[str, int]()
    for trace, points in enumerate(whole):
        for place, point in enumerate(points):
            at = (trace, place)
            score[at], cost[at] = point["score"], point["cost"]
            learned[at] = point["stop_logprob"] is not None
            stop[at] = np.exp(point["stop_logprob"]) if learned[at] else 1.0
            agreement[at] = np.nan if point["agreement"] is None else point["agreement"]
            if point["answer"] is not None:
                answer[at] = numbers.setdefault(point["answer"], len(numbers))
    last = np.array([len(points) - 1 for points in whole], dtype=np.int64)
    return Traces(last, score, cost, stop, learned, agreement, answer)
