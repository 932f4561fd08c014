"""`[tracking]`: where a run is recorded, what of it, and when the record raises an alarm."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.settings.section import Amount, Count, Positive, Section, Share


class AlarmsSection(Section):
    """How much is too much. An alarm needs its sign in `iterations` iterations in a row."""

    iterations: Positive = 3
    no_signal_rate: Share = 1.0  # of groups, in which every advantage is 0
    excluded_rate: Share = 0.3  # of what could be trained on, or of episodes that failed
    length_factor: Annotated[float, Field(gt=1)] = 2.0  # of a role's mean response, up or down
    length_window: Positive = 20  # iterations within which it must drift that far
    truncated_rate: Share = 0.5  # of a role's responses
    entropy_share: Share = 0.1  # of the entropy that a role's tokens had in the first iterations
    kl_old: Amount = 0.1  # nats per token by which one update moves a model
    kl_reference: Amount = 1.0  # nats per token from its reference
    sampler_gap: Amount = 0.1  # nats per token between sampler and trainer, in the mean
    sampler_gap_growth: Annotated[float, Field(gt=1)] = 20.0  # times that of the first iteration


class TrackingSection(Section):
    uri: str | None = None  # None: sqlite beside the runs; "none": off
    experiment: str = "cadre"
    sample_episodes: Count = 4  # as traces and as text: the best, the worst, a failed, any; and again
    sample_every: Positive = 1  # iterations from one sample to the next
    alarms: AlarmsSection = AlarmsSection()
    tags: dict[str, str] = {}  # of the run's page, beside those that every run has
