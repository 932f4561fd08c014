"""What `reward-model` makes of stored plays before anything is trained, what it refuses, the best of n."""

import json
from pathlib import Path

import pytest

from pipeline.plan.assemble import assemble
from pipeline.plan.memory import memory_report
from pipeline.plan.readers import readers_of
from pipeline.plan.resources import gpus_asked
from pipeline.plan.rewards import reward_model_hashes, weighted_rewards
from pipeline.reward_model.asked import Asked, asked_of, check_memory
from pipeline.reward_model.best_of import TOO_FEW, TRAINED, ballots_of, ranked_plays
from pipeline.reward_model.judged import judged, remark
from pipeline.reward_model.plays import NO_VALUE, StoredPlay, Where, collect
from pipeline.reward_model.show import dry_page, dry_values, model_page
from pipeline.reward_model.tables import pairs_table, plays_table, rows_for
from pipeline.settings.reading import parse_settings
from pipeline.settings.schema import RewardSection
from pipeline.store.run import Run
from pipeline.store.runs import find_run
from pipeline.store.shelf import shelf_of
from pipeline.traces.exporting import export
from pipeline.traces.importing import Options, import_traces
from pipeline.views.render import make_console
from rewards.preferences.render import RENDERING
from stages.reward_model.model import read_model, tokenizer_hash
from stages.training.spec import TrainerSpec
from stages.weights.resolve import resolve_checkpoint
from tests.support.stored_games import game_run, tasks_of
from workflows.errors import UsageError
from workflows.loading import load_workflow

QUICK = ("reward_model.context=128", "reward_model.held_out=0.4")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return game_run(str(tmp_path_factory.mktemp("games")), "game", tasks=tasks_of(8), plays=5)


def asked(run: Run, *overrides: str, out: str = "model", **options: str) -> Asked:
    root = run.folder.url.rpartition("/")[0]
    base = options.pop("base", "tiny-words")
    return asked_of([run], base, out, root=root, overrides=[*QUICK, *overrides], **options)


def test_episodes_tasks_and_pairs_add_up_and_no_task_is_on_both_sides(run: Run) -> None:
    found = asked(run)
    for account in found.accounts:
        account.check()
    assert found.collected.account.rows_in == 40
    train, test = ({pair.task for pair in pairs} for pairs in (found.train, found.test))
    assert train
    assert test
    assert not train & test
    rows = rows_for(found, found.steps)
    trained = {play.play for play in found.paired if play.task in train}
    assert {row for table in rows for row in table["episode_id"].to_pylist()} == trained
    assert plays_table(found).num_rows == len(found.ids)
    assert pairs_table(found, found.pairs.pairs).num_rows == len(found.train) + len(found.test)
    assert isinstance(found.trainer(), TrainerSpec)
    values = dry_values(found)
    assert values["pairs"] == {"train": len(found.train), "held_out": len(found.test)}
    console = make_console()
    with console.capture() as capture:
        console.print(dry_page(found))
    assert "would train" in capture.get()


def test_equal_tasks_of_two_runs_are_one_task(run: Run, tmp_path: Path) -> None:
    other = game_run(str(tmp_path), "other", tasks=tasks_of(8), plays=5, seed=1)
    both = asked_of([run, other], "tiny-words", "m", root=str(tmp_path), overrides=QUICK)
    assert both.pairs.tasks == 8
    assert both.collected.account.rows_in == 80
    assert {play.play.partition(":")[0] for play in both.collected.plays} == {"0", "1"}


def test_imported_traces_with_text_are_plays_too(run: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "traces.jsonl")
    export(shelf_of(run), file, "atif", "inline")
    import_traces([file], str(tmp_path), "imported", Options())
    imported = find_run(str(tmp_path), "imported")
    own = asked(run)
    found = asked_of([imported], "tiny-words", "m", root=str(tmp_path), overrides=QUICK)
    assert [play.value for play in found.collected.plays] == [play.value for play in own.collected.plays]
    # a step that computes is no answer of an imported team: all before it is the same
    turns = [[p.text.partition("[answer]")[0] for p in each.collected.plays] for each in (found, own)]
    assert turns[0] == turns[1]
    assert len(found.pairs.pairs) == len(own.pairs.pairs)


def test_long_plays_are_cut_and_counted(run: Run) -> None:
    found = asked(run, "reward_model.context=16")
    assert all(len(ids) <= 15 for ids in found.ids.values())
    assert dry_values(found)["cut"]["plays"] > 0


def test_other_rewards_are_values_too_and_what_has_none_is_counted(run: Run) -> None:
    assert asked(run, 'reward_model.value="fit"').train
    steps = {run.folder.url: "final"}
    nothing = collect([run], steps, Where("no_such_reward"))
    assert nothing.account.excluded == {NO_VALUE: 40}


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        (["reward_model.margin=5"], {}, "no pair to learn from: 40 episodes"),
        (['reward_model.value="nope"'], {}, "40 no return"),
        (["reward_model.context=4096"], {}, "reads at most 2048"),
        (["reward_model.micro_batch_tokens=64"], {}, "less than one play"),
        (["reward_model.head_only=true", "reward_model.learning_rate=0.1"], {}, "no effect where the head"),
        ([], {"split": "dev"}, "no evaluation on 'dev'"),
        ([], {"out": "game"}, "is a run"),
        ([], {"base": "nope"}, "neither a shipped model"),
    ],
)
def test_what_can_not_work_is_refused_with_one_message(run, overrides, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        asked(run, *overrides, **options)


def test_one_task_or_too_little_memory_is_refused(tmp_path: Path, run: Run, monkeypatch) -> None:
    alone = game_run(str(tmp_path), "alone", tasks=tasks_of(1), plays=8)
    with pytest.raises(UsageError, match="pairs are of one task"):
        asked_of([alone], "tiny-words", "m", root=str(tmp_path), overrides=QUICK)
    monkeypatch.setattr("pipeline.reward_model.asked.available_gib", lambda: 0.1)
    with pytest.raises(UsageError, match=r"this machine has 0\.1 GiB"):
        check_memory(asked(run))


def test_a_model_that_knows_no_more_than_length_is_told_so(run: Run) -> None:
    found = asked(run)
    by_length = {play: float(len(ids)) for play, ids in found.ids.items()}
    judgement = judged(found, by_length)
    assert judgement["trivial"]["length"]["gain"]["value"] <= 0
    assert remark(judgement).startswith("not above")
    by_value = {play.play: play.value for play in found.paired}
    perfect = judged(found, by_value)
    assert perfect["held_out"]["accuracy"]["value"] == 1
    info = {
        "accounts": dry_values(found)["accounts"],
        "cut": dry_values(found)["cut"],
        "steps": [{"loss": 0.69}, {"loss": 0.1}],
        "judged": perfect,
    }
    console = make_console()
    with console.capture() as capture:
        console.print(model_page("models/m", info, {}))
    assert "the model" in capture.get()
    assert 'use = "learned"' in capture.get()


def a_model(folder: Path, **changes) -> str:
    info = {
        "format": 1, "rendering": RENDERING, "hash": "h", "base": "tiny-words", "context": 64,
        "precision": "fp32", "tokenizer_hash": "other", "weights_hash": "other",
        "head": {"weight": [[0.0] * 64], "bias": [0.0]}, "scale": {"mean": 0.0, "deviation": 1.0},
        "asked": {"reward_model": {"value": None}},
    }  # fmt: skip
    folder.mkdir()
    (folder / "reward_model.json").write_text(json.dumps(info | changes))
    return str(folder)


def test_a_folder_that_is_no_reward_model_of_this_version_is_refused(tmp_path: Path) -> None:
    workflow = load_workflow("tests.support.stored_games:build", {})

    def rewards(**options):
        section = RewardSection(use="learned", options=options)
        return weighted_rewards([section], workflow, {}, "auto", str(tmp_path))

    with pytest.raises(UsageError, match="names no reward model"):
        rewards()
    with pytest.raises(UsageError, match="is not a reward model"):
        rewards(model="nothing")
    a_model(tmp_path / "old", rendering=0)
    with pytest.raises(UsageError, match="Train it anew"):
        rewards(model="old")
    a_model(tmp_path / "moved")
    with pytest.raises(UsageError, match="learned with tokenizer of hash other"):
        rewards(model="moved")
    sections = [RewardSection(use="learned", options={"model": "moved"})]
    assert reward_model_hashes(sections, str(tmp_path)) == {"learned": "h"}
    assert read_model(str(tmp_path / "moved")).context == 64


def test_the_best_of_n_counts_tasks_that_trained_nothing(run: Run) -> None:
    plays = [
        StoredPlay(f"0:{t}{i}", "r", f"{t}{i}", t, float(i % 2), "", 1, 1.0) for t in "abcd" for i in range(4)
    ]
    plays.append(StoredPlay("0:e0", "r", "e0", "e", 1.0, "", 1, 1.0))
    ballots = {play.play: str(play.value) for play in plays}
    scores = [play.value for play in plays]
    ranking = ranked_plays(plays, scores, ballots, frozenset("a"), (1, 2, 4))
    (account,) = ranking.accounts
    assert (account.rows_in, account.rows_out) == (5, 3)
    assert account.excluded == {TRAINED: 1, TOO_FEW: 1}
    one, two, four = ranking.rows
    assert (one.chosen.mean, one.mean, one.oracle) == (0.5, 0.5, 0.5)
    assert (two.chosen.mean, two.oracle) == (pytest.approx(5 / 6), pytest.approx(5 / 6))
    assert four.chosen.mean == 1
    assert four.majority == 0.5
    assert four.gain.mean == 0.5
    with pytest.raises(UsageError, match="no task is left"):
        ranked_plays(plays, scores, ballots, frozenset("abcd"), (2,))
    cast = ballots_of(run, None)
    assert set(cast) == {f"0:00000/t{task:03d}/{sample}" for task in range(8) for sample in range(5)}
    assert len(set(cast.values())) == 4  # the symbols, which every play of a task names alike


def test_a_plan_counts_the_processes_of_a_reward_model(tmp_path: Path, scripted) -> None:
    folder = resolve_checkpoint("tiny-words")
    model = a_model(tmp_path / "judge", tokenizer_hash=tokenizer_hash(folder))
    learned = {"use": "learned", "options": {"model": model, "workers": 2, "device_gpus": 0.5}}
    plan = assemble(parse_settings(scripted(rewards=[learned, {"use": "token_f1"}])))
    assert len(readers_of(plan.resolved)) == 2
    assert memory_report(plan)["reward model learned"] == pytest.approx(1.6)
    assert sum(ask.gpus for ask in gpus_asked(plan)) == 1
    assert plan.fingerprints["reward"]["reward_models"] == {"learned": "h"}
