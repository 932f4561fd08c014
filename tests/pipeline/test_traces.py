"""Runs as traces and traces as runs: exported, imported, shown, replayed, imitated, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.app import app
from pipeline.plan.assemble import assemble
from pipeline.replays.plan import replay_plan
from pipeline.replays.replayer import replay
from pipeline.replays.settings import overridden
from pipeline.replays.source import Source
from pipeline.report.write import write_report
from pipeline.settings.reading import parse_settings, read_toml
from pipeline.store.run import Run
from pipeline.store.runs import find_run
from pipeline.store.shelf import shelf_of
from pipeline.traces.episode import episodes_of
from pipeline.traces.exporting import export
from pipeline.traces.files import files_of
from pipeline.traces.importing import ImportedRun, Options, answer_parser, import_traces
from pipeline.traces.stats import Stats
from pipeline.views.demonstrations import write_demonstrations
from stages.base import Quiet
from tests.support.report_runs import in_parts, new_run, store, team_episode
from workflows.errors import UsageError

CAPITAL = "Capital of France?"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = new_run(str(tmp_path / "runs"))
    for index in range(2):
        tables = in_parts(team_episode(k, k / 8, f"City {k}", index) for k in range(6))
        store(run.iteration(index), {name: rows for name, rows in tables.items() if "/" not in name})
    return run


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def imported(tmp_path: Path, *documents: Mapping[str, Any], name: str = "new", **options: Any) -> ImportedRun:
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return import_traces([str(file)], str(tmp_path / "runs"), name, Options(**options))


def found(tmp_path: Path, name: str = "new") -> Run:
    return find_run(str(tmp_path / "runs"), name)


def turns(run: Run, index: int = 0) -> list[dict[str, Any]]:
    return [dict(turn) for e in episodes_of(shelf_of(run).place(index)) for turn in e.turns]


def trajectory(
    number: int, answer: str = "Paris", metrics: Mapping[str, Any] | None = None, **step: Any
) -> dict[str, Any]:
    """Another program's: a user, an agent that searches and asks a helper, its answer."""
    agent = {"name": "my agent", "version": "2", "model_name": "org/Big"}
    call = {"tool_call_id": "c", "function_name": "web.search", "arguments": {"q": CAPITAL}}
    results = [
        {"source_call_id": "c", "content": "It is Paris."},
        {"subagent_trajectory_ref": [{"trajectory_id": "sub"}]},
    ]
    inside = [
        {"step_id": 1, "source": "user", "message": "Check."},
        {"step_id": 2, "source": "agent", "message": "Right."},
    ]
    return {
        "schema_version": "ATIF-v1.8",
        "trajectory_id": f"x{number}",
        "agent": agent,
        "steps": [
            {"step_id": 1, "source": "system", "message": "Be brief."},
            {"step_id": 2, "source": "user", "message": CAPITAL},
            {
                "step_id": 3,
                "source": "agent",
                "message": "I look.",
                "reasoning_content": "a search",
                "tool_calls": [call],
                "observation": {"results": results},
            },
            {
                "step_id": 4,
                "source": "agent",
                "message": f"<answer>{answer}</answer>",
                **step,
                **({"metrics": dict(metrics)} if metrics else {}),
            },
        ],
        "subagent_trajectories": [
            {
                "schema_version": "ATIF-v1.8",
                "trajectory_id": "sub",
                "agent": {"name": "helper", "version": "1"},
                "steps": inside,
            }
        ],
        "extra": {"task_id": "q1"},
    }


def trace(number: int = 0) -> dict[str, Any]:
    """Another program's, in the survey's schema, out of order and with a key of its own."""
    events: list[dict[str, Any]] = [
        {"id": "c", "t": 2, "type": "tool_result", "agent": "web", "tool": "web", "content_ref": "r2"},
        {"id": "a", "t": 0, "type": "orchestrator_decision", "agent": "lead", "role": "boss", "sure": 0.5},
        {"id": "b", "t": 1, "type": "tool_call", "agent": "lead", "tool": "web", "content_ref": "r1"},
        {"id": "d", "t": 3, "type": "return", "agent": "lead", "role": "boss", "from": "lead", "to": "user"},
    ]
    return {
        "trace_id": f"theirs-{number}",
        "task_id": "q1",
        "events": events,
        "edges": [{"src": s, "dst": t, "type": "causal"} for s, t in ("ab", "bc", "cd")],
        "rewards": {"team": 0.5, "tool": 1.0},
        "costs": {"tokens": 9, "wall_clock_s": 3, "tool_calls": 1},
        "metrics": {"task_success": 1},
    }


@pytest.mark.parametrize("format", ["survey", "atif"])
@pytest.mark.parametrize("content", ["inline", "hash", "none"])
def test_a_run_that_is_exported_imported_and_exported_is_the_same(
    run: Run, tmp_path: Path, format: Any, content: Any
) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    done = export(shelf_of(run), str(first), format, content)
    assert (done.traces, done.turns) == (12, 72)
    result = import_traces([str(first)], str(tmp_path / "runs"), "again", Options())
    assert (result.episodes, result.turns, result.with_reward) == (12, 72, 48)
    assert result.with_text == (48 if content == "inline" else 0)
    again = found(tmp_path, "again")
    assert again.iterations() == [0, 1]
    export(shelf_of(again), str(second), format, content)
    assert lines(second) == lines(first)


def test_what_is_imported_inline_has_the_rows_of_the_run(run: Run, tmp_path: Path) -> None:
    export(shelf_of(run), str(tmp_path / "1.jsonl"), "atif", "inline", "1")
    import_traces([str(tmp_path / "1.jsonl")], str(tmp_path / "runs"), "again", Options(temperature=1.0))
    again = found(tmp_path, "again")
    assert again.iterations() == [1]
    before, after = (list(episodes_of(shelf_of(r).place(1))) for r in (run, again))
    for old, new in zip(before, after, strict=True):
        assert [{**turn, "sampling": None} for turn in new.turns] == list(old.turns)
        assert (new.row, new.rewards, new.credit) == (old.row, old.rewards, old.credit)
        assert {**new.task, "inputs": None} == {**old.task, "inputs": None}  # type: ignore[dict-item]


def test_imported_runs_are_listed_shown_and_reported(tmp_path: Path) -> None:
    imported(tmp_path, trajectory(0), trace(), skip=False)
    root = str(tmp_path / "runs")
    for words in (["runs", "--root", root], ["show", "new", "--root", root]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert "new" in done.output
    report = write_report(found(tmp_path))
    assert (report.episodes, report.turns) == (2, 7)


def test_another_programs_steps_are_turns(tmp_path: Path) -> None:
    result = imported(tmp_path, trajectory(0), trajectory(1, "London"), answer=answer_parser("tag:answer"))
    assert (result.episodes, result.turns, result.with_text, result.trainable) == (2, 8, 6, 0)
    rows = turns(found(tmp_path))[:4]
    assert [(t["step"], t["event"], t["parents"]) for t in rows] == [
        ("my_agent", "llm", []),
        ("web_search", "tool", [0]),
        ("helper", "llm", [0]),
        ("my_agent", "llm", [0, 1, 2]),
    ]
    assert rows[0]["response_text"] == "<think>\na search\n</think>\n\nI look."
    assert [m["role"] for m in json.loads(rows[3]["messages"])] == ["system", "user", "assistant", "tool"]
    assert (rows[3]["parsed"], rows[3]["format_valid"]) == ('"Paris"', True)
    assert {t["origin"] for t in rows} == {"imported"}
    assert [t["sample"] for t in turns(found(tmp_path))[::4]] == [0, 1]


def test_another_programs_events_are_turns_in_the_order_of_their_edges(tmp_path: Path) -> None:
    imported(tmp_path, trace())
    rows = turns(found(tmp_path))
    assert [(t["step"], t["event"], t["act"]) for t in rows] == [
        ("boss", "llm", None),
        ("web", "tool", None),
        ("boss", "llm", "return"),
    ]
    assert [t["parents"] for t in rows] == [[], [0], [1]]
    episode = next(episodes_of(shelf_of(found(tmp_path)).place(0)))
    assert episode.mean_reward == 0.5
    assert [p["name"] for p in episode.rewards[0]["reward_parts"]] == ["team", "tool"]


def test_what_another_program_wrote_comes_out_again(tmp_path: Path) -> None:
    imported(tmp_path, trace())
    export(shelf_of(found(tmp_path)), str(tmp_path / "1.jsonl"), "survey", "inline")
    document = lines(tmp_path / "1.jsonl")[0]
    bare = [{k: v for k, v in event.items() if k != "x_mas"} for event in document["events"]]
    assert {**document, "events": bare} == trace()
    imported(tmp_path, document, name="third")
    export(shelf_of(found(tmp_path, "third")), str(tmp_path / "2.jsonl"), "survey", "inline")
    assert lines(tmp_path / "2.jsonl") == [document]
    export(shelf_of(found(tmp_path, "third")), str(tmp_path / "3.jsonl"), "survey", "none")
    assert "content_ref" not in (tmp_path / "3.jsonl").read_text()
    assert '"sure"' not in (tmp_path / "3.jsonl").read_text()


def test_gold_answers_are_joined_by_task(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "q1", "question": CAPITAL, "answers": ["Paris"]}))
    assert imported(tmp_path, trajectory(0), trace()).without_gold == 1
    result = imported(tmp_path, trajectory(0), trace(), name="graded", tasks=str(tasks))
    assert (result.tasks, result.without_gold) == (1, 0)


@pytest.mark.slow
def test_imported_replies_are_scored_and_credited_anew(tmp_path: Path, ray_cluster: None) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "q1", "question": CAPITAL, "answers": ["Paris"]}))
    answer = answer_parser("tag:answer")
    imported(tmp_path, trajectory(0), trajectory(1, "London"), tasks=str(tasks), answer=answer)
    run = found(tmp_path)
    plan = replay_plan(Source(run), overridden(run, ['rewards=[{use="exact_match"}]']), label="graded")
    assert [stage.name for stage in plan.stages] == ["reward", "credit"]
    replay(plan, [0], Quiet())
    scored = list(episodes_of(shelf_of(run, replay="graded").place(0)))
    assert [e.rewards[3]["reward"] for e in scored] == [1.0, 0.0]
    assert [e.credit[3]["advantage"] for e in scored] == [0.5, -0.5]


TOKENS = {
    "prompt_token_ids": [1, 2],
    "completion_token_ids": [3, 4],
    "logprobs": [-0.5, -0.25],
}


def test_ppo_never_sees_tokens_without_logprobs(tmp_path: Path) -> None:
    without = {k: v for k, v in TOKENS.items() if k != "logprobs"}
    assert imported(tmp_path, trajectory(0, metrics=without), temperature=1.0).trainable == 0
    assert {t["response_token_ids"] is None for t in turns(found(tmp_path))} == {True}
    run = found(tmp_path)
    with pytest.raises(UsageError, match=r"PPO can't train on them.*demonstrations"):
        replay_plan(Source(run), overridden(run, []), update=[0])
    # nor those whose temperature nobody knows
    assert imported(tmp_path, trajectory(0, metrics=TOKENS), name="cold").trainable == 0
    assert imported(tmp_path, trajectory(0, metrics=TOKENS), name="warm", temperature=0.7).trainable == 1
    warm = found(tmp_path, "warm")
    with pytest.raises(UsageError, match="import them again with --checkpoint"):
        replay_plan(Source(warm), overridden(warm, []), update=[0])
    rows = [t for t in turns(warm) if t["response_token_ids"]]
    assert [(t["behaviour_logprobs"], t["policy_version"]) for t in rows] == [([-0.5, -0.25], 0)]
    names = [s.name for s in replay_plan(Source(warm), overridden(warm, [])).stages]
    assert names == ["reward", "credit", "partition"]


def test_replies_with_text_are_demonstrations(tmp_path: Path) -> None:
    imported(tmp_path, trajectory(0))
    file = tmp_path / "demonstrations.jsonl"
    assert write_demonstrations(shelf_of(found(tmp_path)), "role = 'my_agent'", str(file)).chats == 2
    assert lines(file)[1]["messages"][-1] == {"role": "assistant", "content": "<answer>Paris</answer>"}


def test_the_team_of_traces_is_never_played(tmp_path: Path) -> None:
    imported(tmp_path, trajectory(0))
    text = found(tmp_path).folder.read_text("settings.toml")
    settings = parse_settings(read_toml((text or "").encode(), "settings"))
    with pytest.raises(UsageError, match="only another program can play"):
        assemble(settings)


def test_a_bad_trace_is_refused_with_its_place_and_rule_or_left_out_and_counted(tmp_path: Path) -> None:
    bad = trace(1) | {"topology": "ring"}
    with pytest.raises(UsageError, match=r"bad\.jsonl, line 2: topology: got 'ring'.*rule enum.*--skip"):
        imported(tmp_path, trace(), bad, name="bad")
    assert not Run(str(tmp_path / "runs"), "bad").exists
    result = imported(tmp_path, trace(), bad, name="some", skip=True)
    assert (result.traces, result.episodes, dict(result.refused)) == (2, 1, {"enum": 1})
    accounts = shelf_of(found(tmp_path, "some")).place(0).accounts
    assert [(a.rows_in, a.rows_out, a.excluded) for a in accounts] == [(2, 1, {"enum": 1})]
    with pytest.raises(UsageError, match="none of 1 traces is left"):
        imported(tmp_path, bad, name="none", skip=True)


def test_what_can_not_be_is_said_at_once(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "1.jsonl"
    export(shelf_of(run), str(out), "survey", "inline", "0")
    with pytest.raises(UsageError, match="is there already"):
        export(shelf_of(run), str(out), "survey", "inline")
    with pytest.raises(UsageError, match="JSON lines"):
        export(shelf_of(run), str(tmp_path / "x.json"), "survey", "inline")
    with pytest.raises(UsageError, match="has none of the run's"):
        export(shelf_of(run), str(tmp_path / "y.jsonl"), "survey", "inline", "7")
    with pytest.raises(UsageError, match="no file of traces"):
        files_of([str(tmp_path / "nowhere.jsonl")])
    with pytest.raises(UsageError, match="there is a run"):
        import_traces([str(out)], str(tmp_path / "runs"), "demo", Options())
    with pytest.raises(UsageError, match="did you mean 'tag'"):
        answer_parser("tags:answer")
    twice = [{**each, "trace_id": f"{each['trace_id']}{n}"} for n in range(2) for each in lines(out)]
    with pytest.raises(UsageError, match="import them into two runs"):
        imported(tmp_path, *twice)
    with pytest.raises(UsageError, match=r"no role replies in that step; there are my_agent, helper"):
        imported(tmp_path, trajectory(0), name="steps", answer_step="answer")


def test_a_row_that_does_not_fit_its_table_is_refused(run: Run, tmp_path: Path) -> None:
    export(shelf_of(run), str(tmp_path / "1.jsonl"), "survey", "inline", "0")
    document = lines(tmp_path / "1.jsonl")[0]
    document["events"][1]["x_mas"]["cadre"]["turn"]["round"] = "first"
    with pytest.raises(UsageError, match=r"turn\.round can't be 'first'; expected int32"):
        imported(tmp_path, document)


def test_the_verbs_do_what_the_functions_do(run: Run, tmp_path: Path) -> None:
    root, out = str(tmp_path / "runs"), str(tmp_path / "t.jsonl")

    def call(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, ["trace", *words, "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    assert call("export", "demo", "-o", out, "-f", "otel", "--root", root)["lost"]
    Path(out).unlink()
    assert call("export", "demo", "-o", out, "--root", root)["traces"] == 12
    assert call("validate", out)["good"] == 12
    assert call("import", out, "--run", "copy", "--root", root)["episodes"] == 12
    of_file, of_run = call("stats", out), call("stats", "copy", "--root", root)
    assert of_file == of_run
    assert of_file["replies_with"]["messages"] == of_file["replies"] == 48
    Path(out).write_text(Path(out).read_text() + "{}\n")
    assert call("validate", out, code=1)["refused_by_rule"] == {"object": 1}


def test_a_corpus_is_counted() -> None:
    stats = Stats()
    stats.add(trace())
    stats.add(trace(1))
    assert stats.as_dict()["events_by_type"] == {
        "tool_result": 2,
        "orchestrator_decision": 2,
        "tool_call": 2,
        "return": 2,
    }
    assert (stats.depth.most, stats.width.most, stats.agents.most) == (4, 1, 1)
    assert stats.reward.as_dict() == {"min": 0.5, "mean": 0.5, "max": 0.5}
