"""Packing: the trained positions are exactly the sampled tokens, wherever rows lie and whatever pads them."""

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.network.packing import empty_micro_batch, forest_of, pack, problem_with, split
from workflows.trajectory import PARTITION, rows_to_table

law = settings(max_examples=60)
both = pytest.mark.parametrize("packed", [False, True])
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


def predictions(batch):
    """What is trained: which token, after which, with what, and in which row; sorted by row."""
    flat = batch.token_ids.flatten()
    found = zip(
        [batch.keys[row] for row in batch.row.tolist()],
        flat[batch.positions].tolist(),
        batch.targets.tolist(),
        batch.advantages.tolist(),
        batch.temperatures.tolist(),
        strict=True,
    )
    return sorted(found, key=lambda item: item[0])  # stable: tokens stay in their order


@both
@law
@given(ROWS)
def test_each_sampled_token_is_a_target_once_predicted_from_the_token_before_it(packed, contents) -> None:
    batch = pack(table(*(row(i, p, r) for i, (p, r) in enumerate(contents))), packed)
    expected = [
        ((f"e{index}", index % 3), before, target, float(index - 1), 0.5 + index)
        for index, (prompt, response) in enumerate(contents)
        for before, target in zip([prompt[-1], *response], response, strict=False)
    ]
    if expected:
        assert batch.num_tokens == len(expected)
        assert predictions(batch) == expected
        assert batch.num_forward_tokens == sum(len(p) + len(r) for p, r in contents if r)
    else:
        assert batch.num_tokens == 0


@law
@given(ROWS)
def test_a_packed_row_holds_what_begins_alike_once_and_every_token_knows_its_place(contents) -> None:
    sequences = [p + r[:-1] for p, r in contents if r]
    batch = pack(table(*(row(i, p, r) for i, (p, r) in enumerate(contents))), True)
    if not sequences:
        return
    beginnings = {tuple(s[:length]) for s in sequences for length in range(1, len(s) + 1)}
    ids, places = batch.token_ids[0].tolist(), batch.position_ids[0].tolist()
    parts = batch.layout.segments
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    seen = []
    for part in parts:
        line = [p for p in parts if p.start <= part.start < p.end]
        text = [ids[k] for p in line for k in range(p.start, p.stop)]
        assert [places[k] for p in line for k in range(p.start, p.stop)] == list(range(len(text)))
        seen += [tuple(text[:length]) for length in range(len(text) - part.length + 1, len(text) + 1)]
    assert sorted(seen) == sorted(beginnings), "each beginning of a sequence is one token of the row"
    assert len(ids) == len(beginnings)


@law
@given(st.lists(IDS.filter(bool), min_size=1, max_size=8))
def test_every_sequence_can_be_read_off_its_places(sequences) -> None:
    forest = forest_of(sequences)
    for sequence, places in zip(sequences, forest.places, strict=True):
        assert forest.token_ids[places].tolist() == sequence
        assert forest.position_ids[places].tolist() == list(range(len(sequence)))


@both
@law
@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_rows_in_the_table_does_not_matter(packed, contents, random) -> None:
    rows = [row(i, p, r) for i, (p, r) in enumerate(contents)]
    shuffled = random.sample(rows, len(rows))
    one, other = pack(table(*rows), packed), pack(table(*shuffled), packed)
    assert one.keys == other.keys
    for name in ("token_ids", "positions", "targets", "advantages", "behaviour_logprobs", "temperatures"):
        assert torch.equal(getattr(one, name), getattr(other, name))


@both
def test_token_lists_of_other_tables_stay_with_their_tokens(packed) -> None:
    rows = table(row(2, [1], [5, 6]), row(0, [1, 2], [7]), row(1, [1], [8]), row(3, [1], []))
    for name in ("advantages", "old_logprobs", "values"):
        lists = [[2.0, 2.5], [0.0], [1.0], []]
        rows = rows.append_column(name, pa.array(lists, pa.list_(pa.float32())))
    batch = pack(rows, packed)
    for values in (batch.advantages, batch.old_logprobs, batch.values):
        found = dict(zip(batch.targets.tolist(), values.tolist(), strict=True))
        assert found == {5: 2.0, 6: 2.5, 7: 0.0, 8: 1.0}
    assert batch.returns is None


@both
def test_an_end_token_that_is_also_padding_is_trained(packed) -> None:
    batch = pack(table(row(0, [5], [0]), row(1, [5, 5, 5], [7, 7, 0])), packed)  # 0 pads and ends
    assert batch.targets.tolist() == [0, 7, 7, 0]
    assert batch.behaviour_logprobs.tolist() == pytest.approx([-0.1, -0.1, -0.2, -0.3])


@both
def test_an_empty_micro_batch_has_filler_that_is_not_trained(packed) -> None:
    batch = empty_micro_batch(packed)
    assert (batch.num_tokens, batch.num_forward_tokens, batch.token_ids.numel()) == (0, 0, 1)
    assert pack(table(row(0, [1], [])), packed).num_tokens == 0


@both
def test_split_follows_the_plan(packed) -> None:
    places = [(0, 0), (0, 1), (1, 0), (0, 0), (2, 4)]
    rows = [row(i, [1], [i], mini_batch=m, micro_batch=k) for i, (m, k) in enumerate(places)]
    cut = {m: [b.targets.tolist() for b in batches] for m, batches in split(table(*rows), packed).items()}
    assert cut == {0: [[0, 3], [1]], 1: [[2]], 2: [[4]]}


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("advantages", [0.5], "2 response tokens but 1 advantages"),
        ("advantages", None, "no advantages"),
        ("importance_weights", [1.0, float("nan")], "importance_weights that are not finite"),
        ("old_logprobs", [1.0, 1.0, 1.0], "but 3 old_logprobs"),
        ("returns", [float("inf"), 0.0], "returns that are not finite"),
    ],
)
def test_a_row_with_broken_token_lists_is_named(column, values, words) -> None:
    rows = table(row(0, [1], [2, 3]), row(1, [1], [2, 3]))
    rows = rows.append_column(column, pa.array([[0.0, 0.0], values], pa.list_(pa.float32())))
    problem = problem_with(rows, model_id="m", version=0, vocabulary=10, ranks=1)
    assert "(e1, 1)" in problem
    assert words in problem


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


def test_rows_beyond_a_sliding_window_are_refused_with_the_remedy() -> None:
    rows, known = table(row(0, [1, 2], [3])), {"model_id": "m", "version": 0, "vocabulary": 10, "ranks": 1}
    assert problem_with(rows, **known, window=3) is None
    assert "shared_prefix = false" in problem_with(rows, **known, window=2)
