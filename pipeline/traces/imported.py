"""One episode as it was read from a trace, before it has a place in a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.traces.episode import Episode
from pipeline.traces.extension import OVERRIDES
from pipeline.traces.rows import IDENTITY
from workflows.trajectory import to_json
from workflows.vocabulary import Origin

Row = dict[str, Any]


@dataclass(slots=True)
class Imported:
    """An episode's rows without their keys. `identity` is that of a trace of Cadre's own.

    Rewards and credit are by `turn_index`; `traced` is what else was said of turns and, under None, of all.
    """

    trace_id: str
    task_id: str
    turns: list[Row]
    episode: Row = field(default_factory=dict)
    task: Row = field(default_factory=dict)
    identity: Row | None = None
    rewards: dict[int, Row] = field(default_factory=dict)
    credit: dict[int, Row] = field(default_factory=dict)
    evaluation: Row | None = None
    traced: dict[int | None, dict[str, Any]] = field(default_factory=dict)
    refs: dict[int, str] = field(default_factory=dict)
    workflow: Mapping[str, Any] | None = None

    def note(self, index: int | None, **values: Any) -> None:
        """Keep what has no column. None is left out."""
        kept = {k: v for k, v in values.items() if v is not None}
        if kept:
            self.traced.setdefault(index, {}).update(kept)

    def override(self, index: int | None, row: Row, **values: Any) -> None:
        """Change columns of a row, and keep what they were for who exports it again."""
        changed = {k: row.get(k) for k, v in values.items() if row.get(k) != v}
        row.update(values)
        if changed:
            self.traced.setdefault(index, {}).setdefault(OVERRIDES, {}).update(changed)


def own_episode(
    trace_id: str, whole: Mapping[str, Any], rows: Mapping[str, Any], task_id: str = ""
) -> Imported:
    """An episode of Cadre's own, yet without turns: what `whole` and its `rows` say of it in its trace.

    `task_id` is that of the trace, where no row has one.
    """
    episode = rows.get("episode", {})
    imported = Imported(
        trace_id=trace_id,
        task_id=episode.get("task_id", task_id),
        turns=[],
        episode={k: v for k, v in episode.items() if k not in IDENTITY},
        task=rows.get("task", {}),
        identity={k: episode[k] for k in IDENTITY if k in episode},
        evaluation=rows.get("evaluation"),
        workflow=whole.get("workflow"),
    )
    imported.note(None, workflow=whole.get("workflow", {}), **whole.get("traced", {}))
    return imported


def settle(imported: Imported, temperature: float | None = None) -> Imported:
    """What every imported episode gets: tokens that can't be trained on are set aside, totals are counted.

    A policy gradient needs the ids of prompt and reply, the sampler's logprob of each token, and its
    temperature. Where one of these is missing the reply's ids go into no column: nothing can train on them.

    Args:
        temperature: of the sampler, where a trace does not say it.
    """
    for turn in imported.turns:
        if turn.get("response_token_ids") is not None and not _can_be_trained(turn, temperature):
            imported.override(turn["turn_index"], turn, response_token_ids=None, behaviour_logprobs=None)
    if imported.identity is None:
        totals = {
            "num_turns": len(imported.turns),
            "num_prompt_tokens": _sum(imported.turns, "num_prompt_tokens"),
            "num_response_tokens": _sum(imported.turns, "num_response_tokens"),
        }
        imported.episode = totals | {k: v for k, v in imported.episode.items() if v is not None}
    return imported


def _can_be_trained(turn: Row, temperature: float | None) -> bool:
    ids, logprobs = turn["response_token_ids"], turn.get("behaviour_logprobs")
    if turn.get("prompt_token_ids") is None or logprobs is None or len(logprobs) != len(ids):
        return False
    if turn.get("sampling") is None and temperature is not None:
        turn["sampling"] = to_json({"temperature": temperature})
    sampling = json.loads(turn["sampling"]) if turn.get("sampling") is not None else {}
    return isinstance(sampling, dict) and isinstance(sampling.get("temperature"), int | float)


def task_id_of(content: Any) -> str:
    """A task's id from what it says, where nobody gave it one: the same task, the same id."""
    return hashlib.blake2b(to_json(content).encode(), digest_size=8).hexdigest()


def json_or_none(value: Any) -> str | None:
    return None if value is None else to_json(value)


def text_as_json(text: str) -> str:
    """A text as a JSON column holds it: itself where it is JSON, else as a string."""
    try:
        return to_json(json.loads(text))
    except ValueError:
        return to_json(text)


def _sum(turns: list[Row], column: str) -> int | None:
    counts = [t[column] for t in turns if t.get(column) is not None and t.get("origin") != Origin.COPIED]
    return sum(counts) if counts else None


def as_episode(imported: Imported) -> Episode:
    """An imported episode without a run around it, as exporters take one."""
    own = imported.identity or {"task_id": imported.task_id, "sample": 0, "episode_id": imported.trace_id}
    return Episode(
        {**imported.episode, **own},
        imported.task,
        imported.turns,
        imported.rewards,
        imported.credit,
        imported.evaluation,
        imported.traced,
        imported.refs,
    )
