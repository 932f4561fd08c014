"""A stage gets of the fleet what its lease names; whatever else it asks for is an error that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.run.execution import run_stages
from pipeline.store.run import Run
from stages.base import Account, Context, Quiet, StageResult, check_chain
from stages.engines.base import Weights
from stages.lease import GIVES, LEASES, leased
from workflows.errors import UsageError

TABLE = pa.schema([("x", pa.int64())])
WEIGHTS = Weights("team", "somewhere", 1, "hash")
CALLS: dict[str, tuple[Any, ...]] = {
    "players": (),
    "trainer": ("team",),
    "version_of": ("team",),
    "checkpoint_uri": ("team", 1),
    "checkpoint_is_due": (1,),
    "weights_changed": (WEIGHTS,),
}


@dataclass
class Noted:
    """A fleet that notes what it was asked for."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.asked.append((name, *arguments))


@dataclass
class Borrower:
    """A stage that calls one method of the fleet."""

    lease: str
    wants: str
    name: str = "borrower"
    folder: str = "borrower"
    inputs: Mapping[str, pa.Schema] = field(default_factory=dict)
    outputs: Mapping[str, pa.Schema] = field(default_factory=lambda: {"t": TABLE})
    places: Mapping[str, str] = field(default_factory=lambda: {"t": ""})

    def run(self, inputs: Any, outputs: Any, context: Context) -> StageResult:
        getattr(context.fleet, self.wants)(*CALLS[self.wants])
        part = outputs["t"].write_part(0, TABLE.empty_table())
        return StageResult({"t": [part]}, [Account("borrower", "row", 0, 0)])


def run(stage: Any, fleet: Any, folder: Path) -> None:
    place = Run(str(folder), "lease").iteration(0)
    run_stages([stage], place, {stage.name: {}}, what="iteration 0", progress=Quiet(), fleet=fleet)


@pytest.mark.parametrize("wants", CALLS)
@pytest.mark.parametrize("lease", LEASES)
def test_a_stage_gets_what_its_lease_names_and_nothing_else(lease: Any, wants: str, tmp_path: Path) -> None:
    fleet = Noted()
    if wants in GIVES[lease]:
        run(Borrower(lease, wants), fleet, tmp_path)
        assert fleet.asked == [(wants, *CALLS[wants])]
        return
    needed = "engine" if wants == "players" else "trainer"
    with pytest.raises(UsageError, match=rf"stage 'borrower' asked the fleet for '{wants}'.*'{needed}'"):
        run(Borrower(lease, wants), fleet, tmp_path)
    assert fleet.asked == []


def test_every_method_of_a_fleet_belongs_to_one_lease_or_to_both_together() -> None:
    given = [name for lease, names in GIVES.items() for name in names if lease != "both"]
    assert sorted(given) == sorted(GIVES["both"]) == sorted(CALLS)


def test_a_lease_without_a_fleet_says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"stage 'borrower' has the lease 'engine'.*without a fleet"):
        run(Borrower("engine", "players"), None, tmp_path)


def test_a_lease_that_there_is_not_is_refused_with_the_chain() -> None:
    with pytest.raises(UsageError, match=r"'borrower' has lease = 'gpu'; expected one of 'none', 'engine'"):
        check_chain([Borrower("gpu", "players")])  # type: ignore[list-item]


def test_a_stage_that_declares_no_lease_borrows_nothing() -> None:
    class Plain:
        name = "plain"

    with pytest.raises(UsageError, match=r"stage 'plain' asked the fleet for 'trainer'.*lease = 'trainer'"):
        leased(Plain(), Noted()).trainer("team")  # type: ignore[arg-type]
