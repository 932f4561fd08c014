"""Scores and token tables: aligned with the partition, the same bits twice, and used as they say."""

import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stages.tables.parquet import TableRef, TableSink
from stages.training.loss.spec import LossSpec, ReferenceSpec, RoleLoss
from tests.support.tiny_training import SMOOTH, partition, responses, same, score, token_advantages, weights
from workflows.errors import RunFailed
from workflows.trajectory import SCORES

pytestmark = pytest.mark.slow

REFERENCE = ReferenceSpec()


def test_scores_have_the_rows_of_the_partition_and_repeat_bit_for_bit(start, tmp_path) -> None:
    worker = start(reference=REFERENCE, **SMOOTH)
    before = weights(worker)
    ref = partition(tmp_path / "p", cut=(0, 1, 1, 0, 2, 2))
    one = score(worker, ref, tmp_path / "one", "old", "reference")
    two = score(worker, ref, tmp_path / "two", "old", "reference")
    assert [p.hash for p in one.parts] == [p.hash for p in two.parts]
    for index in range(len(ref.parts)):
        keys = ["episode_id", "turn_index"]
        assert one.read_part(index, keys).equals(ref.read_part(index, keys))
    rows = sorted(one.read().to_pylist(), key=lambda r: r["episode_id"])
    assert [len(r["old_logprobs"]) for r in rows] == [len(r) for r in responses()]
    assert [r["scored_version"] for r in rows] == [0] * 6
    assert rows[0]["values"] is None
    # the reference is the policy, until that moves
    assert all(r["old_logprobs"] == r["reference_logprobs"] for r in rows)
    assert same(weights(worker), before)
    worker.update(ref, 0)
    ref = partition(tmp_path / "p1", cut=(0, 1, 1, 0, 2, 2), version=1)
    later = score(worker, ref, tmp_path / "later", "old", "reference")
    assert later.read()["reference_logprobs"].equals(one.read()["reference_logprobs"])
    assert not later.read()["old_logprobs"].equals(one.read()["old_logprobs"])
    with pytest.raises(RunFailed, match="no critic"):
        score(worker, ref, tmp_path / "x", "values")


def test_rows_that_have_no_advantage_yet_are_scored_as_any_others(start, tmp_path) -> None:
    """Under GAE credit leaves advantages null: they are made of these very scores. An update refuses them."""
    worker = start(**SMOOTH)
    given = score(worker, partition(tmp_path / "p"), tmp_path / "s", "old")
    bare = partition(tmp_path / "bare", advantages=[None] * 6)
    assert bare.read()["advantage"].null_count == 6
    found = score(worker, bare, tmp_path / "t", "old")
    assert [p.hash for p in found.parts] == [p.hash for p in given.parts]
    assert min(len(v) for v in found.read()["old_logprobs"].to_pylist()) > 0
    with pytest.raises(RunFailed, match="advantage"):
        worker.update(bare, 0)


def test_old_logprobs_of_the_scores_are_those_of_the_update(start, tmp_path) -> None:
    cut, mini = (0, 0, 1, 1, 0, 0), (0, 1, 1, 0, 0, 1)
    ref = partition(tmp_path / "p", cut=cut, mini=mini)
    worker = start(epochs=2, **SMOOTH)
    given = worker.update(ref, 0, None, score(worker, ref, tmp_path / "s", "old"))
    with_scores = weights(worker)
    assert given.steps[0]["importance_ratio_max"] == 1  # exactly: the same passes
    assert given.steps[0]["kl_old"] == 0
    worker = start(epochs=2, **SMOOTH)
    own = worker.update(ref, 0)
    assert same(weights(worker), with_scores, 1e-7)
    assert own.summary["kl_old"] == pytest.approx(given.summary["kl_old"], rel=1e-4)
    assert own.summary["sampler_gap_mean"] == pytest.approx(given.summary["sampler_gap_mean"], rel=1e-6)


def test_token_advantages_weigh_their_tokens_and_excluded_rows_are_counted(start, tmp_path) -> None:
    """An excluded row is as if it were not there; weights and advantages multiply."""
    plain = [1.0, -0.5, 0.25, -2.0, 0.0, 1.5]
    ref = partition(tmp_path / "p", cut=(0, 0, 1, 1, 1, 0))
    worker = start(**SMOOTH)
    worker.update(ref, 0)
    expected = weights(worker)
    worker = start(**SMOOTH)
    doubled = token_advantages(tmp_path / "a", [2 * a for a in plain], importance=[0.5] * 6)
    report = worker.update(ref, 0, doubled)
    assert same(weights(worker), expected, 1e-6)
    assert report.summary["importance_weight_mean"] == pytest.approx(0.5)

    excluded = [None, "no reward: the judge died", None, None, "too long", None]
    advantages = [
        [a] * len(r) if e is None else None for a, r, e in zip(plain, responses(), excluded, strict=True)
    ]
    worker = start(**SMOOTH)
    report = worker.update(ref, 0, token_advantages(tmp_path / "b", advantages, excluded=excluded))
    left = weights(worker)
    assert report.excluded == {"no reward": 1, "too long": 1}
    assert report.num_rows == 4
    rows = ref.read()
    kept = rows.filter(pc.invert(pc.is_in(rows["episode_id"], pa.array(["e1", "e4"]))))
    sink = TableSink(ref.name, str(tmp_path / "fewer"), ref.schema)
    worker = start(**SMOOTH)
    worker.update(sink.ref([sink.write_part(0, kept)]), 0)
    assert same(weights(worker), left, 1e-6)


def test_tables_that_do_not_belong_together_are_refused(start, tmp_path) -> None:
    worker = start(loss=LossSpec(kl_coefficient=0.1), reference=REFERENCE, **SMOOTH)
    ref = partition(tmp_path / "p")
    fine = token_advantages(tmp_path / "a", [1.0] * 6)
    for advantages, scores, words in (
        (fine, None, "no reference_logprobs"),
        (token_advantages(tmp_path / "short", [[1.0]] * 6), None, "1 advantages"),
        (_without(fine, 1), None, "has 1 parts, not 2"),
        (_swapped(fine), None, "is not in token_advantages"),
    ):
        worker = start(loss=LossSpec(kl_coefficient=0.1), reference=REFERENCE, **SMOOTH)
        with pytest.raises(RunFailed, match=words):
            worker.update(ref, 0, advantages, scores)
    worker = start(**SMOOTH)
    stale = score(worker, ref, tmp_path / "s", "old")
    worker.update(ref, 0)
    with pytest.raises(RunFailed, match="scores are of version 0"):
        worker.update(partition(tmp_path / "p1", version=1), 1, None, stale)


def _without(table: TableRef, index: int) -> TableRef:
    return TableRef(
        table.name, table.folder, table.schema, tuple(p for i, p in enumerate(table.parts) if i != index)
    )


def _swapped(table: TableRef) -> TableRef:
    return TableRef(table.name, table.folder, table.schema, table.parts[::-1])


LOSSES = {
    "ppo_sequence": LossSpec(normalisation="sequence_mean"),
    "ppo_fixed": LossSpec(normalisation="fixed_length", fixed_length=7),
    "gspo": LossSpec("gspo", 1e-4, 1e-4, normalisation="sequence_mean"),
    "cispo": LossSpec("cispo"),
    "clip_cov": LossSpec("clip_cov", cov_share=0.1, cov_low=1e-3),
    "kl_cov": LossSpec("kl_cov", cov_share=0.2),
    "bonus": LossSpec("policy_gradient", entropy_coefficient=0.1),
    "roles": LossSpec(
        kl_coefficient=0.2, roles={"b": RoleLoss(weight=0.5, clip_high=0.1, kl_coefficient=0.0)}
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_one_gradient_however_a_batch_is_cut(start, tmp_path, name) -> None:
    """Two steps, so that the second sees a policy that has moved."""
    found = []
    for number, cut in enumerate(((0,) * 6, (1, 0, 0, 1, 2, 3))):
        worker = start(loss=LOSSES[name], reference=REFERENCE, epochs=2, shared_prefix=number == 0, **SMOOTH)
        ref = partition(tmp_path / f"p{number}", cut=cut, roles="ab")
        scores = score(worker, ref, tmp_path / f"s{number}", "old", "reference")
        report = worker.update(ref, 0, None, scores)
        found.append((weights(worker), report.summary))
    for later, summary in found[1:]:
        assert same(later, found[0][0], 5e-6)
        for column in ("loss", "policy_loss", "kl_old", "kl_reference", "entropy", "gradient_norm"):
            expected = found[0][1][column]
            assert summary[column] == (
                pytest.approx(expected, rel=2e-3, abs=1e-6) if expected is not None else None
            )
    assert (found[0][1]["entropy"] is not None) == (name == "bonus")


def test_imitation_raises_the_likelihood_of_its_rows_and_none_is_dropped(start, tmp_path) -> None:
    settings = SMOOTH | {"learning_rate": 0.05, "eps": 1e-8}
    worker = start(loss=LossSpec("supervised"), **settings)
    before = mean_logprob(worker, tmp_path, 0)
    for version in range(3):
        ref = partition(tmp_path / f"p{version}", version=version)
        report = worker.update(ref, version, token_advantages(tmp_path / f"a{version}", [1.0] * 6))
        assert (report.num_rows, report.skipped) == (6, None)
    assert mean_logprob(worker, tmp_path, 3) > before + 0.1


def mean_logprob(worker, folder, version):
    ref = partition(folder / f"m{version}", version=version)
    table: pa.Table = score(worker, ref, folder / f"ms{version}", "old").read()
    logprobs = [x for row in table["old_logprobs"].to_pylist() for x in row]
    return sum(logprobs) / len(logprobs)


def test_rows_of_other_weights_are_trained_on_when_told_to_and_weighted_from_their_sampler(
    start, tmp_path
) -> None:
    """The step is that of advantages times trainer over sampler on rows of the trainer's own: the gradient of
    the sampler's surrogate at the trainer's weights."""
    other, own = partition(tmp_path / "other", version=7), partition(tmp_path / "own")
    plain = token_advantages(tmp_path / "plain", [1.0] * 6)
    with pytest.raises(RunFailed, match="sampled from version 7, but the trainer is at version 0"):
        start(**SMOOTH).update(other, 0, plain)
    worker = start(**SMOOTH)
    with pytest.raises(RunFailed, match="sampled from version 7"):
        score(worker, other, tmp_path / "refused", "old")
    with pytest.raises(RunFailed, match=r"other weights.*no importance_weights.*ppo\.importance"):
        worker.update(other, 0, plain, off_policy=True)

    worker = start(**SMOOTH)
    sink = TableSink("scores/m", str(tmp_path / "scores"), SCORES)
    parts = worker.score(other, sink, frozenset({"old"}), off_policy=True)
    found = {row["episode_id"]: row for row in sink.ref(list(parts.values())).read().to_pylist()}
    assert {row["scored_version"] for row in found.values()} == {0}
    ratios = [[math.exp(o + 5.0) for o in found[f"e{i}"]["old_logprobs"]] for i in range(6)]
    weighted = token_advantages(tmp_path / "weighted", [2.0] * 6, importance=ratios)
    worker.update(other, 0, weighted, off_policy=True)
    expected, worker = weights(worker), start(**SMOOTH)
    worker.update(own, 0, token_advantages(tmp_path / "product", [[2.0 * r for r in row] for row in ratios]))
    assert same(weights(worker), expected, 1e-6)
