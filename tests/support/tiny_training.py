"""What the tests of the trainer share: six rows of a partition for the tiny model, and looks at weights."""

from __future__ import annotations

from stages.tables.parquet import TableSink
from stages.training import checkpoint
from workflows.trajectory import PARTITION, SCORES, TOKEN_ADVANTAGES, rows_to_table

# Adam divides by the gradient's size, which turns a rounding error of a gradient near zero into a whole
# step. With a large eps the step is smooth in the gradient, and weights can be compared closely.
SMOOTH = {"learning_rate": 0.5, "eps": 1.0, "precision": "fp32", "num_threads": 1}


PROMPTS = (0, 1, 1, 3, 3, 3)  # which rows have the same prompt: alone, two and three responses
NUM_TOKENS = 19  # of all responses


def responses():
    return [[(11 * i + k) % 250 for k in range(2 + i % 4)] for i in range(6)]


def partition(
    folder,
    *,
    cut=(0, 0, 0, 0, 0, 0),
    ranks=None,
    mini=None,
    version=0,
    advantages=None,
    roles="r",
    model_id="m",
    branches=None,
):
    """Six rows of different lengths, placed as told, as a stored table of two parts; some share prompts."""
    advantages = advantages or [1.0, -0.5, 0.25, -2.0, 0.0, 1.5]
    rows = [
        {
            "episode_id": f"e{i}",
            "turn_index": 0,
            "model_id": model_id,
            "policy_version": version,
            "rank": ranks[i] if ranks else 0,
            "mini_batch": mini[i] if mini else 0,
            "micro_batch": cut[i],
            "role": roles[i % len(roles)],
            "branch": branches[i] if branches else "",
            "reward": float(i),
            "prompt_token_ids": [(7 * PROMPTS[i] + k) % 250 for k in range(3 + 2 * PROMPTS[i])],
            "response_token_ids": responses()[i],
            "behaviour_logprobs": [-5.0] * (2 + i % 4),
            "temperature": 0.7 + 0.1 * i,
            "advantage": advantages[i],
        }
        for i in range(6)
    ]
    return _stored(f"partition/{model_id}", folder, PARTITION, rows)


def token_advantages(folder, advantages, *, returns=None, importance=None, excluded=None):
    """A number or a list for each row, for the tokens of the six rows, in the parts of `partition`."""

    def spread(values, i):
        value, length = values[i] if values else None, len(responses()[i])
        if value is None:
            return None
        return list(value) if isinstance(value, (list, tuple)) else [float(value)] * length

    rows = [
        {
            "episode_id": f"e{i}",
            "turn_index": 0,
            "advantages": spread(advantages, i),
            "returns": spread(returns, i),
            "importance_weights": spread(importance, i),
            "excluded": excluded[i] if excluded else None,
        }
        for i in range(6)
    ]
    return _stored("token_advantages/m", folder, TOKEN_ADVANTAGES, rows)


def score(worker, ref, folder, *needs):
    """The worker's own scores of a partition, as a stored table."""
    sink = TableSink("scores/m", str(folder), SCORES)
    parts = worker.score(ref, sink, frozenset(needs))
    return sink.ref([parts[k] for k in range(len(ref.parts))])


def _stored(name, folder, schema, rows):
    sink = TableSink(name, str(folder), schema)
    return sink.ref([sink.write_part(k, rows_to_table(rows[k::2], schema)) for k in range(2)])


def weights(worker):
    return {k: v.detach().float().clone() for k, v in worker.unit.policy.model.state_dict().items()}


def master(worker):
    from deepspeed.utils import safe_get_full_fp32_param

    return {n: safe_get_full_fp32_param(p).clone() for n, p in worker.unit.policy.named_parameters()}


def same(one, other, bound=0.0) -> bool:
    return one.keys() == other.keys() and all((one[k] - other[k]).abs().max() <= bound for k in one)


def save(worker, uri: str, trainer_state: bool = True) -> str:
    checkpoint.prepare(uri)
    checkpoint.commit(uri, worker.spec, [worker.write(uri, trainer_state)])
    return uri


def bare_torch_step(tiny, ref):
    """The update written down once more: full logits, no padding, one row at a time, AdamW by torch."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    rows = [r for r in ref.read().to_pylist() if r["response_token_ids"]]
    tokens = sum(len(r["response_token_ids"]) for r in rows)
    loss = torch.zeros(())
    for r in rows:
        prompt, response = r["prompt_token_ids"], r["response_token_ids"]
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        logprobs = (logits / r["temperature"]).log_softmax(-1)[range(len(response)), response]
        loss = loss - (r["advantage"] * (logprobs - logprobs.detach()).exp()).sum() / tokens
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters(), lr=0.5, eps=1.0, weight_decay=0.01).step()
    return float(norm), {k: v.detach() for k, v in model.state_dict().items()}
