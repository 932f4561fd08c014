"""From stored tables to what the page has: tasks, episodes and turns, every text once, tokens apart.

Tables are read part by part, and of each part only the chosen episodes become Python values. Values
that are null are left out. What is in the result is JSON: numbers that are not finite are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.report.choose import Chosen
from pipeline.report.pieces import Pieces
from pipeline.store.effects import effects_of
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.traces.course import Course, course_of
from stages.tables.parquet import TableRef
from workflows.trajectory import TURNS

TOKENS_IN_A_CHUNK: Final = 100_000  # the page unpacks one chunk when the first of its turns is looked at
DIGITS: Final = 4  # of what tokens are coloured by

Row = dict[str, Any]

# Texts that many turns share are kept once and referred to by number.
_TEXTS: Final = ("response_text", "parsed", "cut", "tool_request", "tool_result", "status_detail")
# what the page never shows of a turn: ids of its episode, token lists (they go to the chunks), lineage
_UNSEEN: Final = frozenset(
    {"iteration", "split", "task_id", "group_id", "sample", "prompt_token_ids", "base_id", "logprobs_mode"}
)
_TURN_COLUMNS: Final = [name for name in TURNS.names if name not in _UNSEEN]
_KEPT: Final = frozenset(
    {"turn_index", "step", "round", "branch", "parents", "event", "act", "role", "model_id"}
    | {"policy_version", "num_prompt_tokens", "num_response_tokens", "num_cached_tokens", "format_valid"}
    | {"status", "finish_reason", "metrics", "tool", "attempts", "queued_at", "started_at", "ended_at"}
    | {"sampling", "origin", "base_episode_id", "replay_from_turn", "instance", "recipients", "act_detail"}
)
_TOKEN_LISTS: Final = {
    "scores": ("old_logprobs", "reference_logprobs", "values"),
    "token_advantages": ("advantages", "importance_weights"),
}


@dataclass(slots=True)
class Content:
    """The content of the page. `prompts` are lists of (role, text number); numbers refer to `texts`."""

    texts: list[str] = field(default_factory=list)
    prompts: list[list[tuple[str, int]]] = field(default_factory=list)
    tasks: list[Row] = field(default_factory=list)
    episodes: list[Row] = field(default_factory=list)
    turns: list[Row] = field(default_factory=list)
    chunks: list[Row] = field(default_factory=list)  # {pieces, turns: {turn number: lists}}
    texts_only: set[str] = field(default_factory=set)  # models whose tokens have no text here


def content_of(run: Run, places: Sequence[Finished], chosen: Chosen, pieces: Mapping[str, Pieces]) -> Content:
    """Everything about the chosen episodes. Turns are in the order of their episodes and `turn_index`."""
    reader = _Reader(pieces)
    for place, parts in zip(places, chosen.ids, strict=True):
        every = frozenset().union(*parts)
        tokens, effects = _token_lists(place.tables, every), effects_of(run, place, every)
        for index, ids in enumerate(parts):
            if ids:
                reader.add(place, index, ids, tokens, effects)
    reader.chunks.flush()
    return reader.content


class _Reader:
    def __init__(self, pieces: Mapping[str, Pieces]) -> None:
        self.content = Content()
        self.chunks = _Chunks(self.content, pieces)
        self._text_of: dict[str, int] = {}
        self._prompt_of: dict[str, int] = {}
        self._task_of: dict[tuple[Any, ...], int] = {}

    def add(
        self,
        place: Finished,
        index: int,
        ids: frozenset[str],
        tokens: Mapping[tuple[str, int], Row],
        effects: Mapping[tuple[str, int], Sequence[Row]],
    ) -> None:
        """The chosen episodes of part `index`, with all that is known of them."""
        tables = place.tables
        tasks = {row["task_id"]: row for row in _rows(tables, "tasks", index, None)}
        beside = {
            name: {(row["episode_id"], row["turn_index"]): row for row in _rows(tables, name, index, ids)}
            for name in ("rewards", "credit")
        }
        scores = {row["episode_id"]: row for row in _rows(tables, "evaluation", index, ids)}
        turns: dict[str, list[Row]] = {}
        for turn in _rows(tables, "turns", index, ids, _TURN_COLUMNS):
            turns.setdefault(turn["episode_id"], []).append(turn)
        for episode in sorted(_rows(tables, "episodes", index, ids), key=_in_order):
            of = episode["episode_id"]
            number = len(self.content.episodes)
            entry = _filled(episode) | {"task": self._task(tasks.get(episode["task_id"]), episode)}
            entry["iteration"] = place.index  # of an evaluation: the iterations that were finished
            if of in scores:
                entry["scores"] = _named(scores[of]["values"])
                entry["failed"] = scores[of]["failed"]
            own = sorted(turns.get(of, ()), key=lambda t: t["turn_index"])
            course = course_of(own)
            entry["course"] = _drawn(course)
            self.content.episodes.append({k: v for k, v in entry.items() if v is not None})
            for turn in own:
                key = (of, turn["turn_index"])
                self._turn(number, turn, [beside[n].get(key, {}) for n in beside], tokens.get(key, {}))
                self._stand(course, turn["turn_index"], effects.get(key, ()))

    def _stand(self, course: Course, index: int, effects: Sequence[Row]) -> None:
        """Add to the newest turn its place in the course, and what changing its reply led to."""
        entry, mark = self.content.turns[-1], course.marks[index]
        entry |= {"lane": mark.lane, "at": [round(mark.begin, 6), round(mark.end, 6)]}
        if not mark.critical:
            entry["slack"] = round(mark.slack, 6)
        if effects:
            entry["interventions"] = [
                _filled({**effect, "delivered": self._text(effect["delivered"])}) for effect in effects
            ]

    def _task(self, task: Row | None, episode: Row) -> int:
        inputs, gold = ((task or {}).get(name) for name in ("inputs", "gold"))
        key = (episode["task_id"], inputs, gold)
        if key not in self._task_of:
            self._task_of[key] = len(self.content.tasks)
            entry = {"task_id": episode["task_id"], "inputs": self._text(inputs), "gold": self._text(gold)}
            self.content.tasks.append({k: v for k, v in entry.items() if v is not None})
        return self._task_of[key]

    def _turn(self, episode: int, turn: Row, beside: Sequence[Row], tokens: Row) -> None:
        number = len(self.content.turns)
        entry = {k: v for k, v in _filled(turn).items() if k in _KEPT}
        entry |= {"episode": episode, "prompt": self._prompt(turn["messages"])}
        entry |= {name: self._text(turn[name]) for name in _TEXTS}
        entry["metrics"] = _named(turn["metrics"])
        reward, credit = beside
        entry |= {k: _finite(reward.get(k)) for k in ("reward", "no_reward_reason")}
        entry["parts"] = _named(reward.get("reward_parts"))
        entry |= {k: _finite(credit.get(k)) for k in ("return", "advantage", "excluded")}
        entry["channels"] = _named(credit.get("channels"))
        if tokens.get("excluded") is not None and entry["excluded"] is None:
            entry["excluded"] = f"by the update: {tokens['excluded']}"
        lists = {"behaviour": turn["behaviour_logprobs"]} | {
            name: tokens.get(name) for names in _TOKEN_LISTS.values() for name in names
        }
        entry["gap"] = _gap(lists["behaviour"], lists["old_logprobs"])
        entry["chunk"] = self.chunks.add(number, turn, lists)
        self.content.turns.append({k: v for k, v in entry.items() if v is not None})

    def _prompt(self, messages: str | None) -> int | None:
        if messages is None:
            return None
        if messages not in self._prompt_of:
            self._prompt_of[messages] = len(self.content.prompts)
            self.content.prompts.append([self._message(m) for m in _chat(messages)])
        return self._prompt_of[messages]

    def _message(self, message: Row) -> tuple[str, int]:
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        return str(message.get("role", "?")), self._number_of(text)

    def _text(self, text: str | None) -> int | None:
        return None if text is None else self._number_of(text)

    def _number_of(self, text: str) -> int:
        if text not in self._text_of:
            self._text_of[text] = len(self.content.texts)
            self.content.texts.append(text)
        return self._text_of[text]


class _Chunks:
    """Tokens and what is known of each, in chunks that the page unpacks one by one."""

    def __init__(self, content: Content, pieces: Mapping[str, Pieces]) -> None:
        self._content, self._pieces_of = content, pieces
        self._vocabulary: dict[str, int] = {}
        self._turns: dict[int, Row] = {}
        self._size = 0

    def add(self, number: int, turn: Row, lists: Mapping[str, Sequence[float] | None]) -> int | None:
        """The chunk of this turn; None where its tokens have no text, or there are none."""
        pieces_of, ids = self._pieces_of.get(turn["model_id"]), turn["response_token_ids"]
        if not ids:
            return None
        if pieces_of is None:
            self._content.texts_only.add(turn["model_id"])
            return None
        pieces = [self._vocabulary.setdefault(p, len(self._vocabulary)) for p in pieces_of(ids)]
        known = {k: [_finite(v, DIGITS) for v in values] for k, values in lists.items() if values is not None}
        self._turns[number] = {"pieces": pieces, **known}
        chunk = len(self._content.chunks)
        self._size += len(ids)
        if self._size >= TOKENS_IN_A_CHUNK:
            self.flush()
        return chunk

    def flush(self) -> None:
        if self._turns:
            self._content.chunks.append({"pieces": list(self._vocabulary), "turns": self._turns})
        self._vocabulary, self._turns, self._size = {}, {}, 0


def _token_lists(tables: Mapping[str, TableRef], ids: frozenset[str]) -> dict[tuple[str, int], Row]:
    """Rows of `scores` and `token_advantages` for the turns of these episodes, by key.

    Their parts follow the models' partitions, not the parts of `turns`.
    """
    by_turn: dict[tuple[str, int], Row] = {}
    for name, table in tables.items():
        columns = _TOKEN_LISTS.get(name.partition("/")[0])
        for index in range(len(table.parts) if columns else 0):
            for row in _rows(tables, name, index, ids):
                by_turn.setdefault((row["episode_id"], row["turn_index"]), {}).update(row)
    return by_turn


def _rows(
    tables: Mapping[str, TableRef],
    name: str,
    index: int,
    ids: frozenset[str] | None,
    columns: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Rows of part `index`, of these episodes where ids are given; none where the table is not there."""
    if name not in tables or index >= len(tables[name].parts):
        return
    table = tables[name].read_part(index, columns)
    if ids is not None:
        table = table.filter(pc.is_in(table["episode_id"], pa.array(sorted(ids), pa.string())))
    yield from table.to_pylist()


def _chat(text: str) -> list[Row]:
    """The messages of a prompt; text of another writer that is not a chat is one message as it stands."""
    try:
        messages = json.loads(text)
    except ValueError:
        messages = None
    if isinstance(messages, list) and all(isinstance(m, dict) for m in messages):
        return messages
    return [{"role": "?", "content": text}]


def _drawn(course: Course) -> Row:
    """What the page draws of a course beside its turns."""
    return {
        "lanes": list(course.lanes),
        "unit": course.unit,
        "span": course.span,
        "work": course.work,
        "width": course.width,
        "arrows": [[a.source, a.target, a.kind, a.critical] for a in course.arrows],
    }


def _in_order(episode: Row) -> tuple[Any, ...]:
    return episode["task_id"], episode["sample"]


def _filled(row: Row) -> Row:
    return {name: _finite(value) for name, value in row.items() if value not in (None, "", [])}


def _finite(value: Any, digits: int | None = None) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return value if digits is None else round(value, digits)


def _named(values: Sequence[Row] | None) -> list[tuple[str, float | None]] | None:
    return [(v["name"], _finite(v["value"])) for v in values] if values else None


def _gap(behaviour: Sequence[float] | None, old: Sequence[float] | None) -> float | None:
    """Mean |trainer's old logprob - sampler's| over the tokens."""
    if not behaviour or not old or len(old) != len(behaviour):
        return None
    return _finite(math.fsum(abs(o - b) for o, b in zip(old, behaviour, strict=True)) / len(old), 6)
