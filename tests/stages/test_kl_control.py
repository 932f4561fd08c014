"""An adaptive KL coefficient: its step by hand, and that it is carried from iteration to iteration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.metrics.iteration import measured_by_stages
from pipeline.plan.assemble import assemble
from pipeline.settings.reading import parse_settings
from pipeline.store.run import Run, carried_tables
from stages.advantage import AdvantageStage
from stages.base import StageResult
from stages.tables.parquet import TableRef, TableSink
from stages.token_advantages.gae import Gae
from stages.token_advantages.kl_control import KlControl, scale_before
from stages.token_advantages.spec import RewardKl, TokenSpec
from stages.training.loss.spec import LossSpec, ReferenceSpec, RoleLoss
from stages.training.spec import update_id_of
from tests.stages.test_score_advantage_stages import found_in, here, play, run, scored
from tests.support.tiny_training import SMOOTH, partition, same, score, weights
from workflows.errors import UsageError
from workflows.trajectory import KL_SCALE, rows_to_table

__all__ = ["here"]
law = settings(max_examples=60)
KL = 0.5  # of the rows of `play`: the reference lies half a nat below everywhere


@pytest.mark.parametrize(
    ("kl", "after"),
    [
        (0.05, 2.0),  # at the target
        (0.055, 2.0 * (1 + 0.1 * 0.1)),
        (0.045, 2.0 * (1 - 0.1 * 0.1)),
        (9.0, 2.0 * 1.02),  # the error counts up to a fifth
        (-1.0, 2.0 * 0.98),
        (None, 2.0),
    ],
)
def test_the_scale_moves_by_the_relative_error_as_in_the_paper(kl: float | None, after: float) -> None:
    assert KlControl(0.05).after(2.0, kl) == pytest.approx(after)


@law
@given(st.floats(1e-3, 1.0), st.floats(1e-2, 4.9), st.floats(0.1, 10))
def test_the_kl_of_a_policy_that_follows_its_price_ends_at_the_target(
    target: float, step: float, start: float
) -> None:
    """A policy whose KL is the target over the scale: the scale goes to 1 and stays there."""
    control, scale = KlControl(target, min(step, 1.0)), start
    for _ in range(int(400 / min(step, 1.0))):
        scale = control.after(scale, target / scale)
        assert scale > 0
    assert scale == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"target": 0.0}, "kl_target is 0.0"),
        ({"target": 1.0, "step": 5.0}, "kl_step is 5.0; use a number below 5"),
    ],
)
def test_a_control_that_steers_nowhere_is_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        KlControl(**wrong)


def begins(tables: dict[str, TableRef], folder: Path) -> dict[str, TableRef]:
    """The tables with those of no iteration before."""
    empty = {f"kl_scale_before/{m}": TableRef(f"kl_scale/{m}", str(folder), KL_SCALE, ()) for m in "ab"}
    return tables | empty


def goes_on(tables: dict[str, TableRef]) -> dict[str, TableRef]:
    return tables | {f"kl_scale_before/{m}": tables[f"kl_scale/{m}"] for m in "ab"}


def stage(in_reward: bool = True, **control: float) -> AdvantageStage:
    kl = RewardKl(0.2, {"x": 0.1}, "k1") if in_reward else RewardKl()
    steered = KlControl(0.25, **{"step": 1.0, "coefficient": 0.2, **control}, estimator="k1")
    return AdvantageStage(
        tuple(TokenSpec(m, use="gae", gae=Gae(), reward_kl=kl, kl_control=steered) for m in "ab")
    )


@pytest.mark.usefixtures("here")
def test_each_iteration_pays_the_price_that_the_one_before_left_behind(tmp_path: Path) -> None:
    """The KL is twice the target, so the price grows by a fifth each time: 1, 1.2, 1.44."""
    tables = begins(scored(tmp_path / "s", play()), tmp_path)
    expected = 1.0
    for iteration in range(3):
        folder = tmp_path / str(iteration)
        result, tables = run(stage(), tables, folder, iteration)
        (row,) = tables["kl_scale/a"].read().to_pylist()
        assert row["iteration"] == iteration
        assert (row["scale"], row["kl"]) == (pytest.approx(expected), pytest.approx(KL, abs=1e-6))
        assert row["next_scale"] == pytest.approx(expected * 1.2)
        fixed = TokenSpec(
            "a", use="gae", gae=Gae(), reward_kl=RewardKl(0.2 * expected, {"x": 0.1 * expected}, "k1")
        )
        _, by_hand = run(AdvantageStage((fixed, TokenSpec("b", use="gae"))), tables, folder / "by hand")
        steered, at_price = found_in(tables), found_in(by_hand)
        for key, spoken in at_price.items():
            if spoken["episode_id"] and key in steered and steered_by("a", tables, key):
                assert steered[key]["advantages"] == pytest.approx(spoken["advantages"], abs=1e-5)
        logged = measured_by_stages({"advantage": result.metrics})
        assert logged["model/a/kl_coefficient"] == pytest.approx(0.2 * expected)
        assert logged["model/a/token_kl_reference_mean"] == pytest.approx(KL, abs=1e-6)
        tables, expected = goes_on(tables), expected * 1.2


def steered_by(model: str, tables: dict[str, TableRef], key: tuple[str, int]) -> bool:
    rows = tables[f"partition/{model}"].read(["episode_id", "turn_index"]).to_pylist()
    return key in {(row["episode_id"], row["turn_index"]) for row in rows}


@pytest.mark.usefixtures("here")
def test_the_same_iteration_again_has_the_same_bits(tmp_path: Path) -> None:
    tables = begins(scored(tmp_path / "s", play()), tmp_path)
    _, first = run(stage(), tables, tmp_path / "0")
    once, again = (run(stage(), goes_on(first), tmp_path / name, 1)[1] for name in ("1", "2"))
    for name in ("kl_scale/a", "kl_scale/b", "token_advantages/a"):
        assert once[name].read().equals(again[name].read())


@pytest.mark.usefixtures("here")
def test_a_kl_in_the_loss_is_measured_and_costs_no_advantage(tmp_path: Path) -> None:
    tables = begins(scored(tmp_path / "s", play()), tmp_path)
    _, steered = run(stage(in_reward=False), tables, tmp_path / "0")
    assert steered["kl_scale/b"].read()["next_scale"].to_pylist() == [pytest.approx(1.2)]
    free = AdvantageStage(tuple(TokenSpec(m, use="gae", gae=Gae()) for m in "ab"))
    _, plain = run(free, tables, tmp_path / "1")
    assert found_in(steered) == found_in(plain)


@pytest.mark.usefixtures("here")
def test_an_iteration_without_usable_rows_leaves_the_scale_as_it_was(tmp_path: Path) -> None:
    rows = [row | {"reward": None} for row in play()]
    tables = begins(scored(tmp_path / "s", rows), tmp_path)
    _, tables = run(stage(), tables, tmp_path / "0")
    (row,) = tables["kl_scale/a"].read().to_pylist()
    assert (row["kl"], row["scale"], row["next_scale"]) == (None, 1.0, 1.0)


def test_a_scale_lasts_through_iterations_that_train_nothing(
    scripted: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """An iteration whose every task was silent makes no update; the next goes on where the scale was."""
    steered = assemble(parse_settings(scripted(ppo={"kl_coefficient": 0.1, "kl_target": 0.05})))
    at_work = next(s for s in steered.stages if isinstance(s, AdvantageStage))
    folder = Run(str(tmp_path), "r")
    place = folder.iteration(0)
    sinks = place.sinks(at_work)
    row = {"iteration": 0, "block": 0, "model_id": "team", "scale": 1.0, "target": 0.05, "next_scale": 1.02}
    parts = {
        name: [sinks[name].write_part(0, rows_to_table([row] if name == "kl_scale/team" else [], schema))]
        for name, schema in at_work.outputs.items()
    }
    place.commit(at_work, StageResult(parts), {}, {}, 0.0)
    for index in (1, 2):
        folder.iteration(index).folder.write_text("begun", json.dumps({}))
    carried = carried_tables(folder, folder.iteration(3), steered.stages)
    assert scale_before(carried["kl_scale_before/team"].read()) == 1.02
    assert scale_before(carried_tables(folder, place, steered.stages)["kl_scale_before/team"].read()) == 1.0


def test_every_coefficient_of_a_loss_is_scaled_and_nothing_else() -> None:
    loss = LossSpec(
        kl_coefficient=0.1, roles={"a": RoleLoss(kl_coefficient=0.2, weight=3.0), "b": RoleLoss(0.1)}
    )
    scaled = loss.with_kl_scale(1.5)
    assert [scaled.of(role).kl_coefficient for role in (None, "a", "b")] == pytest.approx([0.15, 0.3, 0.15])
    assert (scaled.of("a").weight, scaled.of("b").clip_low) == (3.0, 0.1)
    assert loss.with_kl_scale(1.0) is loss


@pytest.mark.slow
def test_an_update_takes_the_scale_of_its_table_and_is_known_by_it(start: Any, tmp_path: Path) -> None:
    """A coefficient of 0.2 at scale 1.5 trains as one of 0.3 does."""
    row = {"iteration": 0, "block": 0, "model_id": "m", "scale": 1.5, "target": 0.1, "next_scale": 2.0}
    sink = TableSink("kl_scale/m", str(tmp_path / "scale"), KL_SCALE)
    table = sink.ref([sink.write_part(0, rows_to_table([row], KL_SCALE))])
    found = {}
    for name, coefficient, scale in (("scaled", 0.2, table), ("plain", 0.3, None), ("other", 0.2, None)):
        worker = start(
            loss=LossSpec(kl_coefficient=coefficient), reference=ReferenceSpec(), epochs=2, **SMOOTH
        )
        ref = partition(tmp_path / name)
        scores = score(worker, ref, tmp_path / f"s{name}", "old", "reference")
        report = worker.update(ref, 0, None, scores, kl_scale=scale)
        found[name] = (weights(worker), report)
        assert report.update_id == update_id_of("m", 0, (ref, None, scores, *([scale] if scale else [])))
    assert same(found["scaled"][0], found["plain"][0], 1e-7)
    assert not same(found["scaled"][0], found["other"][0], 1e-7)
    assert np.isfinite(found["scaled"][1].summary["kl_reference"])
