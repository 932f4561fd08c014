"""What a trainer resumes with: the settings of now act on weights, moments and critic, or are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from stages.training import checkpoint
from stages.training.loss.spec import CriticSpec
from stages.training.spec import TrainerSpec
from stages.weights.adapters import AdapterSpec
from tests.support.tiny_training import SMOOTH, master, partition, same, save, token_advantages
from workflows.errors import RunFailed

ADAPTER = {"adapter": AdapterSpec(rank=4, alpha=8.0)}
OPTIMIZER = {"weight_decay": 0.5, "betas": (0.5, 0.5), "eps": 0.1, "gradient_clip": 1e-4}
RETURNS = [1.0, -1.0, 0.5, 2.0, 0.0, -0.5]


def targets(folder: Any) -> Any:
    return token_advantages(folder, [1.0, -0.5, 0.25, -2.0, 0.0, 1.5], returns=RETURNS)


def moved(worker: Any) -> dict[str, Any]:
    """The numbers that the optimizer steps: master weights, or the weights themselves in fp32."""
    if worker.spec.precision == "bf16":
        return master(worker)
    return {name: p.detach().clone() for name, p in worker.unit.policy.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainer",
    [
        {"zero_stage": 0},
        {"zero_stage": 1},
        {"zero_stage": 1, "precision": "bf16"},
        {"zero_stage": 2, "precision": "bf16"},
        {"zero_stage": 1, **ADAPTER},
    ],
    ids=["fp32-0", "fp32-1", "bf16-1", "bf16-2", "adapter"],
)
def test_the_optimizers_settings_are_those_of_now(start, tmp_path, trainer) -> None:
    base = SMOOTH | trainer
    worker = start(**base)
    worker.update(partition(tmp_path / "p0"), 0)
    saved = save(worker, f"{tmp_path}/m/00001")

    def resumed(**changes):
        worker = start(version=1, resume=saved, **(base | changes))
        worker.update(partition(tmp_path / "p1", version=1), 1)
        return moved(worker)

    unchanged = resumed()
    assert same(resumed(), unchanged)
    for name, value in OPTIMIZER.items():
        assert not same(resumed(**{name: value}), unchanged), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_critics_optimizer_has_the_settings_of_now(start, tmp_path, kind) -> None:
    base = SMOOTH | {"critic": CriticSpec(kind, learning_rate=0.1, value_clip=None)}
    worker = start(**base)
    worker.update(partition(tmp_path / "p0"), 0, targets(tmp_path / "a0"))
    saved = save(worker, f"{tmp_path}/m/00001")

    def resumed(**changes):
        worker = start(version=1, resume=saved, **(base | changes))
        worker.update(partition(tmp_path / "p1", version=1), 1, targets(tmp_path / "a1"))
        critic = worker.unit.critic
        network = dict(critic.network.module.named_parameters()) if critic.network else {}
        state = {**network, **dict(critic.layer.named_parameters())}
        return {name: each.detach().clone() for name, each in state.items()}

    unchanged = resumed()
    assert same(resumed(), unchanged)
    for name, value in OPTIMIZER.items():
        if name != "weight_decay" or kind == "model":  # the layer has none
            assert not same(resumed(**{name: value}), unchanged), name
    rates = dataclasses.replace(base["critic"], learning_rate=0.2)
    assert not same(resumed(critic=rates), unchanged)


@pytest.mark.slow
def test_what_can_not_change_at_a_resume_is_refused_by_name(start, tmp_path) -> None:
    worker = start(**SMOOTH)
    worker.update(partition(tmp_path / "p0"), 0)
    saved = save(worker, f"{tmp_path}/m/00001")
    for name, value in {"zero_stage": 2, "precision": "bf16", **ADAPTER, "critic": CriticSpec()}.items():
        with pytest.raises(RunFailed, match=f"it has {name} .*use the settings that it was saved with"):
            start(version=1, resume=saved, **(SMOOTH | {name: value}))


def test_a_critics_other_beginning_is_refused_where_the_checkpoint_knows_its_own() -> None:
    spec = TrainerSpec("m", "m", "folder", critic=CriticSpec("model", checkpoint="a"))
    manifest = {
        "files": [{"name": "trainer/x"}],
        "model_id": "m",
        "version": 1,
        "ranks": 1,
        "zero_stage": 1,
        "precision": "bf16",
        "critic": "model",
        "adapter": None,
    }
    assert checkpoint.foreign(manifest, spec, 1) is None  # of an older version
    assert checkpoint.foreign({**manifest, "critic_checkpoint": "a"}, spec, 1) is None
    problem = checkpoint.foreign({**manifest, "critic_checkpoint": "b"}, spec, 1)
    assert problem is not None
    assert "critic_checkpoint 'b', the trainer wants 'a'" in problem


@pytest.mark.slow
def test_entropy_acts_where_every_advantage_is_zero(start, tmp_path) -> None:
    from stages.training.loss.spec import LossSpec, RoleLoss

    silent = [0.0] * 6
    worker = start(loss=LossSpec(entropy_coefficient=0.2), **SMOOTH)
    before = moved(worker)
    report = worker.update(partition(tmp_path / "p0", advantages=silent), 0)
    assert (report.skipped, report.version_after) == (None, 1)
    assert not same(moved(worker), before)
    worker = start(loss=LossSpec(roles={"other": RoleLoss(entropy_coefficient=0.2)}), **SMOOTH)
    report = worker.update(partition(tmp_path / "p0", advantages=silent), 0)
    assert report.skipped.startswith("no signal")  # no row of that role


@pytest.mark.slow
@pytest.mark.parametrize("seed", [-1, 2**32, 2**64, -(2**70)])
def test_any_integer_is_a_trainers_seed(start, tmp_path, seed) -> None:
    worker = start(seed=seed, **SMOOTH)
    assert worker.update(partition(tmp_path / "p0"), 0).version_after == 1
