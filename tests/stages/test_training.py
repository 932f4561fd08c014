"""The trainer: one update is the same however it was cut, repeats, resumes, and refuses what it can't do."""

import dataclasses
import math
import os

import pytest

from stages.tables.parquet import TableSink
from stages.training import checkpoint
from stages.training.gradients.spec import MeasureSpec, ShapingSpec
from stages.training.group import TrainerGroup
from stages.training.loss.spec import CriticSpec, ReferenceSpec
from stages.training.spec import TrainerSpec, activation_estimate, memory_estimate
from tests.support.tiny_training import (
    SMOOTH,
    bare_torch_step,
    master,
    partition,
    same,
    save,
    token_advantages,
    weights,
)
from workflows.errors import RunFailed, UsageError
from workflows.trajectory import SCORES


def test_settings_that_can_not_train_are_refused() -> None:
    for changes, words in (
        ({"zero_stage": 3}, "zero_stage"),
        ({"ranks": 0}, "ranks"),
        ({"gradient_clip": -1.0}, "gradient_clip"),
        ({"precision": "fp16"}, "precision"),
    ):
        with pytest.raises(UsageError, match=words):
            TrainerSpec("m", "m", "x", **changes)


def test_the_memory_estimate_grows_with_what_needs_memory() -> None:
    spec = TrainerSpec("m", "m", "x")
    base = memory_estimate(spec, 10**8)
    assert memory_estimate(spec, 2 * 10**8) > base
    assert activation_estimate(spec, 10**8, 4096) > activation_estimate(spec, 10**8, 1024)
    assert memory_estimate(dataclasses.replace(spec, ranks=2), 10**8) > base
    assert memory_estimate(dataclasses.replace(spec, precision="fp32"), 10**8) > base
    assert memory_estimate(dataclasses.replace(spec, critic=CriticSpec("head")), 10**8) == base
    assert memory_estimate(dataclasses.replace(spec, critic=CriticSpec("model")), 10**8) > 1.5 * base
    frozen = memory_estimate(dataclasses.replace(spec, reference=ReferenceSpec()), 10**8) - base
    exact = dataclasses.replace(spec, measure=MeasureSpec("exact"))
    by_role = memory_estimate(exact, 10**8, roles=3) - base
    assert by_role == pytest.approx(2 * 3 * 4 * 10**8 / 2**30)  # a gradient and a running mean for each role
    assert memory_estimate(dataclasses.replace(spec, measure=MeasureSpec("estimate")), 10**8, 3) == base
    damped = dataclasses.replace(spec, shaping=ShapingSpec(coherence_damping=0.1))
    assert memory_estimate(damped, 10**8) > base
    assert frozen == pytest.approx(2 * 10**8 / 2**30)  # bf16 weights, and nothing else


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 2])
def test_an_update_is_that_of_a_bare_loop_however_it_is_cut(start, tiny, tmp_path, zero_stage) -> None:
    norm, expected = bare_torch_step(tiny, partition(tmp_path / "p"))
    for shared, cut in ((True, (0,) * 6), (False, (0, 1, 1, 0, 0, 1)), (True, (0, 1, 0, 0, 2, 0))):
        worker = start(zero_stage=zero_stage, shared_prefix=shared, **SMOOTH)
        report = worker.update(partition(tmp_path / "p", cut=cut), 0)
        assert report.summary["gradient_norm"] == pytest.approx(norm, rel=1e-5)
        assert same(weights(worker), expected, 2e-6)
        assert (report.version_after, report.num_rows, report.num_tokens) == (1, 6, 19)


@pytest.mark.slow
def test_the_first_step_sees_an_unmoved_policy_and_a_second_epoch_a_moved_one(start, tmp_path) -> None:
    worker = start(epochs=2, **SMOOTH)
    mini = (0, 1, 0, 1, 0, 1)
    report = worker.update(partition(tmp_path / "p", mini=mini), 0)
    first = report.steps[0]
    assert first["importance_ratio_max"] == pytest.approx(1, abs=1e-6)
    assert (first["clip_fraction"], first["kl_old"]) == (0, pytest.approx(0, abs=1e-9))
    assert [s["step"] for s in report.steps] == [0, 1, 2, 3]
    assert report.steps[2]["kl_old"] > 1e-4
    assert report.summary["sampler_gap_max"] >= report.summary["sampler_gap_mean"] > 0
    again = start(epochs=1, **SMOOTH)
    single = again.update(partition(tmp_path / "p"), 0).summary
    assert (single["importance_ratio_max"], single["clip_fraction"], single["kl_old"]) == (1, 0, 0)
    # both read the sampler's gap off the same, unmoved policy
    assert single["sampler_gap_mean"] == pytest.approx(report.summary["sampler_gap_mean"], rel=1e-5)
    assert single["sampler_kl"] == pytest.approx(report.summary["sampler_kl"], rel=1e-5)


@pytest.mark.slow
def test_no_signal_makes_no_step_and_a_second_delivery_trains_nothing(start, tmp_path) -> None:
    worker = start(**SMOOTH)
    before = weights(worker)
    report = worker.update(partition(tmp_path / "p", advantages=[0.0] * 6), 0)
    assert report.skipped.startswith("no signal")
    assert (report.version_after, report.excluded, report.num_rows) == (0, {"no signal": 6}, 0)
    assert same(weights(worker), before)
    assert not worker.unit.engine.optimizer.optimizer.state  # no moments were made, let alone moved
    done = worker.update(partition(tmp_path / "p"), 0, at=(1, 2))
    after = weights(worker)
    assert not same(after, before)
    assert (done.iteration, done.block, done.summary["block"]) == (1, 2, 2)
    assert worker.update(partition(tmp_path / "p"), 0) == done  # the same rows from the same version
    assert same(weights(worker), after)
    again = worker.update(partition(tmp_path / "r", version=1), 1)  # a model may be updated again at once
    assert (again.version_before, again.version_after) == (1, 2)
    with pytest.raises(RunFailed, match="starts from version 0, and the trainer is at version 2"):
        worker.update(partition(tmp_path / "q", advantages=[1.0] * 6), 0)  # other rows


@pytest.mark.slow
@pytest.mark.parametrize(("zero_stage", "precision"), [(0, "fp32"), (1, "fp32"), (1, "bf16"), (2, "bf16")])
def test_a_gradient_that_is_not_finite_changes_no_weight(start, tmp_path, zero_stage, precision) -> None:
    worker = start(zero_stage=zero_stage, precision=precision)
    before = weights(worker)
    next(worker.unit.policy.parameters()).register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(RunFailed, match="gradient of optimizer step 0") as failure:
        worker.update(partition(tmp_path / "p"), 0)
    assert "(e5, 0)" in str(failure.value)
    assert same(weights(worker), before)
    with pytest.raises(RunFailed, match="failed before"):
        worker.update(partition(tmp_path / "p"), 0)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_names_its_rows(start, tmp_path) -> None:
    import torch

    worker = start(**SMOOTH)
    with torch.no_grad():
        worker.unit.policy.model.get_output_embeddings().weight[3, 0] = math.nan
    with pytest.raises(RunFailed, match=r"loss .* rows \(e0, 0\)"):
        worker.update(partition(tmp_path / "p"), 0)


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 2])
def test_a_bf16_run_moves_its_master_weights_and_resumes_bit_for_bit(start, tmp_path, zero_stage) -> None:
    settings = {"zero_stage": zero_stage, "precision": "bf16", "learning_rate": 1e-6}
    cut = (0, 1, 1, 2, 2, 2)

    def train(worker, iterations):
        for i in iterations:
            worker.update(partition(tmp_path / f"p{i}", cut=cut, version=i), i)

    worker = start(**settings)
    if zero_stage:
        before = master(worker)
    train(worker, range(2))
    if zero_stage:
        moved = [(master(worker)[k] - before[k]).abs().max() for k in before]
        assert 0 < max(moved) < 1e-5
    saved = save(worker, f"{tmp_path}/run/checkpoints/m/2")
    train(worker, range(2, 4))
    unbroken, final = master(worker) if zero_stage else {}, weights(worker)
    worker = start(version=2, resume=saved, **settings)
    assert worker.unit.last_report.version_after == 2
    train(worker, range(2, 4))
    assert worker.unit.version == 4
    assert same(weights(worker), final)
    assert not zero_stage or same(master(worker), unbroken)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_written_weights_are_those_that_are_computed_with_however_the_model_came(
    precision, dtype, start, tiny_half, tmp_path
) -> None:
    from transformers import AutoModelForCausalLM

    from stages.weights.checkpoints import stored_dtype

    worker = start(**SMOOTH | {"checkpoint": tiny_half, "precision": precision, "learning_rate": 1e-5})
    before = weights(worker)
    worker.update(partition(tmp_path / "p"), 0)
    save(worker, f"{tmp_path}/m/00001")
    folder = f"{tmp_path}/m/00001/weights"
    assert stored_dtype(folder) == dtype
    loaded = AutoModelForCausalLM.from_pretrained(folder)  # in the dtype that it says it has
    assert str(loaded.dtype) == f"torch.{dtype}"
    assert same({k: v.float() for k, v in loaded.state_dict().items()}, weights(worker))
    assert precision == "bf16" or not same(before, weights(worker))


@pytest.mark.slow
def test_checkpoints_are_whole_or_refused_on_any_filesystem(start, tiny, tmp_path) -> None:
    import fsspec
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from stages.weights.checkpoints import weights_hash

    worker = start(**SMOOTH)
    worker.update(partition(tmp_path / "p"), 0)
    good = save(worker, f"file://{tmp_path}/m/00001")
    folder = tmp_path / "m/00001"
    assert checkpoint.read_manifest(good)["hash"] == weights_hash(str(folder / "weights"))
    loaded = AutoModelForCausalLM.from_pretrained(folder / "weights", dtype=torch.float32)
    assert same(dict(loaded.state_dict()), weights(worker))
    assert AutoTokenizer.from_pretrained(folder / "weights").chat_template

    # a save that is broken off leaves the good one alone, and nothing that looks like a checkpoint
    worker.update(partition(tmp_path / "p", version=1), 1)
    unfinished = f"file://{tmp_path}/m/00002"
    checkpoint.prepare(unfinished)
    worker.write(unfinished, True)
    with pytest.raises(RunFailed, match="not a whole checkpoint"):
        checkpoint.read_manifest(unfinished)
    remote = save(worker, "memory://bucket/m/00002")
    only_weights = save(worker, f"{tmp_path}/m/2w", trainer_state=False)
    save(worker, unfinished)
    final = weights(worker)

    for uri, version, words in (
        (good, 7, "version 1"),
        (only_weights, 2, "weights only"),
        (f"{tmp_path}/m/00009", 9, "not a whole checkpoint"),
    ):
        with pytest.raises(RunFailed, match=words):
            checkpoint.load(worker.unit, uri, version)
    damaged = next((folder / "trainer").rglob("*optim_states.pt"))
    os.truncate(damaged, damaged.stat().st_size // 2)
    with pytest.raises(RunFailed, match="damaged"):
        checkpoint.load(worker.unit, good, 1)
    for uri in (remote, unfinished):
        assert same(weights(start(version=2, resume=uri, **SMOOTH)), final)
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


@pytest.mark.slow
def test_two_ranks_train_like_one_and_a_dead_rank_ends_the_run(ray_cluster, start, tiny, tmp_path) -> None:
    import ray

    cuts = [
        {"ranks": (0, 1, 0, 1, 0, 1), "cut": (0, 0, 1, 0, 2, 0)},
        {"ranks": (0,) * 6},  # rank 1 has no row
    ]
    learn = {**SMOOTH, "critic": CriticSpec("head", learning_rate=0.5, value_clip=None)}

    def targets(name):
        returns = [1.0, -1.0, 0.5, 2.0, 0.0, -0.5]
        return token_advantages(tmp_path / f"a{name}", [1.0, -0.5, 0.25, -2.0, 0.0, 1.5], returns=returns)

    one = start(**learn)
    for i in range(3):
        one.update(partition(tmp_path / f"one{i}", version=i), i, targets(f"one{i}"))
    expected, alone = weights(one), one.unit.last_report
    one.close()

    spec = TrainerSpec("m", "m", tiny, ranks=2, update_timeout_seconds=120, **learn)
    group = TrainerGroup.start(spec, version=0)
    for i, places in enumerate(cuts):
        ref = partition(tmp_path / f"two{i}", version=i, **places)
        sink = TableSink("scores/m", f"{tmp_path}/s{i}", SCORES)
        scores = sink.ref(group.score(ref, sink, frozenset({"old", "values"})))
        assert scores.read()["episode_id"].equals(ref.read()["episode_id"])
        group.update(ref, i, advantages=targets(f"two{i}"), scores=scores)
    saved = f"{tmp_path}/m/00002"
    group.save(saved)
    last = partition(tmp_path / "two2", version=2, **cuts[0])
    report = group.update(last, 2, advantages=targets("two2"))
    assert group.version == report.version_after == 3
    columns = ("loss", "value_loss", "gradient_norm", "sampler_gap_mean", "num_tokens", "num_rows")
    for column in (*columns, "explained_variance"):
        assert report.summary[column] == pytest.approx(alone.summary[column], rel=1e-4)
    assert len(group.memory()) == 2
    published = group.publish(f"{tmp_path}/m/00003")

    from safetensors.torch import load_file

    trained = load_file(f"{tmp_path}/m/00003/weights/model.safetensors")
    assert all((trained[k] - expected[k]).abs().max() < 5e-6 for k in trained)

    ray.kill(group._actors[1])
    with pytest.raises(RunFailed, match="trainer of model 'm' failed to update") as died:
        # killed between updates: it is first asked how far it is
        group.update(partition(tmp_path / "two3", version=3, **cuts[0]), 3, lambda rows, tokens: None)
    assert "\n" not in str(died.value)

    group = TrainerGroup.start(spec, version=2, resume=saved)
    again = group.update(last, 2, advantages=targets("two2"))
    timed = {"seconds": again.seconds, "steps": again.steps, "summary": again.summary}
    assert again == dataclasses.replace(report, **timed)
    assert again.summary | {"seconds": 0} == report.summary | {"seconds": 0}
    assert group.update(last, 2, advantages=targets("two2")) == again  # a second delivery
    assert group.publish(f"{tmp_path}/m/again").hash == published.hash
    group.close()
