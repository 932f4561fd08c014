"""Replays over stored runs: the same numbers where nothing changed, the right ones where something did,
and a source that stays as it is."""

from __future__ import annotations

import hashlib
import io
import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from pipeline.replays.command import BRIEF_SECONDS
from pipeline.replays.movement import _added, _row, part_sums
from pipeline.replays.plan import ReplayPlan, replay_plan
from pipeline.replays.replayer import Replayed, replay
from pipeline.replays.settings import overridden
from pipeline.replays.source import Source
from pipeline.replays.verify import unequal_tables
from pipeline.run.execution import run_stages
from pipeline.store.run import Run
from pipeline.views.progress import RichProgress
from rewards.credit.rloo import Rloo
from rewards.f1_by_round import F1ByRound
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from stages.base import Quiet, StageResult
from stages.stored_scores import align_part
from stages.tables.parquet import TableRef, TableSink
from tests.support.stored_runs import Made, Shape, settings_of, write_iterations, write_rollout
from tests.support.tables import assign_credit
from workflows.errors import RunFailed, UsageError
from workflows.trajectory import BASELINES, CREDIT, PARTITION, SCORES, TURN_KEYS, TURNS, rows_to_table

SMALL = Shape(turns=96, group_size=4, tasks_per_part=1)  # two parts
GAE = {"advantage": {"use": "gae", "lam": 0.9}, "critic": {"kind": "head"}, "credit": {"use": "none"}}
BASELINE = {"credit": {"use": "running_baseline"}}
MANY_WORDS = 'rewards.0.options={malformed="zero"}'  # another reward for the turns without their format


def plan_of(run: Run, *overrides: str, split: str | None = None, **options: Any) -> ReplayPlan:
    return replay_plan(Source(run, split), overridden(run, overrides), **options)


def replayed(run: Run, *overrides: str, span: str | None = None, **options: Any) -> Replayed:
    plan = plan_of(run, *overrides, **options)
    return replay(plan, plan.source.chosen(span), Quiet())


def stored_run(root: Path, count: int = 2, **changes: Any) -> Run:
    """A run whose pure stages have run too, as the runner runs them, with a critic's scores if it has one."""
    run, _ = write_iterations(settings_of(str(root), **changes), SMALL, count)
    plan, carried = plan_of(run), {}
    for index in range(count):
        place = run.iteration(index)
        tables = dict(place.tables()[0])
        if "running_baseline" in str(changes):
            tables["baselines_before"] = carried.get("baselines") or TableRef("baselines", "", BASELINES, ())
        pure = [s for s in plan.stages if s.name in ("reward", "credit", "partition")]
        done = run_stages(pure, place, plan.fingerprints, what="", progress=Quiet(), tables=tables)
        carried = done.tables
        if plan.stages[-1].name == "advantage":
            scores = write_scores(run, index, done.tables["partition/team"])
            run_stages(
                plan.stages[-1:],
                place,
                plan.fingerprints,
                what="",
                progress=Quiet(),
                tables={**done.tables, "scores/team": scores},
            )
    return run


def write_scores(run: Run, index: int, partition: TableRef) -> TableRef:
    """Values as a critic's forward pass would leave them; they depend on the row alone."""
    stage = Made("score/team", "scores/team", {"scores/team": SCORES}, {"scores/team": ""})
    place = run.iteration(index)
    sink = place.sinks(stage)["scores/team"]  # type: ignore[arg-type]
    parts = [sink.write_part(k, scores_of(partition.read_part(k))) for k in range(len(partition.parts))]
    place.commit(stage, StageResult({"scores/team": parts}), {"needs": ["old", "values"]}, {}, 0.0)  # type: ignore[arg-type]
    return sink.ref(parts)


def scores_of(partition: pa.Table) -> pa.Table:
    rows = []
    for row in partition.select([*TURN_KEYS, "response_token_ids"]).to_pylist():
        draw = random.Random(f"{row['episode_id']}/{row['turn_index']}")
        values = [draw.random() for _ in row.pop("response_token_ids")]
        rows.append(row | {"scored_version": 0, "values": values, "old_logprobs": [-0.5] * len(values)})
    return rows_to_table(rows, SCORES)


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file of a run but for its replays."""
    files = sorted(
        p for p in folder.rglob("*") if p.is_file() and "replays" not in p.relative_to(folder).parts
    )
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def keyed(table: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(table).sort(TURN_KEYS)


# --- without Ray ------------------------------------------------------------------------------------


def credit_table(folder: Path, name: str, advantages: list[float | None]) -> TableRef:
    rows = [
        {
            "episode_id": f"e{i}",
            "turn_index": 0,
            "return": a,
            "advantage": a,
            "excluded": None if a else "why",
        }
        for i, a in enumerate(advantages)
    ]
    sink = TableSink("credit", str(folder / name), CREDIT)
    return sink.ref([sink.write_part(0, rows_to_table(rows, CREDIT))])


def test_movement_knows_the_same_the_opposite_and_the_unrelated(tmp_path: Path) -> None:
    numbers = [0.5, -0.25, 1.0, -2.0, None]
    turns = TableSink("turns", str(tmp_path / "turns"), TURNS)
    rows = [{"episode_id": f"e{i}", "turn_index": 0, "role": "r"} for i in range(5)]
    ref = turns.ref([turns.write_part(0, rows_to_table(rows, TURNS))])
    before = credit_table(tmp_path, "before", numbers)

    def moved(after: list[float | None], stored: TableRef | None = before) -> dict[str, Any]:
        sums = part_sums(0, ref, stored, credit_table(tmp_path, "after", after))["sums"]
        (row,) = (_row(s, None) for s in _added([sums]).iter_rows(named=True))
        return row

    same = moved(numbers)
    assert (same["turns_before"], same["turns_after"], same["same_sign"]) == (4, 4, 1.0)
    assert same["correlation"] == pytest.approx(1.0)
    assert same["return_before"] == same["return_after"] == pytest.approx(sum(numbers[:4]) / 4)  # type: ignore[arg-type]
    opposite = moved([None if n is None else -n for n in numbers])
    assert opposite["same_sign"] == 0.0
    assert opposite["correlation"] == pytest.approx(-1.0)
    assert moved([2.0] * 5)["correlation"] is None  # what does not vary has no correlation
    assert moved([2.0] * 5)["turns_after"] == 5
    assert moved(numbers, None)["return_before"] is None


def test_tables_are_compared_by_value_where_their_bytes_differ(tmp_path: Path) -> None:
    first = credit_table(tmp_path, "one", [0.5, None, 2.0])
    assert unequal_tables(first, credit_table(tmp_path, "two", [0.5, None, 2.0])) is None
    import pyarrow.parquet as pq

    part = first.parts[0]
    other = tmp_path / "three" / part.name
    other.parent.mkdir()
    pq.write_table(first.read(), other, compression="none")
    parts = (type(part)(part.name, part.rows, other.stat().st_size, "another"),)
    assert unequal_tables(first, TableRef("credit", str(other.parent), CREDIT, parts)) is None
    problem = unequal_tables(first, credit_table(tmp_path, "four", [0.5, None, 2.0000000000000004]))
    assert problem is not None
    assert "'return' differs in 1 rows" in problem
    assert "2.0000000000000004" in problem


def test_stored_scores_follow_their_rows_into_another_layout(tmp_path: Path) -> None:
    rows = [
        {"episode_id": f"e{i % 5}", "turn_index": i, "response_token_ids": [7] * (1 + i % 3)}
        for i in range(40)
    ]
    partition = TableSink("partition/team", str(tmp_path / "p"), PARTITION)
    stored = TableSink("scores/team", str(tmp_path / "s"), SCORES)
    draw = random.Random(5)
    cut = draw.sample(rows, 30)
    new = partition.ref([partition.write_part(k, rows_to_table(cut[k::2], PARTITION)) for k in range(2)])
    old = stored.ref(
        [stored.write_part(k, scores_of(rows_to_table(rows[k::3], PARTITION))) for k in range(3)]
    )
    sink = TableSink("scores/team", str(tmp_path / "out"), SCORES)
    for k in range(2):
        written = TableRef("s", sink.folder, SCORES, (align_part(k, new, old, sink)["part"],)).read()
        assert written.equals(scores_of(new.read_part(k)))
    few = stored.ref(old.parts[:2])
    with pytest.raises(UsageError, match="have no stored scores"):
        align_part(0, new, few, sink)


# --- on Ray ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Run:
    return stored_run(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def gae_run(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Run:
    return stored_run(tmp_path_factory.mktemp("gae"), 1, **GAE)


@pytest.mark.slow
def test_nothing_changed_is_nothing_to_run(run: Run) -> None:
    before = fingerprint(Path(run.folder.path))
    result = replayed(run)
    assert result.done == {}
    assert not run.folder.child("replays").names()
    assert fingerprint(Path(run.folder.path)) == before


@pytest.mark.slow
def test_all_stages_again_give_the_stored_bits_and_a_changed_number_is_found(run: Run, gae_run: Run) -> None:
    for each, tables in ((run, 2 * 3), (gae_run, 5)):
        before = fingerprint(Path(each.folder.path))
        result = replayed(each, again=True)
        assert result.verified == tables
        for index, done in result.done.items():
            stored, _ = each.iteration(index).tables()
            for name, table in done.tables.items():
                if name in stored:
                    assert table.read().equals(stored[name].read()), name
        assert fingerprint(Path(each.folder.path)) == before


@pytest.mark.slow
def test_a_stored_number_that_is_not_what_its_settings_give_is_found(tmp_path: Path, run: Run) -> None:
    bent = stored_run(tmp_path, 1)
    place = bent.iteration(0)
    manifest = json.loads(place.folder.read_text("credit/manifest.json") or "")
    table = place.tables()[0]["credit"]
    rows = table.read_part(0).to_pylist()
    next(row for row in rows if row["return"] is not None)["return"] += 1e-12
    sink = TableSink("credit", table.folder, CREDIT)
    manifest["tables"]["credit"][0] = sink.write_part(0, rows_to_table(rows, CREDIT)).as_dict()
    place.folder.write_text("credit/manifest.json", json.dumps(manifest))
    with pytest.raises(RunFailed, match=r"'credit' is not as it is stored.*'return' differs in 1 rows"):
        replayed(bent, again=True, until="credit")


@pytest.mark.slow
def test_other_credit_gives_what_the_method_gives_and_reads_the_stored_rewards(run: Run) -> None:
    before = fingerprint(Path(run.folder.path))
    result = replayed(run, "credit.use=rloo", span="1:2")
    assert list(result.done) == [1]
    assert result.ran == ["credit", "partition"]
    stored, _ = run.iteration(1).tables()
    expected = assign_credit(*(stored[n].read() for n in ("turns", "episodes", "rewards")), Rloo("task_role"))
    assert keyed(result.done[1].tables["credit"].read()).equals(keyed(expected))
    assert result.done[1].tables["rewards"].folder == stored["rewards"].folder
    source = json.loads(result.plan.place(1).folder.read_text("source.json") or "")
    assert source["rewards"]["folder"] == stored["rewards"].folder
    assert fingerprint(Path(run.folder.path)) == before
    partition = keyed(result.done[1].tables["partition/team"].read())
    joined = partition.join(keyed(expected), on=TURN_KEYS)
    assert joined.height == partition.height > 0
    assert joined["advantage"].equals(joined["advantage_right"], check_names=False)


@pytest.mark.slow
def test_other_rewards_give_what_they_give_and_everything_after_them(run: Run) -> None:
    result = replayed(run, MANY_WORDS, "rewards.0.weight=2", until="credit")
    assert result.ran == ["reward", "credit"]
    reward = WeightedRewards((WeightedReward("f1_by_round", 2.0, F1ByRound(malformed="zero")),))
    for index in (0, 1):
        stored, _ = run.iteration(index).tables()
        tables = (stored[n].read() for n in ("tasks", "turns", "episodes"))
        assert keyed(result.done[index].tables["rewards"].read()).equals(keyed(score_turns(*tables, reward)))
    roles = {row["role"]: row for row in result.movement.rows()}
    assert set(roles) == {"planner", "answerer", "searcher", "summariser", "updater"}
    assert all(row["turns_before"] == row["turns_after"] for row in roles.values())
    assert roles["planner"]["return_before"] != roles["planner"]["return_after"]


@pytest.mark.slow
def test_progress_is_one_line_an_iteration_that_names_it(run: Run) -> None:
    text = io.StringIO()
    for _ in range(2):
        progress = RichProgress(text, brief_seconds=BRIEF_SECONDS)
        replay(plan_of(run, "credit.use=rloo", label="lines"), [0, 1], progress, on_done=progress.print_line)
    lines = text.getvalue().splitlines()
    assert [line.rpartition(",")[0] for line in lines] == [
        "iteration 0: credit, partition",
        "iteration 1: credit, partition",
        "iteration 0: credit, partition finished before",
        "iteration 1: credit, partition finished before",
    ]


@pytest.mark.slow
def test_the_same_label_goes_on_and_other_settings_under_it_are_refused(run: Run) -> None:
    first = replayed(run, "credit.use=rloo", label="mine", span="0:1")
    manifest = first.plan.place(0).folder.read_text("credit/manifest.json")
    first.plan.place(0).folder.remove("partition")  # as if it had been killed there
    again = replayed(run, "credit.use=rloo", label="mine")
    assert again.done[0].resumed == ("credit",)
    assert again.done[1].resumed == ()
    assert again.plan.place(0).folder.read_text("credit/manifest.json") == manifest
    whole = replayed(run, "credit.use=rloo", label="mine")
    assert [done.resumed for done in whole.done.values()] == [("credit", "partition")] * 2
    with pytest.raises(UsageError, match=r"credit\.use: 'rloo' → 'grpo'.*another --label"):
        replayed(run, "credit.use=grpo", label="mine")


@pytest.mark.slow
def test_running_baselines_go_from_one_replayed_iteration_to_the_next(tmp_path: Path, run: Run) -> None:
    """A replay with a method that remembers gives what a run with that method has."""
    remembering = stored_run(tmp_path, 2, **BASELINE)
    assert replayed(remembering).done == {}
    result = replayed(run, "credit.use=running_baseline", "credit.options={}", until="credit")
    for index in (0, 1):
        expected, _ = remembering.iteration(index).tables()
        for name in ("credit", "baselines"):
            assert result.done[index].tables[name].read().equals(expected[name].read())
    late = replayed(
        run, "credit.use=running_baseline", "credit.options={}", until="credit", span="1:", label="l"
    )
    assert "begins without the baselines of iteration 0" in late.notes[0]


@pytest.mark.slow
def test_gae_replays_from_stored_values(gae_run: Run) -> None:
    result = replayed(gae_run, "advantage.lam=0.5")
    assert result.ran == ["advantage"]
    stored, _ = gae_run.iteration(0).tables()
    assert (
        not result.done[0]
        .tables["token_advantages/team"]
        .read()
        .equals(stored["token_advantages/team"].read())
    )
    # what is left out and how rows lie changes; each row keeps its own values
    frozen = replayed(gae_run, "roles.planner.frozen=true", MANY_WORDS, "ppo.micro_batch_tokens=200")
    assert frozen.ran == ["reward", "credit", "partition", "score/team", "advantage"]
    partition, scores = (frozen.done[0].tables[f"{t}/team"].read() for t in ("partition", "scores"))
    assert partition.num_rows < stored["partition/team"].rows
    assert scores.equals(scores_of(partition))
    (planner,) = (r for r in frozen.movement.rows() if r["role"] == "planner")
    assert planner["token_advantage_abs_before"] > 0
    assert planner["token_advantage_abs_after"] is None


@pytest.mark.slow
def test_token_advantages_without_their_scores_are_refused(run: Run, gae_run: Run) -> None:
    with pytest.raises(UsageError, match=r"need values .* the run stored none"):
        replayed(run, "advantage.use=gae", "credit.options={}")
    with pytest.raises(UsageError, match=r"need reference .* the run stored old, values"):
        replayed(gae_run, "ppo.kl_in=reward", "ppo.kl_coefficient=0.1")
    assert replayed(run, "advantage.use=gae", "credit.options={}", until="credit").ran == ["credit"]


@pytest.mark.slow
def test_an_evaluation_is_scored_anew(tmp_path: Path, run: Run) -> None:
    write_rollout(Source(run, "dev").place(2), SMALL, seed=9)
    result = replayed(run, split="dev")
    (found,) = result.scores[2]["scores"]
    assert found["name"] == "f1_by_round"
    assert found["before"] is None
    assert 0 < found["mean"] < 1
    again = replayed(run, 'rewards=[{use="exact_match"}]', split="dev")
    assert [s["name"] for s in again.scores[2]["scores"]] == ["exact_match"]
    assert again.scores[2]["scores"][0]["mean"] < found["mean"]
    assert not run.folder.child("evaluations/dev/00002/evaluation").names()


@pytest.mark.slow
def test_a_file_that_is_gone_is_named_before_anything_runs(tmp_path: Path, run: Run) -> None:
    from workflows.errors import CadreError

    short = stored_run(tmp_path, 1)
    (Path(short.folder.path) / "iterations/00000/rewards/part-00001.parquet").unlink()
    with pytest.raises(CadreError, match=r"rewards/part-00001.parquet is missing"):
        replayed(short, "credit.use=rloo")
