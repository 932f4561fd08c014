"""score and advantage as stages: aligned parts, every row accounted for, the same bits every time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stages.advantage
import stages.credit
from pipeline.metrics.iteration import measured_by_stages
from rewards.credit.running_baseline import RunningBaseline
from stages.advantage import AdvantageStage
from stages.base import Context, check_chain
from stages.credit import CreditStage
from stages.score import ScoreStage
from stages.tables.parquet import TableRef, TableSink
from stages.token_advantages.gae import Gae
from stages.token_advantages.importance import Importance
from stages.token_advantages.spec import RewardKl, TokenSpec
from workflows.errors import SchemaError, UsageError
from workflows.trajectory import (
    BASELINES,
    EPISODES,
    PARTITION,
    REWARDS,
    SCORES,
    TOKEN_ADVANTAGES,
    TURN_KEYS,
    TURNS,
    rows_to_table,
)

METHOD = Gae(gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.6, across_turns=True)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts one after the other in this process, instead of on Ray Data."""

    def in_order(
        work: Callable[..., Any], indices: Any, *, on_done: Any = None, brief: bool = False, **arguments: Any
    ) -> list[Any]:
        receipts = [work(index, **arguments) for index in indices]
        for receipt in receipts:
            if on_done:
                on_done(receipt)
        return receipts

    monkeypatch.setattr(stages.advantage, "map_parts", in_order)
    monkeypatch.setattr(stages.credit, "map_parts", in_order)


class Trainer:
    """What a score stage asks of a trainer group: numbers that depend on the row alone."""

    def score(
        self,
        partition: TableRef,
        sink: TableSink,
        needs: frozenset[str],
        on_progress: Any,
        off_policy: bool = False,
    ) -> list[Any]:
        parts = []
        for index in range(len(partition.parts)):
            rows = partition.read_part(index).to_pylist()
            parts.append(sink.write_part(index, rows_to_table([self.of(r) for r in rows], SCORES)))
            on_progress(len(rows), sum(len(r["response_token_ids"]) for r in rows))
        return parts

    def of(self, row: dict[str, Any]) -> dict[str, Any]:
        draw = np.random.default_rng([row["turn_index"], len(row["episode_id"]), *row["response_token_ids"]])
        numbers = {c: draw.normal(size=len(row["response_token_ids"])) for c in ("values", "old_logprobs")}
        return (
            {k: row[k] for k in TURN_KEYS} | numbers | {"reference_logprobs": numbers["old_logprobs"] - 0.5}
        )


class Fleet:
    def trainer(self, model_id: str) -> Trainer:
        return Trainer()


def play(seed=0, episodes=6):
    """Rows of episodes whose turns two models speak in turn, and some that can't be used."""
    draw = np.random.default_rng(seed)
    rows = []
    for episode in range(episodes):
        for turn in range(int(draw.integers(1, 6))):
            tokens = int(draw.integers(1, 5))
            rows.append(
                {
                    "episode_id": f"00000/t{episode // 2}/{episode % 2}",
                    "turn_index": 2 * turn,  # between them, turns that are not trained
                    "model_id": "ab"[turn % 2],
                    "role": "xyz"[turn % 3],
                    "response_token_ids": draw.integers(0, 99, tokens).tolist(),
                    "behaviour_logprobs": draw.normal(size=tokens).tolist(),
                    "advantage": float(draw.normal()),
                    "reward": float(draw.normal()),
                }
            )
    return rows


def stored(folder, rows, parts=2, schema=PARTITION, kind="partition"):
    tables = {}
    for model in "ab":
        mine = [r for r in rows if r["model_id"] == model]
        sink = TableSink(f"{kind}/{model}", f"{folder}/{kind}/{model}", schema)
        tables[sink.name] = sink.ref(
            [sink.write_part(k, rows_to_table(mine[k::parts], schema)) for k in range(parts)]
        )
    return tables


def run(stage, tables, folder, iteration=0):
    sinks = {n: TableSink(n, f"{folder}/{n}", s) for n, s in stage.outputs.items()}
    result = stage.run(
        {n: tables[n] for n in stage.inputs}, sinks, Context(iteration=iteration, fleet=Fleet())
    )
    for account in result.accounts:
        account.check()
    return result, tables | {n: sinks[n].ref(parts) for n, parts in result.parts.items()}


def scored(folder, rows, needs=frozenset({"values", "old", "reference"}), **options):
    tables = stored(folder, rows, **options)
    for model in "ab":
        _, tables = run(ScoreStage(model, needs), tables, folder)
    return tables


def specs(**options):
    return tuple(TokenSpec(model, **options) for model in "ab")


def found_in(tables):
    return {
        (r["episode_id"], r["turn_index"]): r
        for model in "ab"
        for r in tables[f"token_advantages/{model}"].read().to_pylist()
    }


def by_loop(rows, penalty=0.0):
    """Advantages of every turn, from each episode's end."""
    out = {}
    for episode in sorted({r["episode_id"] for r in rows}):
        value, advantage = 0.0, 0.0
        for row in sorted((r for r in rows if r["episode_id"] == episode), key=lambda r: -r["turn_index"]):
            values = np.float32(Trainer().of(row)["values"]).astype(float)
            its: list[float] = []
            for k in reversed(range(len(values))):
                last = k == len(values) - 1
                gamma, lam = (METHOD.turn_gamma, METHOD.turn_lam) if last else (METHOD.gamma, METHOD.lam)
                reward = (row["reward"] if last else 0.0) - penalty
                advantage = reward + gamma * value - values[k] + gamma * lam * advantage
                value = values[k]
                its.insert(0, advantage)
            out[episode, row["turn_index"]] = its
    return out


@pytest.mark.parametrize("parts", [1, 3])
def test_an_episode_is_chained_over_the_tables_of_two_models(tmp_path, here, parts) -> None:
    rows = play()
    tables = scored(tmp_path, rows, parts=parts)
    kl = RewardKl(0.2)  # the reference is 0.5 nats below everywhere
    result, tables = run(AdvantageStage(specs(use="gae", gae=METHOD, reward_kl=kl)), tables, tmp_path)
    found = found_in(tables)
    expected = by_loop(rows, penalty=0.1)
    assert found.keys() == expected.keys()
    for key, row in found.items():
        assert row["advantages"] == pytest.approx(expected[key], abs=1e-5)
        values = Trainer().of(next(r for r in rows if (r["episode_id"], r["turn_index"]) == key))["values"]
        assert row["returns"] == pytest.approx(np.array(expected[key]) + values, abs=1e-5)
    assert result.metrics["kl_reference_mean/a"] == pytest.approx(0.5, abs=1e-6)
    assert {"explained_variance/b", "advantage_mean/a", "advantage_std/b"} <= set(result.metrics)
    logged = measured_by_stages({"advantage": result.metrics, "credit": {"baseline/x": 2.0, "groups": 1.0}})
    assert logged["model/a/token_kl_reference_mean"] == pytest.approx(0.5, abs=1e-6)
    assert logged["role/x/baseline"] == 2


def test_parts_have_the_rows_of_the_partitions_parts_in_their_order(tmp_path, here) -> None:
    rows = play()
    rows[0]["advantage"] = rows[3]["advantage"] = None
    tables = scored(tmp_path, rows)
    result, tables = run(AdvantageStage(specs(whiten="role")), tables, tmp_path)
    for model in "ab":
        for kind in ("scores", "token_advantages"):
            for k in range(2):
                keys = [tables[f"{t}/{model}"].read_part(k, TURN_KEYS) for t in ("partition", kind)]
                assert keys[0].equals(keys[1])
    (account,) = result.accounts
    assert (account.rows_in, account.excluded) == (len(rows), {"no advantage": 2})


@pytest.mark.parametrize("whiten", ["model", "role"])
def test_whitening_is_over_all_parts_and_the_cut_into_parts_does_not_matter(tmp_path, here, whiten) -> None:
    rows = play(episodes=12)
    found = []
    for parts in (1, 4):
        tables = scored(tmp_path / str(parts), rows, parts=parts)
        _, tables = run(AdvantageStage(specs(whiten=whiten)), tables, tmp_path / str(parts))
        found.append(found_in(tables))
        groups: dict[Any, list[float]] = {}
        for row in rows:
            key = (row["model_id"], row["role"] if whiten == "role" else "")
            groups.setdefault(key, []).extend(found[-1][row["episode_id"], row["turn_index"]]["advantages"])
        for values in groups.values():
            if len(set(values)) > 1:
                assert np.mean(values) == pytest.approx(0, abs=1e-5)
                assert np.std(values, ddof=1) == pytest.approx(1, abs=1e-4)
    for key, row in found[0].items():
        assert row["advantages"] == pytest.approx(found[1][key]["advantages"], abs=1e-5)


def test_importance_weights_come_from_the_stored_scores(tmp_path, here) -> None:
    rows = play()
    tables = scored(tmp_path, rows, needs=frozenset({"old"}))
    stage = AdvantageStage(specs(importance=Importance("truncated", cap=1.5)))
    assert set(stage.inputs) == {"partition/a", "partition/b", "scores/a", "scores/b"}
    result, tables = run(stage, tables, tmp_path)
    found = found_in(tables)
    for row in rows:
        gap = np.float32(Trainer().of(row)["old_logprobs"]) - np.float32(row["behaviour_logprobs"])
        expected = np.minimum(np.exp(gap), 1.5)
        assert found[row["episode_id"], row["turn_index"]]["importance_weights"] == pytest.approx(
            expected, rel=1e-5
        )
    ratios = [
        np.exp(np.float32(Trainer().of(row)["old_logprobs"]) - np.float32(row["behaviour_logprobs"]))
        for row in rows
        if row["model_id"] == "a"
    ]
    before_the_cut = np.concatenate(ratios)
    assert result.metrics["importance_weight_mean/a"] == pytest.approx(before_the_cut.mean(), rel=1e-4)
    assert result.metrics["importance_weight_max/a"] == pytest.approx(before_the_cut.max(), rel=1e-4)


def test_without_scores_the_stage_asks_for_none_and_says_when_nothing_is_learned(tmp_path, here) -> None:
    rows = [r | {"advantage": 0.0} for r in play()]
    stage = AdvantageStage(specs(whiten="model"))
    assert set(stage.inputs) == {"partition/a", "partition/b"}
    result, _ = run(stage, stored(tmp_path, rows), tmp_path)
    assert [n.split("of")[0] for n in result.notes] == ["no signal: every token advantage "] * 2


def test_only_turns_of_weight_are_imitated(tmp_path, here) -> None:
    rows = [r | {"advantage": float(k % 2)} for k, r in enumerate(play())]
    result, tables = run(AdvantageStage(specs(imitate=True)), stored(tmp_path, rows), tmp_path)
    kept = [r for r in found_in(tables).values() if r["excluded"] is None]
    assert len(kept) == sum(r["advantage"] for r in rows)
    assert all(set(r["advantages"]) == {1.0} for r in kept)
    assert result.accounts[0].excluded == {"weight 0: nothing to imitate": len(rows) - len(kept)}


def test_scores_of_another_cut_are_refused(tmp_path, here) -> None:
    tables = scored(tmp_path, play(), parts=2)
    other = scored(tmp_path / "other", play(), parts=3)
    with pytest.raises(SchemaError, match="different numbers of parts"):
        run(
            AdvantageStage(specs(use="gae")),
            tables | {k: v for k, v in other.items() if "scores" in k},
            tmp_path,
        )


def test_the_stages_fit_into_a_chain() -> None:
    class Partition:
        name, folder, lease = "partition", "partition", "none"
        inputs: dict[str, Any] = {}  # noqa: RUF012
        outputs = {"partition/a": PARTITION, "partition/b": PARTITION}  # noqa: RUF012
        places: dict[str, str] = {}  # noqa: RUF012

    score = [ScoreStage(m, frozenset({"values"})) for m in "ab"]
    advantage = AdvantageStage(specs(use="gae"))
    check_chain([Partition(), *score, advantage])
    with pytest.raises(UsageError, match="reads table 'scores/b'"):
        check_chain([Partition(), score[0], advantage])
    assert advantage.outputs == dict.fromkeys(("token_advantages/a", "token_advantages/b"), TOKEN_ADVANTAGES)
    with pytest.raises(UsageError, match="needs no scores"):
        ScoreStage("a", frozenset())
    with pytest.raises(UsageError, match="same discounts"):
        AdvantageStage((TokenSpec("a", use="gae"), TokenSpec("b", use="gae", gae=Gae(0.5))))


@pytest.mark.slow
def test_on_ray_data_the_stage_gives_the_same_bits_as_in_this_process(
    tmp_path, ray_cluster, monkeypatch, request
) -> None:
    tables = scored(tmp_path, play(episodes=8))
    stage = AdvantageStage(specs(use="gae", gae=METHOD, whiten="role", importance=Importance("masked")))
    on_ray, _ = run(stage, tables, tmp_path / "ray")
    request.getfixturevalue("here")
    in_process, _ = run(stage, tables, tmp_path / "here")
    assert on_ray == in_process  # parts with their hashes, accounts, metrics


# Baselines that outlive an iteration.


def rewarded(folder, rewards, parts=2):
    """turns, episodes, rewards of one iteration, an episode of one turn for each reward."""
    keys = [{"episode_id": f"00000/t/{s}", "turn_index": 0, "role": "r"} for s in range(len(rewards))]
    episodes = [{"episode_id": k["episode_id"], "group_id": "00000/t"} for k in keys]
    values = [
        {"episode_id": k["episode_id"], "turn_index": 0, "reward": r}
        for k, r in zip(keys, rewards, strict=True)
    ]
    tables = {}
    for name, schema, rows in (
        ("turns", TURNS, keys),
        ("episodes", EPISODES, episodes),
        ("rewards", REWARDS, values),
    ):
        sink = TableSink(name, f"{folder}/{name}", schema)
        tables[name] = sink.ref(
            [sink.write_part(k, rows_to_table(rows[k::parts], schema)) for k in range(parts)]
        )
    return tables


def test_baselines_pass_from_one_iteration_to_the_next_as_a_table(tmp_path, here) -> None:
    """Fault K16."""
    stage = CreditStage(RunningBaseline("ema", decay=0.5))
    check_chain([stage_of(rewarded(tmp_path / "x", [1.0])), stage])
    before = TableRef("baselines", "", BASELINES, ())
    for iteration, (rewards, baseline, after) in enumerate(
        [([1.0, 3.0], 2.0, 2.0), ([4.0, 8.0], 2.0, 4.0), ([4.0], 4.0, 4.0)]
    ):
        folder = tmp_path / str(iteration)
        tables = rewarded(folder, rewards) | {"baselines_before": before}
        result, tables = run(stage, tables, folder, iteration)
        credit = tables["credit"].read().sort_by("episode_id")
        assert credit["advantage"].to_pylist() == [r - baseline for r in rewards]
        before = tables["baselines"]
        assert before.read().to_pylist()[0]["mean"] == after == result.metrics["baseline/r"]
        again, _ = run(stage, tables, tmp_path / f"{iteration}-again", iteration)
        assert again.parts == result.parts


def stage_of(tables):
    class Rollout:
        name, folder, lease = "rollout", "rollout", "engine"
        inputs: dict[str, Any] = {}  # noqa: RUF012
        outputs = {name: table.schema for name, table in tables.items()}  # noqa: RUF012
        places: dict[str, str] = {}  # noqa: RUF012

    return Rollout()
