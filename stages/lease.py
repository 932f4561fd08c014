"""What a stage may borrow of the fleet: what its declared lease names, and nothing else.

So the list of stages says which of them need engines or trainers, before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from workflows.errors import UsageError

if TYPE_CHECKING:
    from stages.engines.base import Weights
    from stages.training.group import TrainerGroup

Lease = Literal["none", "engine", "trainer", "both"]
LEASES: Final[tuple[Lease, ...]] = get_args(Lease)

_PLAYING: Final = ("players",)
_TRAINING: Final = ("trainer", "version_of", "checkpoint_uri", "checkpoint_is_due", "weights_changed")
GIVES: Final[Mapping[Lease, tuple[str, ...]]] = {
    "none": (),
    "engine": _PLAYING,
    "trainer": _TRAINING,
    "both": (*_PLAYING, *_TRAINING),
}
"""The methods of a fleet that a lease gives."""


class Fleet(Protocol):
    """The engines, players and trainers of a run, as stages see them (`pipeline.run.fleet` has them)."""

    def players(self, purpose: str | None = None) -> list[Any]:
        """Handles of the player actors (`stages.players.actor`), with every engine at its newest weights;
        `purpose` is what they play for, where that is not what the fleet is for."""
        ...

    def trainer(self, model_id: str) -> TrainerGroup:
        """The trainer of a model, at its newest version."""
        ...

    def version_of(self, model_id: str) -> int:
        """The version that a model is at: after its newest finished update."""
        ...

    def checkpoint_uri(self, model_id: str, version: int) -> str:
        """The folder of a version of a model."""
        ...

    def checkpoint_is_due(self, version: int) -> bool:
        """Whether this version gets a whole checkpoint, or its weights alone."""
        ...

    def weights_changed(self, weights: Weights) -> None:
        """Put new weights into the engine that serves them."""
        ...


@dataclass(frozen=True, slots=True)
class Leased:
    """The part of a fleet that one stage's lease names; implements `Fleet`.

    Raises:
        UsageError: from every other method, naming the stage, what it asked for and the remedy.
    """

    stage: str
    lease: Lease
    fleet: Fleet | None

    def players(self, purpose: str | None = None) -> list[Any]:
        fleet = self._lent("players")
        return fleet.players() if purpose is None else fleet.players(purpose)

    def trainer(self, model_id: str) -> TrainerGroup:
        return self._lent("trainer").trainer(model_id)

    def version_of(self, model_id: str) -> int:
        return self._lent("version_of").version_of(model_id)

    def checkpoint_uri(self, model_id: str, version: int) -> str:
        return self._lent("checkpoint_uri").checkpoint_uri(model_id, version)

    def checkpoint_is_due(self, version: int) -> bool:
        return self._lent("checkpoint_is_due").checkpoint_is_due(version)

    def weights_changed(self, weights: Weights) -> None:
        self._lent("weights_changed").weights_changed(weights)

    def _lent(self, what: str) -> Fleet:
        if what not in GIVES[self.lease]:
            needed = next(lease for lease in LEASES if what in GIVES[lease])
            raise UsageError(
                f"stage {self.stage!r} asked the fleet for {what!r}, and its lease {self.lease!r} gives "
                f"{', '.join(GIVES[self.lease]) or 'nothing'}; declare lease = {needed!r} in the stage"
            )
        if self.fleet is None:
            raise UsageError(
                f"stage {self.stage!r} has the lease {self.lease!r}, but these stages run without a fleet; "
                "run it in an iteration, or pass a fleet"
            )
        return self.fleet


NO_FLEET: Final = Leased("of no name", "none", None)


def leased(stage: Any, fleet: Fleet | None) -> Leased:
    """What a stage gets of a fleet, by its `lease`; a stage without one gets nothing.

    Raises:
        UsageError: there is no such lease.
    """
    lease = getattr(stage, "lease", "none")
    if lease not in LEASES:
        raise UsageError(
            f"stage {stage.name!r} has lease = {lease!r}; expected one of {', '.join(map(repr, LEASES))}"
        )
    return Leased(stage.name, lease, fleet)
