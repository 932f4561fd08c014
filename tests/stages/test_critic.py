"""The critic: values that learn returns, beside or below a policy that may have to wait for them."""

import pytest

from stages.training.loss.spec import CriticSpec, LossSpec, ScheduleSpec
from tests.support.tiny_training import (
    SMOOTH,
    master,
    partition,
    responses,
    same,
    save,
    score,
    token_advantages,
    weights,
)
from workflows.errors import RunFailed

pytestmark = pytest.mark.slow

RETURNS = [1.0, -1.0, 0.5, 2.0, 0.0, -0.5]
ADVANTAGES = [1.0, -0.5, 0.25, -2.0, 0.0, 1.5]
KINDS = ("head", "model")


def critic_of(kind, **changes):
    return CriticSpec(kind=kind, **{"learning_rate": 0.02, "value_clip": None, "coefficient": 1.0, **changes})


def values(worker, folder, version, cut=(0,) * 6):
    ref = partition(folder / f"v{version}", version=version, cut=cut)
    rows = sorted(
        score(worker, ref, folder / f"s{version}", "values").read().to_pylist(), key=lambda r: r["episode_id"]
    )
    return [row["values"] for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_values_start_at_zero_and_learn_the_returns_while_the_policy_waits(start, tmp_path, kind) -> None:
    worker = start(critic=critic_of(kind, warmup_updates=12), **(SMOOTH | {"learning_rate": 0.0}))
    before = weights(worker)
    assert values(worker, tmp_path, 0) == [[0.0] * len(r) for r in responses()]
    reports = []
    for version in range(12):
        ref = partition(tmp_path / f"p{version}", version=version, cut=(0, 1, 0, 1, 2, 2))
        table = token_advantages(tmp_path / f"a{version}", ADVANTAGES, returns=RETURNS)
        reports.append(worker.update(ref, version, table))
    assert same(weights(worker), before)  # bit for bit: only the critic has learned
    assert [r.version_after for r in reports] == list(range(1, 13))
    losses = [r.summary["value_loss"] for r in reports]
    assert losses[-1] < 0.9 * losses[0]
    assert reports[-1].summary["explained_variance"] > reports[0].summary["explained_variance"]
    assert reports[0].summary["explained_variance"] == pytest.approx(0)


@pytest.mark.parametrize("kind", KINDS)
def test_policy_and_critic_have_one_gradient_however_a_batch_is_cut(start, tmp_path, kind) -> None:
    found = []
    spec = critic_of(kind, learning_rate=0.5, value_clip=0.2)
    for number, cut in enumerate(((0,) * 6, (1, 0, 0, 1, 2, 3))):
        worker = start(critic=spec, epochs=2, shared_prefix=number == 0, **SMOOTH)
        ref = partition(tmp_path / f"p{number}", cut=cut)
        table = token_advantages(tmp_path / f"a{number}", ADVANTAGES, returns=RETURNS)
        scores = score(worker, ref, tmp_path / f"s{number}", "old", "values")
        report = worker.update(ref, 0, table, scores if number else None)
        found.append(
            (weights(worker), report.summary["value_loss"], values(worker, tmp_path / f"x{number}", 1))
        )
    for later, loss, after in found[1:]:
        assert same(later, found[0][0], 5e-6)
        assert loss == pytest.approx(found[0][1], rel=1e-4)
        for one, other in zip(after, found[0][2], strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(("kind", "precision", "zero_stage"), [("head", "bf16", 1), ("model", "bf16", 2)])
def test_two_and_two_updates_are_four_bit_for_bit(start, tmp_path, kind, precision, zero_stage) -> None:
    settings = {
        "precision": precision,
        "zero_stage": zero_stage,
        "learning_rate": 1e-4,
        "critic": critic_of(kind, learning_rate=1e-3, warmup_updates=1),
        "schedule": ScheduleSpec("cosine", warmup_updates=2, total_updates=6),
        "loss": LossSpec(entropy_coefficient=0.01),
        "epochs": 2,
    }

    def train(worker, iterations):
        rates = []
        for i in iterations:
            ref = partition(tmp_path / f"p{i}", cut=(0, 1, 1, 2, 2, 2), version=i)
            table = token_advantages(tmp_path / f"a{i}", ADVANTAGES, returns=RETURNS)
            scores = score(worker, ref, tmp_path / f"s{i}", "old", "values")
            rates.append(worker.update(ref, i, table, scores).summary["learning_rate"])
        return rates

    worker = start(**settings)
    first = train(worker, range(2))
    saved = save(worker, f"{tmp_path}/checkpoints/2")
    rates = first + train(worker, range(2, 4))
    assert rates == [pytest.approx(1e-4 * share) for share in (1 / 3, 2 / 3, 1, (1 + 0.5**0.5) / 2)]
    unbroken, final, state = values(worker, tmp_path / "u", 4), master(worker), worker.unit.critic.state()
    assert any(any(row) for row in unbroken)
    worker = start(version=2, resume=saved, **settings)
    assert train(worker, range(2, 4)) == rates[2:]
    assert same(master(worker), final)
    assert values(worker, tmp_path / "r", 4) == unbroken
    assert str(worker.unit.critic.state()) == str(state)
    with pytest.raises(RunFailed, match="critic"):
        start(version=2, resume=saved, **(settings | {"critic": None}))


def test_a_critic_without_returns_is_refused(start, tmp_path) -> None:
    worker = start(critic=critic_of("head"), **SMOOTH)
    with pytest.raises(RunFailed, match="no returns"):
        worker.update(partition(tmp_path / "p"), 0)
