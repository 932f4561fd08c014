"""`[tracking]`: where a run is recorded, what of it, and when the record raises an alarm."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.settings.section import Amount, Count, Positive, Section, Share


class AlarmsSection(Section):
    """How much is too much. An alarm needs its sign in `iterations` iterations in a row."""

    later = frozenset({"role_share", "role_odds", "copies_cosine", "peak_fall", "style_leak"})

    iterations: Positive = 3
    """An alarm needs its sign in so many iterations in a row."""
    no_signal_rate: Share = 1.0
    """Share of groups in which every advantage is 0."""
    excluded_rate: Share = 0.3
    """Share of what could be trained on that is left out, or of episodes that failed."""
    length_factor: Annotated[float, Field(gt=1)] = 2.0
    """Factor by which a role's mean response grows or shrinks."""
    length_window: Positive = 20
    """Iterations within which responses must drift that far."""
    truncated_rate: Share = 0.5
    """Share of a role's responses that is cut off."""
    entropy_share: Share = 0.1
    """Share that is left of the entropy that a role's tokens had in the first iterations."""
    kl_old: Amount = 0.1
    """Nats per token by which one update moves a model."""
    kl_reference: Amount = 1.0
    """Nats per token from a model to its reference."""
    sampler_gap: Amount = 0.1
    """Mean nats per token between sampler and trainer."""
    sampler_gap_growth: Annotated[float, Field(gt=1)] = 20.0
    """Factor by which that gap grows from the first iteration on."""
    role_share: Share = 0.8
    """Share of its model's gradients that one role has, where [measure] gradients reads them."""
    role_odds: Annotated[float, Field(gt=1)] = 4.0
    """Factor by which the odds of that share are above those of the role's share of tokens."""
    copies_cosine: Share = 0.7
    """Mean cosine of the gradients of two parallel copies of a role."""
    peak_fall: Share = 0.05
    """Share of its highest value that the mean return has lost, means over `iterations` iterations."""
    style_leak: Amount = 0.02
    """Nats per token by which a role moves from its reference while it earns nothing, where [measure] drift
    or the loss measures that."""


class TrackingSection(Section):
    uri: str | None = None
    """Address of MLflow's store; without it, sqlite beside the runs; none turns tracking off."""
    experiment: str = "cadre"
    """Name of the experiment in MLflow."""
    sample_episodes: Count = 4
    """Episodes of an iteration that are logged as traces and text: the best, the worst, a failed one, any,
    and again."""
    sample_every: Positive = 1
    """Iterations from one sample of episodes to the next."""
    alarms: AlarmsSection = AlarmsSection()
    """When an alarm is raised."""
    tags: dict[str, str] = {}
    """Tags of the run's page, beside those that every run has."""
