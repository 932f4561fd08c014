"""Many iterations, evaluations, export: laws of training that goes on, on the scripted engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.run.overfit import overfit_settings, watch
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.evaluated import Evaluated
from pipeline.store.export import export_model
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.runs import find_run
from workflows.errors import RunFailed, UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

Settings = Callable[..., dict[str, Any]]
EVALUATE = {"every": 2, "tasks": 6, "rewards": [{"use": "token_f1"}]}
CHECKED = {"evaluate": EVALUATE, "checkpoints": {"every": 3, "keep": 1}}


def train(raw: dict[str, Any], iterations: int, evaluate: bool = True) -> tuple[Run, list[Evaluated]]:
    plan = assemble(parse_settings(raw))
    found: list[Evaluated] = []
    with session(plan, signals=False) as runner:
        evaluation = assemble_evaluation(plan) if evaluate else None
        runner.train(iterations, evaluation, on_evaluated=found.append)
        return runner.run, found


@pytest.fixture(scope="module")
def trained(ray_cluster: None, scripted_module: dict[str, Any]) -> tuple[Run, list[Evaluated]]:
    """Three iterations with evaluations after 0, 2 and 3 of them: every second, and at the end."""
    return train(scripted_module | CHECKED, 3)


Trained = tuple[Run, list[Evaluated]]


def test_training_goes_on_to_the_number_asked_for_and_evaluates_on_the_way(trained: Trained) -> None:
    run, found = trained
    assert run.iterations() == [0, 1, 2]
    assert [e.index for e in found] == [0, 2, 3]
    for evaluated in found:
        table = evaluated.done.tables["evaluation"].read()
        assert table.num_rows == 6
        assert set(evaluated.done.tables["tasks"].read()["split"].to_pylist()) == {"dev"}
        assert evaluated.scores[0].estimate.tasks == 6


def test_training_stops_at_its_peak_and_goes_on_with_more_patience(scripted: Settings) -> None:
    """The scripted engine does not get better for long: it says the same whatever its weights are."""
    patient = EVALUATE | {"every": 1, "patience": 2}
    raw = scripted(evaluate=patient, checkpoints={"keep": 1})
    run, found = train(raw, 9)
    result = run.read_info()["result"]
    best, end = result["iterations"], result["stopped_after"]
    assert end == best + 2 < 9
    assert (run.iterations(), [e.index for e in found]) == (list(range(end)), list(range(end + 1)))
    scores = {e.index: e.scores[0].estimate.mean for e in found}
    assert max(scores.values()) == scores[best] == result["value"]
    assert result["versions"] == run.info["best"]["dev"]["versions"]
    if best:
        out = str(Path(run.folder.url).parent / "exported")
        assert export_model(run, out, model_id=None, version="result")["version"] == best
    again, found = train(raw, 9)
    assert (again.iterations(), [e.index for e in found]) == (run.iterations(), [end])  # nothing is trained
    longer, _ = train(raw | {"evaluate": patient | {"patience": 5}}, end + 1)
    assert longer.iterations() == list(range(end + 1))
    assert longer.read_info()["result"] is None


def test_an_evaluation_is_greedy(trained: Trained) -> None:
    turns = trained[1][0].done.tables["turns"].read(["sampling", "event"]).to_pylist()
    assert {json.loads(t["sampling"])["temperature"] for t in turns if t["event"] == "llm"} == {0.0}


def test_an_evaluation_that_is_finished_is_loaded_not_played(trained: Trained, scripted_module: Any) -> None:
    found = trained[1]
    raw = scripted_module | CHECKED
    plan = assemble(parse_settings(raw))
    with session(plan, signals=False) as runner:
        again = runner.evaluate(assemble_evaluation(plan))
        assert again.done.resumed == ("sample", "rollout", "evaluate")
        assert again.scores == found[-1].scores
        other = assemble(parse_settings(raw | {"evaluate": EVALUATE | {"tasks": 5}}))
        with pytest.raises(
            UsageError, match=r"with other settings: tasks: 6 → 5; set them back.*--redo sample`"
        ):
            runner.evaluate(assemble_evaluation(other))


def test_stages_of_a_finished_evaluation_are_made_again_by_redo_and_its_plays_stay(
    scripted: Settings,
) -> None:
    raw = scripted(**CHECKED)
    run, found = train(raw, 1)
    before = found[-1]
    other = raw | {"evaluate": EVALUATE | {"rewards": [{"use": "exact_match"}]}}
    plan = assemble(parse_settings(other))
    with session(plan, signals=False) as runner:
        evaluation = assemble_evaluation(plan)
        with pytest.raises(
            UsageError, match=r"stage 'evaluate' with other settings.*evaluate --redo evaluate`"
        ):
            runner.evaluate(evaluation)
        with pytest.raises(
            UsageError, match=r"no such stage \(did you mean 'evaluate'\?\); the stages are: sample"
        ):
            runner.evaluate(evaluation, redo_from="evaluat")
        again = runner.evaluate(evaluation, redo_from="evaluate")
    assert again.done.resumed == ("sample", "rollout")
    assert [score.name for score in again.scores] == ["exact_match"]
    entry = run.read_info()["redone"][-1]
    assert (entry["split"], entry["iteration"], entry["stage"]) == ("dev", before.index, "evaluate")
    assert "made again by --redo" in " ".join(again.done.notes)
    # iterations of that number are not touched by it
    assert run.is_finished(0)
    with session(plan, signals=False) as runner:
        assert runner.evaluate(evaluation).done.resumed == ("sample", "rollout", "evaluate")


def test_the_best_checkpoint_is_kept_and_the_curves_are_drawn(trained: Trained) -> None:
    run, found = trained
    best = run.read_info()["best"]["dev"]
    values = {e.index: e.scores[0].estimate.mean for e in found}
    assert best["value"] == max(values.values())
    assert best["iterations"] == min(i for i, v in values.items() if v == best["value"])
    report = Path(run.folder.path) / "report"
    lines = (report / "learning_curve.csv").read_text().splitlines()
    assert sum(line.startswith("evaluate,dev/token_f1") for line in lines) == 3
    assert sum(line.startswith("train,return/mean") for line in lines) == 3
    assert (report / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_one_and_two_iterations_are_three_with_evaluations_or_without(
    trained: Trained, scripted: Settings
) -> None:
    raw = scripted(**CHECKED)
    train(raw, 1, evaluate=False)
    run, found = train(raw, 3)
    assert run.iterations() == [0, 1, 2]
    assert [e.index for e in found] == [2, 3]
    assert _weights(trained[0]) == _weights(run)

    (Path(run.iteration(2).folder.path) / "done.json").unlink()
    plan = assemble(parse_settings(raw))
    with (
        session(plan, signals=False) as runner,
        pytest.raises(UsageError, match=r"iteration 2 .* unfinished"),
    ):
        runner.evaluate(assemble_evaluation(plan))


def _weights(run: Run) -> list[str]:
    """The hash of the published weights of every version, from the iterations' tables."""
    found = []
    for index in run.iterations():
        manifest = run.iteration(index).manifest_at("updates/team")
        assert manifest is not None
        folder = f"{run.folder.path}/iterations/{index:05d}/updates/team/models"
        (part,) = manifest.tables["models/team"]
        frame = pl.read_parquet(f"{folder}/{part.name}")
        found.append(frame["hash"][0])
    return found


def test_an_export_is_the_model_that_was_trained(trained: Trained, tmp_path: Path) -> None:
    run = find_run(str(Path(trained[0].folder.path).parent), trained[0].name)
    said = export_model(run, str(tmp_path / "out"), model_id=None, version="latest")
    assert said["version"] == 3
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert sum(p.numel() for p in model.parameters()) > 0
    origin = json.loads((tmp_path / "out" / "cadre.json").read_text())
    assert origin["hash"] == _weights(run)[-1]
    with pytest.raises(UsageError, match="not empty"):
        export_model(run, str(tmp_path / "out"), model_id=None, version="latest")
    with pytest.raises(UsageError, match="no weights of version 77"):
        export_model(run, str(tmp_path / "other"), model_id=None, version="77")
    with pytest.raises(UsageError, match="not an adapter: it is exported whole; leave out --merge"):
        export_model(run, str(tmp_path / "other"), model_id=None, version="latest", merge=True)
    with pytest.raises(UsageError, match=r"no model 'teem'.*team"):
        export_model(run, str(tmp_path / "other"), model_id="teem", version="latest")


def test_overfitting_plays_one_group_again_and_again(scripted: Settings) -> None:
    settings = overfit_settings(parse_settings(scripted(data={"tasks_per_iteration": 4})))
    plan = assemble(settings)
    tasks: list[Any] = []
    solved = watch(settings.evaluate, settings.rewards)

    def on_done(finished: Finished) -> bool:
        tasks.append(finished.tables["tasks"].read()["task_id"].to_pylist())
        return solved.add(finished)

    with session(plan, signals=False) as runner:
        runner.train(2, on_done=on_done)
        assert runner.run.name == "r-overfit"
    assert len(tasks) == 2
    assert tasks[0] == tasks[1]
    assert len(tasks[0]) == 1
    with pytest.raises(RunFailed, match=r"not solved: mean token_f1 should reach 0\.95"):
        solved.verdict()


def test_settings_of_an_evaluation_that_can_not_work_are_refused(scripted: Settings) -> None:
    for section, message in (
        ({"samples": 4}, "samples = 4 at temperature 0"),
        ({"best": "token_f2"}, "best = 'token_f2' is not a metric.*token_f1"),
        ({"split": "deb"}, "no split 'deb'.*dev"),
        ({"tasks": 10**6}, "can't take 1000000 tasks"),
    ):
        with pytest.raises(UsageError, match=message):
            assemble_evaluation(assemble(parse_settings(scripted(evaluate=section))))


def test_place_of_an_evaluation_is_apart_from_training(trained: Trained) -> None:
    assert trained[0].evaluation("dev", 2).folder.path.endswith("/evaluations/dev/00002")
