"""Which trials of candidates are refused at `check`, and which tasks the others play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.metrics.cost import cost_metrics
from pipeline.metrics.shift import shift_metrics
from pipeline.plan.assemble import Plan, assemble
from pipeline.plan.overview import overview
from pipeline.settings.reading import load_settings
from pipeline.views.overview import overview_lines
from stages.base import Context
from stages.tables.parquet import TableSink
from stages.trial import Trial
from stages.update import UpdateStage
from workflows.data.tasks import choose
from workflows.errors import UsageError
from workflows.trajectory import TASKS, TRIAL, rows_to_table

EXAMPLE = Path(__file__).parents[2] / "docs/examples/signal.toml"
REJECTS = ("trust_region.radius=0.1", "trust_region.reject=true", "trust_region.trial_tasks=4")
EIGHT = ('data.path="8"', "evaluate.tasks=4")
IN_TURN = ("sharing.regime=separate", "schedule.use=sequential")


def planned(*overrides: str) -> Plan:
    return assemble(load_settings(EXAMPLE, ["tracking.uri=none", *EIGHT, *REJECTS, *overrides]))


def updates(plan: Plan) -> list[UpdateStage]:
    return [stage for stage in plan.stages if isinstance(stage, UpdateStage)]


def trial_of(plan: Plan) -> Trial:
    (update,) = updates(plan)
    assert update.trial is not None
    return update.trial


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["trust_region.reject=false", "trust_region.backtrack=2"], "trust_region.trial_tasks"),
        (["trust_region.trial_tasks=1"], "needs 2 tasks at least"),
        (["trust_region.trial_tasks=5"], "of the 8 tasks of split 'dev', evaluations play 4, which leaves 4"),
        (["evaluate.tasks=8"], "evaluations play 8, which leaves 0; set evaluate.tasks to 4 or less"),
        (["evaluate.split=train"], "what the team trains on"),
        (["sharing.regime=separate"], "are trained in the same block"),
        ([*IN_TURN, 'schedule.options={groups=[["sender","receiver"]]}'], "trained in the same block"),
        (["trust_region.trial_tasks=0", "trust_region.trial_samples=2"], "trial_samples"),
        (["trust_region.trial_tasks=0", "trust_region.tolerance=1"], "trust_region.tolerance"),
    ],
)
def test_a_trial_that_can_not_work_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        planned(*overrides)


def test_a_model_without_weights_has_no_candidate_to_try(scripted: Any) -> None:
    from pipeline.settings.reading import parse_settings

    trust = {"radius": 0.1, "reject": True, "trial_tasks": 2}
    with pytest.raises(UsageError, match='speaks by engine = "scripted", which takes no weights'):
        assemble(parse_settings(scripted(trust_region=trust, evaluate={"split": "dev", "tasks": 2})))


def test_tasks_of_a_trial_are_touched_by_nothing_else_and_change_with_the_iteration(tmp_path: Path) -> None:
    plan = planned("trust_region.trial_tasks=2")
    section = plan.resolved.evaluate
    seed = plan.resolved.run.seed
    evaluated = set(choose(plan.tasks.tasks, "dev", seed, 0, section.tasks or 0)["task_id"].to_pylist())
    seen = []
    for iteration in range(2):
        sink = TableSink("tasks", f"{tmp_path}/{iteration}", TASKS)
        made = trial_of(plan).sample.run({}, {"tasks": sink}, Context(iteration))
        seen.append(set(sink.ref(made.parts["tasks"]).read()["task_id"].to_pylist()))
    assert all(len(tasks) == 2 and not tasks & evaluated for tasks in seen)
    assert not seen[0] & seen[1]


def test_trials_borrow_engines_and_are_in_the_fingerprint_of_updates_and_in_no_other() -> None:
    plan, without = planned(*IN_TURN), planned(*IN_TURN, "trust_region.trial_tasks=0")
    assert [update.lease for update in updates(plan)] == ["both", "both"]
    assert [update.lease for update in updates(without)] == ["trainer", "trainer"]
    assert "trial/sender" in updates(plan)[0].outputs
    differing = [name for name in plan.fingerprints if plan.fingerprints[name] != without.fingerprints[name]]
    assert differing == ["update/sender", "update/receiver"]
    assert "trial_tasks" not in without.fingerprints["update/sender"]["trust_region"]


def test_metrics_of_a_trial_and_its_tokens_apart(tmp_path: Path) -> None:
    rows = [
        {
            **{"block": 1, "task_id": task, "sample": 0, "return_before": before, "return_candidate": after},
            **{"response_tokens_before": 3, "response_tokens_candidate": 4},
            **{"prompt_tokens_before": 10, "prompt_tokens_candidate": 10},
        }
        for task, before, after in (("a", 0.0, 1.0), ("b", 1.0, 1.0), ("c", 1.0, 0.0), ("d", 0.0, 1.0))
    ]
    rows.append({"block": 1, "task_id": "e", "sample": 0, "failed": "before: timeout"})
    rows.append({**rows[0], "block": 0, "return_candidate": 9.0})  # an older trial
    sink = TableSink("trial/m", str(tmp_path), TRIAL)
    metrics = shift_metrics({"trial/m": sink.ref([sink.write_part(0, rows_to_table(rows, TRIAL))])})
    assert metrics["shift/m/trial_gain"] == 0.25
    assert (metrics["shift/m/trial_improvements"], metrics["shift/m/trial_regressions"]) == (0.5, 0.25)
    assert metrics["shift/m/trial_mcnemar_p"] == 1
    assert (metrics["trial/response_tokens"], metrics["trial/prompt_tokens"]) == (35, 100)
    assert cost_metrics({**metrics, "rollout/response_tokens": 7.0}, {}, {})["total/trial_tokens"] == 35
    assert cost_metrics({**metrics, "rollout/response_tokens": 7.0}, {}, {})["total/sampled_tokens"] == 7


def test_check_says_what_a_trust_region_and_a_trial_will_do() -> None:
    lines = overview_lines(overview(planned("trust_region.trial_samples=3")))
    assert (
        "trust     team: radius 0.1 nats per message (k3): candidates outside are taken back, each candidate "
        "stands a trial of 2 × 12 plays on 4 held-out tasks"
    ) in lines
    watched = overview(planned("trust_region.reject=false", "trust_region.trial_tasks=0"))
    assert "trust     team: radius 0.1 nats per message (k3): watched only" in overview_lines(watched)
    off = ["trust_region.reject=false", "trust_region.trial_tasks=0", "trust_region.radius=none"]
    assert overview(planned(*off))["learning"]["trust"] == {}
