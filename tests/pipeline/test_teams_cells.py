"""The runs of `tests.learning.teams`: their settings are accepted, and claims about them are right."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.plan.assemble import assemble
from pipeline.settings.reading import load_settings
from tests.learning.chain_exact import Step
from tests.learning.teams import findings, fitted
from tests.learning.teams_cells import TEAM, Cell, Played, Update, cells


@pytest.mark.parametrize("cell", [c for c in cells() if c.units in (2, 5)], ids=lambda cell: str(cell.name))
def test_the_settings_of_every_kind_of_run_are_accepted(cell: Cell, tmp_path) -> None:
    plan = assemble(load_settings(TEAM, [*cell.overrides(), f"run.root={tmp_path}"]))
    assert len(plan.models.trainable) == cell.units
    assert len(plan.workflow.order) == cell.units * cell.rounds


def test_names_of_runs_are_different() -> None:
    names = [cell.name for cell in cells()]
    assert len(set(names)) == len(names) == 12 + 8 + 8 + 3


def test_an_exponent_is_found_with_its_interval() -> None:
    random = np.random.default_rng(0)
    points = [(n, 0.01 * n**1.9 * float(random.lognormal(0, 0.05))) for n in (2, 3, 5, 8) for _ in range(3)]
    slope, half = fitted(points)
    assert slope == pytest.approx(1.9, abs=half)
    assert half < 0.2


def played(cell: Cell, seed: int, *, final: float, gap: float = 0.01, divergence: float = 0.01) -> Played:
    step = Step("unit0", gain=0.02, promise=0.02 + gap, fresh_promise=0.02, shift=0.1, own_shift=0.05)
    trust = {"divergence": divergence, "radius": 0.05, "decision": "accepted", "kept_share": 1.0}
    trust |= {"surrogate": 0.03, "certificate": 0.01}
    tokens = 1000 if cell.label == "fresh" else 600
    return Played(
        cell,
        seed,
        (0.03, final),
        (0.03, final),
        (Update(0, step, step, trust, {"teammates": 0}),),
        tokens,
        0,
        100,
        1.0,
    )


def test_what_is_told_says_whether_it_holds() -> None:
    every = {cell.name: cell for cell in cells()}
    gaps = [
        played(every[f"gap/random-{n}"], seed, final=0.1, gap=0.001 * n**1.94 * (1 + 0.05 * (seed - 1)))
        for n in (2, 3, 5, 8)
        for seed in range(3)
    ]
    finals = [
        played(every[f"final/{label}"], seed, final=0.5 + 0.01 * seed)
        for label in ("fresh", "suffix")
        for seed in range(3)
    ]
    radius = [
        played(every[f"radius/{label}"], seed, final=0.5, divergence=divergence)
        for label, divergence in (("without", 0.2), ("with", 0.04))
        for seed in range(3)
    ]
    found = {each.name: each for each in findings([*gaps, *finals, *radius])}
    assert found["gap (stale, random)"].holds
    assert found["suffix (proof 7)"].holds
    assert found["suffix (proof 7)"].values["token_share"] == pytest.approx(0.6)
    assert found["radius 0.05 (proof 9)"].holds
    assert found["final scores"].holds is None  # some schedules of the paper's order are missing
    assert found["optimism (fresh)"].holds
