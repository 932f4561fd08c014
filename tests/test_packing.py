"""Packing: the trained positions are exactly the sampled tokens, wherever rows lie and whatever pads them."""

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.packing import empty_micro_batch, pack, problem_with, split
from workflows.trajectory import PARTITION, rows_to_table

law = settings(deadline=None, max_examples=60)
IDS = st.lists(st.integers(0, 9), max_size=6)
ROWS = st.lists(st.tuples(IDS.filter(bool), IDS), min_size=1, max_size=6)


def row(index, prompt, response, **changes):
    return {
        "episode_id": f"e{index}",
        "turn_index": index % 3,
        "group_id": "g",
        "model_id": "m",
        "role": "r",
        "step": "s",
        "policy_version": 0,
        "rank": 0,
        "mini_batch": 0,
        "micro_batch": 0,
        "prompt_token_ids": list(prompt),
        "response_token_ids": list(response),
        "behaviour_logprobs": [-0.1 * (k + 1) for k in range(len(response))],
        "temperature": 0.5 + index,
        "return": 0.0,
        "advantage": float(index - 1),
        **changes,
    }


def table(*rows) -> pa.Table:
    return rows_to_table(list(rows), PARTITION)


@law
@given(ROWS)
def test_each_sampled_token_is_a_target_once_predicted_from_the_token_before_it(contents) -> None:
    batch = pack(table(*(row(i, p, r) for i, (p, r) in enumerate(contents))))
    flat = batch.token_ids.flatten()
    expected = [
        (before, target, float(index - 1), 0.5 + index)
        for index, (prompt, response) in enumerate(contents)
        for before, target in zip([prompt[-1], *response], response, strict=False)
    ]
    if expected:
        assert batch.num_tokens == len(expected)
        assert (
            list(
                zip(
                    flat[batch.positions].tolist(),
                    batch.targets.tolist(),
                    batch.advantages.tolist(),
                    batch.temperatures.tolist(),
                    strict=True,
                )
            )
            == expected
        )
        assert batch.num_forward_tokens == sum(len(p) + len(r) for p, r in contents if r)
    else:
        assert batch.num_tokens == 0


@law
@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_rows_in_the_table_does_not_matter(contents, random) -> None:
    rows = [row(i, p, r) for i, (p, r) in enumerate(contents)]
    shuffled = random.sample(rows, len(rows))
    one, other = pack(table(*rows)), pack(table(*shuffled))
    assert one.keys == other.keys
    for name in ("token_ids", "positions", "targets", "advantages", "behaviour_logprobs", "temperatures"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_an_end_token_that_is_also_padding_is_trained() -> None:
    batch = pack(table(row(0, [5], [0]), row(1, [5, 5, 5], [7, 7, 0])))  # 0 pads and ends
    assert batch.targets.tolist() == [0, 7, 7, 0]
    assert batch.behaviour_logprobs.tolist() == pytest.approx([-0.1, -0.1, -0.2, -0.3])


def test_an_empty_micro_batch_has_filler_that_is_not_trained() -> None:
    batch = empty_micro_batch()
    assert (batch.num_tokens, batch.num_forward_tokens, batch.token_ids.numel()) == (0, 0, 1)
    assert pack(table(row(0, [1], []))).num_tokens == 0


def test_split_follows_the_plan() -> None:
    places = [(0, 0), (0, 1), (1, 0), (0, 0), (2, 4)]
    rows = [row(i, [1], [i], mini_batch=m, micro_batch=k) for i, (m, k) in enumerate(places)]
    cut = {m: [b.targets.tolist() for b in batches] for m, batches in split(table(*rows)).items()}
    assert cut == {0: [[0, 3], [1]], 1: [[2]], 2: [[4]]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy_version": 3}, "version 3"),
        ({"model_id": "other"}, "other"),
        ({"rank": 2}, "rank 2"),
        ({"behaviour_logprobs": [-0.1]}, "2 response tokens but 1"),
        ({"behaviour_logprobs": [-0.1, float("-inf")]}, "not finite"),
        ({"prompt_token_ids": []}, "no prompt"),
        ({"advantage": None}, "advantage None"),
        ({"advantage": float("nan")}, "advantage nan"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"temperature": None}, "temperature None"),
        ({"response_token_ids": [1, 99]}, "vocabulary of 10"),
        ({"prompt_token_ids": [-1]}, "vocabulary of 10"),
    ],
)
def test_a_row_that_can_not_be_trained_on_is_named(changes, words) -> None:
    rows = table(row(0, [1], [2, 3]), row(1, [1], [2, 3], **changes))
    problem = problem_with(rows, model_id="m", version=0, vocabulary=10, ranks=2)
    assert "(e1, 1)" in problem
    assert words in problem
    assert problem_with(rows.slice(0, 1), model_id="m", version=0, vocabulary=10, ranks=2) is None
