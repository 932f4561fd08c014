"""The update stage of a model with a trust region: what it begins with, announces, writes and leaves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from stages.base import Context
from stages.engines.base import Weights
from stages.tables.parquet import TableRef, TableSink
from stages.training.spec import TrainerSpec, UpdateReport
from stages.training.trust.spec import TrustState
from stages.trial import Played, Trial
from stages.update import UpdateStage
from tests.stages.test_update_stage import MODEL, partition
from workflows.trajectory import TRUST, rows_to_table


@dataclass
class Decides:
    """A trainer that decides as it is told, and notes what it was called with."""

    decision: str
    after: int
    calls: list[dict[str, Any]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    spec: TrainerSpec = field(default_factory=lambda: TrainerSpec("m", "base", "folder"))
    on_trial: bool = False
    settled: list[str | None] = field(default_factory=list)

    def update(self, *, version: int, at: Any, trust: TrustState, **arguments: Any) -> UpdateReport:
        self.calls.append({"version": version, "trust": trust, **arguments})
        row = {"model_id": "m", "decision": self.decision, "candidate_version": trust.candidate(version)}
        row |= {"whole_divergence": 0.3, "radius": 0.1, "measure": "message", "reason": "too far"}
        row |= {"next_shrink": 0.5, "next_scale": 1.0, "kept_share": 0.0}
        summary = {"kind": "summary", "model_id": "m", "version_before": version, "version_after": self.after}
        self.report = UpdateReport("m", 0, version, self.after, 2, 4, 10, 1.0, summary=summary, trust=row)
        return replace(self.report, on_trial=self.on_trial)

    def settle(self, reason: str | None) -> UpdateReport:
        self.settled.append(reason)
        if reason is None:
            return self.report
        self.after = self.report.version_before
        trust = {**(self.report.trust or {}), "decision": "rejected", "reason": reason}
        return replace(self.report, version_after=self.after, trust=trust)

    def save(self, uri: str) -> Weights:
        self.written.append("whole")
        return Weights("m", uri, self.after, "hash")

    def publish(self, uri: str) -> Weights:
        self.written.append("weights")
        return Weights("m", uri, self.after, "hash")


@dataclass
class Fleet:
    group: Decides
    announced: list[Weights] = field(default_factory=list)
    woken: int = 0

    def trainer(self, model_id: str) -> Decides:
        return self.group

    def players(self) -> list[Any]:
        self.woken += 1
        return []

    def version_of(self, model_id: str) -> int:
        return 1

    def checkpoint_uri(self, model_id: str, version: int) -> str:
        return f"checkpoints/{model_id}/{version:05d}"

    def checkpoint_is_due(self, version: int) -> bool:
        return version % 2 == 0

    def weights_changed(self, weights: Weights) -> None:
        self.announced.append(weights)


def run(
    folder: Path, fleet: Fleet, before: list[dict[str, Any]], trial: Trial | None = None
) -> tuple[Any, dict[str, TableRef]]:
    stage = UpdateStage(MODEL, trust=True, trial=trial)
    assert stage.carried == {"trust_before/m": "trust/m"}
    sink = TableSink("trust/m", f"{folder}/before", TRUST)
    tables = {
        "partition/m": partition(folder / "p", version=1, advantages=[1.0, 1.0]),
        "trust_before/m": sink.ref([sink.write_part(0, rows_to_table(before, TRUST))] if before else []),
    }
    sinks = {name: TableSink(name, f"{folder}/{name}", schema) for name, schema in stage.outputs.items()}
    result = stage.run(tables, sinks, Context(iteration=0, fleet=fleet))
    return result, {name: sinks[name].ref(parts) for name, parts in result.parts.items()}


SPENT = [{"model_id": "m", "candidate_version": 2, "next_shrink": 0.25, "next_scale": 2.0}]


def test_a_rejected_candidate_is_announced_to_nobody_and_written_down(tmp_path: Path) -> None:
    fleet = Fleet(Decides("rejected", 1))
    result, tables = run(tmp_path, fleet, SPENT)
    assert fleet.group.calls[0]["trust"] == TrustState(0.25, 2.0, 2)
    assert (fleet.group.written, fleet.announced) == ([], [])
    assert tables["models/m"].rows == 0
    (row,) = tables["trust/m"].read().to_pylist()
    assert (row["decision"], row["candidate_version"], row["next_shrink"]) == ("rejected", 3, 0.5)
    assert (result.metrics["rejected"], result.metrics["skipped"]) == (1, 0)
    assert "candidate 3 of model 'm' is rejected" in result.notes[0]
    assert "weights and optimizer are those of before" in result.notes[0]


@pytest.mark.parametrize(("after", "written"), [(3, "whole"), (5, "whole")])
def test_a_checkpoint_that_was_due_at_a_spent_number_is_written_at_the_next(
    tmp_path: Path, after: int, written: str
) -> None:
    fleet = Fleet(Decides("accepted", after))
    result, tables = run(tmp_path, fleet, [])
    assert fleet.group.calls[0]["trust"] == TrustState()
    assert fleet.group.written == [written]
    (entry,) = tables["models/m"].read().to_pylist()
    assert (entry["version"], entry["parent_version"]) == (after, 1)
    assert [weights.version for weights in fleet.announced] == [after]
    assert result.metrics["rejected"] == 0


class Scored(Trial):
    """A trial whose plays earn 1 on both tasks without the candidate, and with it what `tolerance` is not."""

    def _tasks(self, folder: str, context: Context) -> Any:
        (Path(folder)).mkdir(parents=True)
        return None

    def _played(self, folder: str, tasks: Any, context: Context) -> Played:
        earned = 1.0 if folder.endswith("before") else 0.25
        play = {"return": earned, "failed": None, "response_tokens": 2, "prompt_tokens": 3}
        return {("a", 0): play, ("b", 0): play}


def scored(tolerance: float) -> Trial:
    nothing: Any = None
    return Scored(nothing, nothing, nothing, 1.64, tolerance)


def test_a_candidate_that_loses_its_trial_leaves_the_engine_and_the_tables_as_a_rejected_one(
    tmp_path: Path,
) -> None:
    fleet = Fleet(Decides("accepted", 3, on_trial=True))
    result, tables = run(tmp_path, fleet, SPENT, scored(0.5))
    assert fleet.woken == 1  # engines are up before the trainer moves on
    (reason,) = fleet.group.settled
    assert reason == ("the trial: 1.000 → 0.250 on 2 held-out tasks, a gain of at least -0.750")
    # the engine had the candidate, and has what the trainer has put back
    assert [weights.version for weights in fleet.announced] == [3, 1]
    assert fleet.group.written == ["weights", "weights"]
    assert not (tmp_path / "trial/m-plays").exists()
    assert tables["models/m"].rows == 0
    rows = tables["trial/m"].read().to_pylist()
    assert [(r["task_id"], r["return_before"], r["return_candidate"]) for r in rows] == [
        ("a", 1.0, 0.25),
        ("b", 1.0, 0.25),
    ]
    assert {(r["candidate_version"], r["version_before"]) for r in rows} == {(3, 1)}
    assert result.metrics["rejected"] == 1
    assert [a.boundary for a in result.accounts] == ["partition/m → update", "trial of m"]
    assert any("is rejected (the trial: 1.000 → 0.250" in note for note in result.notes)


def test_a_candidate_that_stands_its_trial_is_the_next_version(tmp_path: Path) -> None:
    fleet = Fleet(Decides("accepted", 2, on_trial=True))
    result, tables = run(tmp_path, fleet, [], scored(0.75))
    assert fleet.group.settled == [None]
    assert [weights.version for weights in fleet.announced] == [2, 2]
    assert fleet.announced[-1].uri == "checkpoints/m/00002"
    assert fleet.group.written == ["weights", "whole"]
    (entry,) = tables["models/m"].read().to_pylist()
    assert (entry["version"], tables["trial/m"].rows) == (2, 2)
    assert result.notes[0].startswith("trial of model 'm': 1.000 → 0.250")


def test_a_candidate_that_is_decided_on_already_stands_no_trial(tmp_path: Path) -> None:
    fleet = Fleet(Decides("rejected", 1))
    _, tables = run(tmp_path, fleet, SPENT, scored(0.5))
    assert (fleet.group.settled, fleet.announced, tables["trial/m"].rows) == ([], [], 0)
