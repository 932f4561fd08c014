"""Stop decisions in the trainer: the step of plain torch, however they are cut, beside tokens or alone."""

from __future__ import annotations

import pytest

from stages.tables.parquet import TableSink
from stages.training.loss.spec import LossSpec
from tests.support.tiny_training import SMOOTH, partition, same, weights
from workflows.errors import RunFailed
from workflows.stop_tables import STOP_ROWS
from workflows.trajectory import PARTITION, rows_to_table

LOSS = LossSpec(stop_loss="hazard", stop_coefficient=0.7)


def decisions(folder, *, cut=(0, 0), version=0, weight=1.0):
    """Two traces of two and three decisions, whose options have one and two tokens."""
    rows = []
    for trace, count in enumerate((2, 3)):
        for point in range(count):
            rows.append(
                {
                    "episode_id": f"t{trace}",
                    "turn_index": 3 * point + 1,
                    "model_id": "m",
                    "role": "stopper",
                    "policy_version": version,
                    "rank": 0,
                    "mini_batch": 0,
                    "micro_batch": cut[trace],
                    "prompt_token_ids": [5 + trace, 9, *range(20, 22 + point)],
                    "stop_token_ids": [40],
                    "continue_token_ids": [41, 42],
                    "temperature": 0.8,
                    "stop_logprob": -0.7,
                    "continue_logprob": -0.7,
                    "utility": 0.2 * point - 0.1 * trace,
                    "continue_value": 0.3,
                    "end_utility": 0.5 + trace,
                    "weight": weight,
                }
            )
    sink = TableSink("stop_rows/m", str(folder), STOP_ROWS)
    return sink.ref([sink.write_part(0, rows_to_table(rows, STOP_ROWS))])


def nothing(folder):
    sink = TableSink("partition/m", str(folder), PARTITION)
    return sink.ref([sink.write_part(0, PARTITION.empty_table())])


def bare_torch_step(tiny, rows, stops, coefficient):
    """The step written down once more: each sequence by itself, and the hazard objective as a loop."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)

    def logprobs(prompt, response, temperature):
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        return (logits / temperature).log_softmax(-1)[range(len(response)), response]

    loss, tokens = torch.zeros(()), sum(len(r["response_token_ids"]) for r in rows)
    for r in rows:
        new = logprobs(r["prompt_token_ids"], r["response_token_ids"], r["temperature"])
        loss = loss - (r["advantage"] * (new - new.detach()).exp()).sum() / tokens
    by_trace = {}
    for row in stops:
        by_trace.setdefault(row["episode_id"], []).append(row)
    for points in by_trace.values():
        alive, value = torch.ones(()), torch.zeros(())
        for row in points:
            stop, on = (
                logprobs(row["prompt_token_ids"], row[f"{name}_token_ids"], row["temperature"]).sum()
                for name in ("stop", "continue")
            )
            p = torch.sigmoid(stop - on)
            value, alive = value + alive * p * row["utility"], alive * (1 - p)
        value = value + alive * points[0]["end_utility"]
        loss = loss - coefficient * value / len(by_trace)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters(), lr=0.5, eps=1.0, weight_decay=0.01).step()
    return float(norm), {k: v.detach() for k, v in model.state_dict().items()}


@pytest.mark.slow
def test_decisions_are_trained_as_torch_would_beside_tokens_and_alone(start, tiny, tmp_path) -> None:
    table = decisions(tmp_path / "s")
    rows = partition(tmp_path / "p")
    for ref in (rows, nothing(tmp_path / "n")):
        tokens = ref.read().to_pylist()
        norm, expected = bare_torch_step(tiny, tokens, table.read().to_pylist(), 0.7)
        for shared, cut in ((True, (0, 0)), (False, (0, 1))):
            worker = start(shared_prefix=shared, loss=LOSS, **SMOOTH)
            report = worker.update(ref, 0, stop_rows=decisions(tmp_path / f"s{cut}", cut=cut))
            assert report.summary["gradient_norm"] == pytest.approx(norm, rel=1e-4)
            assert same(weights(worker), expected, 2e-6)
            assert report.num_rows == len(tokens)
            assert 0 < report.measures["stop_probability"] < 1
            assert report.measures["stop_loss"] == pytest.approx(-report.measures["stop_value"])
            assert report.version_after == 1


@pytest.mark.slow
def test_decisions_of_other_weights_and_none_at_all(start, tmp_path) -> None:
    worker = start(loss=LOSS, **SMOOTH)
    with pytest.raises(RunFailed, match="was taken by version 3, but the trainer is at version 0"):
        worker.update(nothing(tmp_path / "n"), 0, stop_rows=decisions(tmp_path / "s", version=3))
    worker = start(loss=LOSS, **SMOOTH)
    before = weights(worker)
    report = worker.update(nothing(tmp_path / "n"), 0, stop_rows=decisions(tmp_path / "z", weight=0.0))
    assert report.skipped == "no rows with response tokens"
    assert same(weights(worker), before)
