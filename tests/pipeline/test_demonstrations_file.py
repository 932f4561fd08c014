"""`demonstrations` writes what a condition chooses as chats that the engine of that name answers from."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.demonstrations import demonstrations
from pipeline.store.run import Run
from pipeline.store.shelf import shelf_of
from pipeline.views.demonstrations import REPEATED, write_demonstrations
from stages.engines.base import EngineSpec
from stages.engines.demonstrations import DemonstrationServer
from tests.support.report_runs import in_parts, new_run, store, team_episode
from workflows.engine import Sampling
from workflows.errors import NotDemonstrated, UsageError
from workflows.playing.attempts import CallFailed, attempt
from workflows.vocabulary import NOT_THE_POLICYS_DOING, Status

ALL = "event is not null"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = new_run(str(tmp_path / "runs"))
    for index in range(3):
        episodes = [team_episode(k, k / 8, f"City {index}/{k}") for k in range(6)]
        store(run.iteration(index), in_parts(episodes, size=2))
    return run


def chats(file: Path) -> list[Any]:
    return [json.loads(line)["messages"] for line in file.read_text("utf-8").splitlines()]


def stored(run: Run, index: int = 0) -> list[dict[str, Any]]:
    tables = shelf_of(run).place(index).tables
    return [
        row
        for part in range(len(tables["turns"].parts))
        for row in tables["turns"].read_part(part).to_pylist()
    ]


def test_every_chosen_turn_is_in_the_file_or_left_out_by_reason(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    written = write_demonstrations(shelf_of(run), ALL, str(file))
    rows = [row for index in range(3) for row in stored(run, index)]
    assert written.chats + sum(written.left_out.values()) == len(rows)
    assert len(chats(file)) == written.chats > 0
    assert written.left_out["a turn of kind tool, not a reply of a model"] == sum(
        r["event"] == "tool" for r in rows
    )
    assert written.left_out["a reply that the token limit cut off"] == sum(
        r["status"] == "truncated" for r in rows
    )
    assert REPEATED in written.left_out


def test_a_chat_is_the_prompt_of_the_turn_and_its_reply(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    write_demonstrations(shelf_of(run), "step = 'answer' and status = 'ok'", str(file), "1")
    answers = [r for r in stored(run, 1) if r["step"] == "answer" and r["status"] == "ok"]
    expected = [
        [*json.loads(r["messages"]), {"role": "assistant", "content": r["response_text"]}]
        for r in sorted(answers, key=lambda r: (r["episode_id"], r["turn_index"]))
    ]
    assert chats(file) == expected


def test_the_engine_answers_from_the_file(run: Run, tmp_path: Path, tiny: str) -> None:
    file = tmp_path / "d.jsonl"
    write_demonstrations(shelf_of(run), "step = 'answer' and status = 'ok'", str(file), "0:1")
    server = DemonstrationServer(EngineSpec("team", "demonstrations", tiny, options={"file": str(file)}))
    *asked, answer = chats(file)[0]
    said = asyncio.run(server.generate("team", server.chat.render(asked), Sampling(max_tokens=400, seed=0)))
    replies = {messages[-1]["content"] for messages in chats(file) if messages[:-1] == asked}
    assert server.chat.decode(said.token_ids) in replies
    assert answer["content"] in replies


@pytest.mark.parametrize(
    ("where", "iterations", "words"),
    [
        ("reward > 99", None, "leaves no turn to write (it chooses none)"),
        ("event = 'tool'", None, "a turn of kind tool"),
        (ALL, "7:9", "--iterations '7:9' has none of the run's, which are 0 to 2"),
        ("rewrd > 1", None, "did you mean 'reward'"),
    ],
)
def test_nothing_to_write_is_refused_and_no_file_is_made(
    run: Run, tmp_path: Path, where: str, iterations: str | None, words: str
) -> None:
    file = tmp_path / "d.jsonl"
    with pytest.raises(UsageError) as refused:
        write_demonstrations(shelf_of(run), where, str(file), iterations)
    assert words in str(refused.value)
    assert not file.exists()


def test_a_file_or_folder_that_is_there_stays(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text("mine")
    for out in (file, tmp_path / "runs"):
        with pytest.raises(UsageError, match="is there already"):
            write_demonstrations(shelf_of(run), ALL, str(out))
    assert file.read_text() == "mine"


def test_a_place_that_can_not_be_written_is_one_message(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"--out .* can't be written"):
        write_demonstrations(shelf_of(run), ALL, str(tmp_path / "file" / "d.jsonl"))


def test_the_verb_prints_what_it_wrote(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "d.jsonl"
    demonstrations("step = 'answer'", str(file), run=run.folder.url, as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert values["file"] == str(file)
    assert values["chats"] == len(chats(file))


def test_a_prompt_that_nobody_demonstrated_has_its_own_status() -> None:
    async def ask(number: int) -> str:
        raise NotDemonstrated("d.jsonl demonstrates no answer")

    with pytest.raises(CallFailed) as failed:
        asyncio.run(attempt(ask, attempts=3, timeout_seconds=5, pause=lambda _: 0, grace_seconds=1))
    assert failed.value.status == Status.NOT_DEMONSTRATED
    assert Status.NOT_DEMONSTRATED in NOT_THE_POLICYS_DOING
