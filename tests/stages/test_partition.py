"""The plan: every row once, within budget, balanced. The stage's pure halves: the right rows, whole."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.batching import PASS_TOKENS, PLAN_COLUMNS, plan_batches, prefix_names
from stages.partition import PartitionSpec, PartitionStage, with_parts
from stages.partition_rows import Job, gather, survey_part, write_part
from stages.tables.parquet import TableSink
from workflows.errors import SchemaError, UsageError
from workflows.trajectory import CREDIT, PARTITION, REWARDS, TURNS, rows_to_table

law = settings(max_examples=80)

LENGTHS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), max_size=60)
CUT = st.fixed_dictionaries(
    {
        "ranks": st.integers(1, 5),
        "mini_batches": st.integers(1, 6),
        "micro_batch_tokens": st.integers(1, 300),
        "seed": st.integers(0, 3),
    }
)


def frame_of(lengths):
    return pl.DataFrame(
        [(f"e{i // 3}", i % 3, prompt, response) for i, (prompt, response) in enumerate(lengths)],
        schema={
            "episode_id": pl.String,
            "turn_index": pl.Int32,
            "num_prompt_tokens": pl.Int32,
            "num_response_tokens": pl.Int32,
        },
        orient="row",
    )


@law
@given(LENGTHS, CUT)
def test_every_row_is_placed_once_and_nothing_is_added(lengths, cut) -> None:
    rows = frame_of(lengths)
    plan = plan_batches(rows, **cut)
    assert sorted(plan.select("episode_id", "turn_index").rows()) == sorted(
        rows.select("episode_id", "turn_index").rows()
    )
    assert plan["num_tokens"].sum() == sum(p + r for p, r in lengths)
    assert set(plan["rank"]) <= set(range(cut["ranks"]))
    assert set(plan["mini_batch"]) == set(range(min(cut["mini_batches"], len(lengths))))
    for batch in plan.partition_by("rank", "mini_batch"):
        assert set(batch["micro_batch"]) == set(range(batch["micro_batch"].n_unique()))


@law
@given(LENGTHS, CUT)
def test_no_forward_pass_is_over_budget_unless_one_row_is(lengths, cut) -> None:
    for batch in plan_batches(frame_of(lengths), **cut).partition_by(*PLAN_COLUMNS):
        padded = batch.height * batch["num_tokens"].max()
        assert padded <= cut["micro_batch_tokens"] or batch.height == 1


@law
@given(LENGTHS, CUT, st.booleans())
def test_no_forward_pass_mixes_parts_that_are_told_apart(lengths, cut, shared) -> None:
    rows = frame_of(lengths).with_row_index().with_columns(part=(pl.col("index") % 3).cast(pl.String))
    rows = rows.with_columns(prompt=pl.lit("p"), prefix=pl.lit(b"12345678" * 2))  # all begin alike
    apart = plan_batches(rows, **cut, shared_prefix=shared, apart=True)
    placed = apart.join(rows.select("episode_id", "turn_index", "part"), on=["episode_id", "turn_index"])
    for batch in placed.partition_by(*PLAN_COLUMNS):
        assert batch["part"].n_unique() == 1
    mixed = plan_batches(rows, **cut, shared_prefix=shared)
    keys = ["episode_id", "turn_index", "mini_batch"]
    assert apart.select(keys).sort(keys).equals(mixed.select(keys).sort(keys))  # the same optimizer steps


def test_parts_are_roles_and_the_branches_of_a_role_that_has_a_few() -> None:
    names = [("a", ""), ("b", "0"), ("b", "1"), ("c", "0"), *(("d", str(k)) for k in range(9)), ("b", "0")]
    parts = with_parts(pl.DataFrame(names, schema=["role", "branch"], orient="row"))["part"].to_list()
    assert parts[0] == "a\0"
    assert parts[1:3] == ["b\x000", "b\x001"]
    assert parts[3] == "c\0"  # a single branch is no copy
    assert set(parts[4:13]) == {"d\0"}  # more than can be told apart
    assert parts[13] == parts[1]


@law
@given(LENGTHS, CUT)
def test_steps_are_even_in_rows_and_ranks_in_tokens(lengths, cut) -> None:
    plan = plan_batches(frame_of(lengths), **cut)
    sizes = [step.height for step in plan.partition_by("mini_batch")]
    assert not sizes or max(sizes) - min(sizes) <= 1
    for step in plan.partition_by("mini_batch"):
        loads = dict.fromkeys(range(cut["ranks"]), 0)
        for rank, tokens in step.select("rank", "num_tokens").rows():
            loads[rank] += tokens
        assert max(loads.values()) - min(loads.values()) <= step["num_tokens"].max()


def test_ranks_share_tokens_and_not_rows() -> None:
    lengths = [(0, 60), (0, 20), (0, 20), (0, 20)]
    plan = plan_batches(frame_of(lengths), ranks=2, mini_batches=1, micro_batch_tokens=300, seed=0)
    shares = [sorted(share["num_tokens"]) for share in plan.partition_by("rank")]
    assert sorted(shares) == [[20, 20, 20], [60]]


@law
@given(LENGTHS, CUT, st.integers(0, 99))
def test_the_order_of_the_rows_does_not_matter(lengths, cut, seed) -> None:
    rows = frame_of(lengths)
    shuffled = rows.sample(fraction=1, shuffle=True, seed=seed)
    assert plan_batches(shuffled, **cut).equals(plan_batches(rows, **cut))


def test_similar_lengths_share_a_pass_so_that_padding_is_small() -> None:
    lengths = [(n, 1) for n in range(1, 400)]
    plan = plan_batches(frame_of(lengths), ranks=2, mini_batches=1, micro_batch_tokens=2000, seed=0)
    padded = sum(b.height * b["num_tokens"].max() for b in plan.partition_by(*PLAN_COLUMNS))
    assert padded <= 1.1 * plan["num_tokens"].sum()


# by prompt: how many tokens it begins with of those that all prompts have, how many of its own, and responses
SHARING = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.lists(st.integers(1, 40), min_size=1, max_size=6)),
    max_size=12,
)


def sharing_frame(prompts):
    """Rows of prompts that several responses share; a prompt without tokens has no name."""
    rows = []
    for p, (common, own, responses) in enumerate(prompts):
        prompt = [*range(common), *(1000 * (p + 1) + k for k in range(own))]
        for r, response in enumerate(responses):
            tokens = [*prompt, *(100_000 + 100 * r + k for k in range(response))]
            (name,) = prefix_names([tokens[:-1]])
            rows.append(
                (f"e{p}/{r}", 0, len(prompt), response, f"p{p}" if prompt else None, name, tokens[:-1])
            )
    schema = {**frame_of([]).schema, "prompt": pl.String, "prefix": pl.Binary, "ids": pl.List(pl.Int64)}
    return pl.DataFrame(rows, schema=schema, orient="row")


def tree_tokens(batch):
    """Tokens of a forward pass that computes what its rows begin with once."""
    return len({tuple(ids[:length]) for ids in batch["ids"].to_list() for length in range(1, len(ids) + 1)})


@settings(law, max_examples=40)
@given(SHARING, CUT, st.integers(0, 99))
def test_what_rows_share_is_planned_once_and_every_row_still_has_its_place(prompts, cut, order) -> None:
    rows = sharing_frame(prompts)
    plan = plan_batches(rows, **cut, shared_prefix=True)
    assert (
        plan.drop(*PLAN_COLUMNS)
        .sort("episode_id")
        .equals(
            rows.select(
                "episode_id",
                "turn_index",
                num_tokens=pl.col("num_prompt_tokens").cast(pl.Int64) + pl.col("num_response_tokens"),
            ).sort("episode_id")
        )
    )
    shuffled = rows.sample(fraction=1, shuffle=True, seed=order)
    assert plan_batches(shuffled, **cut, shared_prefix=True).equals(plan)
    placed = plan.join(rows, on=["episode_id", "turn_index"])
    for batch in placed.partition_by(*PLAN_COLUMNS):
        assert tree_tokens(batch) <= cut["micro_batch_tokens"] or batch.height == 1
    sizes = [step.height for step in placed.partition_by("mini_batch")]
    assert not sizes or max(sizes) - min(sizes) <= 1


@law
@given(SHARING, st.integers(1, 300))
def test_no_other_cut_into_passes_computes_fewer_tokens(prompts, budget) -> None:
    rows = sharing_frame(prompts).head(9)
    plan = plan_batches(
        rows, ranks=1, mini_batches=1, micro_batch_tokens=budget, seed=0, shared_prefix=True
    ).join(rows, on=["episode_id", "turn_index"])
    walk = plan.sort("prefix", "micro_batch")

    def planned(passes):
        """Their tokens as a plan knows them, from names of 8 tokens each, and what a pass costs besides."""
        total = 0
        for batch in passes:
            names = {name[:length] for name in batch["prefix"] for length in range(8, len(name) + 1, 8)}
            alone = sum(n - len(name) for n, name in batch.select("num_tokens", "prefix").rows())
            tokens = 8 * len(names) + alone
            if tokens > budget and batch.height > 1:
                return float("inf")
            total += tokens + PASS_TOKENS
        return total

    ours = planned(walk.partition_by("micro_batch", maintain_order=True))
    for cuts in range(1 << max(0, walk.height - 1)):
        edges = [0, *(k for k in range(1, walk.height) if cuts >> (k - 1) & 1), walk.height]
        assert ours <= planned([walk[a:b] for a, b in pairwise(edges) if b > a])


def test_rows_of_one_prompt_share_a_pass_where_they_fit_and_ranks_share_the_work() -> None:
    rows = sharing_frame([(0, 50, [10] * 4)] * 6)
    plan = plan_batches(
        rows, ranks=2, mini_batches=1, micro_batch_tokens=200, seed=0, shared_prefix=True
    ).join(rows, on=["episode_id", "turn_index"])
    passes = plan.partition_by(*PLAN_COLUMNS)
    # six prompts, four answers of 9 tokens that are computed
    assert sorted(tree_tokens(p) for p in passes) == [86, 86, 172, 172]
    assert all(p.group_by("prompt").len()["len"].to_list() == [4] * p["prompt"].n_unique() for p in passes)
    one_group = sharing_frame([(0, 50, [10] * 4)])
    plan = plan_batches(
        one_group, ranks=2, mini_batches=1, micro_batch_tokens=200, seed=0, shared_prefix=True
    )
    assert set(plan["rank"]) == {0, 1}  # no rank idles because a group stays together


def test_prompts_that_begin_with_the_same_instructions_share_them() -> None:
    rows = sharing_frame([(160, 16, [17]), (0, 176, [17])] * 4)
    plan = plan_batches(
        rows, ranks=1, mini_batches=1, micro_batch_tokens=400, seed=0, shared_prefix=True
    ).join(rows, on=["episode_id", "turn_index"])
    together = [p for p in plan.partition_by(*PLAN_COLUMNS) if p.height == 4]
    assert [tree_tokens(p) for p in together] == [160 + 4 * (16 + 16)]


@law
@given(st.lists(st.lists(st.integers(0, 2), max_size=50), max_size=6))
def test_names_are_alike_as_far_as_tokens_are(sequences) -> None:
    for one, its_name in zip(sequences, prefix_names(sequences), strict=True):
        assert len(its_name) == 8 * (len(one) // 8)
        for other, name in zip(sequences, prefix_names(np.array(s) for s in sequences), strict=True):
            for length in range(8, min(len(one), len(other)) + 1, 8):
                same = its_name[:length] == name[:length]
                assert same == (one[:length] == other[:length])


def test_another_seed_is_another_split_into_steps() -> None:
    cut = {"ranks": 1, "mini_batches": 2, "micro_batch_tokens": 100}
    plans = [plan_batches(frame_of([(5, 5)] * 40), seed=s, **cut) for s in (0, 1)]
    assert not plans[0].equals(plans[1])


# The stage's pure halves.


def turn(index, episode="00000/t/0", model="m", response=(7, 8), **other):
    return {
        "episode_id": episode,
        "turn_index": index,
        "group_id": episode.rsplit("/", 1)[0],
        "model_id": model,
        "role": "r",
        "step": "s",
        "event": "llm",
        "policy_version": 4,
        "prompt_token_ids": [1] * (index + 1),
        "num_prompt_tokens": index + 1,
        "response_token_ids": list(response),
        "behaviour_logprobs": [-0.5] * len(response),
        "sampling": json.dumps({"temperature": 0.7, "seed": index}),
    } | other


def credited(rows, excluded=None):
    reasons = excluded or {}
    return [
        {"episode_id": r["episode_id"], "turn_index": r["turn_index"]}
        | (
            {"excluded": reasons[r["turn_index"]]}
            if r["turn_index"] in reasons
            else {"return": 1.0, "advantage": r["turn_index"] - 1.0}
        )
        for r in rows
    ]


def rewarded(rows):
    return [
        {"episode_id": r["episode_id"], "turn_index": r["turn_index"], "reward": r["turn_index"] / 8}
        for r in rows
    ]


def stored(folder, parts, excluded=None):
    """The inputs as stored tables, a list of turns for each part."""

    def table(name, schema, rows_of):
        sink = TableSink(name, f"{folder}/{name}", schema)
        return sink.ref(
            [sink.write_part(k, rows_to_table(rows_of(rows), schema)) for k, rows in enumerate(parts)]
        )

    return {
        "turns": table("turns", TURNS, list),
        "rewards": table("rewards", REWARDS, rewarded),
        "credit": table("credit", CREDIT, lambda rows: credited(rows, excluded)),
    }


def test_the_survey_accounts_for_every_turn(tmp_path) -> None:
    rows = [
        turn(0),
        turn(1, response=()),
        turn(2, model="judge"),
        turn(3),
        turn(4),
        turn(5, response_token_ids=None),
    ]
    tables = stored(tmp_path, [rows], {3: "model is frozen", 4: "reward 'x' failed: ValueError: e 7"})
    survey = survey_part(0, tables, ["m"])
    assert survey["usable"].select("turn_index", "num_response_tokens", "source").rows() == [(0, 2, 0)]
    assert survey["excluded"] == Counter(
        {
            "no response tokens": 2,
            "model judge is not partitioned": 1,
            "model is frozen": 1,
            "reward 'x' failed": 1,
        }
    )
    assert survey["details"]["reward 'x' failed"] == "reward 'x' failed: ValueError: e 7"


def test_turns_of_a_frozen_role_are_left_out_and_counted(tmp_path) -> None:
    tables = stored(tmp_path, [[turn(0), turn(1, role="judge"), turn(2, role="judge")]])
    survey = survey_part(0, tables, ["m"], frozenset({"judge"}))
    assert survey["usable"]["turn_index"].to_list() == [0]
    assert survey["excluded"] == Counter({"role is frozen": 2})


def test_gathered_rows_keep_their_exact_tokens_and_get_their_reward_credit_and_place() -> None:
    rows = [turn(i, response=[i] * (i + 1), round=i, branch="b") for i in range(4)]
    turns, credit = rows_to_table(rows, TURNS), rows_to_table(credited(rows)[::-1], CREDIT)
    rewards = rows_to_table(rewarded(rows)[::-1], REWARDS)
    places = pl.DataFrame(
        {
            "episode_id": ["00000/t/0"] * 2,
            "turn_index": [3, 1],
            "rank": [0, 1],
            "mini_batch": [2, 0],
            "micro_batch": [5, 6],
        },
        schema_overrides={"turn_index": pl.Int32},
    )
    table = gather(turns, rewards, credit, places)
    assert table.schema == PARTITION
    found = {row["turn_index"]: row for row in table.to_pylist()}
    assert set(found) == {1, 3}
    for index, place in ((3, (0, 2, 5)), (1, (1, 0, 6))):
        row = found[index]
        assert tuple(row[c] for c in PLAN_COLUMNS) == place
        for column in ("prompt_token_ids", "response_token_ids", "behaviour_logprobs", "policy_version"):
            assert row[column] == rows[index][column]
        assert (row["round"], row["branch"]) == (index, "b")
        assert (row["temperature"], row["return"], row["advantage"]) == (0.7, 1.0, index - 1.0)
        assert row["reward"] == index / 8


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ({"behaviour_logprobs": [-0.5]}, "1 turns have other numbers of behaviour_logprobs"),
        ({"behaviour_logprobs": None}, "1 turns have other numbers of behaviour_logprobs"),
        ({"sampling": "{}"}, "1 turns have no temperature"),
        ({"sampling": None}, "1 turns have no temperature"),
    ],
)
def test_rows_that_can_not_be_trained_on_are_refused_by_key(broken, what) -> None:
    rows = [turn(0), turn(1, **broken)]
    places = pl.DataFrame(
        {"episode_id": ["00000/t/0"] * 2, "turn_index": [0, 1]} | {c: [0, 0] for c in PLAN_COLUMNS},
        schema_overrides={"turn_index": pl.Int32},
    )
    with pytest.raises(SchemaError, match=what) as error:
        gather(
            rows_to_table(rows, TURNS),
            rows_to_table(rewarded(rows), REWARDS),
            rows_to_table(credited(rows), CREDIT),
            places,
        )
    assert "('00000/t/0', 1)" in str(error.value)


def test_a_part_gathers_from_several_inputs_and_a_lost_row_is_noticed(tmp_path) -> None:
    tables = stored(tmp_path, [[turn(0), turn(1)], [turn(0, "00000/u/0")]])
    sink = TableSink("partition/m", str(tmp_path / "out"), PARTITION)
    rows = pl.DataFrame(
        {
            "episode_id": ["00000/t/0", "00000/u/0"],
            "turn_index": [1, 0],
            "source": [0, 1],
            "rank": [0, 0],
            "mini_batch": [1, 0],
            "micro_batch": [0, 0],
        },
        schema_overrides={"turn_index": pl.Int32},
    )
    receipt = write_part(0, tables, {"m": sink}, [Job("m", 2, rows)])
    assert (receipt["part"].name, receipt["part"].rows) == ("part-00002.parquet", 2)
    written = sink.ref([receipt["part"]]).read()
    assert written["episode_id"].to_pylist() == ["00000/u/0", "00000/t/0"]  # by mini-batch
    lost = rows.with_columns(turn_index=pl.lit(9, pl.Int32))
    with pytest.raises(SchemaError, match="should have 2 rows, found 0"):
        write_part(0, tables, {"m": sink}, [Job("m", 2, lost)])


def test_turns_and_credit_of_different_rollouts_are_refused(tmp_path) -> None:
    tables = stored(tmp_path, [[turn(0), turn(1)]])
    other = TableSink("credit", str(tmp_path / "other"), CREDIT)
    tables["credit"] = other.ref([other.write_part(0, rows_to_table(credited([turn(0)]), CREDIT))])
    with pytest.raises(SchemaError, match="not of one rollout"):
        survey_part(0, tables, ["m"])


def test_specs_that_can_not_work_are_refused() -> None:
    spec = PartitionSpec("m", 1, 1, 1, 0)
    with pytest.raises(UsageError, match="twice: m, m"):
        PartitionStage((spec, spec))
    for field in ("ranks", "mini_batches", "micro_batch_tokens"):
        with pytest.raises(UsageError, match=f"{field} is 0"):
            PartitionSpec(
                **{
                    "model_id": "m",
                    "ranks": 1,
                    "mini_batches": 1,
                    "micro_batch_tokens": 1,
                    "seed": 0,
                    field: 0,
                }
            )


def test_the_stage_reads_columns_that_its_tables_have() -> None:
    stage = PartitionStage((PartitionSpec("m", 1, 1, 1, 0),))
    for table, full in (("turns", TURNS), ("rewards", REWARDS), ("credit", CREDIT)):
        for field in stage.inputs[table]:
            assert full.field(field.name).equals(field)
    assert stage.outputs == {"partition/m": PARTITION}
    assert stage.places == {"partition/m": "m"}
    assert isinstance(stage.inputs["turns"], pa.Schema)
