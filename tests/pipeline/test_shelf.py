"""What `show` and `report` look at: a replay's numbers over its run's turns, and evaluations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.report.write import write_report
from pipeline.store.manifest import Manifest
from pipeline.store.place import IterationStore
from pipeline.store.run import Run
from pipeline.store.runs import find_run, list_runs
from pipeline.store.shelf import laid_over, replay_labels, replay_run, shelf_of
from pipeline.views.stored import print_place
from pipeline.views.where import print_where
from stages.tables.parquet import Part, TableRef
from tests.support.report_runs import in_parts, new_run, store, team_episode
from workflows.errors import UsageError
from workflows.trajectory import CREDIT


def replayed(run: Run, label: str, score: float) -> None:
    """A replay of iteration 0 in which every turn has this reward."""
    folder = run.folder.child(f"replays/{label}")
    rows = in_parts([team_episode(k, score) for k in range(4)])
    store(IterationStore(folder.child("00000"), 0), {n: rows[n] for n in ("rewards", "credit")}, done=False)
    changes = [{"setting": "credit.use", "before": None, "now": "rloo"}]
    info = {"source": {"split": None}, "iterations": [0], "changes": changes, "label": label}
    folder.write_text("replay.json", json.dumps(info))


@pytest.fixture
def run(tmp_path: Any) -> Run:
    run = new_run(str(tmp_path / "runs"))
    run.write_info(identity={"workflow": {"use": "qa"}, "models": {}})
    for index in (0, 1):
        store(run.iteration(index), in_parts([team_episode(k, k / 8, index=index) for k in range(4)]))
    replayed(run, "other", 9.0)
    replayed(run, "two/rloo", 7.0)
    run.folder.write_text("replays/two/ablation.json", "{}")
    rows = in_parts([team_episode(k, 0.0, index=2) for k in range(4)])
    ids = [row["episode_id"] for row in rows["episodes"][1]]
    scores: list[dict[str, Any]] = [
        {"episode_id": e, "values": [{"name": "f1", "value": k / 4}, {"name": "step", "value": 1.0}]}
        for k, e in enumerate(ids[:3])
    ]
    scores.append({"episode_id": ids[3], "values": [{"name": "f1", "value": None}], "failed": "timeout"})
    played = {name: rows[name] for name in ("tasks", "turns", "episodes")}
    store(run.evaluation("dev", 2), {**played, "evaluation": [[], scores]}, done=False)
    mean = {"name": "f1", "mean": 0.1875, "low": None, "high": None, "tasks": 2, "pass_at": {}}
    run.evaluation("dev", 2).folder.write_text(
        "result.json", json.dumps({"split": "dev", "index": 2, "scores": [mean]})
    )
    return run


def turns_where(capsys: pytest.CaptureFixture[str], shelf: Any, where: str) -> list[dict[str, Any]]:
    print_where(shelf, None, where, limit=None, full=False, as_json=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def shown(capsys: pytest.CaptureFixture[str], shelf: Any, **options: Any) -> str:
    given = {"episode": None, "episodes": 1, "full": False, "as_json": False} | options
    print_place(shelf, None, **given)
    return str(capsys.readouterr().out)


def test_a_replay_is_its_own_numbers_over_the_turns_of_its_run(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for label, value in (("other", 9.0), ("two/rloo", 7.0)):
        turns = turns_where(capsys, shelf_of(run, replay=label), "event = 'llm'")
        assert {t["reward"] for t in turns} == {value}
        assert {t["response_text"] for t in turns} == {"two parts", "read zero", "read one", "Paris"}
    page = shown(capsys, shelf_of(run, replay="other"))
    assert page.startswith("iteration 0 of run demo, replay other: mean return 9")
    assert "replays/other/00000" in page
    assert "reward 9" in " ".join(page.split()).replace("reward  9", "reward 9")


def test_tables_that_were_made_from_what_is_anew_are_not_the_replays() -> None:
    part = (Part("p", 1, 1, "h"),)

    def made(stage: str, inputs: list[str], *tables: str) -> Manifest:
        hashes = dict.fromkeys(inputs, "h")
        return Manifest(stage, 0, {}, hashes, {t: list(part) for t in tables}, {}, [], {}, [], 0.0)

    stored = [
        made("reward", ["turns"], "rewards"),
        made("credit", ["rewards"], "credit"),
        made("partition", ["credit"], "partition/a", "partition/b"),
        made("score/a", ["partition/a"], "scores/a"),
        made("update/a", ["partition/a", "scores/a"], "updates/a"),
    ]
    tables = {name: TableRef(name, "run", CREDIT, part) for m in stored for name in m.tables}
    for own, left in (
        (("credit",), ["rewards"]),
        (("rewards",), []),
        (("updates/a",), ["rewards", "credit", "partition/a", "partition/b", "scores/a"]),
        ((), list(tables)),
    ):
        mine = {name: TableRef(name, "replay", CREDIT, part) for name in own}
        found, manifests = laid_over(tables, stored, mine)
        assert {n for n, t in found.items() if t.folder == "run"} == set(left)
        assert {n for n, t in found.items() if t.folder == "replay"} == set(own)
        assert [name for m in manifests for name in m.tables] == left


def test_turns_of_an_evaluation_are_found_by_what_their_episode_scored(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = shelf_of(run, split="dev")
    assert len(turns_where(capsys, shelf, "turn_index >= 0")) == 24
    low = turns_where(capsys, shelf, "f1 < 0.4 and role = 'answerer'")
    assert [t["f1"] for t in low] == [0.0, 0.25]
    assert len(turns_where(capsys, shelf, "failed = 'timeout'")) == 6
    assert len(turns_where(capsys, shelf, "f1 is null")) == 6
    # a metric that is called like a column of turns
    assert len(turns_where(capsys, shelf, "score_step = 1 and step = 'answer'")) == 3
    with pytest.raises(UsageError, match="did you mean 'f1'"):
        turns_where(capsys, shelf, "f11 < 1")
    with pytest.raises(UsageError, match="no column 'f1'"):
        turns_where(capsys, shelf_of(run), "f1 < 1")


def test_an_evaluation_is_shown_with_its_scores(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, shelf_of(run, split="dev"), episodes=4)
    assert "evaluation on dev after 2 iterations" in page
    assert "0.188" in page
    assert "counts as 0: timeout" in page
    (first, *_) = json.loads(shown(capsys, shelf_of(run, split="dev"), as_json=True))["episodes"]
    assert first["evaluation"]["failed"] == "timeout"  # no score counts as the lowest
    one = json.loads(shown(capsys, shelf_of(run, split="dev"), as_json=True, episode="00002/t0/1"))
    assert one["evaluation"]["values"][0] == {"name": "f1", "value": 0.25}


def test_a_report_of_a_replay_has_its_numbers_and_a_name_of_its_own(run: Run) -> None:
    report = write_report(run, replay="two/rloo")
    assert report.file.endswith("/replays/two/rloo/report/run.html")
    assert report.episodes == 4
    assert write_report(run, replay="other", iteration=0).file.endswith("other/report/iteration-00000.html")
    assert write_report(run).file.endswith("/report/run.html")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"replay": "othr"}, "did you mean 'other'.*it has: other, two/rloo"),
        ({"replay": "two"}, "it has: other, two/rloo"),
        ({"replay": "other", "split": "dev"}, "is of iterations; leave out --split"),
        ({"split": "test"}, "evaluations on: dev"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(run: Run, asked: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        shelf_of(run, **asked)


def test_a_replay_without_updates_has_no_weights(run: Run) -> None:
    with pytest.raises(UsageError, match="has no weights; one with --update has"):
        replay_run(run, "other")


def test_runs_are_listed_with_their_replays_and_neither_these_nor_sweeps_are_runs(run: Run) -> None:
    root = run.folder.url.rpartition("/")[0]
    (listed,) = list_runs(root)
    assert listed["replays"] == replay_labels(run) == ["other", "two/rloo"]
    sweep = Run(root, "swept").folder
    sweep.write_text("sweep.json", "{}")
    with pytest.raises(UsageError, match=r"is a sweep of several runs.*pipeline compare swept"):
        find_run(root, "swept")
    with pytest.raises(UsageError, match="is a replay; name its run, and pass --replay other"):
        find_run(root, f"{run.folder.url}/replays/other")
