"""Episodes that were really played, as the stored tables of one iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stages.tables.parquet import TableRef, TableSink
from tests.support.tables import named_values
from workflows.loading import load_workflow
from workflows.playing.record import Played
from workflows.testing import play_once
from workflows.trajectory import CREDIT, EPISODES, REWARDS, TASKS, TURNS, rows_to_table, to_json

QUESTION = "In which country is the city that Ada moved to?"


def a_play(sample: int = 0, **options: Any) -> Played:
    """One episode of `qa_decompose`: a plan, a search and a reader for each part, an answer."""
    workflow = load_workflow("qa_decompose", {"top_k": 1})
    return play_once(workflow, {"question": QUESTION}, sample=sample, **options)


def stored(folder: str, parts: Sequence[Sequence[tuple[Played, float | None]]]) -> dict[str, TableRef]:
    """Tables whose part k has the plays of `parts[k]`, each with the return of its llm turns or none."""
    tables = {}
    rows: dict[str, list[list[dict[str, Any]]]] = {n: [[] for _ in parts] for n in _SCHEMAS}
    for index, part in enumerate(parts):
        for played, score in part:
            found = _rows(played, score)
            for name in _SCHEMAS:
                if name != "tasks" or not rows[name][index]:  # one task
                    rows[name][index] += found[name]
    for name, schema in _SCHEMAS.items():
        sink = TableSink(name, f"{folder}/{name}", schema)
        tables[name] = sink.ref(
            [sink.write_part(k, rows_to_table(r, schema)) for k, r in enumerate(rows[name])]
        )
    return tables


_SCHEMAS = {"tasks": TASKS, "turns": TURNS, "episodes": EPISODES, "rewards": REWARDS, "credit": CREDIT}


def _rows(played: Played, score: float | None) -> dict[str, list[dict[str, Any]]]:
    rewards, credit = [], []
    for turn in played.turns:
        key = {"episode_id": turn["episode_id"], "turn_index": turn["turn_index"]}
        if turn["event"] == "llm" and score is not None:
            rewards.append(
                {**key, "reward": score, "reward_parts": named_values({"f1": score, "format": 0.0})}
            )
            credit.append({**key, "return": score, "advantage": score - 0.5})
        else:
            reason = "not an llm turn" if turn["event"] != "llm" else "infra_error"
            rewards.append({**key, "reward": None, "reward_parts": [], "no_reward_reason": reason})
            credit.append({**key, "excluded": reason})
    gold = to_json({"answers": ["Norway"]})
    task = {"task_id": played.episode["task_id"], "inputs": to_json({"question": QUESTION}), "gold": gold}
    return {
        "tasks": [task],
        "turns": played.turns,
        "episodes": [played.episode],
        "rewards": rewards,
        "credit": credit,
    }
