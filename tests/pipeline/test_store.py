"""A run on disk: manifests last, parts checked, one writer."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.run.tracker import changes_tag
from pipeline.settings.reading import parse_settings, settings_toml
from pipeline.settings.schema import Settings
from pipeline.store.differences import differences
from pipeline.store.folder import Folder
from pipeline.store.lock import RunLock
from pipeline.store.manifest import input_hashes
from pipeline.store.run import Run
from pipeline.store.runs import create_or_open, find_run, list_runs, new_name, settings_changes
from stages.base import Account, StageResult, check_chain
from stages.tables.parquet import TableRef, TableSink, read_parquet
from workflows.errors import CadreError, UsageError
from workflows.trajectory import CREDIT, REWARDS, conform

ROWS = pa.table(
    {
        "episode_id": ["a", "b"],
        "turn_index": pa.array([0, 1], pa.int32()),
        "reward": [1.0, None],
        "reward_parts": pa.array([[{"name": "f1", "value": 1.0}], []], REWARDS.field("reward_parts").type),
        "no_reward_reason": pa.array([None, "episode timeout"], pa.string()),
    }
)


@dataclass
class Writer:
    """A stage that only names what it writes and reads."""

    name: str = "reward"
    folder: str = "rewards"
    lease: str = "none"
    inputs: dict[str, pa.Schema] = None  # type: ignore[assignment]
    outputs: dict[str, pa.Schema] = None  # type: ignore[assignment]
    places: dict[str, str] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.inputs = self.inputs or {}
        self.outputs = self.outputs or {"rewards": REWARDS}
        self.places = self.places or {"rewards": ""}


@pytest.mark.parametrize("root", ["local", "memory://cadre-test"])
def test_a_committed_stage_reads_back_from_any_filesystem(root: str, tmp_path: Path) -> None:
    run = Run(str(tmp_path) if root == "local" else f"{root}/{tmp_path.name}", "r")
    store, stage = run.iteration(3), Writer()
    assert store.manifest(stage) is None
    part = store.sinks(stage)["rewards"].write_part(0, ROWS)
    result = StageResult({"rewards": [part]}, [Account("reward", "turn", 2, 2)], {"mean": 1.0}, ["a note"])
    written = store.commit(stage, result, {"k": 1}, {}, 0.5)
    read = store.manifest(stage)
    assert read == written
    ref = store.refs(stage, read)["rewards"]
    assert ref.rows == 2
    assert ref.read().equals(conform(ROWS, REWARDS))
    assert ref.read(["episode_id"]).column_names == ["episode_id"]
    assert run.iterations() == [3]


def test_equal_tables_are_equal_bytes(tmp_path: Path) -> None:
    one = TableSink("rewards", str(tmp_path / "one"), REWARDS).write_part(0, ROWS)
    two = TableSink("rewards", str(tmp_path / "two"), REWARDS).write_part(0, ROWS.combine_chunks())
    assert one == two


def test_a_part_that_is_gone_or_cut_is_found_when_the_table_is_opened(tmp_path: Path) -> None:
    store, stage = Run(str(tmp_path), "r").iteration(0), Writer()
    part = store.sinks(stage)["rewards"].write_part(0, ROWS)
    manifest = store.commit(stage, StageResult({"rewards": [part]}), {}, {}, 0.0)
    file = tmp_path / "r/iterations/00000/rewards" / part.name
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(CadreError, match="its manifest says"):
        store.refs(stage, manifest)
    file.unlink()
    with pytest.raises(CadreError, match="is missing"):
        store.refs(stage, manifest)


def test_readers_see_only_what_the_manifest_lists(tmp_path: Path) -> None:
    store, stage = Run(str(tmp_path), "r").iteration(0), Writer()
    sink = store.sinks(stage)["rewards"]
    kept, _stray = sink.write_part(0, ROWS), sink.write_part(1, ROWS)
    manifest = store.commit(stage, StageResult({"rewards": [kept]}), {}, {}, 0.0)
    assert store.refs(stage, manifest)["rewards"].read().num_rows == 2


def test_a_table_of_another_schema_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    store, stage = Run(str(tmp_path), "r").iteration(0), Writer()
    manifest = store.commit(stage, StageResult({"rewards": []}), {}, {}, 0.0)
    manifest.schema_version = 99
    store.folder.write_text("rewards/manifest.json", manifest.to_json())
    with pytest.raises(UsageError, match="schema version 99"):
        store.manifest(stage)


def test_an_empty_part_keeps_its_schema(tmp_path: Path) -> None:
    sink = TableSink("rewards", str(tmp_path), REWARDS)
    part = sink.write_part(0, REWARDS.empty_table())
    assert read_parquet(str(tmp_path / part.name), REWARDS).schema == REWARDS


def test_columns_never_vanish_on_the_way_to_disk(tmp_path: Path) -> None:
    sink = TableSink("rewards", str(tmp_path), REWARDS)
    with pytest.raises(KeyError, match="not in the schema"):
        sink.write_part(0, ROWS.append_column("extra", pa.array([1, 2])))
    with pytest.raises(KeyError, match="missing"):
        sink.write_part(0, ROWS.drop_columns(["reward"]))


def test_an_account_that_does_not_add_up_fails() -> None:
    Account("credit", "turn", 5, 3, {"a": 1, "b": 1}).check()
    with pytest.raises(CadreError, match="rows are lost"):
        Account("credit", "turn", 5, 3, {"a": 1}).check()


def test_a_chain_with_a_missing_or_other_input_is_refused() -> None:
    credit = Writer(
        "credit", "credit", inputs={"rewards": REWARDS}, outputs={"credit": CREDIT}, places={"credit": ""}
    )
    check_chain([Writer(), credit])
    with pytest.raises(UsageError, match="no earlier stage writes"):
        check_chain([credit, Writer()])
    wrong = pa.schema([("reward", pa.string())])
    with pytest.raises(UsageError, match="column 'reward'"):
        check_chain([Writer(), Writer("x", "x", inputs={"rewards": wrong}, outputs={"credit": CREDIT})])
    with pytest.raises(UsageError, match="written by"):
        check_chain([Writer(), Writer()])


def test_input_hashes_follow_content_not_place(tmp_path: Path) -> None:
    parts = [TableSink("rewards", str(tmp_path / n), REWARDS).write_part(0, ROWS) for n in "ab"]
    refs = [TableRef("rewards", str(tmp_path / n), REWARDS, (p,)) for n, p in zip("ab", parts, strict=True)]
    assert input_hashes({"rewards": refs[0]}) == input_hashes({"rewards": refs[1]})


def test_differences_name_the_leaves() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == "a.c: 2 → 3"
    assert "and 4 more" in differences({str(i): 0 for i in range(10)}, {str(i): 1 for i in range(10)})


def test_a_second_writer_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "r"))
    code = (
        "import sys, time\n"
        "from pipeline.store.lock import RunLock\nfrom pipeline.store.folder import Folder\n"
        f"with RunLock(Folder({str(tmp_path / 'r')!r})):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"process {other.pid}"), RunLock(folder):
            pass
    finally:
        other.kill()
        other.wait()
    with RunLock(folder):
        pass


def test_a_remote_lock_holds_and_a_stale_one_is_taken_over(tmp_path: Path) -> None:
    folder = Folder(f"memory://locks/{tmp_path.name}")
    with RunLock(folder), pytest.raises(UsageError, match="being written by"), RunLock(folder):
        pass
    assert folder.read_text("lock") is None
    folder.write_text("lock", '{"host": "gone", "pid": 1, "renewed_at": %f}' % (time.time() - 10_000))
    with RunLock(folder):
        pass


def test_runs_are_found_by_name_path_and_latest(tmp_path: Path) -> None:
    root = str(tmp_path)
    with pytest.raises(UsageError, match="no runs under"):
        find_run(root, "latest")
    identity = {"workflow": {"use": "single"}, "seed": 0}
    for name in ("one", "two"):
        create_or_open(Run(root, name), settings_toml(Settings()), identity, "full")
    assert find_run(root, "latest").name == "two"
    assert find_run("elsewhere", f"{root}/one").name == "one"
    assert [r["name"] for r in list_runs(root)] == ["one", "two"]
    assert new_name(root, "one") == "one-2"
    assert new_name(root, "three") == "three"
    with pytest.raises(UsageError, match="did you mean 'one'"):
        find_run(root, "onne")


def test_settings_that_change_within_a_run_are_told_and_kept_by_iteration(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "r")
    identity = {"workflow": {"use": "single"}, "seed": 0}

    def again(**changes: Any) -> str | None:
        return create_or_open(run, settings_toml(parse_settings(changes)), identity, "full")

    assert again() is None
    assert again(ppo={"learning_rate": 0.5}) is None  # nothing has been trained yet
    run.iteration(0).folder.write_text("done.json", "{}")
    run.iteration(1).folder.write_text("tasks/begun.json", "{}")
    assert again(ppo={"learning_rate": 0.5}) is None
    remark = again(ppo={"learning_rate": 0.25}, tracking={"uri": "none"}, cluster={"object_store_gib": 9.0})
    assert remark == "settings of run 'r' differ from iteration 1 on: ppo.learning_rate: 0.5 → 0.25"
    assert again(ppo={"learning_rate": 0.25}) is None
    run.read_info()
    assert settings_changes(run) == [(1, "ppo.learning_rate: 0.5 → 0.25")]
    # a default that an older version wrote as a number
    run.folder.write_text("settings.toml", settings_toml(parse_settings({"ppo": {"clip_high": 0.2}})))
    assert again() is None
    run.folder.write_text("settings.toml", settings_toml(parse_settings({"ppo": {"clip_high": 0.3}})))
    assert again() == "settings of run 'r' differ from iteration 1 on: ppo.clip_high: 0.3 → 0.2"
    run.folder.write_text("settings.toml", "[gone]\nkey = 1\n")  # as another version may have written it
    assert again() is None


def test_what_is_set_back_before_an_iteration_has_run_is_no_change(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "r")

    def again(**ppo: float) -> None:
        create_or_open(run, settings_toml(parse_settings({"ppo": ppo})), {"seed": 0}, "full")

    again(learning_rate=0.5)
    assert changes_tag(run) == {}
    run.iteration(0).folder.write_text("done.json", "{}")
    again(learning_rate=0.25)
    again(learning_rate=0.25, eps=1e-6)
    assert settings_changes(run) == [(1, "ppo.eps: 1e-08 → 1e-06; ppo.learning_rate: 0.5 → 0.25")]
    assert changes_tag(run)["settings_changed"].startswith("from iteration 1: ppo.eps")
    again(learning_rate=0.5)
    assert settings_changes(run) == []
    assert "set back" in changes_tag(run)["settings_changed"]  # a tag stays until it is written anew
    again(learning_rate=0.25)
    run.iteration(1).folder.write_text("done.json", "{}")
    again(learning_rate=0.5)
    assert settings_changes(run) == [
        (1, "ppo.learning_rate: 0.5 → 0.25"),
        (2, "ppo.learning_rate: 0.25 → 0.5"),
    ]


def test_rewards_that_changed_are_told_by_what_is_set_in_them() -> None:
    before, now = [{"use": "f1", "name": None, "weight": 1.0, "options": {}}], [{"use": "f1", "weight": 0.5}]
    assert differences({"rewards": before}, {"rewards": now}) == (
        "rewards: [{use = 'f1', weight = 1.0}] → [{use = 'f1', weight = 0.5}]"
    )


def test_a_run_refuses_another_identity_under_its_name(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "r")
    create_or_open(run, settings_toml(Settings()), {"workflow": {"use": "single"}, "seed": 0}, "full")
    create_or_open(run, settings_toml(Settings()), {"workflow": {"use": "single"}, "seed": 0}, "full")
    with pytest.raises(UsageError, match="seed: 0 → 1"):
        create_or_open(run, settings_toml(Settings()), {"workflow": {"use": "single"}, "seed": 1}, "full")
