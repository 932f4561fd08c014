"""The trust region of an update, on a tiny model whose learning rate is far too high: each enforcement keeps
it inside, what is taken back is taken back bit for bit, and what is made again judges nothing."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from stages.training.loss.spec import CriticSpec
from stages.training.trust.spec import TrustSpec, TrustState, state_before, state_recorded
from stages.weights.adapters import AdapterSpec
from tests.support.tiny_training import SMOOTH, partition, same, save, token_advantages, weights
from workflows.errors import RunFailed

FAR = SMOOTH | {"learning_rate": 5.0, "epochs": 3}
RADIUS = 0.05
MINI = (0, 1, 0, 1, 0, 1)
KINDS: dict[str, dict[str, Any]] = {
    "fp32-0": {"zero_stage": 0},
    "fp32-1": {"zero_stage": 1},
    "bf16-0": {"zero_stage": 0, "precision": "bf16"},
    "bf16-1": {"zero_stage": 1, "precision": "bf16"},
    "bf16-2": {"zero_stage": 2, "precision": "bf16"},
    "adapter": {"adapter": AdapterSpec(rank=4, alpha=8.0), "learning_rate": 50.0},
}
every_kind = pytest.mark.parametrize("kind", list(KINDS))


def within(**changes: Any) -> dict[str, Any]:
    return {"trust": TrustSpec(**{"radius": RADIUS, **changes})}


def moving(worker: Any) -> dict[str, Any]:
    """All numbers that an update changes: the compute weights, what the optimizer steps, and its moments."""
    outer = worker.unit.engine.optimizer
    inner = getattr(outer, "optimizer", outer)
    masters = [p for group in inner.param_groups for p in group["params"]]
    numbers = {f"weight/{n}": p.detach().float().clone() for n, p in worker.unit.policy.named_parameters()}
    for place, master in enumerate(masters):
        numbers[f"master/{place}"] = master.detach().clone()
        for name, value in inner.state.get(master, {}).items():
            numbers[f"{name}/{place}"] = value.detach().clone()
    return numbers


def again(report: Any) -> TrustState:
    return state_recorded([report.trust])


@pytest.mark.slow
@every_kind
def test_without_enforcement_an_update_goes_far_outside_and_with_it_stays_inside(
    start, tmp_path, kind
) -> None:
    rows = partition(tmp_path / "p", mini=MINI)
    free = start(**(FAR | KINDS[kind] | within())).update(rows, 0)
    assert free.trust["decision"] == "accepted"
    assert free.trust["divergence"] > 20 * RADIUS
    assert (free.summary["divergence"], free.summary["radius"]) == (free.trust["divergence"], RADIUS)
    kept = start(**(FAR | KINDS[kind] | within(backtrack=12))).update(rows, 0)
    assert kept.trust["decision"] == "partly"
    assert kept.trust["divergence"] <= RADIUS < kept.trust["whole_divergence"]
    assert kept.trust["kept_share"] in [2.0**-n for n in range(1, 13)]
    assert (kept.version_after, kept.summary["candidate_version"]) == (1, 1)
    assert kept.summary["kept_share"] == kept.trust["kept_share"] < 1


@pytest.mark.slow
@every_kind
def test_a_rejected_update_leaves_every_number_as_it_was_and_spends_its_own(start, tmp_path, kind) -> None:
    rows = partition(tmp_path / "p", mini=MINI)
    gentle = SMOOTH | KINDS[kind] | {"learning_rate": 0.01, "trust": TrustSpec(1e6, reject=True)}
    worker = start(**gentle)
    worker.update(rows, 0)
    saved = save(worker, f"{tmp_path}/m/00001")
    worker = start(version=1, resume=saved, **(FAR | KINDS[kind] | within(reject=True)))
    before = moving(worker)
    state = TrustState(spent=1)
    report = worker.update(partition(tmp_path / "q", mini=MINI, version=1), 1, trust=state)
    assert (report.trust["decision"], report.version_after, worker.unit.version) == ("rejected", 1, 1)
    assert report.trust["candidate_version"] == 2
    assert report.summary["skipped"] is None
    after = moving(worker)
    assert after.keys() == before.keys()
    assert same(after, before)
    assert report.trust["next_shrink"] == 0.5
    # the next candidate has the next number, and the half of the radius
    next_state = state_before([report.trust])
    third = worker.update(partition(tmp_path / "r", version=1, advantages=[1e-6] * 6), 1, trust=next_state)
    assert (third.trust["radius"], third.trust["candidate_version"]) == (RADIUS / 2, 3)
    # and is made of what was before, as if the rejected one had never been
    expected = moving(worker)
    worker = start(version=1, resume=saved, **(FAR | KINDS[kind] | within(reject=True)))
    alone = worker.update(
        partition(tmp_path / "r", version=1, advantages=[1e-6] * 6), 1, trust=TrustState(0.5, 1.0, 2)
    )
    assert alone.version_after == third.version_after
    assert same(moving(worker), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16-1", "adapter"])
def test_a_candidate_that_loses_its_trial_leaves_every_number_as_it_was(start, tmp_path, kind) -> None:
    rows = partition(tmp_path / "p", mini=MINI)
    on_trial = SMOOTH | KINDS[kind] | {"learning_rate": 0.01}
    on_trial["trust"] = TrustSpec(1e6, reject=True, trial_tasks=4)
    worker = start(**on_trial)
    before = moving(worker)
    report = worker.update(rows, 0)
    assert (report.on_trial, report.trust["decision"], worker.unit.version) == (True, "accepted", 1)
    candidate = moving(worker)
    assert not same(candidate, before)
    back = worker.settle("the trial: worse")
    assert (back.trust["decision"], back.version_after, worker.unit.version) == ("rejected", 0, 0)
    found = moving(worker)
    begun = {name: value for name, value in found.items() if name in before}
    assert same(begun, before)
    assert all(not value.any() for name, value in found.items() if name not in before)  # moments: none yet
    with pytest.raises(RunFailed, match="no candidate on trial"):
        worker.settle(None)
    # the next one is made of what was before, has the next number, and may be kept
    state = state_before([back.trust])
    second = worker.update(rows, 0, trust=state)
    assert (second.version_after, second.trust["radius"]) == (2, 1e6 / 2)
    assert same(moving(worker), candidate)
    kept = worker.settle(None)
    assert (kept.on_trial, kept.version_after, worker.unit.version) == (False, 2, 2)
    # made again, it is not tried: what was decided holds
    worker = start(**on_trial)
    third = worker.update(rows, 0, trust=again(kept))
    assert (third.on_trial, third.version_after) == (False, 2)
    assert same(moving(worker), candidate)


@pytest.mark.slow
def test_rejection_at_the_first_update_leaves_an_optimizer_that_begins_anew(start, tmp_path) -> None:
    rows, small = partition(tmp_path / "p"), partition(tmp_path / "s", advantages=[0.1] * 6)
    worker = start(**(FAR | within(reject=True)))
    assert worker.update(rows, 0).trust["decision"] == "rejected"
    loose = TrustState(shrink=1e9, spent=1)
    second = worker.update(small, 0, trust=loose)
    assert (second.version_before, second.version_after) == (0, 2)
    expected = moving(worker)
    worker = start(**(FAR | within(reject=True)))
    worker.update(small, 0, trust=loose)
    assert same(moving(worker), expected)


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["head", "model"])
def test_a_rejected_update_puts_the_critic_back(start, tmp_path, critic) -> None:
    settings = FAR | within(reject=True) | {"critic": CriticSpec(critic, learning_rate=0.1)}
    returns = token_advantages(tmp_path / "a", [1.0, -0.5, 0.25, -2.0, 0.0, 1.5], returns=[1.0] * 6)
    worker = start(**settings)

    def of_critic() -> dict[str, Any]:
        critic = worker.unit.critic
        network = dict(critic.network.module.named_parameters()) if critic.network else {}
        return {
            n: deepcopy(p.detach()) for n, p in {**network, **dict(critic.layer.named_parameters())}.items()
        }

    before = of_critic()
    assert worker.update(partition(tmp_path / "p"), 0, returns).trust["decision"] == "rejected"
    assert same(of_critic(), before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fp32-1", "bf16-1", "adapter"])
@pytest.mark.parametrize(
    "switch",
    [
        {"backtrack": 12},
        {"stop_at": 1.5},
        {"penalty": 2.0, "backtrack": 12},
        {"mask_above": 0.1, "backtrack": 3},
        {"stop_at": 1.0, "backtrack": 12, "reject": True},
    ],
    ids=lambda switch: "+".join(switch),
)
def test_an_update_that_is_made_again_ends_in_equal_weights_and_judges_nothing(
    start, tmp_path, kind, switch, monkeypatch
) -> None:
    from stages.training.region import TrustRegion

    rows = partition(tmp_path / "p", mini=MINI)
    worker = start(**(FAR | KINDS[kind] | within(**switch)))
    report = worker.update(rows, 0)
    assert report.version_after == 1
    expected = moving(worker)

    def judged(self: TrustRegion) -> None:
        raise AssertionError("an update that is made again is measured anew")

    monkeypatch.setattr(TrustRegion, "measure", judged)
    worker = start(**(FAR | KINDS[kind] | within(**switch)))
    second = worker.update(rows, 0, trust=again(report))
    assert same(moving(worker), expected)
    assert second.version_after == report.version_after
    assert second.trust["kept_share"] == report.trust["kept_share"]


@pytest.mark.slow
def test_steps_end_once_the_divergence_is_too_large(start, tmp_path) -> None:
    rows = partition(tmp_path / "p", mini=MINI)
    report = start(**(FAR | within(stop_at=1.5))).update(rows, 0)
    assert (report.trust["decision"], report.trust["steps"], len(report.steps)) == ("partly", 1, 1)
    assert report.trust["reason"] == "stopped after 1 of 6 steps"
    whole = start(**(FAR | within())).update(rows, 0)
    assert len(whole.steps) == 6
    assert report.trust["divergence"] < whole.trust["divergence"]


@pytest.mark.slow
def test_a_penalty_keeps_an_update_closer_and_its_coefficient_follows(start, tmp_path) -> None:
    rows = partition(tmp_path / "p", mini=MINI)
    smooth = SMOOTH | {"epochs": 6, "learning_rate": 2.0}
    free = start(**(smooth | within())).update(rows, 0)
    priced = start(**(smooth | within(penalty=4.0))).update(rows, 0)
    assert priced.trust["divergence"] < 0.9 * free.trust["divergence"]
    assert priced.trust["next_scale"] == 2.0
    dearer = start(**(smooth | within(penalty=4.0))).update(rows, 0, trust=TrustState(scale=4.0))
    assert dearer.trust["coefficient"] == 16.0
    assert dearer.trust["divergence"] < priced.trust["divergence"]
    loose = start(**(smooth | {"trust": TrustSpec(1e9, penalty=4.0)})).update(rows, 0)
    assert loose.trust["next_scale"] == 0.5


@pytest.mark.slow
def test_messages_that_moved_too_far_no_longer_teach(start, tmp_path) -> None:
    rows = partition(tmp_path / "p", mini=MINI)
    free = start(**(FAR | within())).update(rows, 0)
    masked = start(**(FAR | within(mask_above=0.1))).update(rows, 0)
    assert 0 < masked.trust["masked_share"] < 1
    assert free.trust["masked_share"] is None
    assert masked.trust["divergence"] < free.trust["divergence"]


@pytest.mark.slow
def test_with_all_tokens_exact_is_exact_in_both_directions_and_top_k_is_below(start, tmp_path) -> None:
    import torch

    rows = partition(tmp_path / "p")
    for direction in ("start_to_new", "new_to_start"):
        spec = TrustSpec(RADIUS, estimator="exact", top_k=10**6, direction=direction)
        worker = start(**(SMOOTH | {"epochs": 2, "trust": spec}))
        from stages.training.plan import plan_update

        plan, _ = plan_update(worker.unit, rows, None, None)
        batches = [b for m in plan for b in m.micro_batches]
        with torch.no_grad():
            old = [worker.unit.policy.distributions(b).double() for b in batches]
        report = worker.update(rows, 0)
        total = messages = 0.0
        with torch.no_grad():
            for batch, start_logprobs in zip(batches, old, strict=True):
                now = worker.unit.policy.distributions(batch).double()
                p, q = (start_logprobs, now) if direction == "start_to_new" else (now, start_logprobs)
                total += float((p.exp() * (p - q)).sum(-1)[batch.mask].sum())
                messages += len(batch.keys)
        assert report.trust["divergence"] == pytest.approx(total / messages, rel=1e-4)
        top = TrustSpec(RADIUS, estimator="exact", top_k=8, direction=direction)
        some = start(**(SMOOTH | {"epochs": 2, "trust": top})).update(rows, 0)
        assert 0 < some.trust["divergence"] <= report.trust["divergence"] + 1e-9


@pytest.mark.slow
def test_a_certificate_rejects_what_the_radius_alone_accepts(start, tmp_path) -> None:
    rows = partition(tmp_path / "p")
    wide = {"trust": TrustSpec(1e6, reject=True)}
    assert start(**(SMOOTH | {"epochs": 2} | wide)).update(rows, 0).trust["decision"] == "accepted"
    certified = {"trust": TrustSpec(1e6, reject=True, certificate=True, z=50.0)}
    report = start(**(SMOOTH | {"epochs": 2} | certified)).update(rows, 0)
    assert (report.trust["decision"], report.trust["reason"]) == ("rejected", "the certificate is too low")
    assert report.trust["certificate"] < 0 < report.trust["surrogate"]
    lenient = {"trust": TrustSpec(1e6, reject=True, certificate=True, z=0.0)}
    accepted = start(**(SMOOTH | {"epochs": 2} | lenient)).update(rows, 0)
    # every episode has one turn of the model: the bound is 0
    assert accepted.trust["certificate"] == pytest.approx(accepted.trust["surrogate"])
    assert accepted.trust["decision"] == "accepted"


@pytest.mark.slow
def test_an_update_that_is_only_watched_is_the_one_without_a_trust_region(start, tmp_path) -> None:
    rows = partition(tmp_path / "p", mini=MINI)
    plain = start(**FAR)
    plain.update(rows, 0)
    expected = moving(plain)
    watched = start(**(FAR | within()))
    watched.update(rows, 0)
    assert same(moving(watched), expected)


@pytest.mark.slow
def test_a_resumed_trainer_goes_on_like_the_one_that_rejected(start, tmp_path) -> None:
    settings = FAR | within(reject=True)
    worker = start(**(settings | {"trust": TrustSpec(1e9, reject=True)}))
    worker.update(partition(tmp_path / "p"), 0)
    saved = save(worker, f"{tmp_path}/m/00001")
    far = partition(tmp_path / "q", version=1)
    worker = start(version=1, resume=saved, **settings)
    rejected = worker.update(far, 1, trust=TrustState(spent=1))
    assert rejected.trust["decision"] == "rejected"
    assert worker.update(far, 1, trust=TrustState(spent=1)) == rejected  # a second delivery
    state = TrustState(shrink=1e9, spent=2)
    near = partition(tmp_path / "r", version=1, advantages=[0.1] * 6)
    worker.update(near, 1, trust=state)
    expected, version = moving(worker), worker.unit.version
    worker = start(version=1, resume=saved, **settings)  # killed after the rejection
    worker.update(near, 1, trust=state)
    assert same(moving(worker), expected)
    assert worker.unit.version == version == 3


@pytest.mark.slow
def test_how_far_each_message_moved_is_told_of_what_is_kept(start, tmp_path) -> None:
    rows = partition(tmp_path / "p", mini=MINI)
    report = start(**(FAR | within(backtrack=12))).update(rows, 0)
    assert report.trust["decision"] == "partly"
    told = {(row["episode_id"], row["turn_index"]): row["log_ratio"] for row in report.ratios}
    keys = zip(*(rows.read()[name].to_pylist() for name in ("episode_id", "turn_index")), strict=True)
    assert set(told) == set(keys)
    assert any(abs(log) > 1e-4 for log in told.values())
    taken_back = start(**(FAR | within(reject=True))).update(rows, 0)
    assert (taken_back.trust["decision"], taken_back.ratios) == ("rejected", [])
    assert start(**(FAR | within(share=0.5))).update(rows, 0).ratios == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("zero_stage", [0, 1, 2])
@pytest.mark.parametrize(
    "enforced",
    [
        {"backtrack": 12},
        {"reject": True},
        {"stop_at": 1.0},
        {"reject": True, "radius": 1e6, "trial_tasks": 2},  # it loses its trial
    ],
)
def test_two_ranks_decide_what_one_does(ray_cluster, start, tiny, tmp_path, zero_stage, enforced) -> None:
    """Measures are gathered over ranks, so that both keep the same share of the step, or none of it."""
    from safetensors.torch import load_file

    from stages.training.group import TrainerGroup
    from stages.training.spec import TrainerSpec

    settings = FAR | {"zero_stage": zero_stage} | within(**enforced)
    one = start(**settings)
    before = weights(one)
    alone = one.update(partition(tmp_path / "one", mini=MINI), 0)
    if alone.on_trial:
        alone = one.settle("worse")
    one.close()
    spec = TrainerSpec("m", "m", tiny, ranks=2, update_timeout_seconds=120, **settings)
    group = TrainerGroup.start(spec, version=0)
    places = {"ranks": (0, 1, 1, 0, 0, 1), "cut": (0, 0, 0, 0, 0, 0), "mini": MINI}
    both = group.update(partition(tmp_path / "two", **places), 0)
    assert both.on_trial == ("trial_tasks" in enforced)
    if both.on_trial:
        both = group.settle("worse")
        assert group.version == 0
    for name in ("decision", "kept_share", "steps", "candidate_version", "messages", "turns"):
        assert both.trust[name] == alone.trust[name]
    for name in ("whole_divergence", "divergence", "surrogate", "certificate"):
        assert both.trust[name] == pytest.approx(alone.trust[name], rel=1e-2, abs=1e-6)
    assert [row["episode_id"] for row in both.ratios] == [row["episode_id"] for row in alone.ratios]
    group.publish(f"{tmp_path}/m/now")
    group.close()
    if both.trust["decision"] == "rejected":
        kept = load_file(f"{tmp_path}/m/now/weights/model.safetensors")
        assert all(kept[name].equal(before[name]) for name in kept)
