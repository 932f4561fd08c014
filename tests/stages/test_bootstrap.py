"""What a limit cut off is worth the critic's value: which turns those are, and what the value is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from pipeline.metrics.iteration import measured_by_stages
from stages.advantage import AdvantageStage
from stages.base import Context, check_chain
from stages.score import ScoreStage
from stages.tables.parquet import TableRef, TableSink
from stages.token_advantages.bootstrap import cut_off
from stages.token_advantages.gae import Gae
from stages.token_advantages.spec import TokenSpec
from stages.training.loss.spec import CriticSpec
from stages.training.network.packing import pack
from tests.stages.test_score_advantage_stages import found_in, here, stored
from tests.support.tiny_training import SMOOTH, partition, token_advantages
from workflows.errors import UsageError
from workflows.trajectory import EPISODES, PARTITION, SCORES, TURN_KEYS, TURNS, rows_to_table

__all__ = ["here"]

# episode, turn, status of the turn, stop reason of the episode
PLAYED = [
    ("over", 0, "ok", "finished"),
    ("over", 1, "truncated", "finished"),
    ("inside", 0, "truncated", "finished"),
    ("inside", 1, "ok", "finished"),
    ("long", 0, "ok", "max_turns"),
    ("long", 1, "malformed", "max_turns"),
    ("full", 0, "ok", "prompt_too_long"),
    ("loop", 0, "ok", "loop_limit"),
]


def frames() -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    turns = pl.DataFrame(
        [(e, t, s) for e, t, s, _ in PLAYED], schema=["episode_id", "turn_index", "status"], orient="row"
    )
    turns = turns.with_columns(pl.col("turn_index").cast(pl.Int32))
    episodes = pl.DataFrame(
        list({e: (e, r) for e, _, _, r in PLAYED}.values()),
        schema=["episode_id", "stop_reason"],
        orient="row",
    )
    return turns.select(TURN_KEYS), turns, episodes


def test_without_turns_after_it_a_reply_that_was_cut_off_is_what_counts() -> None:
    assert cut_off(*frames(), across_turns=False) == {("over", 1), ("inside", 0)}


def test_across_turns_it_is_the_last_turn_of_an_episode_that_a_limit_ended() -> None:
    """A truncated reply that another turn follows was not the end; a loop at its limit was played on."""
    assert cut_off(*frames(), across_turns=True) == {("over", 1), ("long", 1), ("full", 0)}


def test_the_last_turn_is_the_last_one_that_is_trained() -> None:
    keys, turns, episodes = frames()
    trained = keys.filter(~((pl.col("episode_id") == "long") & (pl.col("turn_index") == 1)))
    assert ("long", 0) in cut_off(trained, turns, episodes, across_turns=True)


class Valued:
    """Scores of a trainer group whose every value is 0.5, and 4 after what was cut off."""

    def score(
        self,
        partition: TableRef,
        sink: TableSink,
        needs: frozenset[str],
        on_progress: Any,
        off_policy: bool,
        bootstrap: Any,
    ) -> list[Any]:
        parts = []
        for index in range(len(partition.parts)):
            rows = [
                {
                    **{key: row[key] for key in TURN_KEYS},
                    "values": [0.5] * len(row["response_token_ids"]),
                    "bootstrap_value": 4.0 if (row["episode_id"], row["turn_index"]) in bootstrap else None,
                }
                for row in partition.read_part(index).to_pylist()
            ]
            parts.append(sink.write_part(index, rows_to_table(rows, SCORES)))
        return parts


class Fleet:
    def trainer(self, model_id: str) -> Valued:
        return Valued()


def plays(folder: Path) -> dict[str, TableRef]:
    """PLAYED as tables, its turns spoken by two models in turn, two tokens each, reward 1."""
    rows = [
        {
            "episode_id": e,
            "turn_index": t,
            "model_id": "ab"[t % 2],
            "role": "r",
            "response_token_ids": [1, 2],
            "behaviour_logprobs": [0.0, 0.0],
            "reward": 1.0,
        }
        for e, t, _, _ in PLAYED
    ]
    turns = [{"episode_id": e, "turn_index": t, "status": s} for e, t, s, _ in PLAYED]
    episodes = [{"episode_id": e, "stop_reason": r} for e, r in {e: r for e, _, _, r in PLAYED}.items()]
    tables = stored(folder, rows, schema=PARTITION)
    for name, schema, of in (("turns", TURNS, turns), ("episodes", EPISODES, episodes)):
        sink = TableSink(name, str(folder / name), schema)
        tables[name] = sink.ref([sink.write_part(0, rows_to_table(of, schema))])
    return tables


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("across_turns", [False, True])
def test_advantages_by_hand(tmp_path: Path, across_turns: bool) -> None:
    """With all factors 1 but the discount from turn to turn: what came after counts at 0.5."""
    gae = Gae(turn_gamma=0.5, across_turns=across_turns)
    specs = tuple(TokenSpec(m, use="gae", gae=gae, bootstrap=True) for m in "ab")
    tables, metrics = plays(tmp_path), {}
    stages = [*(ScoreStage(spec.model_id, spec.needs) for spec in specs), AdvantageStage(specs)]
    check_chain(stages, {name: table.schema for name, table in tables.items()})
    for stage in stages:
        sinks = {n: TableSink(n, f"{tmp_path}/{n}", s) for n, s in stage.outputs.items()}
        result = stage.run({n: tables[n] for n in stage.inputs}, sinks, Context(iteration=0, fleet=Fleet()))
        tables |= {n: sinks[n].ref(parts) for n, parts in result.parts.items()}
        metrics[stage.name] = result.metrics
    found = {key: row["returns"][0] for key, row in found_in(tables).items()}
    if across_turns:
        ends = {"over": 1 + 0.5 * 4, "inside": 1.0, "long": 1 + 0.5 * 4, "full": 1 + 0.5 * 4, "loop": 1.0}
        last = {e: t for e, t, _, _ in PLAYED}
        expected = {(e, t): ends[e] if t == last[e] else 1 + 0.5 * ends[e] for e, t, _, _ in PLAYED}
    else:
        expected = {(e, t): 1 + (0.5 * 4 if s == "truncated" else 0) for e, t, s, _ in PLAYED}
    assert found == pytest.approx(expected)
    logged = measured_by_stages(metrics)
    # a model is asked at the last of its own rows: at "inside" too, after which the other model speaks
    counted = [logged[f"model/{m}/rows_bootstrapped"] for m in "ab"]
    assert counted == ([3, 2] if across_turns else [1, 1])


def test_it_is_a_need_of_its_own_so_that_stored_scores_without_it_are_not_taken() -> None:
    assert TokenSpec("a", use="gae").needs == {"values"}
    assert TokenSpec("a", use="gae", bootstrap=True).needs == {"values", "bootstrap_turns"}
    across = TokenSpec("a", use="gae", gae=Gae(across_turns=True), bootstrap=True)
    assert across.needs == {"values", "bootstrap_episodes"}
    with pytest.raises(UsageError, match=r"bootstrap needs a critic's values"):
        TokenSpec("a", bootstrap=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["head", "model"])
def test_the_value_is_that_of_the_state_after_the_last_token(start: Any, tmp_path: Path, kind: str) -> None:
    """It is the value at the first token of a row whose prompt is all that was said."""
    critic = CriticSpec(kind=kind, learning_rate=0.02, value_clip=None, coefficient=1.0)  # type: ignore[arg-type]
    cut = frozenset({("e1", 0), ("e4", 0)})
    for shared_prefix in (True, False):
        worker = start(**{**SMOOTH, "critic": critic, "shared_prefix": shared_prefix})
        folder = tmp_path / f"{kind}-{shared_prefix}"
        worker.update(
            partition(folder / "p0"), 0, token_advantages(folder / "a0", [1.0] * 6, returns=[1.0] * 6)
        )
        ref = partition(folder / "p1", version=1, cut=(0, 1, 0, 1, 2, 2))
        sink = TableSink("scores/m", str(folder / "s"), SCORES)
        needs = frozenset({"values", "bootstrap_turns"})
        parts = worker.score(ref, sink, needs, bootstrap=cut)
        rows = {r["episode_id"]: r for r in sink.ref([parts[k] for k in range(2)]).read().to_pylist()}
        assert {e for e, row in rows.items() if row["bootstrap_value"] is not None} == {"e1", "e4"}
        for row in ref.read().to_pylist():
            scored = rows[row["episode_id"]]
            assert len(scored["values"]) == len(row["response_token_ids"])
            if (row["episode_id"], 0) in cut:
                expected = value_after(worker.unit, row)
                assert scored["bootstrap_value"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
                assert expected != 0
        plain = worker.score(ref, TableSink("scores/m", str(folder / "t"), SCORES), frozenset({"values"}))
        again = TableSink("scores/m", str(folder / "t"), SCORES).ref([plain[k] for k in range(2)])
        values = {r["episode_id"]: r["values"] for r in again.read().to_pylist()}
        assert values == {e: row["values"] for e, row in rows.items()}  # bit for bit


def value_after(unit: Any, row: dict[str, Any]) -> float:
    """The value at the first token of a row of its own whose prompt is the whole sequence."""
    said = [*row["prompt_token_ids"], *row["response_token_ids"]]
    one = {**row, "prompt_token_ids": said, "response_token_ids": [3], "behaviour_logprobs": [0.0]}
    batch = pack(rows_to_table([one], PARTITION), packed=unit.spec.shared_prefix)
    with torch.no_grad():
        _, _, hidden = unit.policy(batch)
        return float(unit.critic.values(batch, hidden)[0])
