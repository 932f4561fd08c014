"""What a replay may change, what it depends on, and which iterations it takes; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import assemble
from pipeline.replays.plan import due_stages, replay_plan
from pipeline.replays.replayer import begin
from pipeline.replays.settings import changes_of, overridden, with_values
from pipeline.replays.source import Source
from pipeline.settings.reading import parse_settings
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.spans import span_of
from tests.support.stored_runs import Shape, settings_of, write_iterations, write_run
from workflows.errors import UsageError

GAE = {"advantage": {"use": "gae", "lam": 0.9}, "critic": {"kind": "head"}, "credit": {}}
SMALL = Shape(turns=1, group_size=2, tasks_per_part=2)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(settings_of(str(tmp_path)))


def plan_with(run: Run, *overrides: str, split: str | None = None, **options: Any):
    return replay_plan(Source(run, split), overridden(run, overrides), **options)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rollout.group_size=2", "what was sampled depends on it"),
        ("data.path=arithmetic", "what was sampled depends on it"),
        ("run.seed=3", "what was sampled depends on it"),
        ("workflow.options.max_rounds=1", "what was sampled depends on it"),
        ("models.team.max_model_len=99", "what was sampled depends on it"),
        ("run.name=other", "--label"),
        ("ppo.learning_rate=0.1", "only an update depends on it"),
        ("models.team.trainer.precision=fp32", "only an update depends on it"),
        ('critic={kind="head"}', "forward pass"),
        ("evaluate.best=format", "--split"),
    ],
)
def test_what_stored_turns_cannot_follow_is_refused_with_what_to_do(
    run: Run, override: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        plan_with(run, override)
    assert override.partition("=")[0] in str(refused.value)


def test_an_evaluation_has_rewards_only(run: Run) -> None:
    with pytest.raises(UsageError, match="no credit and no update"):
        changes_of(run, overridden(run, ["credit.use=rloo"]), split="dev")
    ((key, _, _),) = changes_of(
        run, overridden(run, ["rewards.0.options={mode='official_squad'}"]), split="dev"
    )
    assert key == "rewards"


def test_a_replay_without_a_checkpoint_or_data_can_be_planned(run: Run) -> None:
    """The stored run names a model folder that is not there: a laptop without weights must do."""
    plan = plan_with(run, "credit.use=rloo", "rewards.0.weight=2")
    assert [stage.name for stage in plan.stages] == ["reward", "credit", "partition"]
    assert [key for key, _, _ in plan.changes] == ["credit.use", "rewards"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sharing": {"regime": "separate"}},
        GAE,
        {
            "advantage": {"whiten": "role"},
            "ppo": {"importance": "truncated", "kl_in": "reward", "kl_coefficient": 0.1},
        },
    ],
)
def test_a_replay_depends_on_what_the_run_depended_on(
    scripted: Callable[..., dict[str, Any]], changes: dict[str, Any]
) -> None:
    """Settings through the run's file and back give the very fingerprints that its manifests have."""
    plan = assemble(parse_settings(scripted(**changes)))
    run = write_run(plan.settings)
    replayed = plan_with(run)
    assert replayed.changes == ()
    names = {"reward", "credit", "partition", "advantage"}
    assert {n: f for n, f in plan.fingerprints.items() if n in names} == dict(replayed.fingerprints)


def test_each_setting_makes_exactly_its_stage_and_later_ones_due(run: Run) -> None:
    settings = plan_with(run, "advantage.whiten=role")
    for override, due in (
        ("rewards.0.weight=3", ["reward", "credit", "partition"]),
        ("roles.planner.format_weight=3", ["reward", "credit", "partition"]),
        ("credit.truncated=exclude", ["reward", "credit", "partition"]),
        ("credit.use=rloo", ["credit", "partition"]),
        ("roles.planner.frozen=true", ["partition"]),
        ("ppo.micro_batch_tokens=99", ["partition"]),
        ("tracking.experiment=x", []),
    ):
        plan = plan_with(run, override)
        manifests = {s.name: made(s, plan_with(run)) for s in settings.stages}
        stored = Finished(run.iteration(0), manifests=manifests)
        assert [s.name for s in due_stages(plan, stored, {})] == due, override


def made(stage: Any, plan: Any) -> Any:
    from pipeline.store.differences import plain
    from pipeline.store.manifest import Manifest

    fingerprint = plain(plan.fingerprints[stage.name])
    return Manifest(stage.name, 0, fingerprint, {}, {}, {}, [], {}, [], 0.0)


def test_until_cuts_and_refuses_what_is_not_there(run: Run) -> None:
    assert [s.name for s in plan_with(run, until="credit").stages] == ["reward", "credit"]
    with pytest.raises(UsageError, match="did you mean 'credit'"):
        plan_with(run, until="credits")
    with pytest.raises(UsageError, match="no such stage"):
        plan_with(run, until="advantage")


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ([], "unchanged"),
        (["credit.use=rloo"], "rloo"),
        (["credit.use=rloo", "ppo.micro_batch_tokens=99"], "rloo-micro_batch_tokens-99"),
        (["rewards.0.weight=2"], "f1_by_round-weight-2.0"),
        (['rewards.0.options={mode="strict"}'], "f1_by_round-mode-strict"),
        (['rewards=[{use="exact_match"}]'], "exact_match"),
        (['rewards=[{use="exact_match"}, {use="rewards.token_f1:TokenF1"}]'], "exact_match-TokenF1"),
        (["roles.planner.frozen=true"], "frozen"),
    ],
)
def test_a_replay_is_called_by_what_changed(run: Run, overrides: list[str], label: str) -> None:
    assert plan_with(run, *overrides).label == label


def test_labels_are_names_of_folders(run: Run) -> None:
    with pytest.raises(UsageError, match="--label"):
        plan_with(run, label="../elsewhere")


def test_a_name_that_another_replay_has_gets_a_hash_and_each_goes_on_under_its_own(run: Run) -> None:
    first = plan_with(run, "credit.use=rloo")
    begin(first)
    other = plan_with(run, "credit.use=rloo", again=True)
    assert (first.label, other.label) == ("rloo", "rloo-all")
    begin(plan_with(run, "credit.use=grpo", label="exact_match"))
    taken = plan_with(run, 'rewards=[{use="exact_match"}]')
    assert re.fullmatch("exact_match-[0-9a-f]{8}", taken.label)
    begin(taken)
    assert plan_with(run, 'rewards=[{use="exact_match"}]').label == taken.label
    assert plan_with(run, "credit.use=rloo").label == "rloo"


def test_values_of_a_file_are_settings(run: Run) -> None:
    for values in (
        {"credit.use": "rloo", "rewards.0.weight": 2.0},
        {"credit": {"use": "rloo"}, "rewards": {"0": {"weight": 2.0}}},
    ):
        found = with_values(run, values, "variant")
        assert (found.credit.use, found.rewards[0].weight) == ("rloo", 2.0)
    kept = with_values(run, {"credit": {"options": {"returns": "to_go"}}}, "variant")
    assert kept.credit.options == {"by": "task_role", "returns": "to_go"}
    replaced = with_values(run, {"credit.options": {"returns": "to_go"}}, "variant")
    assert replaced.credit.options == {"returns": "to_go"}
    with pytest.raises(UsageError, match="'7' is not one of the 1 entries"):
        with_values(run, {"rewards.7.weight": 1}, "variant")


@pytest.mark.parametrize(
    ("text", "span"), [(None, (0, None)), ("2:5", (2, 5)), ("2:", (2, None)), (":5", (0, 5)), ("3", (3, 4))]
)
def test_spans_are_half_open(text: str | None, span: tuple[int, int | None]) -> None:
    assert span_of(text) == span


@pytest.mark.parametrize("text", ["", "a:b", "1:2:3", "-1"])
def test_other_spans_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected A:B"):
        span_of(text)


def test_only_iterations_with_a_finished_rollout_are_taken(tmp_path: Path) -> None:
    run, places = write_iterations(settings_of(str(tmp_path)), SMALL, 3)
    places[1].folder.remove("rollout/manifest.json")
    assert Source(run).chosen(None) == [0, 2]
    assert Source(run).chosen("1:") == [2]
    assert Source(run).unfinished("1:") == [1]
    assert Source(run).unfinished("2:") == []
    with pytest.raises(UsageError, match="it has 0, 2"):
        Source(run).chosen("7:")
    with pytest.raises(UsageError, match="no evaluation on 'dev'"):
        Source(run, "dev").chosen(None)
