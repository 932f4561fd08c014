"""A warm iteration of `single` against one step of TRL's GRPOTrainer, and what of it is overhead.

Both get the same prompts in the same order, the same number of completions, the same length limit and
the same rewards, and end with new weights that the next completions are sampled from. Ours also keeps
every table, writes the new weights as a model folder and records to MLflow; all of that is in its time.
Neither saves the optimizer's state; what that costs is measured once at the end. The two processes live
side by side and work in turn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.plan.assemble import Plan, assemble
from pipeline.run.fleet import Fleet
from pipeline.run.runner import Runner
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from stages.base import Quiet
from stages.training.group import TrainerGroup
from tests.benchmarks.long_tasks import messages_of, write_tasks
from tests.benchmarks.measure import Figure, Options, Results, column, interleave, noise_of, told, torch_dtype
from tests.benchmarks.peer import REPOSITORY, Peer, cores, cpu_seconds, own_processes, peer
from workflows.data.tasks import choose

TASKS, GROUP_SIZE, RESPONSE_TOKENS, FORMAT_WEIGHT = 4, 4, 48, 0.2
PEER_SITE = REPOSITORY / ".bench-site"
# What was fastest for each on the machine of docs/results.md.
MICRO_BATCH_TOKENS = 1152
PEER_SETTINGS = {
    "dtype": torch_dtype(),
    "autocast": False,
    "micro_batch": 16,
    "gradient_checkpointing": False,
}


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    if not (PEER_SITE / "trl").is_dir():
        raise SystemExit(
            f"TRL is not in {PEER_SITE}; install the peer: .venv/bin/python -m pip install --no-deps "
            "--target .bench-site -r requirements/bench.txt"
        )
    tasks = Path(options.folder) / "tasks.jsonl"
    write_tasks(tasks, TASKS * (options.pairs + 1), options.checkpoint)
    settings = _settings(options, tasks)
    plan = assemble(parse_settings(settings))
    arguments = _peer_arguments(plan, options)
    log = Path(options.folder) / "trl.log"
    with (
        peer("tests.benchmarks.trl_step", arguments, log, (PEER_SITE,)) as trl,
        session(plan, Quiet(), signals=False) as runner,
        _clocks() as clocks,
    ):
        runner.fleet.players()
        bench = _Bench(runner, trl, clocks)
        mine, theirs = interleave(bench.ours, bench.theirs, options.pairs, say)
        whole_checkpoint = bench.whole_checkpoint()
    return [_against_trl(mine, theirs, whole_checkpoint, settings), _overhead(mine, settings)]


def _settings(options: Options, tasks: Path) -> dict[str, Any]:
    return {
        "run": {"name": "iteration", "root": f"{options.folder}/runs"},
        "data": {"path": str(tasks), "format": "cadre", "tasks_per_iteration": TASKS},
        "workflow": {"use": "single", "options": {"max_response_tokens": RESPONSE_TOKENS}},
        "models": {"team": {"checkpoint": options.checkpoint, "engine": "vllm", "max_model_len": 512}},
        "rollout": {"group_size": GROUP_SIZE, "temperature": 1.0, "max_in_flight": TASKS * GROUP_SIZE},
        "rewards": [{"use": "token_f1"}, {"use": "format", "weight": FORMAT_WEIGHT}],
        "ppo": {"learning_rate": 1e-6, "micro_batch_tokens": MICRO_BATCH_TOKENS},
        # as TRL, which saves every 500 steps; the new weights are written for the engine in any case
        "checkpoints": {"every": 1000},
    }


def _peer_arguments(plan: Plan, options: Options) -> dict[str, Any]:
    """What TRL is told: the tasks in the order of our iterations, rendered to the same chats."""
    settings = plan.settings
    rows = []
    for index in range(options.pairs + 1):
        chosen = choose(plan.tasks.tasks, settings.data.split, settings.run.seed, index * TASKS, TASKS)
        rows += [_peer_row(task) for task in chosen.to_pylist()]
    return {
        **PEER_SETTINGS,
        "checkpoint": plan.engine_specs["team"].checkpoint,
        "rows": rows,
        "group_size": GROUP_SIZE,
        "tasks_per_step": TASKS,
        "max_completion_tokens": RESPONSE_TOKENS,
        "format_weight": FORMAT_WEIGHT,
        "learning_rate": settings.ppo.learning_rate,
        "threads": cores(),
        "folder": f"{options.folder}/trl",
    }


def _peer_row(task: dict[str, Any]) -> dict[str, Any]:
    question = json.loads(task["inputs"])["question"]
    return {"prompt": messages_of(question), "answers": json.loads(task["gold"])["answers"]}


class _Bench:
    """Both sides of a pair, with what the side that waits uses of the cores meanwhile."""

    def __init__(self, runner: Runner, trl: Peer, clocks: dict[str, float]) -> None:
        self.runner, self.trl, self.clocks = runner, trl, clocks

    def ours(self, pair: int) -> dict[str, float]:
        busy, idle = self._engine_busy(), cpu_seconds([self.trl.pid])
        self.clocks.clear()
        started = time.monotonic()
        finished = self.runner.run_iteration()
        seconds = time.monotonic() - started
        update = finished.manifests["update/team"].metrics
        if update["skipped"]:
            raise RuntimeError(f"iteration {pair} made no update: {finished.notes}")
        waits = {
            "sampling": self._engine_busy() - busy,
            "reload": self.clocks["weights_changed"],
            "update": update["seconds"],
            "publish": self.clocks["publish"],
        }
        return {
            "seconds": seconds,
            **waits,
            "overhead": seconds - sum(waits.values()),
            **{f"stage {name}": manifest.seconds for name, manifest in finished.manifests.items()},
            "record": seconds - sum(m.seconds for m in finished.manifests.values()),
            "tokens": finished.manifests["rollout"].metrics["response_tokens"],
            "prompt_tokens": finished.manifests["rollout"].metrics["prompt_tokens"],
            "idle_peer_cores": (cpu_seconds([self.trl.pid]) - idle) / seconds,
        }

    def theirs(self, pair: int) -> dict[str, float]:
        idle = cpu_seconds(own_processes(but=self.trl.pid))
        started = time.monotonic()
        answer = self.trl.ask(step=pair)
        seconds = time.monotonic() - started
        if answer["completions"] != TASKS * GROUP_SIZE:
            raise RuntimeError(f"TRL made {answer['completions']} completions, not {TASKS * GROUP_SIZE}")
        return {
            "seconds": seconds,
            "sampling": answer["generation_seconds"],
            "tokens": answer["tokens"],
            "prompt_tokens": answer["prompt_tokens"],
            "idle_own_cores": (cpu_seconds(own_processes(but=self.trl.pid)) - idle) / seconds,
        }

    def whole_checkpoint(self) -> float:
        """Seconds that a checkpoint with the optimizer's state takes."""
        started = time.monotonic()
        self.runner.fleet.save_checkpoints()
        return time.monotonic() - started

    def _engine_busy(self) -> float:
        """Seconds, since their start, that the engines had at least one request."""
        import ray

        engines = self.runner.fleet._engines.values()
        return sum(stats["seconds_busy"] for stats in ray.get([e.stats.remote() for e in engines]))


@contextmanager
def _clocks() -> Iterator[dict[str, float]]:
    """Seconds that the driver waits in `TrainerGroup.publish` and `Fleet.weights_changed`, by method name."""
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        for owner, method in ((TrainerGroup, "publish"), (Fleet, "weights_changed")):
            stack.enter_context(_timed(owner, method, seconds))
        yield seconds


@contextmanager
def _timed(owner: type, method: str, into: dict[str, float]) -> Iterator[None]:
    original = getattr(owner, method)

    def timed(*arguments: Any, **options: Any) -> Any:
        started = time.monotonic()
        try:
            return original(*arguments, **options)
        finally:
            into[method] = into.get(method, 0.0) + time.monotonic() - started

    setattr(owner, method, timed)
    try:
        yield
    finally:
        setattr(owner, method, original)


def _against_trl(mine: Results, theirs: Results, whole_checkpoint: float, settings: dict[str, Any]) -> Figure:
    completions = TASKS * GROUP_SIZE
    return Figure(
        "iteration",
        "s",
        column(mine, "seconds"),
        column(theirs, "seconds"),
        goal=0.75,
        at="most",
        against="TRL GRPOTrainer step",
        notes=(
            f"{completions} completions of at most {RESPONSE_TOKENS} tokens, groups of {GROUP_SIZE}; "
            f"response tokens: ours {told(mine, 'tokens', 0)}, TRL {told(theirs, 'tokens', 0)}; "
            f"prompt tokens of one: ours {_mean_prompt(mine)}, TRL {_mean_prompt(theirs)}",
            f"ours computes in {torch_dtype()} with float32 master weights and moments; TRL has weights and "
            f"moments in {torch_dtype()}",
            f"not in it: a whole checkpoint, with the optimizer's state, takes {whole_checkpoint:.1f} s",
            f"sampling: ours {told(mine, 'sampling')} s, TRL {told(theirs, 'sampling')} s",
            f"cores used by the side that waits: TRL {told(mine, 'idle_peer_cores', 3)}, "
            f"ours {told(theirs, 'idle_own_cores', 3)}",
            noise_of(mine, theirs),
        ),
        settings={"ours": settings, "trl": PEER_SETTINGS},
    )


def _overhead(mine: Results, settings: dict[str, Any]) -> Figure:
    parts = ("sampling", "reload", "update", "publish", "overhead")
    stages = [name for name in mine[0] if name.startswith("stage ")]
    return Figure(
        "overhead",
        "s",
        column(mine, "overhead"),
        column(mine, "seconds"),
        goal=0.15,
        at="most",
        against="iteration",
        notes=(
            "overhead = iteration - sampling (the engine has a request) - reload - update (in the trainer) "
            "- publish (of the weights that the engine loads)",
            "medians: " + ", ".join(f"{name} {median(column(mine, name)):.2f}" for name in parts),
            "stages: "
            + ", ".join(f"{name[6:]} {median(column(mine, name)):.2f}" for name in stages)
            + f", between and after them {median(column(mine, 'record')):.2f}",
        ),
        settings=settings,
    )


def _mean_prompt(results: Results) -> str:
    return f"{median(column(results, 'prompt_tokens')) / (TASKS * GROUP_SIZE):.0f}"
