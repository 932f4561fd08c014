"""Gradients by role: the parts add up to what the optimizer steps with, wherever DeepSpeed holds it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from stages.training.gradients.held import HeldGradient
from stages.training.gradients.spec import MeasureSpec, ShapingSpec
from stages.training.group import TrainerGroup
from stages.training.loss.spec import ReferenceSpec
from stages.training.spec import TrainerSpec
from stages.weights.adapters import AdapterSpec
from tests.support.tiny_training import SMOOTH, partition, same, save, score, weights
from workflows.errors import RunFailed, UsageError

EXACT, ESTIMATE = MeasureSpec("exact"), MeasureSpec("estimate")
ROLES = "abaabb"
CUT = (0, 1, 0, 0, 1, 1)  # a micro-batch for each role
COPIES = {"roles": ROLES, "cut": (0, 2, 0, 1, 2, 2), "branches": ["0", "", "0", "1", "", ""]}


def watch(worker):
    """The vectors of the parts of each step, and the gradient that the optimizer got, as flat tensors."""
    import torch

    seen = {"parts": [], "held": []}
    unit = worker.unit
    take, step = unit.parts.take, unit.network.step

    def taking():
        seen["parts"].append(take())
        return seen["parts"][-1]

    def stepping(rate):
        held = HeldGradient(unit.engine, list(unit.policy.parameters()))
        seen["held"].append(torch.cat(held.copy()))
        return step(rate)

    unit.parts.take, unit.network.step = taking, stepping
    return seen


def summary(report, role=None, branch=None):
    rows = [r for r in report.roles if r["kind"] == "summary"]
    return next(r for r in rows if (r["role"], r["branch"]) == (role, branch))


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [None, AdapterSpec(rank=4, alpha=8.0)])
@pytest.mark.parametrize(
    ("zero_stage", "precision"), [(0, "fp32"), (1, "fp32"), (2, "fp32"), (1, "bf16"), (2, "bf16")]
)
def test_parts_add_up_to_what_the_optimizer_steps_with(
    start, tmp_path, zero_stage, precision, adapter
) -> None:
    changes = {**SMOOTH, "precision": precision, "zero_stage": zero_stage, "adapter": adapter}
    worker = start(measure=EXACT, **changes)
    seen = watch(worker)
    report = worker.update(partition(tmp_path / "p", roles=ROLES, cut=CUT), 0)
    whole = seen["parts"][0].sum(0)
    held = seen["held"][0][: len(whole)]
    assert float((whole - held).norm() / held.norm()) < 1e-5
    assert not seen["held"][0][len(whole) :].any()  # padding
    row = summary(report)
    assert row["gradient_norm"] == pytest.approx(report.summary["gradient_norm"], rel=1e-5)
    assert row["gradient_norm"] == pytest.approx(float(held.norm()), rel=1e-5)
    assert report.summary["gradient_norm"] > 0


@pytest.mark.slow
def test_a_role_s_gradient_is_that_of_the_loss_on_its_rows_alone(start, tmp_path) -> None:
    advantages = [1.0, -0.5, 0.25, -2.0, 0.5, 1.5]
    report = start(measure=EXACT, **SMOOTH).update(
        partition(tmp_path / "p", roles=ROLES, cut=CUT, advantages=advantages), 0
    )
    norms = {}
    for role in "ab":  # the same rows and counts, without the other role's signal
        alone = [a if ROLES[i] == role else 0.0 for i, a in enumerate(advantages)]
        other = start(**SMOOTH).update(partition(tmp_path / role, cut=CUT, advantages=alone), 0)
        norms[role] = other.summary["gradient_norm"]
        assert summary(report, role)["gradient_norm"] == pytest.approx(norms[role], rel=1e-5)
    for role in "ab":
        assert summary(report, role)["gradient_share"] == pytest.approx(
            norms[role] / sum(norms.values()), rel=1e-5
        )
    a, b, whole = norms["a"], norms["b"], report.summary["gradient_norm"]
    cosine = (whole**2 - a**2 - b**2) / (2 * a * b)
    (pair,) = [p for p in report.pairs if p["kind"] == "summary"]
    assert (pair["role"], pair["other_role"]) == ("a", "b")
    assert pair["cosine"] == pytest.approx(cosine, abs=1e-4)
    assert summary(report, "a")["cosine_whole"] == pytest.approx((a + b * cosine) / whole, abs=1e-4)
    assert summary(report)["interference"] == pytest.approx(a + b - whole, rel=1e-3)


@pytest.mark.slow
def test_measuring_changes_no_weight_and_counts_every_row(start, tmp_path) -> None:
    ref = partition(tmp_path / "p", roles=ROLES, cut=CUT, mini=(0, 0, 0, 1, 1, 1))
    plain = start(epochs=2, **SMOOTH)
    plain.update(ref, 0)
    expected = weights(plain)
    worker = start(measure=ESTIMATE, epochs=2, **SMOOTH)
    report = worker.update(ref, 0)
    assert same(weights(worker), expected)
    for role in "ab":
        row = summary(report, role)
        rows = [i for i in range(6) if ROLES[i] == role]
        tokens = sum(2 + i % 4 for i in rows)
        assert (row["num_rows"], row["num_tokens"]) == (3, tokens)
        assert row["sampled_entropy"] > 0
        assert 0 <= row["clip_fraction"] <= 1
    assert sum(summary(report, r)["num_rows"] for r in "ab") == report.num_rows
    steps = [r for r in report.roles if r["kind"] == "step" and r["role"] == "a"]
    assert [r["step"] for r in steps] == [0, 1, 2, 3]
    assert steps[0]["cosine_mean"] is None  # no mean yet
    assert all(-1 <= r["cosine_mean"] <= 1 for r in steps[1:])
    assert steps[0]["reward"] == pytest.approx((0 + 2) / 2)


@pytest.mark.slow
def test_the_estimate_is_near_the_exact_measure(start, tmp_path) -> None:
    """Errors are about 1/√16381 = 0.008 of a cosine or a norm; four times that is allowed."""
    ref = partition(tmp_path / "p", **COPIES)
    exact = start(measure=EXACT, **SMOOTH).update(ref, 0)
    estimate = start(measure=ESTIMATE, **SMOOTH).update(ref, 0)
    assert len(exact.roles) == len(estimate.roles) == 2 * 5  # whole, a, its two copies, b
    for one, other in zip(exact.roles, estimate.roles, strict=True):
        assert (one["role"], one["branch"]) == (other["role"], other["branch"])
        assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=0.032)
        for name in ("gradient_share", "cosine_whole", "redundancy", "copies_cosine"):
            if one.get(name) is not None:
                assert other[name] == pytest.approx(one[name], abs=0.032)
    for one, other in zip(exact.pairs, estimate.pairs, strict=True):
        assert other["cosine"] == pytest.approx(one["cosine"], abs=0.032)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [None, AdapterSpec(rank=4, alpha=8.0)])
def test_drift_is_the_distance_of_each_role_from_its_reference(start, tmp_path, adapter) -> None:
    spec = {"measure": MeasureSpec("estimate", drift=True), "reference": ReferenceSpec(), "adapter": adapter}
    worker = start(**SMOOTH, **spec)
    refs = [partition(tmp_path / f"p{k}", roles=ROLES, cut=CUT, version=k) for k in range(2)]
    first = worker.update(refs[0], 0)
    old = score(worker, refs[1], tmp_path / "s", "old", "reference").read().to_pylist()
    second = worker.update(refs[1], 1)
    gaps = {
        row["episode_id"]: list(zip(row["old_logprobs"], row["reference_logprobs"], strict=True))
        for row in old
    }
    for role in "ab":
        assert summary(first, role)["kl_reference"] == pytest.approx(0, abs=1e-9)
        tokens = [g for i in range(6) if ROLES[i] == role for g in gaps[f"e{i}"]]
        k3 = sum(math.exp(r - o) - 1 - (r - o) for o, r in tokens) / len(tokens)
        assert k3 > 1e-6
        assert summary(second, role)["kl_reference"] == pytest.approx(k3, rel=1e-3)
    assert "kl_reference" not in summary(start(**SMOOTH, measure=ESTIMATE).update(refs[0], 0), "a")


@pytest.mark.slow
def test_copies_of_a_role_are_told_apart(start, tmp_path) -> None:
    report = start(measure=EXACT, **SMOOTH).update(partition(tmp_path / "p", **COPIES), 0)
    role, copies = summary(report, "a"), [summary(report, "a", branch) for branch in "01"]
    norms = [copy["gradient_norm"] for copy in copies]
    assert role["copies"] == 2
    assert role["redundancy"] == pytest.approx(role["gradient_norm"] / sum(norms), rel=1e-5)
    (pair,) = [p for p in report.pairs if p["kind"] == "summary" and p["branch"] is not None]
    assert (pair["branch"], pair["other_branch"], pair["role"], pair["other_role"]) == ("0", "1", "a", "a")
    assert role["copies_cosine"] == pytest.approx(pair["cosine"], rel=1e-6)
    assert sum(copy["num_rows"] for copy in copies) == role["num_rows"] == 3
    assert sum(copy["token_share"] for copy in copies) == pytest.approx(1)
    assert "copies" not in summary(report, "b")


@pytest.mark.slow
def test_a_role_alone_has_all_of_the_mass_and_no_pair(start, tmp_path) -> None:
    report = start(measure=EXACT, **SMOOTH).update(partition(tmp_path / "p"), 0)
    row = summary(report, "r")
    assert (row["gradient_share"], report.pairs) == (1.0, [])
    assert row["cosine_whole"] == pytest.approx(1)
    assert summary(report)["interference"] == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_a_micro_batch_that_mixes_roles_is_refused(start, tmp_path) -> None:
    worker = start(measure=ESTIMATE, **SMOOTH)
    with pytest.raises(RunFailed, match=r"mixes the roles a, b.*make the partition anew"):
        worker.update(partition(tmp_path / "p", roles=ROLES), 0)


@pytest.mark.slow
@pytest.mark.parametrize("measure", [EXACT, ESTIMATE])
def test_running_means_go_on_after_a_resume(start, tmp_path, measure) -> None:
    shaping = ShapingSpec(coherence_damping=0.3, coherence_window=4)
    settings = {**SMOOTH, "measure": measure, "shaping": shaping}

    def refs(k):
        return partition(tmp_path / f"p{k}", roles=ROLES, cut=CUT, version=k)

    worker = start(**settings)
    worker.update(refs(0), 0)
    worker.update(refs(1), 1)
    uri = save(worker, str(tmp_path / "checkpoint"))
    unbroken = worker.update(refs(2), 2)
    expected = weights(worker)
    resumed = start(version=2, resume=uri, **settings)
    report = resumed.update(refs(2), 2)
    assert report.roles == unbroken.roles
    assert same(weights(resumed), expected)
    assert summary(report)["factor"] < 1
    assert all(summary(report, role)["cosine_mean"] > 0 for role in "ab")


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 2])
def test_two_ranks_measure_and_hold_back_what_one_does(
    ray_cluster, start, tiny, tmp_path, zero_stage
) -> None:
    """A cap on shares, copies and damping act on the slices of two ranks as on one rank's whole gradient."""
    from safetensors.torch import load_file

    shaping = ShapingSpec(coherence_damping=0.5, coherence_window=2, max_role_share=0.51, damp_copies=True)
    settings = {**SMOOTH, "zero_stage": zero_stage, "measure": EXACT, "shaping": shaping}
    one = start(**settings)
    alone = [one.update(partition(tmp_path / f"one{k}", version=k, **COPIES), k) for k in range(2)]
    expected = weights(one)
    one.close()
    group = TrainerGroup.start(
        TrainerSpec("m", "m", tiny, ranks=2, update_timeout_seconds=120, **settings), version=0
    )
    places = COPIES | {"ranks": (0, 1, 1, 0, 0, 1), "cut": (0, 1, 0, 1, 2, 1)}
    both = [group.update(partition(tmp_path / f"two{k}", version=k, **places), k) for k in range(2)]
    group.publish(f"{tmp_path}/m/00002")
    group.close()
    for report, other in zip(alone, both, strict=True):
        assert [r["role"] for r in report.roles] == [r["role"] for r in other.roles]
        for row, same_row in zip(report.roles, other.roles, strict=True):
            for name, value in (row | {"update_id": same_row["update_id"]}).items():
                assert same_row[name] == (
                    pytest.approx(value, rel=1e-3, abs=1e-4) if isinstance(value, float) else value
                )
        assert report.summary["gradient_norm"] == pytest.approx(other.summary["gradient_norm"], rel=1e-4)
    factors = [summary(alone[1], role)["factor"] for role in ("a", "b")]
    assert min(factors) < 0.99
    assert summary(alone[1])["factor"] < 0.99
    trained = load_file(f"{tmp_path}/m/00002/weights/model.safetensors")
    assert all((trained[k] - expected[k]).abs().max() < 5e-6 for k in trained)


def test_a_spec_that_can_not_be_measured_or_held_back_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'exact'"):
        MeasureSpec("exakt")
    with pytest.raises(UsageError, match="window is 0"):
        MeasureSpec("exact", window=0)
    for changes, words in (
        ({"coherence_damping": 0.6}, "may freeze"),
        ({"coherence_damping": -0.1}, "0.5"),
        ({"coherence_window": 0}, "coherence_window is 0"),
        ({"max_role_share": 0.0}, "max_role_share is 0"),
        ({"max_role_share": math.nan}, "max_role_share"),
    ):
        with pytest.raises(UsageError, match=words):
            ShapingSpec(**changes)
    with pytest.raises(UsageError, match=r'needs measure\.gradients = "exact"'):
        TrainerSpec("m", "m", "x", shaping=ShapingSpec(damp_copies=True), measure=ESTIMATE)
    spec = TrainerSpec("m", "m", "x", shaping=ShapingSpec(damp_copies=True), measure=EXACT)
    assert dataclasses.replace(spec, shaping=ShapingSpec()).measure.is_on
