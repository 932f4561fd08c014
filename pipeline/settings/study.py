"""`[study]` of a study's file: the workflows, regimes and seeds that are compared."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.settings.section import Name, Positive, Section

Regime = Literal["full", "separate", "adapters"]


class StudyWorkflow(Section):
    """A row of the study: a workflow under several sharing regimes."""

    name: Name
    """The name in tables and of runs."""
    use: str
    """The workflow, as [workflow] use."""
    options: dict[str, Any] = {}
    """Its options, as [workflow] options."""
    regimes: tuple[Regime, ...] | None = None
    """Its sharing regimes; without them, those of [study]."""
    overrides: dict[str, Any] = {}
    """Settings of its cells alone, such as {roles = {solver = {max_response_tokens = 8}}}."""


class StudySection(Section):
    """What a study compares."""

    iterations: Positive
    """Iterations of every cell. The control goes on until it has sampled as many tokens as the teams."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    """Seeds; every cell is trained once with each."""
    regimes: Annotated[tuple[Regime, ...], Field(min_length=1)] = ("full", "separate", "adapters")
    """Sharing regimes of every workflow that names none itself."""
    control: str = "single"
    """The workflow that teams have to beat, by its name in this study; empty for a study without one."""
    control_most: Positive = 16
    """The control trains for at most so many times the iterations of the others."""
    workflows: Annotated[tuple[StudyWorkflow, ...], Field(min_length=1)]
    """The workflows, as [[study.workflows]]."""
    regime: dict[Regime, dict[str, Any]] = {}
    """Settings of all cells of one regime, such as [study.regime.adapters.ppo]."""
