"""`run evaluate --redo`: which of the evaluations that come together lose which of their stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.run.redo import redo_evaluations, redone_notes
from pipeline.settings.reading import parse_settings
from pipeline.store.run import Run
from stages.base import StageResult
from workflows.errors import UsageError

EVALUATE = {"split": "dev", "test": {"split": "test"}, "rewards": [{"use": "token_f1"}]}


def made(run: Run, plan: EvaluationPlan, index: int, count: int) -> None:
    """The first `count` stages of an evaluation, finished; all of them make it whole."""
    place = run.evaluation(plan.label, index)
    for stage in plan.stages[:count]:
        parts: dict[str, Any] = {name: [] for name in stage.outputs}
        place.commit(stage, StageResult(parts), plan.fingerprints[stage.name], {}, 0.0)
    if count == len(plan.stages):
        place.folder.write_text("result.json", "{}")
        place.folder.write_text("tracked.json", "{}")


def stages(run: Run, plan: EvaluationPlan, index: int) -> list[str]:
    place = run.evaluation(plan.label, index)
    return [stage.name for stage in plan.stages if place.manifest(stage) is not None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(str(tmp_path), "r")
    run.write_info(name="r")
    return run


def plan_of(scripted: Any, **changes: Any) -> EvaluationPlan:
    return assemble_evaluation(assemble(parse_settings(scripted(evaluate=EVALUATE | changes))))


def test_stages_go_from_every_evaluation_that_has_come_to_them_and_plays_stay(
    scripted: Any, run: Run
) -> None:
    plan = plan_of(scripted)
    (test,) = plan.also
    made(run, plan, 3, 3)
    made(run, test, 3, 2)
    mended = plan_of(scripted, rewards=[{"use": "exact_match"}])
    said = redo_evaluations(run, mended, 3, "evaluate")
    assert [sentence.partition(" of run")[0][:60] for sentence in said] == [
        "stage 'evaluate' of the evaluation on 'dev' after 3 iteratio",
        "stage 'evaluate' of the evaluation on 'test' after 3 iterati",
    ]
    assert "token_f1" in said[0]
    assert stages(run, plan, 3) == stages(run, test, 3) == ["sample", "rollout"]
    folder = run.evaluation("dev", 3).folder
    assert (folder.read_text("result.json"), folder.read_text("tracked.json")) == (None, None)
    assert redone_notes(run, run.evaluation("dev", 3), "dev").keys() == {"evaluate"}
    assert redone_notes(run, run.iteration(3)) == {}  # the iteration of that number is another thing


def test_an_evaluation_that_is_not_there_stays_so_and_others_are_not_touched(scripted: Any, run: Run) -> None:
    plan = plan_of(scripted)
    made(run, plan, 3, 3)
    made(run, plan, 0, 3)
    redo_evaluations(run, plan, 3, "sample")
    assert stages(run, plan, 3) == []
    assert stages(run, plan, 0) == ["sample", "rollout", "evaluate"]
    assert not Path(run.evaluation("test", 3).folder.path).exists()


def test_what_can_not_be_made_again_is_refused(scripted: Any, run: Run) -> None:
    plan = plan_of(scripted)
    with pytest.raises(UsageError, match="has not come to stage 'evaluate' yet, it is at 'sample'"):
        redo_evaluations(run, plan, 3, "evaluate")
    with pytest.raises(UsageError, match=r"no such stage.*the stages are: sample, rollout, evaluate"):
        redo_evaluations(run, plan, 3, "update")
    made(run, plan, 3, 3)
    other = plan_of(scripted, tasks=2)
    with pytest.raises(
        UsageError, match=r"evaluation on 'dev' after 3 iterations .* stage 'sample' with other"
    ):
        redo_evaluations(run, other, 3, "evaluate")
