"""Which episodes the tracker gets: the same every time, of all kinds, out of all parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.store.samples import KINDS, choose_episodes
from stages.tables.parquet import TableRef
from tests.support.stored_plays import a_play, stored

SCORES = (0.5, None, 1.0, 0.0, 0.5, 0.25)  # None: it failed


@pytest.fixture(scope="module")
def plays() -> list[tuple[Any, float | None]]:
    played = [(a_play(sample), score) for sample, score in enumerate(SCORES)]
    played[1][0].episode["status"] = "timeout"
    return played


@pytest.fixture
def tables(plays: list[Any], tmp_path: Path) -> dict[str, TableRef]:
    return stored(str(tmp_path), [plays[:2], [], plays[2:]])


def samples_of(tables: dict[str, TableRef], count: int, seed: int = 0) -> list[tuple[int, str]]:
    return [(c.played.episode["sample"], c.why) for c in choose_episodes(tables, count, seed)]


def test_each_kind_has_its_turn(tables: dict[str, TableRef]) -> None:
    chosen = samples_of(tables, 4)
    assert [why for _, why in chosen] == list(KINDS)
    assert [sample for sample, _ in chosen[:3]] == [2, 3, 1]


@pytest.mark.parametrize("count", range(8))
def test_no_episode_is_chosen_twice_and_kinds_that_run_out_are_passed_over(
    tables: dict[str, TableRef], count: int
) -> None:
    chosen = [sample for sample, _ in samples_of(tables, count)]
    assert len(chosen) == len(set(chosen)) == min(count, len(SCORES))


def test_how_episodes_are_cut_into_parts_changes_nothing(plays: list[Any], tmp_path: Path) -> None:
    cuts: Sequence[list[Any]] = ([plays], [plays[:1], plays[1:]], [[], plays[:4], plays[4:]])
    found = [samples_of(stored(f"{tmp_path}/{n}", cut), 4) for n, cut in enumerate(cuts)]
    assert found[0] == found[1] == found[2]


def test_the_seed_decides_among_equals(tables: dict[str, TableRef]) -> None:
    assert samples_of(tables, 4, seed=3) == samples_of(tables, 4, seed=3)
    assert len({samples_of(tables, 4, seed=seed)[3] for seed in range(20)}) > 1


def test_without_credit_there_is_no_best_and_without_episodes_nothing(tables: dict[str, TableRef]) -> None:
    del tables["credit"]
    assert {why for _, why in samples_of(tables, 6)} == {"failed", "random"}
    assert samples_of({}, 6) == []
