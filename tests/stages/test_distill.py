"""What a newcomer is taught: one step is that of a bare loop, however it is cut, and it comes nearer."""

import dataclasses

import pytest

from stages.training.loss.mixture import largest_exponent, mixture
from stages.training.loss.spec import LossSpec
from stages.training.spec import DistillSpec
from tests.support.tiny_training import SMOOTH, partition, same, save, weights
from workflows.errors import UsageError

BOUND = 0.02
# as `pipeline.replacement.lessons` starts a pupil: rows of other weights need no importance weights
PUPIL = {**SMOOTH, "loss": LossSpec(name="supervised")}


def test_a_lesson_of_nothing_is_refused() -> None:
    for name in ("bound", "passes", "learning_rate"):
        with pytest.raises(UsageError, match=name):
            DistillSpec(None, **{name: 0})


def bare_step(tiny, teacher, ref):
    """The same step written down once more: one row at a time, whole logits, AdamW by torch."""
    import torch
    from transformers import AutoModelForCausalLM

    old, own, model = (
        AutoModelForCausalLM.from_pretrained(folder or tiny, dtype=torch.float32)
        for folder in (teacher, tiny, tiny)
    )
    rows = [r for r in ref.read().to_pylist() if r["response_token_ids"]]
    tokens = sum(len(r["response_token_ids"]) for r in rows)
    total, moved = torch.zeros(()), 0.0
    for r in rows:
        prompt, response = r["prompt_token_ids"], r["response_token_ids"]

        def logprobs(network, prompt=prompt, response=response, r=r):
            logits = network(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            return (logits / r["temperature"]).log_softmax(-1)

        new = logprobs(model)
        if teacher is None:
            total = total - new[range(len(response)), response].sum() / tokens
            continue
        with torch.no_grad():
            p, q = logprobs(old), logprobs(own)
            target = mixture(p, q, largest_exponent(p, q, BOUND))
            moved += float((p.exp() * (p - target)).sum()) / tokens
        total = total + (target.exp() * (target - new)).sum() / tokens
    total.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters(), lr=0.5, eps=1.0, weight_decay=0.01).step()
    return float(total.detach()), float(norm), moved, {k: v.detach() for k, v in model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("taught", [True, False])
def test_a_step_is_that_of_a_bare_loop_however_it_is_cut(start, tiny, tmp_path, taught) -> None:
    teacher = None
    if taught:
        other = start(**{**SMOOTH, "learning_rate": 2.0})
        other.update(partition(tmp_path / "p"), 0)
        teacher = save(other, str(tmp_path / "teacher"), trainer_state=False) + "/weights"
    spec = DistillSpec(teacher, BOUND, passes=1, learning_rate=0.5)
    loss, norm, moved, expected = bare_step(tiny, teacher, partition(tmp_path / "p"))
    for shared, cut in ((True, (0,) * 6), (False, (0, 1, 1, 0, 0, 1))):
        worker = start(shared_prefix=shared, **PUPIL)
        ref = partition(tmp_path / "p", cut=cut, version=7)  # whatever weights sampled the rows
        report = worker.distill(ref, spec)
        assert report.steps[0]["loss"] == pytest.approx(loss, rel=1e-4)
        assert report.steps[0]["gradient_norm"] == pytest.approx(norm, rel=1e-4)
        assert report.target_kl == pytest.approx(moved, rel=1e-3)
        assert same(weights(worker), expected, 5e-6)
        assert (report.tokens, worker.unit.version) == (19, 0)


@pytest.mark.slow
def test_passes_bring_the_newcomer_nearer_and_prompts_of_the_teacher_may_differ(start, tmp_path) -> None:
    other = start(**{**SMOOTH, "learning_rate": 2.0})
    ref = partition(tmp_path / "p")
    other.update(ref, 0)
    teacher = save(other, str(tmp_path / "teacher"), trainer_state=False) + "/weights"
    worker = start(**PUPIL)
    spec = DistillSpec(teacher, BOUND, passes=8, learning_rate=0.5)
    report = worker.distill(ref, spec, prompts=partition(tmp_path / "q", version=3))
    losses = [step["loss"] for step in report.steps]
    assert [step["pass"] for step in report.steps] == list(range(8))
    assert losses[-1] < losses[0]
    again = start(**PUPIL)
    assert again.distill(ref, spec).steps == report.steps  # equal prompts, equal lessons
    assert dataclasses.asdict(report)["exponent"] < 1
