"""Several rewards and credits over the same turns: each as if it were alone, compared rightly, done once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from scipy.stats import spearmanr

from pipeline.replays.ablation.ablate import Ablation, ablate
from pipeline.replays.ablation.agreement import agreement_of, spearman
from pipeline.replays.ablation.record import record_ablation
from pipeline.replays.ablation.show import ablation_dict, ablation_page
from pipeline.replays.ablation.variants import read_variants, variant_plans
from pipeline.replays.plan import replay_plan
from pipeline.replays.record import record_replay
from pipeline.replays.replayer import replay
from pipeline.replays.settings import with_values
from pipeline.replays.source import Source
from pipeline.store.run import Run
from pipeline.views.render import as_text, plain
from rewards.base import PlayedEpisode
from rewards.f1_by_round import F1ByRound
from rewards.format import Format
from rewards.scoring.score import score_turns
from rewards.scoring.variants import score_variants
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from stages.base import Quiet
from stages.evaluate import estimate_mean
from tests.support.stored_runs import SHARED, Shape, part_tables, settings_of, write_iterations, write_run
from workflows.errors import UsageError
from workflows.trajectory import TURN_KEYS

SMALL = Shape(turns=96, group_size=4, tasks_per_part=1)
FILE = """
[variants.stored]

[variants.rloo]
"credit.use" = "rloo"

[variants.twice.rewards.0]
weight = 2.0

[variants.outcome]
rewards = [{ use = "f1_by_round", weight = 0.0 }, { use = "token_f1" }]
"""


@dataclass
class Counting:
    """A reward that counts its calls, and fails where it is told to."""

    fails_on: str = ""
    calls: list[str] = field(default_factory=list)

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        self.calls.append(episode.episode_id)
        if episode.episode_id.endswith(self.fails_on) and self.fails_on:
            raise ValueError("no")
        return [1.0 if i in episode.trainable() else None for i in range(len(episode.turns))]


def weighted(*items: tuple[str, float, Any], roles: Sequence[str] | None = None) -> WeightedRewards:
    named = frozenset(roles) if roles else None
    return WeightedRewards(tuple(WeightedReward(n, w, r, named) for n, w, r in items))


def test_together_every_variant_is_scored_as_if_it_were_alone_and_equal_rewards_once() -> None:
    tables = part_tables(0, 0, SMALL, 3, SHARED["full"])
    three = [tables[name] for name in ("tasks", "turns", "episodes")]
    counting, failing, f1 = Counting(), Counting(fails_on="/2"), F1ByRound()
    variants = [
        (weighted(("f1", 1.0, f1), ("count", 0.5, counting)), "as_malformed"),
        (weighted(("f1", 3.0, f1), ("fail", 1.0, failing)), "as_malformed"),
        (weighted(("count", 1.0, counting), ("format", 1.0, Format())), "exclude"),
        (weighted(("count", 1.0, counting), roles=["planner"]), "exclude"),
    ]
    together = score_variants(*three, variants)  # type: ignore[arg-type]
    episodes = tables["episodes"].filter(pl.Series(tables["episodes"]["status"]).eq("ok").to_arrow())
    # once for the two variants that have it for all roles, once more for the one that narrows it
    assert len(counting.calls) == 2 * episodes.num_rows
    for table, (rewards, truncated) in zip(together, variants, strict=True):
        assert table.equals(score_turns(*three, rewards, truncated=truncated))  # type: ignore[arg-type]
    failed = [pl.DataFrame(t)["no_reward_reason"].str.contains("'fail' failed").any() for t in together]
    assert failed == [False, True, False, False]


def numbers_of(**columns: list[float | None]) -> pl.DataFrame:
    """Two turns an episode; the same numbers as return and as advantage."""
    some = next(iter(columns.values()))
    frame = pl.DataFrame(
        {
            "episode_id": [f"e{i // 2}" for i in range(len(some))],
            "turn_index": [i % 2 for i in range(len(some))],
        }
    ).with_columns(role=pl.lit("r"))
    return frame.with_columns(
        pl.Series(f"{what}/{name}", values, dtype=pl.Float64)
        for name, values in columns.items()
        for what in ("return", "advantage")
    )


def test_agreement_of_the_same_the_rescaled_and_the_reversed() -> None:
    draw = random.Random(1)
    a = [draw.random() for _ in range(40)]
    found = agreement_of(
        numbers_of(a=a, b=[x**3 * 7 for x in a], c=[-x for x in a], d=[0.5] * 40), tuple("abcd")
    )
    assert found.advantages["a", "b"] == pytest.approx(1.0)
    assert found.advantages["a", "c"] == pytest.approx(-1.0)
    assert found.returns["a", "c"] == pytest.approx(-1.0)
    assert found.advantages["a", "d"] is found.returns["c", "d"] is None
    same = agreement_of(numbers_of(a=a, b=[5 * x for x in a]), ("a", "b"))
    assert same.disputed == []
    assert set(same.episodes["spread"]) == {0.0}


def test_the_most_disputed_episode_comes_first_and_what_one_leaves_out_is_counted() -> None:
    a: list[float | None] = [0, 0, 1, 1, 2, 2, 3, 3, None, None]
    b: list[float | None] = [3, 3, 1, 1, 2, 2, 0.5, 0.5, 9, 9]
    found = agreement_of(numbers_of(a=a, b=b), ("a", "b"))
    assert [row["episode_id"] for row in found.disputed][:2] == ["e0", "e3"]
    assert found.disputed[0]["spread"] == 1.0
    assert found.left_out == {"a": 1, "b": 0}
    assert found.episodes.height == 4
    (row,) = found.roles.filter(variant="a").to_dicts()
    assert (row["turns"], row["return_mean"]) == (8, 1.5)


def test_intervals_are_those_of_groups_as_wide_for_one_turn_each_as_students_t() -> None:
    draw = random.Random(3)
    values = [draw.random() for _ in range(12)]
    rows = [
        {"episode_id": f"g{i}/0", "turn_index": 0, "role": "r", "return/a": v} for i, v in enumerate(values)
    ]
    frame = pl.DataFrame(rows).with_columns(pl.col("return/a").alias("advantage/a"))
    (row,) = agreement_of(frame, ("a",)).roles.to_dicts()
    expected = estimate_mean(values)
    assert (row["return_low"], row["return_high"]) == pytest.approx((expected.low, expected.high))
    # the same turns once more tell nothing new
    twice = pl.concat([frame, frame.with_columns(turn_index=pl.lit(1, pl.Int64))])
    (again,) = agreement_of(twice, ("a",)).roles.to_dicts()
    assert (again["return_low"], again["return_high"]) == pytest.approx((expected.low, expected.high))
    (alone,) = agreement_of(frame.head(1), ("a",)).roles.to_dicts()
    assert alone["return_low"] is alone["return_high"] is None


def test_spearman_is_that_of_scipy_with_ties_and_gaps() -> None:
    draw = random.Random(2)
    for _ in range(20):
        x = [None if draw.random() < 0.1 else draw.randrange(6) for _ in range(50)]
        y = [None if draw.random() < 0.1 else draw.randrange(6) + (a or 0) for a in x]
        pairs = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
        ours = spearman(pl.Series(x, dtype=pl.Float64), pl.Series(y, dtype=pl.Float64))
        assert ours == pytest.approx(spearmanr(*zip(*pairs, strict=True)).statistic)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[variants.a]", "two or more variants"),
        ("[variants.a]\n[variants.b]\n[other]", r"unknown table \[other\]"),
        ('[variants.a]\n[variants."x/y"]', "names a folder"),
        ("variants =", "not valid TOML"),
        ('[variants.a]\n[variants.b]\n"rollout.group_size" = 1', r"variant 'b': rollout\.group_size"),
        ('[variants.a]\n[variants.b]\n"credit.usee" = "x"', r"variant 'b': .*did you mean"),
        ('[variants.a]\n[variants.b]\n"credit.use" = "rlo"', r"variant 'b': .*did you mean 'rloo'"),
    ],
)
def test_a_file_that_cannot_be_compared_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "v.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        variant_plans(Source(write_run(settings_of(str(tmp_path)))), str(file), None)


def test_the_example_file_is_read_and_its_rewards_are_shared(tmp_path: Path) -> None:
    path = "docs/examples/variants/credit.toml"
    plans = variant_plans(Source(write_run(settings_of(str(tmp_path)))), path, None)
    assert list(plans) == list(read_variants(path))
    assert plans["stored"].changes == ()
    one, other = (plans[name].stages[0].rewards.items[0].reward for name in ("stored", "rloo"))  # type: ignore[attr-defined]
    assert one is other
    assert {plan.label.partition("/")[0] for plan in plans.values()} == {"credit"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Run:
    settings = settings_of(str(tmp_path_factory.mktemp("ablation")), tracking={"experiment": "tests"})
    run, _ = write_iterations(settings, SMALL, 2)
    plan = replay_plan(Source(run), settings)
    from pipeline.run.execution import run_stages

    for index in (0, 1):
        place = run.iteration(index)
        tables = place.tables()[0]
        run_stages(plan.stages, place, plan.fingerprints, what="", progress=Quiet(), tables=tables)
    return run


@pytest.fixture(scope="module")
def found(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    file = tmp_path_factory.mktemp("file") / "four.toml"
    file.write_text(FILE)
    return ablate(variant_plans(Source(run), str(file), None), [0, 1], Quiet())


@pytest.mark.slow
def test_each_variant_is_the_replay_that_it_would_be_alone(run: Run, found: Ablation) -> None:
    assert [r.ran for r in found.replays.values()] == [
        [],
        ["credit"],
        ["reward", "credit"],
        ["reward", "credit"],
    ]
    values = {"rewards": [{"use": "f1_by_round", "weight": 0.0}, {"use": "token_f1"}]}
    alone = replay_plan(Source(run), with_values(run, values, "alone"), label="alone", until="credit")
    expected = replay(alone, [0, 1], Quiet())
    for index in (0, 1):
        for table in ("rewards", "credit"):
            mine = found.replays["outcome"].done[index].tables[table]
            assert mine.parts == expected.done[index].tables[table].parts
    twice = pl.DataFrame(found.replays["twice"].done[0].tables["credit"].read()).sort(TURN_KEYS)
    once = pl.DataFrame(run.iteration(0).tables()[0]["credit"].read()).sort(TURN_KEYS)
    assert (twice["advantage"].drop_nulls() == 2 * once["advantage"].drop_nulls()).all()
    assert found.agreement.advantages["stored", "twice"] == pytest.approx(1.0)
    assert found.agreement.turns == 2 * once["return"].count() - (
        once["return"].count() - pl.DataFrame(run.iteration(1).tables()[0]["credit"].read())["return"].count()
    )


@pytest.mark.slow
def test_an_ablation_again_computes_nothing_and_says_the_same(
    run: Run, found: Ablation, tmp_path: Path
) -> None:
    file = tmp_path / "four.toml"
    file.write_text(FILE)
    again = ablate(variant_plans(Source(run), str(file), None), [0, 1], Quiet())
    assert again.agreement.as_dict() == found.agreement.as_dict()
    for replayed in again.replays.values():
        for done in replayed.done.values():
            assert list(done.resumed) == list(done.manifests)
    page = as_text(ablation_page(found, None), 140)
    assert all(name in page for name in ("stored", "twice", "planner", "Spearman"))
    assert plain(ablation_dict(found, None))["folder"] in page
    stored = pl.read_parquet(f"{found.folder.url}/episodes.parquet")
    assert stored.equals(found.agreement.episodes)


@pytest.mark.slow
def test_mlflow_has_a_parent_with_a_run_for_each_variant_once(run: Run, found: Ablation) -> None:
    from mlflow import MlflowClient

    assert record_ablation(found) is not None
    assert record_ablation(found) is not None
    client = MlflowClient(f"sqlite:///{Path(run.folder.path).parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tests")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [r for r in runs if r.data.tags["kind"] == "ablation"]
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(r.data.tags["variant"] for r in children) == sorted(found.variants)
    assert {r.data.tags["source_run"] for r in runs} == {run.folder.url}
    by_name = {r.data.tags["variant"]: r for r in children}
    assert by_name["rloo"].data.params["credit.use"] == "rloo"
    assert by_name["twice"].data.metrics["return/turn_mean"] == pytest.approx(
        2 * by_name["stored"].data.metrics["return/turn_mean"]
    )
    assert parent.data.metrics["spearman/turn_advantages/stored/twice"] == pytest.approx(1.0)
    history = client.get_metric_history(by_name["rloo"].info.run_id, "return/turn_mean")
    assert len(history) == 1
    assert "plots/ablation.png" in {f.path for f in client.list_artifacts(parent.info.run_id, "plots")}


@pytest.mark.slow
def test_mlflow_has_a_replay_with_its_source_and_what_changed_once(run: Run) -> None:
    from mlflow import MlflowClient

    values = {"credit": {"use": "rloo"}}
    plan = replay_plan(Source(run), with_values(run, values, "alone"), label="recorded", until="credit")
    for _ in range(2):
        assert record_replay(replay(plan, [0, 1], Quiet())) is not None
    client = MlflowClient(f"sqlite:///{Path(run.folder.path).parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tests")
    (logged,) = client.search_runs([experiment.experiment_id], "tags.replay = 'recorded'")
    assert (logged.data.tags["kind"], logged.data.tags["set/credit.use"]) == ("replay", "rloo")
    assert logged.data.tags["source_run"] == run.folder.url
    for name in ("role/planner/turn_return_mean", "role/planner/advantage_correlation"):
        assert [m.step for m in client.get_metric_history(logged.info.run_id, name)] == [0, 1]
    files = {f.path for f in client.list_artifacts(logged.info.run_id, "iterations/00001")}
    assert files == {"iterations/00001/result.json", "iterations/00001/settings.toml"}
