"""Packed attention sees what each sequence would see alone, in value and in gradient."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.network import attention
from stages.training.network.attention import flex, kernel_backward, packed_attention, product_backward
from stages.training.network.layout import CAUSAL_STEP, JOIN_TOKENS, Segment, layout_of
from stages.training.network.logprobs import token_logprobs

# float32 takes the first; both must be right in it
BACKWARD = pytest.mark.parametrize("backward", [kernel_backward, product_backward])
law = settings(max_examples=40)
# trees of segments: (tokens, what continues them)
TREES = st.recursive(
    st.tuples(st.integers(1, 20), st.just([])),
    lambda inner: st.tuples(st.integers(1, 20), st.lists(inner, max_size=4)),
    max_leaves=8,
)
FORESTS = st.lists(TREES, min_size=1, max_size=4)


def segments(forest, at=0):
    """In the order of a depth-first walk."""
    parts = []
    for tokens, branches in forest:
        inner = segments(branches, at + tokens)
        end = inner[-1].end if inner else at + tokens
        end = max([end, *(part.end for part in inner)])
        parts += [Segment(at, at + tokens, end), *inner]
        at = end
    return parts


def alone(query, key, value, scale, parts):
    """Each segment by itself, with all that it continues in front, by the definition of attention."""
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    outputs = []
    for s in parts:
        line = [part for part in parts if part.start <= s.start < part.end]
        keys, values = (torch.cat([t[:, :, p.start : p.stop] for p in line], 2) for t in (key, value))
        scores = query[:, :, s.start : s.stop] @ keys.transpose(-1, -2) * scale
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(keys.shape[2] - s.length)
        outputs.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values)
    return torch.cat(outputs, 2)


def states(parts, heads=4, key_heads=2, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    total = parts[-1].end
    return [
        torch.randn(1, n, total, size, generator=generator).requires_grad_()
        for n in (heads, key_heads, key_heads)
    ]


@BACKWARD
@law
@given(forest=FORESTS, heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]))
def test_values_and_gradients_are_those_of_each_sequence_alone(backward, forest, heads) -> None:
    parts = segments(forest)
    layout, scale = layout_of(parts), 0.3
    inputs = states(parts, *heads)
    weight = torch.randn(1, heads[0], parts[-1].end, 8, generator=torch.Generator().manual_seed(1))
    expected = alone(*inputs, scale, parts)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    out, _ = packed_attention(None, *inputs, None, scaling=scale, layout=layout)
    with patch.object(attention, "kernel_backward", backward):
        got = torch.autograd.grad((out.transpose(1, 2) * weight).sum(), inputs)
    torch.testing.assert_close(out.transpose(1, 2), expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


@BACKWARD
def test_long_segments_come_out_the_same(backward) -> None:
    long = (CAUSAL_STEP + 9, [(30, []), (2 * JOIN_TOKENS, [(5, []), (JOIN_TOKENS + 40, [])]), (3, [])])
    parts = segments([(CAUSAL_STEP * 3 // 2, []), long])
    inputs, layout = states(parts, 2, 1), layout_of(parts)
    assert any(len(list(block.steps())) > 1 for block in layout.blocks)
    expected = torch.autograd.grad(alone(*inputs, 0.3, parts).square().sum(), inputs)
    out, _ = packed_attention(None, *inputs, None, scaling=0.3, layout=layout)
    with patch.object(attention, "kernel_backward", backward):
        got = torch.autograd.grad(out.square().sum(), inputs)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=5e-5)


def test_the_kernel_for_gpus_has_the_same_mask() -> None:
    leaves = [(3, []), (5, [(2, []), (4, [(1, [])])]), (2, [])]
    for forest in ([(7, leaves)], [(4, []), (6, [(1, []), (9, leaves)]), (3, [])]):
        parts = segments(forest)
        inputs = [t.detach() for t in states(parts, size=16)]
        fused = flex(*inputs, 0.3, layout_of(parts), compiled=False)
        torch.testing.assert_close(fused, alone(*inputs, 0.3, parts), rtol=1e-4, atol=1e-5)


@law
@given(FORESTS, st.integers(1, 30))
def test_blocks_cover_each_token_once_and_waste_little(forest, times) -> None:
    def longer(trees):
        return [(tokens * times, longer(branches)) for tokens, branches in trees]

    parts = segments(longer(forest))
    layout = layout_of(parts)
    blocks = layout.blocks
    assert [b.start for b in blocks] == [0, *(b.stop for b in blocks[:-1])]
    assert blocks[-1].stop == parts[-1].end
    for block in blocks:
        assert block.mask is None or block.stop - block.start <= max(JOIN_TOKENS, block.seen // 2)
    lines = [[p for p in parts if p.start <= s.start < p.end] for s in parts]
    assert layout.longest == max(sum(p.length for p in line) for line in lines)


def test_attention_that_would_come_out_wrong_is_refused() -> None:
    parts = [Segment(0, 6, 6)]
    inputs = states(parts)
    layout = layout_of(parts)
    packed_attention(None, *inputs, None, layout=layout, sliding_window=6, softcap=None)
    for options, words in (
        ({"sliding_window": 5}, "sliding window of 5"),
        ({"softcap": 30.0}, "softcap"),
        ({"dropout": 0.1}, "dropout"),
    ):
        with pytest.raises(ValueError, match=words):
            packed_attention(None, *inputs, None, layout=layout, **options)
    with pytest.raises(ValueError, match="do not hand on"):
        packed_attention(None, *inputs, None)


@law
@given(st.integers(1, 6), st.integers(2, 9), st.booleans(), st.integers(0, 99))
def test_logprobs_and_entropies_are_those_of_the_softmax_with_its_gradients(rows, words, asked, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (5 * torch.randn(rows, words, generator=generator)).requires_grad_()
    targets = torch.randint(0, words, (rows,), generator=generator)
    temperatures = 0.3 + torch.rand(rows, generator=generator)
    of_logprobs, of_entropy = torch.randn(2, rows, generator=generator)

    exact = (logits.double() / temperatures[:, None]).log_softmax(-1)
    expected = exact.gather(1, targets[:, None])[:, 0]
    entropy = -(exact.exp() * exact).sum(-1)
    total = (expected * of_logprobs).sum() + (entropy * of_entropy).sum() * asked
    (wanted,) = torch.autograd.grad(total, logits)

    found, entropies = token_logprobs(logits, targets, temperatures, asked)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    loss = (found * of_logprobs).sum()
    if asked:
        torch.testing.assert_close(entropies.double(), entropy, rtol=1e-5, atol=1e-5)
        loss = loss + (entropies * of_entropy).sum()
    else:
        assert entropies is None
    (got,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_word_that_can_not_be_said_costs_no_nan() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    logprobs, entropies = token_logprobs(logits, torch.tensor([1]), torch.tensor([0.5]), True)
    (logprobs + entropies).sum().backward()
    assert logprobs.item() == pytest.approx(-0.1269, abs=1e-4)  # logits [0, 1] at temperature 0.5
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 2] == 0
