"""`run replay --update`: the run's own weights where nothing changed, others where something did, from the
checkpoint that sampled the turns or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipeline.plan.assemble import assemble
from pipeline.replays.dry import dry_page, due_of
from pipeline.replays.plan import ReplayPlan, replay_plan
from pipeline.replays.replayer import Replayed, replay
from pipeline.replays.settings import overridden
from pipeline.replays.show import replay_page
from pipeline.replays.source import Source
from pipeline.report.write import write_report
from pipeline.run.session import session
from pipeline.settings.reading import load_settings, parse_settings
from pipeline.store.export import export_model
from pipeline.store.run import Run
from pipeline.store.shelf import shelf_of
from pipeline.views.render import as_text
from pipeline.views.stored import print_place
from stages.base import Context, Quiet
from stages.update import UpdateStage
from tests.conftest import SCRIPTED, merge
from tests.learning.signal import METHODS, REGIMES
from tests.learning.train import EXAMPLES
from workflows.errors import RunFailed, UsageError
from workflows.trajectory import TURN_KEYS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(scope="module")
def run(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two iterations of a tiny team that samples from its own weights, and corrects for the gap."""
    root = str(tmp_path_factory.mktemp("update") / "runs")
    team = {"checkpoint": "tiny", "engine": "torch", "dtype": "float32", "max_model_len": 512}
    raw = merge(
        SCRIPTED,
        {
            "run": {"root": root},
            "models": {"team": team},
            "roles": {"solver": {"max_response_tokens": 12, "demonstrations": False}},
            "rewards": [{"use": "rewards.testing:distinct_characters", "weight": -1.0}],
            "ppo": {"importance": "truncated"},
            "checkpoints": {"keep": 5},
        },
    )
    raw["workflow"] = {"use": "single", "options": {}}
    raw["models"]["team"]["engine_options"] = {}
    with session(assemble(parse_settings(raw)), Quiet(), signals=False) as runner:
        runner.run_iteration()
        runner.run_iteration()
    return runner.run


def plan_of(run: Run, *overrides: str, span: str | None = None, **options: Any) -> ReplayPlan:
    source = Source(run)
    return replay_plan(source, overridden(run, overrides), update=source.chosen(span), **options)


def updated(run: Run, *overrides: str, span: str | None = None, **options: Any) -> Replayed:
    plan = plan_of(run, *overrides, span=span, **options)
    return replay(plan, plan.source.chosen(span), Quiet())


def weights_of(run: Run, model_id: str, version: int, label: str | None) -> str:
    folder = Path(run.folder.path) / (f"replays/{label}" if label else "")
    manifest = (folder / f"checkpoints/{model_id}/{version:05d}/manifest.json").read_text()
    return str(json.loads(manifest)["hash"])


def weights(run: Run, version: int, label: str | None = None) -> str:
    return weights_of(run, "team", version, label)


def files_of(run: Run) -> dict[str, str]:
    """Every file of the run but for its replays."""
    root = Path(run.folder.path)
    files = [p for p in root.rglob("*") if p.is_file() and "replays" not in p.relative_to(root).parts]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def changed(run: Run) -> Replayed:
    """Both iterations with the opposite reward."""
    return updated(run, "rewards.0.weight=1.0", label="changed")


class Halt(Exception):
    pass


def test_unchanged_settings_give_the_weights_of_the_run_bit_for_bit_also_when_broken_off(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(run)

    def halt_in_the_second(stage: UpdateStage, inputs: Any, outputs: Any, context: Context) -> Any:
        if context.iteration == 1:
            raise Halt
        return update(stage, inputs, outputs, context)

    update = UpdateStage.run
    monkeypatch.setattr(UpdateStage, "run", halt_in_the_second)
    plan = plan_of(run, label="same")
    assert {due.state for due in due_of(plan, [0, 1])} == {"would run"}
    assert not plan.folder.names()
    with pytest.raises(Halt):
        updated(run, label="same")
    monkeypatch.undo()
    assert [due.state for due in due_of(plan, [0, 1])] == ["finished before", "goes on after advantage"]
    assert "goes on after advantage" in as_text(dry_page(plan, due_of(plan, [0, 1])))
    same = updated(run, label="same")
    assert same.trained
    stages = ["score/team", "advantage", "update/team"]
    assert list(same.done[0].resumed) == list(same.done[0].manifests) == stages
    assert same.done[1].resumed == ("score/team", "advantage")
    # begun from equal weights, the second iteration is on policy too, though nothing relies on it
    assert [weights(run, v, "same") for v in (1, 2)] == [weights(run, v) for v in (1, 2)]
    assert files_of(run) == before
    assert {due.state for due in due_of(plan_of(run, label="same"), [0, 1])} == {"finished before"}
    again = updated(run, label="same")
    assert all(list(done.resumed) == list(done.manifests) for done in again.done.values())


@pytest.mark.long
def test_adapters_with_a_critic_on_two_ranks_are_trained_as_the_run_trained_them(tmp_path: Path) -> None:
    overrides = [
        f"run.root={tmp_path}",
        "tracking.uri=none",
        "rollout.group_size=4",
        "models.team.trainer.ranks=2",
        *REGIMES["adapters"][:2],
        *METHODS["gae"],
    ]
    with session(assemble(load_settings(EXAMPLES / "signal.toml", overrides)), Quiet(), signals=False) as own:
        own.run_iteration()
    assert updated(own.run, label="same").trained
    hashes = [
        {m: weights_of(own.run, m, 1, label) for m in ("sender", "receiver")} for label in (None, "same")
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0].values())) == 2


def test_another_reward_gives_other_weights_and_corrects_from_the_sampler_to_its_own(
    run: Run, changed: Replayed
) -> None:
    assert {weights(run, v, "changed") for v in (1, 2)}.isdisjoint({weights(run, v) for v in (1, 2)})
    (first, second) = (changed.done[i].tables for i in (0, 1))
    # the first iteration was sampled by the weights that it is trained from
    summary = changed.done[0].manifests["update/team"].metrics
    assert summary["sampler_gap_max"] < 1e-3
    both = pl.DataFrame(second["partition/team"].read()).join(
        pl.DataFrame(second["scores/team"].read()), on=TURN_KEYS
    )
    both = both.join(pl.DataFrame(second["token_advantages/team"].read()), on=TURN_KEYS)
    assert set(both["scored_version"]) == {1}
    for row in both.iter_rows(named=True):
        ratio = np.exp(np.subtract(row["old_logprobs"], row["behaviour_logprobs"]))
        assert np.allclose(row["importance_weights"], np.minimum(ratio, 2.0), rtol=1e-5)
    assert changed.done[1].manifests["update/team"].metrics["sampler_gap_mean"] > 1e-3
    stored = pl.DataFrame(Source(run).stored(1).tables["scores/team"].read()).sort(TURN_KEYS)
    assert not both.sort(TURN_KEYS)["old_logprobs"].equals(stored["old_logprobs"])
    for done in changed.done.values():
        for account in done.accounts:
            account.check()
    assert first["updates/team"].rows == 2


def test_its_weights_can_be_exported_and_its_turns_looked_at(
    run: Run, changed: Replayed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = export_model(run, str(tmp_path / "out"), replay="changed", model_id=None, version="latest")
    assert found["version"] == 2
    assert json.loads((tmp_path / "out/cadre.json").read_text())["hash"] == weights(run, 2, "changed")
    with pytest.raises(UsageError, match="did you mean 'changed'"):
        export_model(run, str(tmp_path / "no"), replay="chnged", model_id=None, version="latest")
    shelf = shelf_of(run, replay="changed")
    print_place(shelf, None, episode=None, episodes=1, full=False, as_json=True)
    page = json.loads(capsys.readouterr().out)
    assert page["iteration"] == 1
    assert page["metrics"]["model/team/version"] == 2
    rewards = {t["reward"] for t in page["episodes"][0]["turns"]}
    assert min(rewards) > 0  # the run's own are below
    report = write_report(run, replay="changed", out=str(tmp_path / "page.html"))
    assert report.turns == sum(d.tables["turns"].rows for d in changed.done.values())


def test_a_later_iteration_begins_with_the_checkpoint_that_sampled_it_or_not_at_all(run: Run) -> None:
    assert updated(run, span="1:", label="later").trained
    assert weights(run, 2, "later") == weights(run, 2)
    there = Path(run.folder.path) / "checkpoints/team/00001"
    hidden = there.rename(there.with_name("hidden"))
    try:
        with pytest.raises(UsageError) as refused:
            updated(run, span="1:", label="gone")
    finally:
        hidden.rename(there)
    for said in ("iteration 1", "version 1", "'team'", str(there), "2", "checkpoints.keep", "one of 0"):
        assert said in str(refused.value)
    assert not (Path(run.folder.path) / "replays/gone").exists()


def test_what_cannot_be_trained_on_as_asked_is_refused(run: Run, changed: Replayed) -> None:
    with pytest.raises(UsageError, match=r"from 1 on were sampled by other weights.*importance=truncated"):
        plan_of(run, "ppo.importance=none")
    assert plan_of(run, "ppo.importance=none", span="0").training is not None
    with pytest.raises(UsageError, match="--until"):
        plan_of(run, until="credit")
    with pytest.raises(UsageError, match="it has precision 'fp32', the trainer wants 'bf16'"):
        updated(run, "models.team.trainer.precision=bf16", span="1")
    with pytest.raises(UsageError, match=r"other settings.*first: 0 → 1"):
        updated(run, "rewards.0.weight=1.0", span="1", label="changed")
    with pytest.raises(UsageError, match=r"other settings.*learning_rate"):
        updated(run, "rewards.0.weight=1.0", "ppo.learning_rate=0.5", label="changed")


def test_without_any_signal_nothing_moves_and_it_says_so(run: Run) -> None:
    constant = 'rewards=[{use="rewards.testing:constant"}]'
    with pytest.raises(RunFailed, match="1 iterations in a row"):
        updated(run, constant, "run.max_iterations_without_signal=1", label="constant", span="0")
    found = updated(run, constant, label="constant", span="0")
    assert found.trained is False
    assert any("no signal" in note for note in found.done[0].notes)
    assert "no signal" in as_text(replay_page(found))
