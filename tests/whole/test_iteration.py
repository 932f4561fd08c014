"""One iteration from settings to new weights, on the scripted engine: laws of the whole."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import assemble
from pipeline.run.runner import Runner
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from stages.tables.parquet import TableRef
from workflows.errors import RunFailed, UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

TIMES = ("queued_at", "started_at", "first_token_at", "ended_at", "seconds")

Settings = Callable[..., dict[str, Any]]


def play(raw: dict[str, Any], iterations: int = 1) -> tuple[Run, list[Finished]]:
    plan = assemble(parse_settings(raw))
    with session(plan, signals=False) as runner:
        done = [runner.run_iteration() for _ in range(iterations)]
        return runner.run, done


@dataclass(frozen=True, slots=True)
class Two:
    """Two iterations of one session, and which checkpoints there were after each of them."""

    run: Run
    done: list[Finished]
    whole: list[list[int]]  # versions with a trainer's state
    weights: list[list[int]]  # versions that an engine can load

    def copied(self, root: str) -> Run:
        """The run in a folder of its own under `root`, to be changed and gone on with."""
        shutil.copytree(self.run.folder.path, f"{root}/{self.run.name}")
        return Run(root, self.run.name)


@pytest.fixture(scope="module")
def two(ray_cluster: None, scripted_module: dict[str, Any]) -> Two:
    """Played once for all tests that only look; whole checkpoints come every second iteration."""
    plan = assemble(parse_settings(scripted_module | {"checkpoints": {"every": 2, "keep": 5}}))
    with session(plan, signals=False) as runner:
        two = Two(runner.run, [], [], [])
        for _ in range(2):
            two.done.append(runner.run_iteration())
            two.whole.append(runner.run.checkpoint_versions("team"))
            two.weights.append(runner.run.weights_versions("team"))
    return two


def up_to_partition(raw: dict[str, Any]) -> dict[str, pl.DataFrame]:
    """The tables of an iteration that is stopped where the first update would begin."""
    plan = assemble(parse_settings(raw))
    with session(plan, signals=False) as runner:
        stop_before(runner, "update/")
        with pytest.raises(_Halt):
            runner.run_iteration()
        tables, _ = runner.run.iteration(0).tables()
        return frames_of(tables)


def frames(done: Finished) -> dict[str, pl.DataFrame]:
    return frames_of(done.tables)


def frames_of(tables: Mapping[str, TableRef]) -> dict[str, pl.DataFrame]:
    """Every table as a sorted frame, without what a clock or a place decides."""
    out = {}
    for name, ref in tables.items():
        frame = pl.DataFrame(ref.read())
        frame = frame.drop([c for c in (*TIMES, "uri") if c in frame.columns])
        keys = [c for c in ("task_id", "episode_id", "turn_index", "kind", "step") if c in frame.columns]
        out[name] = frame.sort(keys, nulls_last=True)
    return out


def same(one: dict[str, pl.DataFrame], other: dict[str, pl.DataFrame]) -> None:
    assert one.keys() == other.keys()
    for name, frame in one.items():
        assert frame.equals(other[name]), name


def test_an_iteration_accounts_for_every_row_and_moves_the_weights(two: Two) -> None:
    first, second = two.done
    tables = frames(first)
    assert tables["episodes"].height == 4 * 4
    assert tables["rewards"].height == tables["credit"].height == tables["turns"].height
    usable = tables["credit"].filter(pl.col("excluded").is_null())
    assert tables["partition/team"].height == usable.height > 0
    for account in first.accounts:
        account.check()
    summary = tables["updates/team"].filter(pl.col("kind") == "summary").row(0, named=True)
    assert (summary["version_before"], summary["version_after"]) == (0, 1)
    assert summary["num_rows"] == usable.height
    assert first.manifests["update/team"].metrics["version_after"] == 1
    assert two.weights == [[1], [2]]
    # what the second iteration was sampled with, and other tasks than the first's
    assert set(frames(second)["turns"].filter(event="llm")["policy_version"]) == {1}
    assert not set(frames(second)["tasks"]["task_id"]) & set(tables["tasks"]["task_id"])


def test_sharing_regimes_differ_in_model_ids_only(two: Two, scripted: Settings) -> None:
    regimes = {
        "separate": {"regime": "separate"},
        "groups": {"groups": {"front": ["decomposer"], "back": ["reader", "answerer"]}},
    }
    done = {"full": frames(two.done[0])}  # one model, where the settings name no more
    done |= {n: up_to_partition(scripted(run={"name": n}, sharing=s)) for n, s in regimes.items()}
    models = {n: set(d["turns"]["model_id"].drop_nulls()) for n, d in done.items()}
    assert {n: len(m) for n, m in models.items()} == {"full": 1, "separate": 3, "groups": 2}
    told = ("model_id", "base_id", "team_version")
    turns = {n: d["turns"].drop(told) for n, d in done.items()}
    assert turns["full"].equals(turns["separate"])
    assert turns["full"].equals(turns["groups"])
    for name in ("rewards", "credit"):
        assert done["full"][name].equals(done["separate"][name])
    # each model trains on the turns of its own roles, and all of them together on all
    rows = {n: sum(t.height for k, t in d.items() if k.startswith("partition/")) for n, d in done.items()}
    assert len(set(rows.values())) == 1
    assert set(done["groups"]["partition/back"]["role"]) == {"reader", "answerer"}


def test_rows_keep_what_the_policy_was_asked_and_said(two: Two) -> None:
    done = two.done[0]
    turns = frames(done)["turns"].filter(event="llm")
    for row in turns.iter_rows(named=True):
        assert len(row["response_token_ids"]) == len(row["behaviour_logprobs"]) > 0
        assert len(row["prompt_token_ids"]) == row["num_prompt_tokens"]
        assert json.loads(row["sampling"])["seed"] is not None
    partition = frames(done)["partition/team"]
    both = partition.join(turns, on=["episode_id", "turn_index"], suffix="_asked")
    assert both.height == partition.height
    for column in ("prompt_token_ids", "response_token_ids", "behaviour_logprobs"):
        assert both[column].to_list() == both[f"{column}_asked"].to_list()


def test_a_finished_iteration_reads_back_whole(two: Two) -> None:
    run, done = two.run, two.done[0]
    tables, manifests = Run(run.folder.url.rsplit("/", 1)[0], run.name).iteration(0).tables()
    assert {m.stage for m in manifests} == set(done.manifests)
    assert {n: t.rows for n, t in tables.items()} == {n: done.tables[n].rows for n in tables}


def test_failing_engines_fail_the_run_with_their_causes(scripted: Settings) -> None:
    raw = scripted(models={"team": {"engine_options": {"reply": "workflows.testing:no_such_reply"}}})
    with pytest.raises((RunFailed, UsageError), match="no_such_reply"):
        play(raw)


def test_a_stopped_run_refuses_other_settings_and_with_its_own_gives_the_same_tables_bit_for_bit(
    two: Two, scripted: Settings
) -> None:
    raw = scripted(run={"name": "again"})
    plan = assemble(parse_settings(raw))
    with session(plan, signals=False) as runner:
        stop_before(runner, "update/team")
        with pytest.raises(_Halt):
            runner.run_iteration()
    with pytest.raises(UsageError, match=r"seed: 0 → 1"):
        play(scripted(run={"name": "again", "seed": 1}))
    with pytest.raises(UsageError, match=r"'credit' with other settings.*task_role"):
        play(scripted(run={"name": "again"}, credit={"options": {"by": "task"}}))
    plan = assemble(parse_settings(scripted(run={"name": "again"}, checkpoints={"every": 2})))
    with session(plan, signals=False) as runner:
        other = runner.run_iteration()
        assert (runner.run.checkpoint_versions("team"), runner.run.weights_versions("team")) == ([], [1])
    assert runner.run.checkpoint_versions("team") == [1]  # the last one is whole, whatever its number
    assert other.resumed == ("sample", "rollout", "reward", "credit", "partition")
    one = two.done[0]
    same(frames(one), frames(other))
    for stage in ("sample", "reward", "credit", "partition"):
        assert one.manifests[stage].tables == other.manifests[stage].tables


def test_whole_checkpoints_come_as_often_as_the_settings_say(two: Two) -> None:
    assert two.whole == [[], [2]]
    assert two.weights == [[1], [2]]


def test_a_lost_checkpoint_is_made_again_from_stored_partitions(two: Two, scripted: Settings) -> None:
    raw = scripted(checkpoints={"keep": 5})
    run = two.copied(raw["run"]["root"])
    have = json.loads(run.folder.read_text("checkpoints/team/00002/manifest.json") or "")
    run.folder.remove("checkpoints/team/00002")
    with session(assemble(parse_settings(raw)), signals=False) as runner:
        third = runner.run_iteration()
        assert runner.run.checkpoint_versions("team") == [2, 3]  # every iteration's, where nothing is said
    again = json.loads(run.folder.read_text("checkpoints/team/00002/manifest.json") or "")
    assert again["hash"] == have["hash"]
    assert third.index == 2
    assert set(frames(third)["turns"].filter(event="llm")["policy_version"]) == {2}


@pytest.mark.parametrize("silent", ["keep", "exclude"])
def test_no_signal_moves_nothing_and_too_much_of_it_fails(scripted: Settings, silent: str) -> None:
    raw = scripted(
        rewards=[{"use": "rewards.testing:constant"}],
        run={"max_iterations_without_signal": 2},
        credit={"silent": silent},
    )
    plan = assemble(parse_settings(raw))
    with session(plan, signals=False) as runner:
        done = runner.run_iteration()
        assert done.manifests["update/team"].metrics["version_after"] == 0
        assert any("no signal" in note or "without signal" in note for note in done.notes)
        with pytest.raises(RunFailed, match="2 iterations in a row had no signal"):
            runner.run_iteration()


class _Halt(Exception):
    pass


class _Halting:
    """A stage that halts instead of running."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def run(self, *_: Any) -> None:
        raise _Halt


def stop_before(runner: Runner, name: str) -> None:
    """Make the runner's plan end where stage `name` would begin, as a crash there would."""
    stages = [_Halting(s) if s.name.startswith(name) else s for s in runner.plan.stages]
    runner.plan = replace(runner.plan, stages=tuple(stages))


def test_statuses_are_counted(two: Two) -> None:
    done = two.done[0]
    statuses = Counter(frames(done)["turns"]["status"].to_list())
    assert statuses.total() == done.tables["turns"].rows
    assert statuses["ok"] > 0


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_what_the_engine_samples_is_what_the_trainer_trains_before_and_after_a_reload(
    engine: str, scripted: Settings, tiny_half: str
) -> None:
    """In fp32 the two agree tightly; after an update they do so only if the engine has the new weights, and
    not what bfloat16, which the model comes in, leaves of them."""
    if engine == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed: a run on it is not tested")
    team = {
        "checkpoint": tiny_half,
        "engine": engine,
        "dtype": "float32",
        "max_model_len": 512,
        "kv_cache_gib": 0.2,
    }
    raw = scripted(
        workflow={"use": "single", "options": {}},
        models={"team": team},
        roles={"solver": {"max_response_tokens": 12, "demonstrations": False}},
        rewards=[{"use": "rewards.testing:distinct_characters", "name": "distinct"}],
    )
    del raw["workflow"]["options"]["top_k"], raw["models"]["team"]["engine_options"]["reply"]
    _, done = play(raw, iterations=2)
    for finished, version in zip(done, (0, 1), strict=True):
        turns = frames(finished)["turns"]
        assert set(turns["policy_version"]) == {version}
        update = finished.manifests["update/team"].metrics
        assert update["version_after"] == version + 1
        assert update["sampler_gap_max"] < 1e-3
        assert update["importance_ratio_max"] == 1.0
        assert update["clip_fraction"] == update["kl_old"] == 0.0
