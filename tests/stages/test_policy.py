"""Sharing prompts changes no gradient, for any architecture that can do it; others are refused."""

import pyarrow as pa
import pytest
import torch

from stages.training.network.packing import pack
from stages.training.network.policy import Policy, Trunk, load_network
from stages.weights.resolve import resolve_checkpoint
from tests.support.tiny_training import partition
from workflows.errors import UsageError

SIZES = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}


def checkpoint(folder, kind, **changes):
    """A random tiny model of an architecture, as a folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **HEADS, **changes})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return str(folder)


def gradients(folder, rows, *, packed, **options):
    loaded = load_network(folder, precision="fp32", packed=packed, **options)
    policy, batch = Policy(loaded.model), pack(rows, packed)
    logprobs, entropies, _ = policy(batch, True)
    (-(logprobs * batch.advantages).sum() - 0.1 * entropies.sum()).backward()
    by_row = [logprobs[batch.row == batch.keys.index((f"e{i}", 0))].detach() for i in range(6)]
    return torch.cat(by_row), {name: p.grad for name, p in policy.named_parameters()}


def gap(one, other):
    total = sum((other[name] ** 2).sum() for name in other)
    return float((sum(((one[name] - other[name]) ** 2).sum() for name in other) / total).sqrt())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("qwen2", {"num_key_value_heads": 4}),
        ("qwen3", {"head_dim": 32, "num_key_value_heads": 1}),
        ("mistral", {"sliding_window": 64}),
        ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    ],
)
def test_gradients_over_shared_prompts_are_those_of_plain_rows(tmp_path, kind, changes) -> None:
    folder = checkpoint(tmp_path / "m", kind, **changes)
    rows = partition(tmp_path / "p").read()
    plain, expected = gradients(folder, rows, packed=False)
    shared, found = gradients(folder, rows, packed=True)
    torch.testing.assert_close(shared, plain, rtol=1e-5, atol=1e-5)
    assert gap(found, expected) <= 1e-5
    recomputed, again = gradients(folder, rows, packed=True, activation_checkpointing=True)
    torch.testing.assert_close(recomputed, shared, rtol=0, atol=0)
    assert gap(again, found) <= 1e-6


def test_gradients_over_trees_are_those_of_plain_rows(tmp_path) -> None:
    """Instructions of a role, turns of a conversation that extend each other, answers that begin alike, and
    a sequence that is the beginning of another."""
    folder = checkpoint(tmp_path / "m", "llama", max_position_embeddings=512)
    rule, other = [k % 250 for k in range(3, 40)], [9, 8, 7]
    first, second = [*rule, 60, 61], [*rule, 60, 61, 1, 2, 3, 62, 63]
    contents = [
        (first, [1, 2, 3]),  # what the next turn of its conversation goes on from
        (second, [4, 5, 6, 7]),
        (first, [1, 2, 9, 9, 9]),
        ([*rule, 70], [1]),
        (other, [5, 5]),
        (first, [1, 2]),
    ]
    rows = partition(tmp_path / "p").read()
    for name, lists in zip(
        ("prompt_token_ids", "response_token_ids"), zip(*contents, strict=True), strict=True
    ):
        at = rows.column_names.index(name)
        rows = rows.set_column(at, rows.schema.field(name), pa.array(lists, rows.schema.field(name).type))
    logprobs = [[-5.0] * len(response) for _, response in contents]
    at = rows.column_names.index("behaviour_logprobs")
    rows = rows.set_column(at, rows.schema.field(at), pa.array(logprobs, rows.schema.field(at).type))
    assert pack(rows, True).token_ids.numel() == len(rule) + 2 + 5 + 3 + 2 + 1 + 4
    plain, expected = gradients(folder, rows, packed=False)
    shared, found = gradients(folder, rows, packed=True)
    torch.testing.assert_close(shared, plain, rtol=1e-5, atol=1e-5)
    assert gap(found, expected) <= 1e-5


def test_a_critics_trunk_sees_the_states_that_the_policys_head_sees(tmp_path) -> None:
    folder = checkpoint(tmp_path / "m", "llama")
    batch = pack(partition(tmp_path / "p").read(), True)
    policy = Policy(load_network(folder, precision="fp32", packed=True).model)
    trunk = Trunk(load_network(folder, precision="fp32", packed=True, head=False).model)
    torch.testing.assert_close(trunk(batch), policy(batch)[2])


def test_a_sliding_window_is_known(tmp_path) -> None:
    for kind, changes, window in (("mistral", {"sliding_window": 64}, 64), ("llama", {}, None)):
        folder = checkpoint(tmp_path / kind, kind, **changes)
        assert load_network(folder, precision="fp32", packed=True).window == window


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (
            "lfm2",
            {"layer_types": ["conv", "full_attention"]},
            "only 1 of its layers .* shared_prefix = false",
        ),
        ("mistral", {"sliding_window": 4}, "sliding window of 4"),
        ("gemma2", {"head_dim": 16, "attn_logit_softcapping": 30.0}, "softcap"),
    ],
)
def test_a_model_that_can_not_share_prompts_is_refused_with_the_remedy(
    tmp_path, kind, changes, words
) -> None:
    folder = checkpoint(tmp_path / "m", kind, **changes)
    with pytest.raises(UsageError, match=words):
        load_network(folder, precision="fp32", packed=True)
    load_network(folder, precision="fp32", packed=False)


def test_a_folder_without_a_model_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match="can't train the model at"):
        load_network(str(tmp_path), precision="fp32", packed=True)


def test_rounding_is_not_taken_for_mixed_rows() -> None:
    """In bf16 some rows of the shipped model move far by rounding alone, however they are computed."""
    load_network(resolve_checkpoint("smollm2-135m-instruct"), precision="bf16", packed=True)
