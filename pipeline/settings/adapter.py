"""`[models.<id>.adapter]`: what a model trains instead of all its weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from pipeline.settings.section import Positive, Section


class AdapterSection(Section):
    """A low-rank adapter: what a model trains instead of all its weights."""

    rank: Positive = 16
    """Rank of the adapter's matrices."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """The adapter's output is multiplied by alpha / rank."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Which layers have an adapter: all-linear, or a list of names such as q_proj."""
    train_embeddings: bool = False
    """Train the embedding and the output layer too, in full."""

    @field_validator("targets")
    @classmethod
    def _some_layer(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not targets:
            raise ValueError('no layer is named; name some, or say "all-linear"')
        return targets
