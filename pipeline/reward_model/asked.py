"""What is asked of the training of a reward model, checked as far as it can be without starting anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.plan.memory import available_gib
from pipeline.plan.resolve import workflow_options
from pipeline.plan.rewards import model_folder
from pipeline.reward_model.plays import Collected, StoredPlay, Where, collect
from pipeline.settings.overrides import set_override
from pipeline.settings.program import hint
from pipeline.settings.reading import parse_settings, read_toml
from pipeline.settings.reward_model import RewardModelSection
from pipeline.settings.schema import ClusterSection, Settings
from pipeline.settings.tracking import TrackingSection
from pipeline.store.folder import Folder
from pipeline.store.run import Run
from rewards.preferences.pairs import Pair, Pairs, Play, held_out_tasks, pairs_of, steps_of
from rewards.preferences.render import RENDERING, cut_middle
from stages.base import Account
from stages.training.loss.spec import CriticSpec, LossSpec, ScheduleSpec
from stages.training.spec import TrainerSpec, activation_estimate, base_estimate, memory_estimate
from stages.weights.adapters import AdapterSpec, adapter_parameters
from stages.weights.chat import ChatRenderer
from stages.weights.checkpoints import CheckpointInfo, describe_checkpoint
from stages.weights.content import content_fingerprint
from stages.weights.precision import trainer_precision
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError
from workflows.loading import load_workflow

MODEL_ID: Final = "reward"
_OF_THE_TRUNK: Final = ("learning_rate", "weight_decay", "adapter")  # keys without effect for a head alone


@dataclass(frozen=True, slots=True)
class Asked:
    """A reward model that is to be trained."""

    runs: list[Run]
    base: str  # checkpoint as it was named
    weights: str  # its local folder
    info: CheckpointInfo
    folder: Folder  # of the model
    section: RewardModelSection
    seed: int
    cluster: ClusterSection
    tracking: TrackingSection
    where: Where
    collected: Collected
    pairs: Pairs
    held_out: frozenset[str]  # tasks
    ids: dict[str, list[int]]  # by play, the tokens of its text, cut
    removed: dict[str, int]  # by play, how many were cut

    @property
    def train(self) -> list[Pair]:
        return [pair for pair in self.pairs.pairs if pair.task not in self.held_out]

    @property
    def test(self) -> list[Pair]:
        return [pair for pair in self.pairs.pairs if pair.task in self.held_out]

    @property
    def steps(self) -> list[list[str]]:
        """The optimizer steps of one pass, as the tasks in each."""
        return steps_of(self.train, self.section.pairs_per_step, self.seed)

    @property
    def total_steps(self) -> int:
        return len(self.steps) * self.section.passes

    @property
    def paired(self) -> list[StoredPlay]:
        """The plays that are in any pair, by name."""
        named = {play for pair in self.pairs.pairs for play in (pair.winner, pair.loser)}
        return sorted((p for p in self.collected.plays if p.play in named), key=lambda play: play.play)

    @property
    def accounts(self) -> list[Account]:
        """Episodes, tasks and pairs: in = out + excluded, by reason."""
        pairs, tasks = self.pairs, len({pair.task for pair in self.pairs.pairs})
        return [
            self.collected.account,
            Account("tasks to pairs", "task", pairs.tasks, tasks, dict(sorted(pairs.tasks_excluded.items()))),
            Account("plays to pairs", "pair", pairs.possible, len(pairs.pairs), dict(pairs.excluded)),
        ]

    @property
    def num_tasks(self) -> dict[str, int]:
        """How many tasks have pairs, by what becomes of them."""
        return {
            "train": len({pair.task for pair in self.train}),
            "held_out": len({pair.task for pair in self.test}),
        }

    @property
    def cut(self) -> dict[str, int]:
        """How many plays are cut, of how many, and the tokens that they lose."""
        removed = self.removed.values()
        return {"plays": sum(map(bool, removed)), "of": len(removed), "tokens": sum(removed)}

    @property
    def identity(self) -> dict[str, Any]:
        """What may not change between two calls of one training."""
        return {
            "runs": self.collected.hashes,
            "split": self.where.split,
            "base": self.base,
            "content": content_fingerprint(self.weights),
            "rendering": RENDERING,
            "seed": self.seed,
            "reward_model": self.section.model_dump(mode="json", exclude={"save_steps"}),
        }

    def trainer(self) -> TrainerSpec:
        """What the model's trainer is made from."""
        section = self.section
        own = section.trainer.model_dump()
        own["precision"] = trainer_precision(section.trainer.precision, section.trainer.num_gpus)
        adapter = None if section.adapter is None else AdapterSpec(**section.adapter.model_dump())
        if adapter is not None:
            adapter_parameters(adapter, self.weights, "reward_model.adapter.targets")
        falls = section.schedule != "constant" and self.total_steps > section.warmup_steps
        return TrainerSpec(
            model_id=MODEL_ID,
            base_id=MODEL_ID,
            checkpoint=self.weights,
            adapter=adapter,
            **own,
            learning_rate=section.learning_rate,
            weight_decay=section.weight_decay,
            gradient_clip=section.gradient_clip,
            loss=LossSpec(name="supervised"),  # rows of any weights
            schedule=ScheduleSpec(
                section.schedule if falls else "constant",
                section.warmup_steps,
                self.total_steps if falls else None,
            ),
            critic=CriticSpec(learning_rate=section.head_learning_rate, value_clip=None),
            seed=self.seed,
            init_timeout_seconds=self.cluster.trainer_start_seconds,
            update_timeout_seconds=self.cluster.update_seconds,
        )

    def memory_gib(self) -> float:
        """GiB of main memory, or of devices, that training takes, estimated high."""
        spec, parameters = self.trainer(), self.info.parameters
        gib = memory_estimate(spec, parameters) + (base_estimate(spec, parameters) if spec.adapter else 0.0)
        return gib + activation_estimate(spec, parameters, self.section.micro_batch_tokens)


def asked_of(
    runs: Sequence[Run],
    base: str,
    out: str,
    *,
    root: str,
    split: str | None = None,
    overrides: Sequence[str] = (),
) -> Asked:
    """Check a training: the runs, the pairs, the base and the settings.

    Args:
        runs: with their info read; the first one's settings count.
        base: a checkpoint as settings name one.
        out: name under the root, path or URL of the new model's folder.
        root: of runs.
        split: evaluations on it, in the place of iterations.
        overrides: of the settings, such as `reward_model.margin=0.2`.

    Raises:
        UsageError: the first thing that can't work, with what to do.
    """
    settings = settings_of(runs[0], overrides)
    section = settings.reward_model
    if section.head_only:
        for key in _OF_THE_TRUNK:
            # a run's stored settings name every key, so only another value than the default says anything
            if getattr(section, key) != RewardModelSection.model_fields[key].default:
                raise UsageError(
                    f"reward_model.{key} has no effect where the head alone is trained; leave it out, or set "
                    "reward_model.head_only = false"
                )
    folder = Folder(model_folder(out, root))
    if folder.read_text("run.json") is not None:
        raise UsageError(f"{folder.url} is a run; name another folder with --out")
    weights = resolve_checkpoint(base)
    info = describe_checkpoint(weights)
    if info.max_positions and section.context > info.max_positions:
        raise UsageError(
            f"reward_model.context is {section.context}, and {base} reads at most {info.max_positions} "
            f"tokens; set reward_model.context to {info.max_positions} or less"
        )
    if section.micro_batch_tokens < section.context:
        raise UsageError(
            f"reward_model.micro_batch_tokens is {section.micro_batch_tokens}, less than one play of "
            f"reward_model.context = {section.context} tokens; raise it to {section.context} or more"
        )
    where = Where(section.value, split)
    steps = {run.folder.url: answer_step_of(run) for run in runs}
    collected = collect(list(runs), steps, where)
    plays = [Play(play.play, play.task, play.value) for play in collected.plays]
    seed = settings.run.seed
    pairs = pairs_of(plays, margin=section.margin, most=section.pairs_per_task, seed=seed)
    held_out = held_out_tasks({pair.task for pair in pairs.pairs}, section.held_out, seed)
    ids, removed = tokens_of(collected.plays, pairs, ChatRenderer(weights), section.context)
    asked = Asked(
        runs=list(runs),
        base=base,
        weights=weights,
        info=info,
        folder=folder,
        section=section,
        seed=seed,
        cluster=settings.cluster,
        tracking=settings.tracking,
        where=where,
        collected=collected,
        pairs=pairs,
        held_out=held_out,
        ids=ids,
        removed=removed,
    )
    _refuse_without_pairs(asked)
    return asked


def check_memory(asked: Asked) -> None:
    """Refuse what this machine has no room for.

    Raises:
        UsageError: with the numbers.
    """
    if asked.section.trainer.num_gpus or asked.cluster.address != "local":
        return
    need, there = asked.memory_gib(), available_gib()
    if need > there:
        raise UsageError(
            f"training needs about {need:.1f} GiB, and this machine has {there:.1f} GiB; lower "
            "reward_model.micro_batch_tokens or reward_model.context, set reward_model.adapter or "
            "reward_model.head_only, or name a smaller --base"
        )


def settings_of(run: Run, overrides: Sequence[str]) -> Settings:
    """The settings that a run keeps, with overrides.

    Raises:
        UsageError: they can't be read, or an override is not a setting.
    """
    text = run.folder.read_text("settings.toml")
    raw: dict[str, Any] = read_toml(text.encode(), f"{run.folder.url}/settings.toml") if text else {}
    for override in overrides:
        set_override(raw, override)
    return parse_settings(raw)


def answer_step_of(run: Run) -> str | None:
    """The step that gives the answer of a run's team; None where its workflow has none or is gone."""
    settings = settings_of(run, ())
    try:
        return load_workflow(settings.workflow.use, workflow_options(settings)).answer_step
    except UsageError:
        return None  # a text then ends with what was said last


def tokens_of(
    plays: Sequence[StoredPlay], pairs: Pairs, renderer: ChatRenderer, context: int
) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The tokens of every play that is in a pair, cut to the context, and how many were cut of each.

    One token of the context is left for the place that is read.
    """
    named = {play for pair in pairs.pairs for play in (pair.winner, pair.loser)}
    cut = {p.play: cut_middle(renderer.encode(p.text), context - 1) for p in plays if p.play in named}
    return {play: ids for play, (ids, _) in cut.items()}, {
        play: removed for play, (_, removed) in cut.items()
    }


def _refuse_without_pairs(asked: Asked) -> None:
    account, pairs = asked.collected.account, asked.pairs
    reasons = {**account.excluded, **pairs.tasks_excluded, **pairs.excluded}
    why = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "nothing was excluded"
    if not pairs.pairs:
        raise UsageError(
            f"no pair to learn from: {account.rows_in} episodes of {pairs.tasks} tasks ({why}). A pair is "
            f"two plays of one task whose returns differ by {asked.section.margin:g}; lower "
            f"reward_model.margin, or name runs with more plays of a task (rollout.group_size); "
            f"`{hint('runs')}` lists runs"
        )
    if not asked.train or not asked.test:
        raise UsageError(
            f"all {len(pairs.pairs)} pairs are of one task, so none is left to measure the model on; name "
            "runs with more tasks"
        )
