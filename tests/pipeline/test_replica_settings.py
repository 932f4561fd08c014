"""`replicas` in settings and plans: what `check` shows and refuses, what it changes, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.metrics.replicas import replica_metrics
from pipeline.plan import resources
from pipeline.plan.assemble import Plan, assemble
from pipeline.plan.capacity import machine_problem, memory_shortage
from pipeline.plan.devices import Node
from pipeline.plan.fingerprints import team_fingerprint
from pipeline.plan.memory import memory_report
from pipeline.plan.overview import overview
from pipeline.settings.reading import parse_settings
from pipeline.views.overview import overview_lines
from pipeline.views.render import IterationView, as_text, summary
from workflows.errors import UsageError

Settings = Callable[..., dict[str, Any]]


def plan_of(scripted: Settings, cluster: dict[str, Any] | None = None, **team: Any) -> Plan:
    return assemble(parse_settings(scripted(models={"team": team}, cluster=cluster or {})))


def test_replicas_are_no_part_of_what_a_run_is(scripted: Settings) -> None:
    one, three = (plan_of(scripted, replicas=n) for n in (1, 3))
    assert one.fingerprints == three.fingerprints
    assert one.identity == three.identity
    assert team_fingerprint(one.resolved) == team_fingerprint(three.resolved)
    assert plan_of(scripted).engine_specs == one.engine_specs
    assert (three.engine_specs["team"].replicas, three.engine_specs["team"].restarts) == (3, 3)


def test_check_shows_the_memory_and_the_place_of_each_replica(scripted: Settings) -> None:
    nodes = [{"count": 2, "memory_gib": 16}]
    plan = plan_of(scripted, {"nodes": nodes}, replicas=3)
    names = [f"engine team.{n}" for n in (1, 2, 3)]
    assert [name for name in memory_report(plan) if name.startswith("engine")] == names
    values = overview(plan)
    lines = overview_lines(values)
    assert any(line.startswith("model     team: ") and "engine scripted × 3, " in line for line in lines)
    placed_lines = [line for line in lines if line.startswith("devices")]
    for name in names:
        assert sum(f"{name} 0.1" in line for line in placed_lines) == 1
    assert any("of which engine team" in line for line in placed_lines)
    assert sum(len(node["replicas"]) for node in values["machines"]["nodes"]) == 3


def test_memory_that_does_not_hold_all_replicas_is_refused_with_fewer_as_the_remedy(
    scripted: Settings,
) -> None:
    replicas = {n: plan_of(scripted, replicas=n) for n in (8, 20)}
    total = memory_report(replicas[8])["total"]
    problem = str(memory_shortage(replicas[20], [Node("box", (), total + 0.1)]))
    assert "box has" in problem
    assert problem.endswith("it fits with models.team.replicas = 8")
    assert memory_shortage(replicas[8], [Node("box", (), total + 0.1)]) is None


def test_gpus_that_replicas_lack_are_refused_by_name(
    scripted: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "gpus_here", lambda: 2)
    plan = plan_of(scripted, num_gpus=1, replicas=3)
    problem = machine_problem(plan, [Node("box", (80.0, 80.0), 100.0)])
    assert problem == (
        "models.team.replicas = 3, each with num_gpus = 1, but there is no GPU left for it: the processes "
        "ask for 3 × 1 = 3 in all, and there are 2 on box; set it to 0 to compute on the processor, or ask "
        "for less"
    )
    assert machine_problem(plan, [Node("box", (80.0,) * 3, 100.0)]) is None


def test_adapters_share_the_replicas_of_their_base(scripted: Settings) -> None:
    roles = {role: {"model": role} for role in ("decomposer", "reader", "answerer")}
    models: dict[str, Any] = {"team": {"replicas": 2, "train": False}}
    models |= {role: {"base": "team", "adapter": {"rank": 4}} for role in roles}
    plan = assemble(parse_settings(scripted(models=models, roles=roles)))
    assert {b: spec.replicas for b, spec in plan.engine_specs.items()} == {"team": 2}
    models["reader"]["replicas"] = 3
    with pytest.raises(UsageError, match=r"models\.reader\.replicas differs from that of its base 'team'"):
        assemble(parse_settings(scripted(models=models, roles=roles)))


def test_cores_are_shared_among_all_replicas(scripted: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    threads = [plan_of(scripted, replicas=n).engine_specs["team"].num_threads for n in (1, 2, 4, 16)]
    assert threads == [0, 4, 2, 1]


def test_more_episodes_are_in_flight_for_more_replicas_unless_it_is_set(scripted: Settings) -> None:
    raw = scripted(models={"team": {"replicas": 3}})
    assert assemble(parse_settings(raw)).player_spec.max_in_flight == 8  # as set
    del raw["rollout"]["max_in_flight"]
    plan = assemble(parse_settings(raw))
    assert plan.player_spec.max_in_flight == plan.resolved.rollout.max_in_flight == 3 * 64
    del raw["models"]["team"]["replicas"]
    assert assemble(parse_settings(raw)).player_spec.max_in_flight == 64


@pytest.mark.parametrize(
    ("team", "cluster", "expected"),
    [
        ({"replicas": 0}, {}, "models.team.replicas: input should be greater than or equal to 1, got 0"),
        ({}, {"engine_restarts": 1}, "cluster.engine_restarts = 1 has no effect with replicas = 1 of every"),
    ],
)
def test_what_has_no_effect_or_no_sense_is_refused(
    team: dict[str, Any], cluster: dict[str, Any], expected: str, scripted: Settings
) -> None:
    with pytest.raises(UsageError) as refused:
        plan_of(scripted, cluster, **team)
    assert expected in str(refused.value)


def test_a_model_elsewhere_has_no_replicas(scripted: Settings) -> None:
    options = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    raw = scripted()
    raw["models"]["judge"] = {"engine": "openai", "engine_options": options, "train": False, "replicas": 2}
    raw["roles"] = {
        "decomposer": {"model": "judge"},
        **{r: {"model": "team"} for r in ("reader", "answerer")},
    }
    with pytest.raises(UsageError, match=r"models\.judge\.replicas = 2 has no effect: the model of engine"):
        assemble(parse_settings(raw))


def test_metrics_and_summary_tell_each_replica_apart() -> None:
    answered = {"calls": 30, "prompt_tokens": 200, "cached_tokens": 150, "response_tokens": 90}
    counts = {
        1: answered | {"asked_again": 0, "restarts": 1},
        2: answered | {"asked_again": 4, "restarts": 0},
    }
    metrics = replica_metrics({"team": counts})
    assert metrics["replica/team.1/cached_rate"] == 0.75
    assert metrics["replica/team.2/asked_again"] == 4
    text = as_text(summary(IterationView("r", 0, metrics, [], [], {})), 120)
    assert "Replicas of engines" in text
    assert "team.2" in text
    silent = {n: dict.fromkeys(each, 0) for n, each in counts.items()}
    assert replica_metrics({"team": silent}) == {}  # played before this session
    assert replica_metrics({}) == {}
