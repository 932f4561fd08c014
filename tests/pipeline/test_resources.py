"""GPUs that a plan asks for and no machine has are named before anything waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.plan import resources
from pipeline.plan.assemble import assemble
from pipeline.plan.overview import check_start, overview
from pipeline.plan.resources import Ask, cpu_problem, gpu_problem, gpus_asked
from pipeline.run import cluster
from pipeline.settings.reading import parse_settings
from workflows.errors import RunFailed, UsageError


def asks(*gpus: float) -> list[Ask]:
    return [Ask(f"models.m{i}.num_gpus", each) for i, each in enumerate(gpus)]


@pytest.mark.parametrize(
    ("gpus", "nodes", "fits"),
    [
        ([], {}, True),
        ([1.0], {}, False),
        ([1.0], {"a": 0}, False),
        ([1.0], {"a": 1}, True),
        ([0.5, 0.5], {"a": 1}, True),
        ([0.1] * 10, {"a": 1}, True),
        ([0.6, 0.6], {"a": 1}, False),
        ([0.6, 0.6, 0.6], {"a": 2}, False),  # 1.8 in all, and yet no device for the third
        ([0.4, 0.6, 1.0], {"a": 2}, True),
        ([2.0], {"a": 1, "b": 1}, False),  # a process is on one node
        ([2.0, 1.0], {"a": 1, "b": 2}, True),
        ([0.5, 1.0], {"a": 1}, False),
        ([1.5], {"a": 2}, False),
    ],
)
def test_processes_fit_the_devices_of_their_nodes(
    gpus: list[float], nodes: dict[str, int], fits: bool
) -> None:
    assert (gpu_problem(asks(*gpus), nodes) is None) is fits


def test_the_message_says_what_is_asked_what_is_there_and_what_to_do() -> None:
    problem = str(gpu_problem(asks(0.6, 0.6), {"this machine": 1}))
    assert problem == (
        "models.m1.num_gpus = 0.6, but there is no GPU left for it: the processes ask for 0.6 + 0.6 = 1.2 in "
        "all, and there are 1 on this machine; set it to 0 to compute on the processor, or ask for less"
    )


@pytest.mark.parametrize(
    ("nodes", "fits"),
    [
        ({}, False),
        ({"a": 0}, False),
        ({"a": 0.2, "b": 0.2}, False),
        ({"a": 0.25}, True),
        ({"a": 0, "b": 1}, True),
        ({"a": 64}, True),
    ],
)
def test_a_cluster_needs_one_node_with_a_cpu(nodes: dict[str, float], fits: bool) -> None:
    assert (cpu_problem(nodes, "10.0.0.1:6379") is None) is fits


def test_cpus_that_a_cluster_lacks_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def node(host: str, alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"NodeManagerHostname": host, "Alive": alive, "Resources": resources}

    nodes = [node("head", CPU=0.0), node("gone", alive=False, CPU=8.0), node("box", GPU=1.0), node("box")]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with pytest.raises(RunFailed) as refused:
        cluster.check_cpus("ray://head:10001")
    assert str(refused.value) == (
        "cluster.address = 'ray://head:10001': stages run as tasks that take 0.25 CPU of a node, and the "
        "cluster has 0 on head and 0 on box and 0 on box (2); start a node with `ray start --num-cpus` of at "
        'least 1, or set cluster.address to "local"'
    )
    nodes.append(node("other", CPU=2.0))
    cluster.check_cpus("ray://head:10001")


@pytest.mark.parametrize("change", [{"num_gpus": 1}, {"trainer": {"num_gpus": 0.6, "ranks": 2}}])
def test_check_and_run_refuse_gpus_that_are_not_there(
    change: dict[str, Any], scripted: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "gpus_here", lambda: 0)
    plan = assemble(parse_settings(scripted(models={"team": change})))
    with pytest.raises(UsageError, match=r"models\.team\.(trainer\.)?num_gpus = .* there are 0 on this"):
        check_start(plan)
    assert any("num_gpus" in problem for problem in overview(plan)["problems"])
    monkeypatch.setattr(resources, "gpus_here", lambda: 2)
    assert not any("num_gpus" in problem for problem in overview(plan)["problems"])
    assert sum(ask.gpus for ask in gpus_asked(plan)) in (1, 1.2)
