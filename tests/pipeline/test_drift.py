"""Whether a classifier tells contexts apart: nothing where there is nothing, what there is where there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.metrics.drift import Contexts, contexts_of, counts_of, drift, fold_of, told_apart
from stages.tables.parquet import TableRef, TableSink
from workflows.trajectory import TURNS, rows_to_table

COUNT = 200


def contexts(seed: int, marked: float = 0.0, tasks: int = 40) -> Contexts:
    """Contexts of 30 random tokens of 50; a share of them has a token that no other has."""
    random = np.random.default_rng(seed)
    rows = [
        [*random.integers(0, 50, 30), *([999] * 3 if place < marked * COUNT else [])]
        for place in range(COUNT)
    ]
    folds = [fold_of(f"task {place % tasks}") for place in range(COUNT)]
    return Contexts(np.array([counts_of(row) for row in rows]), np.array(folds))


@pytest.mark.parametrize("seed", range(3))
def test_contexts_of_one_law_are_not_told_apart(seed: int) -> None:
    found = told_apart(contexts(seed), contexts(seed + 100))
    assert found is not None
    assert abs(found[0]) < 4 * found[1]


@pytest.mark.parametrize("marked", [0.5, 1.0])
def test_the_share_of_contexts_that_only_one_side_has_is_found_and_not_overstated(marked: float) -> None:
    found = told_apart(contexts(0), contexts(1, marked))
    assert found is not None
    assert marked - 0.15 <= found[0] <= marked + 3 * found[1] + 1e-9
    other = told_apart(contexts(1, marked), contexts(0))
    assert other is not None
    assert other[0] == pytest.approx(found[0], abs=0.05)


def test_too_few_contexts_say_nothing() -> None:
    few = Contexts(contexts(0).features[:5], contexts(0).folds[:5])
    assert told_apart(few, contexts(1)) is None
    one_task = Contexts(contexts(0).features, np.zeros(COUNT, dtype=np.int64))
    assert told_apart(one_task, contexts(1)) is None  # nothing to learn from but what is judged


def stored(folder: Path, blocks: int = 2) -> TableRef:
    random = np.random.default_rng(0)
    sink = TableSink("turns", str(folder), TURNS)
    parts = []
    for block in range(blocks):
        rows = [
            {
                **{
                    "episode_id": f"{block}/{k}",
                    "turn_index": turn,
                    "task_id": f"task {k % 10}",
                    "block": block,
                },
                **{"model_id": model, "event": "llm"},
                "prompt_token_ids": [*random.integers(0, 9, 12), *([77] if model == "b" and block else [])],
            }
            for k in range(60)
            for turn, model in enumerate("ab")
        ]
        parts.append(sink.write_part(block, rows_to_table(rows, TURNS)))
    return sink.ref(parts)


def test_only_the_unit_whose_contexts_have_moved_is_told_apart(tmp_path: Path) -> None:
    turns = stored(tmp_path)
    assert contexts_of(turns, "a", 0).features.shape == (60, 256)
    moved, same = drift(turns, "b", 0, 1), drift(turns, "a", 0, 1)
    assert moved is not None
    assert same is not None
    assert moved == (1.0, 0.0)
    assert abs(same[0]) < 4 * same[1]
    assert drift(turns, "c", 0, 1) is None
