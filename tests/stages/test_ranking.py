"""A reward model's training: a step is that of a bare loop however it is cut, and a stop changes no bit."""

import pytest

from stages.tables.parquet import TableSink
from stages.training.loss.spec import CriticSpec, LossSpec, ScheduleSpec
from stages.training.spec import RankingSpec
from tests.support.tiny_training import SMOOTH, save, weights
from tests.support.tiny_training import same as equal
from workflows.errors import RunFailed
from workflows.preference_tables import PAIRS
from workflows.trajectory import PARTITION, rows_to_table

HEAD = CriticSpec(learning_rate=0.5)
LEARNER = {**SMOOTH, "loss": LossSpec(name="supervised"), "critic": HEAD}
TEXTS = [[(7 * i * i + 3 * k) % 250 for k in range(4 + i)] for i in range(6)]
WON = [(0, 1), (2, 1), (0, 2), (4, 3), (4, 5)]  # of two tasks with three plays each


def plays(folder, *, steps=(0, 0, 0, 0, 0, 0), cut=(0, 0, 0, 0, 0, 0)):
    rows = [
        {
            "episode_id": f"p{i}", "turn_index": 0, "model_id": "m", "policy_version": 0, "role": "play",
            "rank": 0, "mini_batch": steps[i], "micro_batch": cut[i], "branch": "",
            "prompt_token_ids": TEXTS[i], "response_token_ids": [0], "behaviour_logprobs": [0.0],
            "temperature": 1.0, "advantage": 1.0,
        }
        for i in range(6)
    ]  # fmt: skip
    return stored("partition/m", folder, PARTITION, rows)


def pairs(folder, won=WON):
    rows = [{"task": "t", "winner": f"p{w}", "loser": f"p{one}", "gap": 1.0} for w, one in won]
    return stored("pairs", folder, PAIRS, rows)


def stored(name, folder, schema, rows):
    sink = TableSink(name, f"{folder}/{name}", schema)
    return sink.ref([sink.write_part(0, rows_to_table(rows, schema))])


def bare_steps(tiny, number, centring):
    """The same steps written down once more: whole texts one at a time, and the pairs' loss at once."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    head = torch.nn.Linear(model.config.hidden_size, 1)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    of_model, of_head = (
        torch.optim.AdamW(module.parameters(), lr=0.5, eps=1.0, weight_decay=decay)
        for module, decay in ((model, 0.01), (head, 0.0))
    )
    losses = []
    for _ in range(number):
        states = [
            model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1] for ids in TEXTS
        ]
        scores = head(torch.stack(states))[:, 0]
        loss = torch.zeros(())
        for winner, loser in WON:
            loss = loss - torch.nn.functional.logsigmoid(scores[winner] - scores[loser]) / len(WON)
            loss = loss + centring * (scores[winner] + scores[loser]).square() / len(WON)
        loss = loss + 0 * model(torch.tensor([TEXTS[0]])).logits.sum()
        for optimizer in (of_model, of_head):
            optimizer.zero_grad()
        loss.backward()
        losses.append(float(loss.detach()))
        for module, optimizer in ((model, of_model), (head, of_head)):
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
    return losses, {k: v.detach() for k, v in model.state_dict().items()}, head.weight.detach()


@pytest.mark.slow
def test_steps_are_those_of_a_bare_loop_however_they_are_cut(start, tiny, tmp_path) -> None:
    import torch

    spec = RankingSpec(centring=0.01)
    losses, expected, head = bare_steps(tiny, 3, 0.01)
    assert losses[2] < losses[0]
    for shared, cut in ((True, (0,) * 6), (False, (0, 1, 2, 0, 1, 0))):
        worker = start(shared_prefix=shared, **LEARNER)
        report = worker.learn_ranking(plays(tmp_path, cut=cut), pairs(tmp_path), spec, 3)
        assert [step["loss"] for step in report.steps] == pytest.approx(losses, rel=1e-4)
        assert equal(weights(worker), expected, 2e-5)
        assert torch.allclose(torch.tensor(worker.value_head()["weight"]), head, atol=2e-5)
        assert worker.unit.version == 3


@pytest.mark.slow
def test_a_stop_changes_no_bit_and_a_head_alone_leaves_the_network(start, tiny, tmp_path) -> None:
    steps = (0, 0, 0, 1, 1, 1)
    schedule = ScheduleSpec("linear", warmup_updates=1, total_updates=6)
    spec, learner = RankingSpec(seed=3), {**LEARNER, "schedule": schedule}
    ref, of = plays(tmp_path, steps=steps), pairs(tmp_path)
    worker = start(**learner)
    report = worker.learn_ranking(ref, of, spec, 6)
    assert [step["pass"] for step in report.steps] == [0, 0, 1, 1, 2, 2]
    whole = weights(worker), worker.value_head()
    worker = start(**learner)
    worker.learn_ranking(ref, of, spec, 3)
    uri = save(worker, str(tmp_path / "kept"))
    worker = start(version=3, resume=uri, **learner)
    rest = worker.learn_ranking(ref, of, spec, 6)
    assert [step["loss"] for step in rest.steps] == [step["loss"] for step in report.steps[3:]]
    assert equal(weights(worker), whole[0])
    assert worker.value_head() == whole[1]

    worker = start(**LEARNER)
    before = weights(worker)
    alone = worker.learn_ranking(ref, of, RankingSpec(trunk=False), 8)
    assert equal(weights(worker), before)
    assert alone.steps[-1]["likelihood"] < alone.steps[0]["likelihood"]
    assert any(worker.value_head()["weight"][0])

    with pytest.raises(RunFailed, match="not rows of one optimizer step"):
        start(**LEARNER).learn_ranking(ref, pairs(tmp_path, [(0, 3)]), spec, 1)
