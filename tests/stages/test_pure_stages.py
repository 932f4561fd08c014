"""reward, credit and partition as stages: the pure functions over aligned parts, every row accounted for."""

import json
import random
from dataclasses import dataclass, field

import pytest

from rewards.credit.group_relative import GroupRelative
from rewards.format import Format
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from rewards.token_f1 import TokenF1
from stages.base import Context, check_chain
from stages.credit import CreditStage, credit_part
from stages.credit import _result as credit_result
from stages.partition import PartitionSpec, PartitionStage
from stages.reward import RewardStage, reward_result, score_part
from stages.tables.parquet import TableSink, aligned_parts
from tests.support.tables import assign_credit
from workflows.errors import RunFailed, SchemaError
from workflows.trajectory import CREDIT, EPISODES, PARTITION, REWARDS, TASKS, TURN_KEYS, TURNS, rows_to_table

REWARD_LIST = WeightedRewards(
    (WeightedReward("token_f1", 1.0, TokenF1()), WeightedReward("format", 0.5, Format()))
)
METHOD = GroupRelative("task_role", "to_go", 0.9)
SPECS = (
    PartitionSpec("solver", ranks=2, mini_batches=2, micro_batch_tokens=120, seed=5),
    PartitionSpec("planner", ranks=1, mini_batches=1, micro_batch_tokens=60, seed=5),
)
STAGES = (RewardStage(REWARD_LIST), CreditStage(METHOD), PartitionStage(SPECS, part_bytes=4000))


def play(task, sample, draw, answers=("Paris", "Rome", None), status="ok"):
    """The rows of one episode: plan, retrieve, some readers, answer."""
    group = f"00000/{task}"
    identity = {"task_id": task, "group_id": group, "sample": sample, "episode_id": f"{group}/{sample}"}
    steps = ["plan", "retrieve", *["read"] * draw.randint(0, 4), "answer"]
    turns = []
    for index, step in enumerate(steps):
        parsed = draw.choice(answers) if step == "answer" else "x"
        turn = identity | {"turn_index": index, "step": step, "role": step, "status": "ok"}
        if step == "retrieve":
            turns.append(turn | {"event": "tool", "trainable": False})
            continue
        response = [draw.randint(0, 99) for _ in range(draw.choice([0, 3, 9, 20]) if step == "read" else 5)]
        prompt = [draw.randint(0, 99) for _ in range(draw.randint(5, 40))]
        turns.append(
            turn
            | {
                "event": "llm",
                "model_id": "planner" if step == "plan" else "solver",
                "trainable": True,
                "policy_version": 1,
                "parsed": None if parsed is None else json.dumps(parsed),
                "format_valid": parsed is not None,
                "prompt_token_ids": prompt,
                "num_prompt_tokens": len(prompt),
                "response_token_ids": response,
                "behaviour_logprobs": [-0.25] * len(response),
                "sampling": json.dumps({"temperature": 0.7}),
            }
        )
    return turns, identity | {"status": status}


def store(folder, parts):
    """Parts of (tasks, turns, episodes) rows, stored."""
    sinks = [
        TableSink(n, f"{folder}/{n}", s)
        for n, s in (("tasks", TASKS), ("turns", TURNS), ("episodes", EPISODES))
    ]
    return {
        sink.name: sink.ref(
            [sink.write_part(k, rows_to_table(part[i], sink.schema)) for k, part in enumerate(parts)]
        )
        for i, sink in enumerate(sinks)
    }


def some_parts(num_parts=3, tasks_per_part=3, samples=4, **options):
    draw = random.Random(11)
    parts = []
    for k in range(num_parts):
        names = [f"t{k}{j}" for j in range(tasks_per_part)]
        plays = [
            play(name, s, draw, status=draw.choice(["ok", "ok", "ok", "timeout"]), **options)
            for name in names
            for s in range(samples)
        ]
        gold = {"inputs": "{}", "gold": json.dumps({"answers": ["Paris"]})}
        parts.append(
            (
                [{"task_id": n} | gold for n in names],
                [turn for turns, _ in plays for turn in turns],
                [episode for _, episode in plays],
            )
        )
    return parts


def run_here(tables, folder):
    """reward and credit over the parts, in this process; the results and the tables with two more."""
    rewards = TableSink("rewards", f"{folder}/rewards", REWARDS)
    receipts = [score_part(k, tables, rewards, REWARD_LIST) for k in aligned_parts(tables)]
    tables = tables | {"rewards": rewards.ref([r["part"] for r in receipts])}
    credit = TableSink("credit", f"{folder}/credit", CREDIT)
    credits = [credit_part(k, tables, credit, METHOD) for k in aligned_parts(tables)]
    tables = tables | {"credit": credit.ref([r["part"] for r in credits])}
    return reward_result(receipts), credit_result(credits), tables


def test_parts_add_up_to_the_whole_and_every_turn_is_accounted_for(tmp_path) -> None:
    tables = store(tmp_path, some_parts())
    reward, credit, tables = run_here(tables, tmp_path)
    whole = {name: table.read() for name, table in tables.items()}
    scored = score_turns(whole["tasks"], whole["turns"], whole["episodes"], REWARD_LIST)
    assert whole["rewards"].sort_by([(k, "ascending") for k in TURN_KEYS]).equals(scored)
    credited = assign_credit(whole["turns"], whole["episodes"], scored, METHOD)
    assert whole["credit"].sort_by([(k, "ascending") for k in TURN_KEYS]).equals(credited)
    for result in (reward, credit):
        (account,) = result.accounts
        account.check()
        assert account.rows_in == whole["turns"].num_rows
        assert set(account.excluded) == {"episode timeout", "not an llm turn"}
    assert credit.accounts[0].excluded == reward.accounts[0].excluded


def test_reward_metrics_weigh_episodes_equally(tmp_path) -> None:
    reward, _, tables = run_here(store(tmp_path, some_parts()), tmp_path)
    by_episode: dict[str, list[float]] = {}
    for row in tables["rewards"].read().to_pylist():
        if row["reward"] is not None:
            by_episode.setdefault(row["episode_id"], []).append(row["reward"])
    means = [sum(r) / len(r) for r in by_episode.values()]
    assert reward.metrics["reward"] == pytest.approx(sum(means) / len(means))
    assert {k.split("/")[1] for k in reward.metrics if "/" in k} == {"part", "role", "model"}
    assert {"reward/part/token_f1", "reward/role/plan", "reward/model/solver"} <= set(reward.metrics)
    assert 0 < reward.metrics["reward/part/token_f1"] < 1


def test_a_reward_that_is_the_same_for_everyone_is_said_loudly(tmp_path) -> None:
    """Fault D10: a run in which every reward is 0 looks healthy otherwise."""
    reward, credit, tables = run_here(store(tmp_path, some_parts(answers=["Rome"])), tmp_path)
    assert any("'token_f1' is 0 for all" in note for note in reward.notes)
    assert any("no signal" in note for note in credit.notes)
    assert credit.metrics["groups"] == credit.metrics["groups_without_signal"] > 0
    assert set(tables["credit"].read()["advantage"].drop_null().to_pylist()) == {0.0}


def test_the_chain_of_stages_fits_together() -> None:
    @dataclass
    class Rollout:
        name: str = "rollout"
        folder: str = "rollout"
        lease: str = "engine"
        inputs: dict = field(default_factory=dict)
        outputs: dict = field(default_factory=lambda: {"tasks": TASKS, "turns": TURNS, "episodes": EPISODES})
        places: dict = field(default_factory=dict)

    check_chain([Rollout(), *STAGES])


def test_tables_of_other_numbers_of_parts_are_refused(tmp_path) -> None:
    tables = store(tmp_path, some_parts(2))
    short = TableSink("episodes", f"{tmp_path}/short", EPISODES)
    tables["episodes"] = short.ref([short.write_part(0, EPISODES.empty_table())])
    with pytest.raises(SchemaError, match="'turns': 2, 'episodes': 1"):
        aligned_parts(tables)


def test_empty_parts_pass_through(tmp_path) -> None:
    reward, credit, tables = run_here(store(tmp_path, [([], [], [])]), tmp_path)
    assert [t.rows for t in tables.values()] == [0] * 5
    assert reward.accounts[0].rows_in == credit.accounts[0].rows_in == 0


def run_stages(tables, folder):
    results = {}
    for stage in STAGES:
        sinks = {n: TableSink(n, f"{folder}/{n}", s) for n, s in stage.outputs.items()}
        result = stage.run(tables, sinks, Context(iteration=0))
        for account in result.accounts:
            account.check()
        tables = tables | {n: sinks[n].ref(parts) for n, parts in result.parts.items()}
        results[stage.name] = result
    return results, tables


@pytest.mark.slow
def test_on_ray_data_the_stages_give_the_bits_of_the_pure_functions_twice(tmp_path, ray_cluster) -> None:
    stored = store(tmp_path, some_parts())
    _, _, expected = run_here(stored, tmp_path / "here")
    results, tables = run_stages(stored, tmp_path / "one")
    again, _ = run_stages(stored, tmp_path / "two")
    for name in ("rewards", "credit"):
        assert tables[name].parts == expected[name].parts  # names, rows, bytes and hashes
        assert tables[name].read().equals(expected[name].read())
    assert again == results
    check_partition(results["partition"], tables)


def check_partition(result, tables) -> None:
    """Exactly the usable turns of both models with their own tokens, rank by rank."""
    turns = {(r["episode_id"], r["turn_index"]): r for r in tables["turns"].read().to_pylist()}
    credit = {(r["episode_id"], r["turn_index"]): r for r in tables["credit"].read().to_pylist()}
    (account,) = result.accounts
    assert account.rows_in == len(turns)
    assert account.excluded["no response tokens"] > 0
    seen = set()
    for spec in SPECS:
        table = tables[f"partition/{spec.model_id}"]
        ranks, passes = [], []
        for k in range(len(table.parts)):
            part = table.read_part(k)
            order = part.select(["rank", "mini_batch", "micro_batch", *TURN_KEYS]).to_pylist()
            places = [tuple(row.values()) for row in order]
            assert places == sorted(places)
            ranks.append({p[0] for p in places})
            passes += sorted({p[:3] for p in places})
        assert len(passes) == len(set(passes))  # no forward pass is split over two parts
        assert all(len(of_part) <= 1 for of_part in ranks)
        assert [r for of_part in ranks for r in of_part] == sorted(r for of_part in ranks for r in of_part)
        for row in table.read().to_pylist():
            key = (row["episode_id"], row["turn_index"])
            assert key not in seen
            seen.add(key)
            assert row["model_id"] == turns[key]["model_id"] == spec.model_id
            for column in ("prompt_token_ids", "response_token_ids", "behaviour_logprobs", "policy_version"):
                assert row[column] == turns[key][column]
            assert (row["return"], row["advantage"]) == (credit[key]["return"], credit[key]["advantage"])
    usable = {k for k, row in credit.items() if row["excluded"] is None and turns[k]["response_token_ids"]}
    assert seen == usable
    assert len(tables["partition/solver"].parts) >= 4  # a rank's rows went to several parts


@pytest.mark.slow
def test_nothing_usable_fails_with_the_causes_and_one_idle_model_does_not(tmp_path, ray_cluster) -> None:
    parts = some_parts(1, 1, 2)
    for turn in parts[0][1]:
        if turn["step"] == "plan":
            turn["response_token_ids"], turn["behaviour_logprobs"] = [], []
    for episode in parts[0][2]:
        episode["status"] = "ok"
    stored = store(tmp_path, parts)
    results, tables = run_stages(stored, tmp_path / "one")
    idle = tables["partition/planner"]
    assert (len(idle.parts), idle.rows) == (1, 0)
    assert idle.read().schema == PARTITION
    assert any("'planner' has no usable turn" in note for note in results["partition"].notes)

    broken = stored | {
        "tasks": store(tmp_path / "broken", [([t | {"gold": "{}"} for t in parts[0][0]], [], [])])["tasks"]
    }
    with pytest.raises(
        RunFailed, match=r"nothing to train on: .* × reward 'token_f1' failed: ValueError: gold has no"
    ):
        run_stages(broken, tmp_path / "broken")
