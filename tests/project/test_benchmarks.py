"""What `make bench` says must follow from what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages.tables.parquet import TableSink
from stages.weights.chat import ChatRenderer
from tests.benchmarks import retrieval
from tests.benchmarks.long_tasks import TOKENS, messages_of, write_tasks
from tests.benchmarks.measure import Figure, Options, interleave, lines
from tests.benchmarks.peer import PeerDied, peer
from tests.benchmarks.rollout import REQUEST_COLUMNS, requests_of
from tests.benchmarks.update import ROWS, partition_rows, planned
from workflows.trajectory import TURNS, rows_to_table, to_json


def figure(goal: float, at: str, ours: tuple[float, ...], theirs: tuple[float, ...]) -> Figure:
    return Figure("f", "s", ours, theirs, goal, at, "peer")  # type: ignore[arg-type]


def test_a_ratio_is_the_median_over_pairs_and_one_bad_pair_does_not_decide():
    noisy = figure(0.75, "most", (7.0, 7.0, 7.0, 70.0, 7.0), (10.0,) * 5)
    assert noisy.ratio == 0.7
    assert noisy.verdict == "pass"


def test_drift_that_both_sides_see_changes_no_ratio():
    slower = tuple(1.0 + k for k in range(5))
    drifting = figure(0.9, "least", tuple(9 / s for s in slower), tuple(10 / s for s in slower))
    assert drifting.ratio == pytest.approx(0.9)


@pytest.mark.parametrize(("at", "ratio", "verdict"), [("least", 0.84, "short"), ("most", 0.84, "pass")])
def test_a_goal_is_the_least_or_the_most(at: str, ratio: float, verdict: str):
    assert figure(0.85, at, (ratio,), (1.0,)).verdict == verdict


def test_fewer_pairs_than_a_result_needs_are_said():
    assert "2 pairs only" in lines(figure(1, "least", (1.0, 1.0), (1.0, 1.0)))[0]
    assert "only" not in lines(figure(1, "least", (1.0,) * 5, (1.0,) * 5))[0]


def test_sides_take_turns_and_the_warm_up_is_not_counted():
    order: list[tuple[str, int]] = []

    def side(name: str):
        return lambda pair: order.append((name, pair)) or {"pair": float(pair)}

    ours, theirs = interleave(side("ours"), side("theirs"), 2, lambda text: None)
    assert order == [("ours", 0), ("theirs", 0), ("ours", 1), ("theirs", 1), ("ours", 2), ("theirs", 2)]
    assert [r["pair"] for r in ours] == [r["pair"] for r in theirs] == [1, 2]


def test_a_peer_that_ends_is_reported_with_its_last_words(tmp_path: Path):
    with (
        pytest.raises(PeerDied, match=r"No module named tests\.benchmarks\.nobody"),
        peer("tests.benchmarks.nobody", {}, tmp_path / "log"),
    ):
        pass


def test_replayed_requests_come_after_what_they_depend_on(tmp_path: Path):
    rows = [
        {
            "episode_id": e,
            "turn_index": k,
            "event": event,
            "parents": parents,
            "sampling": to_json({"top_p": 1}),
        }
        for e in ("a", "b")
        for k, event, parents in ((2, "llm", [0, 1]), (0, "llm", []), (1, "tool", [0]))
    ]
    sink = TableSink("turns", str(tmp_path), TURNS)
    episodes = requests_of(sink.ref([sink.write_part(0, rows_to_table(rows, TURNS))]))
    assert len(episodes) == 2
    for turns in episodes:
        assert set(turns[0]) == set(REQUEST_COLUMNS)
        seen: set[int] = set()
        for turn in turns:
            assert set(turn["parents"]) <= seen
            seen.add(turn["turn_index"])


@pytest.mark.parametrize("to_a_prompt", [1, 4])
@pytest.mark.parametrize("shared_prefix", [False, True])
def test_the_update_benchmark_trains_every_row_once_at_the_version_asked(
    to_a_prompt: int, shared_prefix: bool
):
    from stages.training.network.packing import problem_with, split

    rows = partition_rows(seed=3, version=7, vocabulary=100, to_a_prompt=to_a_prompt)
    table = planned(rows, 3, shared_prefix=shared_prefix)
    assert problem_with(table, model_id="team", version=7, vocabulary=100, ranks=1) is None
    (batches,) = split(table, packed=shared_prefix).values()
    assert sum(len(batch.keys) for batch in batches) == ROWS


def test_long_prompts_are_as_long_as_they_should_be(tmp_path: Path):
    from stages.weights.resolve import resolve_checkpoint

    model = "smollm2-135m-instruct"  # another tokenizer makes other lengths
    write_tasks(tmp_path / "tasks.jsonl", 8, model)
    renderer = ChatRenderer(resolve_checkpoint(model))
    rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert len(rows) == len({row["task_id"] for row in rows}) == 8
    for row in rows:
        assert row["split"] == "train"
        assert len(renderer.render(messages_of(row["inputs"]["question"]))) in TOKENS


@pytest.mark.slow
def test_the_benchmark_of_retrieval_measures_words_and_the_graph(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(retrieval, "BM25_PASSAGES", 300)
    monkeypatch.setattr(retrieval, "GRAPH_VECTORS", 1000)
    options = Options(pairs=1, folder=str(tmp_path))
    said: list[str] = []
    (words,) = retrieval.words(options, said.append)
    (graph,) = retrieval.graph(options, said.append)
    assert words.settings == {"passages": 300}
    assert "build of 300 passages" in words.notes[0]
    assert words.ours[0] > 0 < words.theirs[0]
    assert graph.passes  # a thousand vectors are all looked at
    assert [line.split()[0] for line in said] == [
        *("bm25_build", "bm25_query", "bm25_peer", "graph_build", "graph_query")
    ]
