"""What is asked of a replacement, checked as far as it can be without starting anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.replacement.contexts import Contexts, Reading, stored_contexts
from pipeline.replacement.ladder import Rung, ladder, reading_of
from pipeline.replacement.team import (
    Team,
    aligned,
    check_model,
    in_turn,
    place_of,
    stored_settings,
    team_of,
    versions_of,
    with_newcomer,
)
from pipeline.settings.program import hint
from pipeline.settings.replace import STEPS, ReplaceSection
from pipeline.settings.schema import Settings
from pipeline.store.run import Run
from stages.weights.checkpoints import describe_checkpoint
from stages.weights.content import content_fingerprint
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class Asked:
    """A replacement: whose place, in which run, and who takes it."""

    parent: Run
    run: Run  # the new one
    model: str
    newcomer: str  # checkpoint as settings name it
    settings: Settings  # of the old team, in the new run
    old: Team
    cold: Team  # with the newcomer as it comes
    versions: dict[str, int]  # of the old team's models
    contexts: Contexts
    reading: Reading
    rungs: list[Rung]

    @property
    def section(self) -> ReplaceSection:
        return self.settings.replace

    @property
    def iterations(self) -> int:
        """How many the parent has."""
        return len(self.parent.iterations())

    @property
    def begins(self) -> int:
        """The version that the newcomer's own weights have in the new run."""
        return self.versions[self.model] + 1

    @property
    def teammates(self) -> list[str]:
        """The other models that are trained."""
        return [m.model_id for m in self.old.plan.models.trainable if m.model_id != self.model]

    def does(self, step: str) -> bool:
        return step in self.section.steps

    @property
    def identity(self) -> dict[str, Any]:
        """What may not change between two calls of one replacement."""
        return {
            "parent": self.parent.folder.url,
            "iterations": self.iterations,
            "versions": self.versions,
            "model": self.model,
            "newcomer": self.newcomer,
            "content": content_fingerprint(resolve_checkpoint(self.newcomer)),
            "replace": self.section.model_dump(mode="json"),
            "evaluate": self.settings.evaluate.fingerprint(),
        }


def new_team(asked: Asked, checkpoint: str) -> tuple[Team, Team]:
    """The team with the newcomer at `checkpoint`, and the same while it is aligned and settles."""
    settings = with_newcomer(asked.settings, asked.model, checkpoint)
    tags = {"parent_run": asked.parent.name, "replaced": asked.model, "newcomer": asked.newcomer}
    tracking = settings.tracking.model_copy(update={"tags": {**settings.tracking.tags, **tags}})
    settings = settings.model_copy(update={"tracking": tracking})
    team = team_of(settings)
    return team, team_of(aligned(settings, asked.model, asked.section))


def asked_of(
    parent: Run,
    model: str,
    newcomer: str,
    *,
    name: str | None = None,
    steps: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
) -> Asked:
    """Check a replacement: the place, the newcomer, the steps, and the team that it would be.

    Args:
        parent: a run with its info read.
        model: whose place is taken.
        newcomer: a checkpoint as settings name one.
        name: of the new run; by default the parent's, with the model's.
        steps: of `replace.steps`; None: those that the settings name.
        overrides: of the run's settings.

    Raises:
        UsageError: the first thing that can't work, with what to do.
    """
    name = name or f"{parent.name}-{model}"
    if name == parent.name:
        raise UsageError(f"--name {name} is the run itself, which is not written to; choose another name")
    if not parent.iterations():
        raise UsageError(f"run {parent.name!r} has no iteration, so it has no turns to measure a newcomer on")
    settings = stored_settings(parent, name, overrides)
    if steps is not None:
        settings = with_steps(settings, steps)
    old = team_of(settings)
    check_model(old, model)
    if Path(newcomer).expanduser().is_dir():
        newcomer = str(Path(newcomer).expanduser().resolve())
    folder = resolve_checkpoint(newcomer)
    if (Path(folder) / "adapter_config.json").is_file():
        raise UsageError(
            f"{newcomer} holds an adapter alone, and a newcomer begins with whole weights; merge it into its "
            f"base first (`{hint('export FOLDER --run RUN --merge')}`)"
        )
    info = describe_checkpoint(folder)
    versions = versions_of(parent, old)
    section = settings.replace
    contexts = stored_contexts(
        parent, model, max(section.contexts, section.format_contexts), settings.run.seed
    )
    place = place_of(old, model)
    reading = reading_of(place, folder)
    rungs = ladder(place, folder, info.max_positions, contexts, reading)
    if any(rung.verdict == "impossible" for rung in rungs):
        cold = old  # it is refused by that rung, in its own words
    else:
        cold = team_of(with_newcomer(settings, model, newcomer))
    run = Run(parent.folder.url.rpartition("/")[0], name)
    asked = Asked(parent, run, model, newcomer, settings, old, cold, versions, contexts, reading, rungs)
    if cold is not old:
        _check_steps(asked)
    return asked


def with_steps(settings: Settings, steps: Sequence[str]) -> Settings:
    """The settings with these steps.

    Raises:
        UsageError: there is no such step.
    """
    for step in steps:
        if step not in STEPS:
            raise UsageError(
                f"--steps {step!r} is not a step{did_you_mean(step, STEPS)}; the steps are {', '.join(STEPS)}"
            )
    kept = tuple(step for step in STEPS if step in steps)
    return settings.model_copy(update={"replace": settings.replace.model_copy(update={"steps": kept})})


def _check_steps(asked: Asked) -> None:
    """Refuse steps that can't work with this team."""
    aligning = team_of(
        aligned(with_newcomer(asked.settings, asked.model, asked.newcomer), asked.model, asked.section)
    )
    if asked.does("align"):
        in_turn(aligning.plan, [asked.model])
    if asked.does("settle") and asked.teammates:
        in_turn(aligning.plan, asked.teammates)
    if asked.does("distill") and asked.reading.own_words and not earned_turns(asked).rows:
        raise UsageError(
            f"the newcomer has another vocabulary, so it is taught by stored turns whose reward is at least "
            f"{asked.settings.evaluate.solved_at:g} (evaluate.solved_at), and of {len(asked.contexts.rows)} "
            "stored turns none is; lower evaluate.solved_at, or leave the step distill out with --steps"
        )


def earned_turns(asked: Asked) -> Contexts:
    """The stored turns that a newcomer of another vocabulary imitates."""
    return asked.contexts.taught.earned(asked.settings.evaluate.solved_at)
