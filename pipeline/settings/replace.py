"""`[replace]`: how another model is put in the place of one of a team (`python -m pipeline replace`)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from pipeline.settings.section import Positive, Section, Share

Step = Literal["format", "swap", "distill", "align", "settle"]
STEPS: Final[tuple[Step, ...]] = ("format", "swap", "distill", "align", "settle")

Above = Annotated[float, Field(gt=0)]


class ReplaceSection(Section):
    """What `replace` does before a newcomer speaks in the team, and what it asks of the team in the end."""

    steps: tuple[Step, ...] = STEPS
    """Which steps are made: format (its replies to stored contexts are parsed), swap (it is put in cold and
    measured), distill (it is taught what its predecessor said), align (it alone is trained in the team) and
    settle (then its teammates, once)."""
    contexts: Positive = 500
    """Stored turns of the predecessor that the newcomer is taught and measured on."""
    format_contexts: Positive = 64
    """Stored contexts that the newcomer answers, to see whether its replies parse."""
    min_format: Share = 0.0
    """Share of these replies that must parse, or the newcomer is refused."""
    distill_kl: Above = 0.01
    """Nats per token that what the newcomer is taught may be from its predecessor."""
    distill_passes: Positive = 3
    """Passes over the stored turns that teach the newcomer."""
    distill_learning_rate: Above = 1e-5
    """Learning rate of what teaches the newcomer."""
    align_iterations: Positive = 10
    """The most iterations in which the newcomer alone is trained; fewer where the team has lost nothing."""
    radius: Above = 0.5
    """Nats per message from its own start at which the newcomer's training in the team ends."""
    step_radius: Above = 0.05
    """Nats per message that one update of the newcomer may go: the radius of its trust region."""
    anchor: Above = 0.001
    """Weight of the newcomer's KL to its own start while it is trained in the team."""
    settle_radius: Above = 0.02
    """Nats per message that one update of a teammate may go while the team settles."""
    eps: Annotated[float, Field(ge=0)] = 0.02
    """What the team may lose: the lower bound of its gain must be above minus this, or all is taken back."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Confidence of that bound, one-sided."""

    @field_validator("steps")
    @classmethod
    def _each_once(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        if len(set(steps)) < len(steps):
            raise ValueError("a step is named twice; name each once")
        return tuple(step for step in STEPS if step in steps)
