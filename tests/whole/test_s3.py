"""A run whose folder is an S3 bucket: everything that a folder on a disk can do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import tomlkit

from pipeline.cli.show import show
from pipeline.experiments.compare import compare_command
from pipeline.experiments.process import train_apart
from pipeline.experiments.sweep import SweepOptions, plan_sweep, run_sweep
from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.replays.ablation.command import run_ablate
from pipeline.replays.command import ReplayOptions, run_replay
from pipeline.report.write import write_report
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.export import export_model
from pipeline.store.folder import Folder, check_root
from pipeline.store.lock import RunLock
from pipeline.store.manifest import check_part
from pipeline.store.run import Run
from pipeline.store.runs import find_run
from stages.base import Quiet
from stages.tables.filesystem import filesystem
from stages.tables.parquet import TableSink
from tests.conftest import merge
from tests.support.environment import of_s3
from tests.support.s3_server import BUCKET, s3_server
from tests.whole.test_iteration import same
from tests.whole.test_kills import ROOT, joining, start, wait_for
from tests.whole.test_kills import tables as all_tables
from tests.whole.test_sweep import SIGNAL, in_this_process
from workflows.errors import CadreError, UsageError
from workflows.trajectory import CREDIT

pytestmark = pytest.mark.slow

TEAM = merge(
    SIGNAL,
    {
        "models": {"team": {"max_batch_size": 1}},  # whatever batch a request lands in changes its last bits
        "checkpoints": {"every": 1, "keep": 1},
        "evaluate": {"split": "train", "tasks": 2},
    },
)


@pytest.fixture(scope="module")
def root(s3_port: int) -> Iterator[str]:
    """Where runs lie on a new server; its address and credentials are in the environment alone."""
    with s3_server(s3_port), pytest.MonkeyPatch.context() as patch:
        for name, value in of_s3(s3_port).items():
            patch.setenv(name, value)
        fs, _ = filesystem(f"s3://{BUCKET}")
        fs.mkdir(BUCKET)
        yield f"s3://{BUCKET}/runs"
        type(fs).clear_instance_cache()


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def test_what_another_process_has_just_written_is_seen(root: str) -> None:
    folder = Folder(f"{root}/seen")
    sink = TableSink("credit", f"{folder.url}/credit", CREDIT)
    first = sink.write_part(0, CREDIT.empty_table())
    assert folder.child("credit").names() == [first.name]
    code = (
        "import sys\nfrom stages.tables.parquet import TableSink\nfrom workflows.trajectory import CREDIT\n"
        "part = TableSink('credit', sys.argv[1], CREDIT).write_part(1, CREDIT.empty_table())\n"
        "print(part.name)\n"
    )
    said, errors = python(code, sink.folder).communicate(timeout=60)
    assert said, errors
    check_part(f"{sink.folder}/{said.strip()}", first)  # as large: there are no rows in either
    assert folder.child("credit").names() == [first.name, said.strip()]
    folder.remove("credit")
    assert folder.names() == []


def test_of_several_writers_one_holds_a_run_and_a_killed_one_does_not(root: str) -> None:
    folder = Folder(f"{root}/locked")
    code = (
        "import sys, time\nimport pipeline.store.lock as lock\nfrom pipeline.store.folder import Folder\n"
        "lock.RENEW_SECONDS = 0.1\n"
        "with lock.RunLock(Folder(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    killed = python(code, folder.url)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match=f"process {killed.pid} .* this one in"), RunLock(folder):
        pass
    killed.kill()
    killed.communicate()
    with RunLock(folder), pytest.raises(UsageError, match="being written by"), RunLock(folder):
        pass
    assert folder.read_text("lock") is None

    robbed = python(code, folder.url)
    assert robbed.stdout is not None
    assert robbed.stdout.readline() == "held\n"
    other = {"host": "elsewhere", "pid": 1, "token": "another", "renewed_at": time.time()}
    folder.write_text("lock", json.dumps(other))
    _, errors = robbed.communicate(timeout=60)
    assert robbed.returncode == -signal.SIGTERM
    assert "being written by process 1 on elsewhere" in errors
    held = folder.read_text("lock")
    assert held is not None
    assert json.loads(held)["token"] == "another"
    with pytest.raises(UsageError, match="elsewhere"), RunLock(folder):
        pass


def test_a_root_that_can_not_work_is_refused_before_anything_starts(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, words in {
        "s3://nowhere-at-all/runs": "there is no bucket 'nowhere-at-all'; make it first",
        "memory://runs": "memory of one process",
        "s5://x/runs": "not a kind of filesystem",
    }.items():
        with pytest.raises(UsageError, match=words):
            assemble(parse_settings(merge(TEAM, {"run": {"root": place}})))
    fsspec.filesystem("s3").__class__.clear_instance_cache()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises(UsageError, match=r"EndpointConnectionError.*credentials and endpoint"):
            check_root(root)
        with pytest.raises(CadreError, match="EndpointConnectionError"):
            find_run(root, "r")
    fsspec.filesystem("s3").__class__.clear_instance_cache()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "s3fs", None)
        patch.delitem(sys.modules["fsspec.registry"]._registry, "s3")  # type: ignore[attr-defined]
        with pytest.raises(UsageError, match=r"not installed.*-m pip install s3fs"):
            check_root(root)


def train(raw: dict[str, Any]) -> Run:
    """Two iterations, and an evaluation after them."""
    plan = assemble(parse_settings(raw))
    with session(plan, Quiet(), signals=False) as runner:
        runner.train(2, assemble_evaluation(plan))
        return runner.run


@pytest.fixture(scope="module")
def killed(root: str, ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was killed in its second iteration, and went on from there to the end."""
    folder = tmp_path_factory.mktemp("s3")
    raw = merge(TEAM, {"run": {"root": root, "name": "killed"}})
    (folder / "settings.toml").write_text(tomlkit.dumps(raw))
    command = ["run", "train", "--iterations", "2", "--config", str(folder / "settings.toml")]
    process = start(joining([sys.executable, "-m", "pipeline", *command]), folder / "log")
    place = Folder(f"{root}/killed/iterations/00001/rewards")

    def is_there() -> bool:
        time.sleep(0.5)  # the server has to answer the run too
        return place.read_text("manifest.json") is not None

    try:
        wait_for(is_there, process, seconds=240)
    finally:
        process.kill()
        process.wait()
    assert Run(root, "killed").folder.read_text("lock") is not None
    return train(raw)


def test_a_killed_run_goes_on_at_once_and_ends_as_an_unbroken_one_on_a_disk(
    killed: Run, tmp_path: Path, capsys: Any
) -> None:
    whole = train(merge(TEAM, {"run": {"root": str(tmp_path), "name": "whole"}}))
    for index in (0, 1):
        same(
            all_tables(killed.folder.url.rpartition("/")[0], "killed", index),
            all_tables(str(tmp_path), "whole", index),
        )
    results = [
        json.loads(r.folder.read_text("evaluations/train/00002/result.json") or "") for r in (killed, whole)
    ]
    assert results[0] == results[1]
    assert [r.checkpoint_versions("team") for r in (killed, whole)] == [[2], [2]]  # the older is pruned
    assert killed.folder.read_text("lock") is None
    out = tmp_path / "out"
    compare_command([killed.folder.url, whole.folder.url], "", out=str(out), last=1, as_json=False)
    assert "killed" in capsys.readouterr().out
    assert (out / "learning_curves.png").exists()


def test_a_run_is_looked_at_replayed_and_exported_where_it_lies(
    killed: Run, tmp_path: Path, capsys: Any
) -> None:
    root = killed.folder.url.rpartition("/")[0]
    show("killed", root=root, iteration=1, episodes=1)
    assert "receiver" in capsys.readouterr().out
    report = write_report(find_run(root, "killed"))
    assert killed.folder.child("report").names() == ["learning_curve.csv", "learning_curve.png", "run.html"]
    assert report.file.startswith(root)
    run_replay("killed", root, [], ReplayOptions(iterations="1", as_json=True))
    assert json.loads(capsys.readouterr().out)["folder"] is None
    assert killed.folder.child("replays").names() == []
    run_replay("killed", root, [], ReplayOptions(iterations="1", again=True, as_json=True))
    assert json.loads(capsys.readouterr().out)["verified_tables"] == 3
    variants = tmp_path / "v.toml"
    variants.write_text('[variants.stored]\n[variants.rloo]\n"credit.use" = "rloo"\n')
    asked: dict[str, Any] = {"iterations": "1", "label": None, "shown": 2, "as_json": False}
    run_ablate("killed", root, str(variants), **asked, dry_run=False)
    assert "credit.use = rloo" in capsys.readouterr().out
    assert "roles.csv" in killed.folder.child("replays/v").names()
    trains = ReplayOptions(iterations="0", update=True, label="trained", as_json=True)
    run_replay("killed", root, ["rewards.0.weight=2"], trains)
    assert [u["version_after"] for u in json.loads(capsys.readouterr().out)["updates"]] == [1]
    assert killed.folder.child("replays/trained/checkpoints/team").names() == ["00001"]
    found = export_model(find_run(root, "killed"), f"s3://{BUCKET}/out", model_id=None, version="latest")
    assert found["version"] == 2
    assert "model.safetensors" in Folder(f"s3://{BUCKET}/out").names()


@pytest.mark.long
def test_a_sweep_lies_where_its_runs_lie(root: str, ray_cluster: None, tmp_path: Path, capsys: Any) -> None:
    config = tmp_path / "signal.toml"
    config.write_text(tomlkit.dumps(merge(SIGNAL, {"run": {"root": root}})))
    options = SweepOptions(iterations=1, grid=["ppo.learning_rate=1e-3"], name="s")
    sweep = plan_sweep(str(config), [], options)
    run_sweep(sweep, in_this_process)
    run_sweep(sweep, in_this_process)
    out = capsys.readouterr().out
    assert "1 iterations in" in out
    assert "has its 1 iterations already" in out
    settings = sweep.settings_of(sweep.members[0], {})
    broken = settings.model_copy(update={"workflow": settings.workflow.model_copy(update={"use": "no_such"})})
    cause = train_apart(broken, 2, Folder(f"{root}/s"), lambda _: None)
    assert cause is not None
    assert "no_such" in cause
    assert Folder(f"{root}/s").names() == ["s-learning_rate-1e-3-s0.log", "sweep.json", "sweep.toml"]
