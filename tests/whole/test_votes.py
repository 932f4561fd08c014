"""A test split and a vote come with an evaluation where they are due, and choose no checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.history import evaluation_results
from workflows.errors import UsageError

Settings = Callable[..., dict[str, Any]]
EVALUATE: dict[str, Any] = {
    "every": 1,
    "tasks": 4,
    "rewards": [{"use": "token_f1"}],
    "test": {"split": "train", "tasks": 3},
    "vote": {"answers": 3, "temperature": 0.7},
}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_test_split_and_a_vote_are_played_first_at_the_best_and_last(scripted: Settings) -> None:
    plan = assemble(parse_settings(scripted(evaluate=EVALUATE)))
    with session(plan, signals=False) as runner:
        found: list[Any] = []
        runner.train(3, assemble_evaluation(plan), on_evaluated=found.append)
        run = runner.run
    info = run.read_info()
    assert set(info["best"]) == {"dev"}  # neither the test split nor the vote chooses
    labels = {e.index: [other.split for other in e.also] for e in found}
    firsts_and_bests = {0, info["best"]["dev"]["iterations"], 3}
    for index, also in labels.items():
        if index in (0, 3):
            assert also == ["train", "train.vote"]
    results = evaluation_results(run)
    tested = {r["index"] for r in results if r["split"] == "train"}
    assert firsts_and_bests <= tested
    assert tested == {r["index"] for r in results if r["split"] == "train.vote"}
    vote = next(r for r in results if r["split"] == "train.vote")
    assert [s["name"] for s in vote["scores"]] == ["token_f1", "token_f1/vote"]
    place = run.evaluation("train.vote", 0)
    votes = place.tables()[0]["votes"].read()
    assert votes.num_rows == 9
    turns = place.tables()[0]["turns"].read(["sampling", "event"]).to_pylist()
    # the vote has players of its own: those of the evaluation are greedy
    assert {json.loads(t["sampling"])["temperature"] for t in turns if t["event"] == "llm"} == {0.7}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_always_tests_at_each_evaluation(scripted: Settings) -> None:
    section = EVALUATE | {"test": {"split": "train", "tasks": 2, "when": "always"}}
    section.pop("vote")
    plan = assemble(parse_settings(scripted(evaluate=section)))
    with session(plan, signals=False) as runner:
        runner.train(2, assemble_evaluation(plan))
        results = evaluation_results(runner.run)
    assert [r["index"] for r in results if r["split"] == "train"] == [0, 1, 2]


def test_a_test_split_that_chooses_is_refused(scripted: Settings) -> None:
    plan = assemble(parse_settings(scripted(evaluate={"test": {"split": "dev"}})))
    with pytest.raises(UsageError, match=r"evaluate\.test\.split = 'dev' is evaluate\.split too"):
        assemble_evaluation(plan)
