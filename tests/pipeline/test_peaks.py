"""The best that a run has been: its weights stay, and an early stop is noted and taken back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.metrics.falls import Peak
from pipeline.run.peaks import note_peak, patience_is_spent
from pipeline.settings.evaluation import EvaluateSection
from pipeline.store.finished import Finished
from pipeline.store.manifest import Manifest
from pipeline.store.run import Run
from pipeline.store.updates import prune_checkpoints


def updated(run: Run, index: int, before: int) -> Finished:
    """An iteration that took model `m` on from a version."""
    metrics = {"version_before": float(before), "version_after": before + 1.0}
    manifest = Manifest("update/m", index, {}, {}, {}, {}, [], metrics, [], 1.0)
    return Finished(run.iteration(index), manifests={"update/m": manifest})


def test_the_weights_that_played_the_peak_stay_however_many_come_after_them(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "r")
    for version in range(1, 7):
        files = json.dumps({"files": [{"name": "trainer/x"}]})
        run.folder.write_text(f"checkpoints/m/{version:05d}/manifest.json", files)
    assert note_peak(run, updated(run, 1, 1), None, ["m"], lambda _: 2) == {}  # too few iterations for one
    assert note_peak(run, updated(run, 2, 2), Peak(2, 0.8), ["m", "n"], lambda _: 9) == {"m": 2, "n": 9}
    versions = note_peak(run, updated(run, 3, 3), Peak(2, 0.8), ["m", "n"], lambda _: 9)
    assert versions == run.info["peak"]["versions"] == {"m": 2, "n": 9}
    prune_checkpoints(run, "m", 1, {6, versions["m"]})
    assert run.weights_versions("m") == [2, 6]


def test_patience_counts_evaluations_after_the_best_and_more_of_it_takes_the_result_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(str(tmp_path), "r")
    best = {"metric": "f1", "value": 0.5, "iterations": 4, "versions": {"m": 4}}
    run.write_info(best={"dev": best})
    section = EvaluateSection(every=2, patience=2)
    assert not patience_is_spent(run, section, "dev", 6)
    assert "result" not in run.info
    assert patience_is_spent(run, section, "dev", 8)
    assert run.info["result"] == best | {"split": "dev", "stopped_after": 8}
    assert (
        "2 evaluations in a row were no better by f1 than 0.500 after 4 iterations" in capsys.readouterr().out
    )
    assert not patience_is_spent(run, EvaluateSection(every=2, patience=3), "dev", 8)
    assert run.info["result"] is None
    assert not patience_is_spent(run, EvaluateSection(every=2), "dev", 80)  # 0: never
