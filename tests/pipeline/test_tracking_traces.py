"""Traces, alarms and descriptions in MLflow."""

import pytest

from pipeline.metrics.signs import Alarm
from pipeline.store.samples import choose_episodes
from pipeline.tracking.spans import trace_of
from tests.support.mlflow_records import a_record, client_of, points, tracker_at
from tests.support.stored_plays import QUESTION, a_play, stored


def traces_of(uri, run_id):
    """The run's traces as its page finds them, by episode."""
    client = client_of(uri)
    experiment_id = client.get_run(run_id).info.experiment_id
    found = client.search_traces(locations=[experiment_id], run_id=run_id)
    return {trace.info.client_request_id: trace for trace in found}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    plays = [(a_play(sample), score) for sample, score in enumerate((0.0, 1.0, None))]
    plays[2][0].turns[-1] |= {"status": "infra_error", "status_detail": "gone"}
    plays[2][0].episode |= {"status": "infra_error", "error": "gone"}
    tables = stored(str(tmp_path_factory.mktemp("traces")), [plays])
    return [trace_of(chosen) for chosen in choose_episodes(tables, 3, 0)]


def test_an_episode_reads_back_as_a_trace_of_the_run(uri, experiment, traces):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {})
    assert tracker.log_iteration(a_record(0, {}, traces=lambda: traces))
    found = traces_of(uri, run_id)
    assert len(found) == 3
    best, logged = next(t for t in traces if t.tags["chosen"] == "best"), found["00000/task/1"]
    assert logged.info.state == "OK"
    assert logged.info.request_preview == QUESTION
    assert logged.info.request_time == best.spans[0].start // 10**6
    assert logged.info.tags.items() >= {"chosen": "best", "task_id": "task", "iteration": "0"}.items()
    assert logged.info.token_usage["total_tokens"] == sum(sum(s.tokens) for s in best.spans if s.tokens)
    assert {a.name: a.value for a in logged.info.assessments} == {
        "return": 1.0, "f1": 1.0, "format": 0.0, "gold": ["Norway"],
    }  # fmt: skip
    names = {span.span_id: span.name for span in logged.data.spans}
    keys = {span.key: span.name for span in best.spans}
    assert sorted((s.name, names.get(s.parent_id)) for s in logged.data.spans) == sorted(
        (s.name, keys.get(s.parent)) for s in best.spans
    )
    for span in best.spans:
        same = [s for s in logged.data.spans if (s.name, s.start_time_ns) == (span.name, span.start)]
        assert [(s.end_time_ns, s.span_type, s.inputs, s.outputs) for s in same] == [
            (span.end, span.kind, span.inputs, span.outputs)
        ]
    linked = {(key, kind) for span in best.spans for key, kind in span.links}
    links = [link for s in logged.data.spans for link in s.links]
    assert len(links) == sum(len(span.links) for span in best.spans) > 0
    assert {link.span_id for link in links} <= {s.span_id for s in logged.data.spans}
    assert {link.attributes["kind"] for link in links} == {kind for _, kind in linked}
    assert any(s.attributes.get("critical") for s in logged.data.spans)
    failed = found["00000/task/2"]
    assert failed.info.state == "ERROR"
    problems = [s.status.description for s in failed.data.spans if s.status.status_code == "ERROR"]
    assert problems.count("infra_error: gone") == 2  # the turn, and so the episode


def test_a_repeated_iteration_leaves_one_trace_of_each_episode_as_it_was(uri, experiment, traces):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {}, key=experiment)
    assert tracker.log_iteration(a_record(0, {}, traces=lambda: traces))
    first = traces_of(uri, run_id)
    again = tracker_at(uri, experiment)  # the process that goes on after a kill
    assert again.start("r", None, {}, {}, key=experiment) == run_id
    assert again.log_iteration(a_record(0, {}, traces=lambda: traces))
    second = traces_of(uri, run_id)
    assert {e: t.to_dict() for e, t in first.items()} == {e: t.to_dict() for e, t in second.items()}
    other = tracker_at(uri, experiment)
    other_id = other.start("another", None, {}, {})
    assert other.log_iteration(a_record(0, {}, traces=lambda: traces[:1]))
    assert (len(traces_of(uri, other_id)), len(traces_of(uri, run_id))) == (1, 3)


def test_alarms_are_tags_and_one_that_is_over_is_not(uri, experiment):
    cut = Alarm("cut_off", "reader", 3, "80% are cut", "look there")
    quiet = Alarm("no_signal", "", 4, "nothing to learn", "look here")
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {"alarming": "mine"})

    def tags():
        return {k: v for k, v in client_of(uri).get_run(run_id).data.tags.items() if k.startswith("alarm")}

    assert tracker.log_iteration(a_record(0, {}, alarms=[cut, quiet]))
    assert tags() == {
        "alarming": "mine",
        "alarms": "cut_off/reader, no_signal",
        "alarm/cut_off/reader": "since iteration 3: 80% are cut; look there",
        "alarm/no_signal": "since iteration 4: nothing to learn; look here",
    }
    assert tracker.log_iteration(a_record(1, {}, alarms=[quiet]))
    assert set(tags()) == {"alarming", "alarms", "alarm/no_signal"}
    again = tracker_at(uri, experiment)
    assert again.start("r", run_id, {}, {}) == run_id
    assert again.log_iteration(a_record(2, {}, alarms=[]))
    assert tags() == {"alarming": "mine", "alarms": "none"}


def test_the_description_is_the_last_note_until_somebody_writes_one(uri, experiment):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {})
    client = client_of(uri)
    for index in range(2):
        assert tracker.log_iteration(a_record(index, {}, note=lambda: f"iteration {index}" + "x" * 9000))  # noqa: B023
        assert f"iteration {index}x" in client.get_run(run_id).data.tags["mlflow.note.content"]
    client.set_tag(run_id, "mlflow.note.content", "mine")
    assert tracker.log_iteration(a_record(2, {}, note=lambda: "iteration 2"))
    assert client.get_run(run_id).data.tags["mlflow.note.content"] == "mine"


def test_traces_that_can_not_be_made_cost_a_warning_and_nothing_that_was_logged_before(uri, experiment):
    warnings = []
    tracker = tracker_at(uri, experiment, warn=warnings.append)
    run_id = tracker.start("r", None, {}, {})

    def broken():
        raise ValueError("no such episode")

    assert not tracker.log_iteration(
        a_record(0, {"loss": 0.5}, lambda: {"a.txt": b"x"}, alarms=[], traces=broken)
    )
    assert len(warnings) == 1
    assert "no such episode" in warnings[0]
    assert points(uri, run_id, "loss") == [(0, 0.5)]
    assert client_of(uri).get_run(run_id).data.tags["alarms"] == "none"
