"""`check` answers whether a run will work: rewards, sampling, evaluation, as values, with every problem."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from pipeline.cli.check import check
from pipeline.cli.iteration import iteration
from pipeline.plan.assemble import assemble
from pipeline.plan.overview import overview, start_problem
from pipeline.settings.reading import parse_settings
from pipeline.views.overview import amount, overview_lines
from tests.support.stored_runs import write_run
from workflows.errors import UsageError

Raw = Callable[..., dict[str, Any]]


def seen(scripted: Raw, **changes: Any) -> dict[str, Any]:
    return overview(assemble(parse_settings(scripted(**changes))))


def values_in(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict | list):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from values_in(each)
    else:
        yield tree


def test_rewards_sampling_and_the_evaluation_are_shown(scripted: Raw) -> None:
    values = seen(
        scripted,
        rewards=[{"use": "token_f1", "weight": 0.5, "roles": ["answerer"]}, {"use": "format", "weight": 0}],
        roles={"reader": {"sampling": {"temperature": 0.6, "stop": ["\n"]}, "max_response_tokens": 32}},
        evaluate={"tasks": 7, "samples": 2, "temperature": 0.8, "every": 5},
    )
    assert [(r["name"], r["weight"], r["roles"]) for r in values["rewards"]] == [
        ("token_f1", 0.5, ["answerer"]),
        ("format", 0.0, None),
    ]
    reader = values["sampling"]["reader"]
    assert (reader["temperature"], reader["stop"], reader["max_response_tokens"]) == (0.6, ["\n"], 32)
    evaluation = values["evaluation"]
    assert (evaluation["tasks"], evaluation["metrics"], evaluation["problem"]) == (7, ["token_f1"], None)
    text = "\n".join(overview_lines(values))
    assert "reward    token_f1: weight 0.5, roles answerer" in text
    assert "reward    format: weight 0, a metric alone" in text
    assert 'role      reader: → team, temperature 0.6, stop ["\\n"], answers to 32 tokens' in text
    assert "evaluate  7 tasks × 2 of dev, temperature 0.8, every 5 iterations; metrics token_f1" in text
    assert text.endswith("ok        nothing stands in the way")


def test_values_are_values_and_no_line_shows_a_python_object(scripted: Raw) -> None:
    values = seen(scripted, workflow={"options": {"top_k": 2, "readers": True}})
    assert json.loads(json.dumps(values)) == values
    assert values["data"]["episodes_per_iteration"] == (
        values["data"]["tasks_per_iteration"] * values["data"]["group_size"]
    )
    assert values["models"]["team"]["parameters"] > 0
    assert values["run"]["finished_iterations"] == 0
    assert isinstance(values["machine"]["cores"], int)
    assert values["learning"]["models"]["team"]["loss"] == "ppo"
    text = "\n".join(overview_lines(values))
    assert not re.search(r"[{\[]'|': |None|True|False", text)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (812, "812"), (90_700, "90.7 k"), (134_515_008, "135 M"), (1_540_000_000, "1.54 B")],
)
def test_a_size_is_never_nothing_of_a_larger_unit(number: int, text: str) -> None:
    assert amount(number) == text


def test_a_split_that_is_not_there_is_a_problem_where_evaluations_are_asked_for(
    scripted: Raw, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"question": "Who {n}?", "answer": ["x{n}"]}}\n' for n in range(9)))
    data = {"path": str(file), "tasks_per_iteration": 2}
    unasked = seen(scripted, data=data)
    assert unasked["problems"] == []
    assert "'dev'" in unasked["evaluation"]["problem"]
    for evaluate in ({"every": 2}, {"split": "test"}, {"tasks": 3}):
        problems = seen(scripted, data=data, evaluate=evaluate)["problems"]
        assert len(problems) == 1
        assert problems[0].startswith("[evaluate]: ")
    plan = assemble(parse_settings(scripted(data=data, evaluate={"every": 2})))
    assert "[evaluate] every = 2" in str(start_problem(plan))
    assert start_problem(assemble(parse_settings(scripted(data=data, evaluate={"tasks": 3})))) is None


def test_an_iteration_is_refused_with_an_evaluation_that_can_not_be(scripted: Raw, tmp_path: Path) -> None:
    config = tmp_path / "p.toml"
    config.write_text(tomlkit.dumps(scripted(evaluate={"every": 1, "split": "dve"})))
    with pytest.raises(UsageError, match="dve"):
        iteration(str(config))
    assert not (tmp_path / "runs").exists()


def test_a_judge_that_does_not_answer_is_a_problem_of_check(scripted: Raw) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        up = server.getsockname()[1]
        for number, is_down in ((port, True), (up, False)):
            judge = {
                "engine": "openai",
                "train": False,
                "engine_options": {"base_url": f"http://127.0.0.1:{number}/v1", "model": "m"},
            }
            roles = {name: {"model": "team"} for name in ("decomposer", "answerer")}
            problems = seen(
                scripted,
                models={"judge": judge},
                roles=roles | {"reader": {"model": "judge", "max_response_tokens": 16}},
            )["problems"]
            assert any(f"no server answers at http://127.0.0.1:{port}/v1" in p for p in problems) == is_down


def test_how_far_a_run_is_is_told_in_numbers(scripted: Raw) -> None:
    run = write_run(assemble(parse_settings(scripted())).settings)
    plan = assemble(parse_settings(scripted()))
    run.iteration(0).folder.write_text("done.json", "{}")
    run.iteration(1).folder.write_text("sample/begun.json", "{}")
    state = overview(plan)["run"]
    assert (state["finished_iterations"], state["unfinished_iteration"]) == (1, 1)
    assert "iteration 1 is unfinished, done: nothing" in overview_lines(overview(plan))[0]


def test_every_setting_is_printed_with_where_it_comes_from(
    scripted: Raw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "p.toml"
    raw = scripted(sharing={"regime": "separate"}, data={"path": {"train": "facts"}})
    raw["data"]["path"] = "facts"
    config.write_text(tomlkit.dumps(raw))
    check(
        str(config),
        ["rollout.group_size=8", 'rewards.2={use = "length", weight = 0}'],
        as_json=True,
        settings=True,
    )
    values = json.loads(capsys.readouterr().out)
    assert values["rollout.group_size"] == {"value": 8, "from": "--set"}
    assert values["rewards.2.use"] == {"value": "length", "from": "--set"}
    assert values["ppo.learning_rate"] == {"value": 1e-3, "from": "file"}
    assert values["ppo.betas"] == {"value": [0.9, 0.999], "from": "default"}
    assert values["roles.reader.model"] == {"value": "reader", "from": "derived"}
    assert values["models.reader.engine"] == {"value": "scripted", "from": "derived"}
    check(str(config), settings=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 100
    assert any(re.fullmatch(r"rollout\.group_size = 4 +# file", line) for line in lines)
    assert any(re.fullmatch(r"critic = none +# default", line) for line in lines)
