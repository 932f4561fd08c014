"""What finished updates say: a model's version, what took it there, silence, and checkpoints to keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.plan.assemble import assemble
from pipeline.run.runner import Runner
from pipeline.settings.reading import parse_settings
from pipeline.store.manifest import Manifest
from pipeline.store.place import IterationStore
from pipeline.store.run import Run
from pipeline.store.updates import are_silent, newest_version, prune_checkpoints, updates_since
from pipeline.tracking.tracker import NoTracker
from stages.base import Quiet
from stages.tables.parquet import TableRef, TableSink
from stages.training.trust.spec import Recorded, TrustState
from tests.conftest import SCRIPTED, merge
from workflows.errors import RunFailed
from workflows.trajectory import PARTITION, SCORES, TRUST, rows_to_table


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Five iterations: `a` moves in 0, 2 and 4, had no signal in 1, is unfinished in 3; `b` never moves."""
    run = Run(str(tmp_path), "r")
    for index, before, after in ((0, 0, 1), (1, 1, 1), (2, 1, 2), (4, 2, 3)):
        update(run, index, "a", before, after)
    for index in range(5):
        update(run, index, "b", 0, 0)
    return run


def update(run: Run, index: int, model_id: str, before: int, after: int, block: int = 0) -> None:
    inputs = {f"partition/{model_id}": "", f"scores/{model_id}": ""}
    moved = {"version_before": before, "version_after": after}
    manifest = Manifest(f"update/{model_id}", index, {}, inputs, {}, {}, [], moved, [], 1.0)
    run.iteration(index).at(block).folder.write_text(f"updates/{model_id}/manifest.json", manifest.to_json())


def tables_of(place: IterationStore) -> dict[str, TableRef]:
    schemas = {"partition": PARTITION, "scores": SCORES}
    return {
        f"{kind}/{model_id}": TableRef(f"{kind}/{model_id}", f"{place.index}", schema, ())
        for model_id in ("a", "b")
        for kind, schema in schemas.items()
    }


def test_a_model_is_at_the_version_of_its_newest_finished_update(run: Run) -> None:
    def version(indices: range, model_id: str = "a") -> int | None:
        return newest_version((run.iteration(index) for index in indices), model_id)

    assert version(range(4, -1, -1)) == 3
    assert version(range(3, -1, -1)) == 2
    assert version(range(1, -1, -1)) == 1
    assert version(range(4, -1, -1), "b") == 0
    assert version(range(4, -1, -1), "c") is None


def test_updates_that_are_made_again_are_those_that_moved_the_model_from_a_version_on(run: Run) -> None:
    def since(version: int, model_id: str = "a") -> list[int]:
        updates = updates_since(run.newest_first(), model_id, version, tables_of)
        return [update["at"][0] for update in updates]

    assert [since(version) for version in range(4)] == [[0, 2, 4], [2, 4], [4], []]
    assert since(0, "b") == []
    (arguments,) = updates_since(run.newest_first(), "a", 2, tables_of)
    assert (arguments.pop("version"), arguments.pop("at")) == (2, (4, 0))
    assert {name: (table.name, table.folder) for name, table in arguments.items()} == {
        "partition": ("partition/a", "4"),
        "scores": ("scores/a", "4"),
    }


def test_a_run_that_has_trained_on_nothing_fails_and_one_that_has_once_does_not(tmp_path: Path) -> None:
    settings = merge(SCRIPTED, {"run": {"root": str(tmp_path)}})
    run = Run(str(tmp_path), "r")
    runner = Runner(assemble(parse_settings(settings)), run, NoTracker(), Quiet())
    runner.check_trained()  # nothing is finished
    for index in range(2):
        update(run, index, "team", 0, 0)
        run.iteration(index).folder.write_text("done.json", "{}")
    with pytest.raises(RunFailed, match=r"run 'r' has trained on nothing: in all of its 2 iterations"):
        runner.check_trained()
    update(run, 1, "team", 0, 1)
    update(run, 2, "team", 1, 1)
    run.iteration(2).folder.write_text("done.json", "{}")
    runner.check_trained()


def test_updates_of_later_blocks_count_like_those_of_iterations(tmp_path: Path) -> None:
    """A run that forgot them would let an engine and a trainer start from older weights, in agreement."""
    run = Run(str(tmp_path), "blocks")
    for index in range(2):
        for block in range(12):  # two digits sort as numbers
            update(run, index, "a", 12 * index + block, 12 * index + block + 1, block)
    update(run, 2, "a", 24, 24)
    assert newest_version(run.newest_first(), "a") == 24
    assert newest_version(run.newest_first(before=(1, 3)), "a") == 15
    assert newest_version(run.newest_first(before=(1, 0)), "a") == 12
    again = updates_since(run.newest_first(), "a", 10, tables_of)
    assert [(u["version"], *u["at"]) for u in again] == [
        *((10, 0, 10), (11, 0, 11)),
        *((12 + block, 1, block) for block in range(12)),
    ]
    assert are_silent([run.iteration(2)], ["a"], 1)
    update(run, 2, "b", 0, 1, block=1)
    assert not are_silent([run.iteration(2)], ["a", "b"], 1)  # the second block moved b


def test_iterations_are_silent_if_none_of_so_many_moved_any_model(run: Run) -> None:
    def silent(newest: int, count: int, *models: str) -> bool:
        return are_silent((run.iteration(index) for index in range(newest, -1, -1)), models, count)

    assert silent(1, 1, "a", "b")
    assert not silent(1, 2, "a", "b")  # iteration 0 moved a
    assert silent(1, 2, "b")
    assert silent(4, 5, "b")
    assert not silent(4, 6, "b")  # there are no six
    assert not silent(4, 1, "b", "a")


def test_newest_whole_checkpoints_and_named_versions_are_kept(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "r")
    whole = {"files": [{"name": "model.safetensors"}, {"name": "trainer/0.pt"}]}
    weights = {"files": [{"name": "model.safetensors"}]}
    for version, manifest in ((1, whole), (2, weights), (9, whole), (10, whole), (11, weights), (12, None)):
        folder = f"checkpoints/a/{version:05d}"
        run.folder.write_text(f"{folder}/model.safetensors", "")
        if manifest:
            run.folder.write_text(f"{folder}/manifest.json", json.dumps(manifest))
    assert run.checkpoint_versions("a") == [1, 9, 10]
    assert run.weights_versions("a") == [1, 2, 9, 10, 11]
    prune_checkpoints(run, "a", 2, {1, 11, None})
    assert run.checkpoint_folders("a") == [1, 9, 10, 11]
    prune_checkpoints(run, "a", 1, set())
    assert run.checkpoint_folders("a") == [10]


def test_a_rejected_update_moves_nothing_is_not_silence_and_is_not_made_again(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "r")
    update(run, 0, "a", 0, 1)
    rejected = Manifest("update/a", 1, {}, {}, {}, {}, [], {}, [], 1.0)
    rejected.metrics.update(version_before=1, version_after=1, rejected=1.0)
    run.iteration(1).folder.write_text("updates/a/manifest.json", rejected.to_json())
    assert newest_version(run.newest_first(), "a") == 1
    assert not are_silent([run.iteration(1)], ["a"], 1)
    update(run, 2, "a", 1, 3)  # the number 2 is spent
    made = updates_since(run.newest_first(), "a", 0, tables_of)
    assert [(each["version"], each["at"]) for each in made] == [(0, (0, 0)), (1, (2, 0))]
    assert newest_version(run.newest_first(), "a") == 3


def test_an_update_that_is_made_again_gets_what_was_decided_of_it(tmp_path: Path) -> None:
    row = {"candidate_version": 3, "steps": 2, "kept_share": 0.25, "shrink": 0.5, "scale": 4.0}
    row |= {"spent_before": 2, "model_id": "a", "next_shrink": 0.5, "next_scale": 8.0}
    sink = TableSink("trust/a", str(tmp_path / "t"), TRUST)
    decided = sink.ref([sink.write_part(0, rows_to_table([row], TRUST))])
    run = Run(str(tmp_path), "r")
    inputs = {"partition/a": "", "trust_before/a": ""}
    moved = {"version_before": 1, "version_after": 3}
    manifest = Manifest("update/a", 0, {}, inputs, {}, {}, [], moved, [], 1.0)
    run.iteration(0).folder.write_text("updates/a/manifest.json", manifest.to_json())
    (made,) = updates_since(run.newest_first(), "a", 0, lambda place: tables_of(place) | {"trust/a": decided})
    assert made["trust"] == TrustState(0.5, 4.0, 2, Recorded(3, 2, 0.25))
    assert made["trust"].candidate(1) == 3
    assert set(made) == {"partition", "trust", "version", "at"}
