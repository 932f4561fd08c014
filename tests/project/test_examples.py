"""Every settings file under docs/examples can be run: it is read and assembled, without Ray or a model."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.experiments.study.spec import read_study
from pipeline.experiments.sweep import check_points
from pipeline.plan.assemble import assemble
from pipeline.run.execution import run_stages
from pipeline.run.session import session
from pipeline.settings.reading import load_settings
from pipeline.store.run import carried_tables
from stages.base import Quiet, Stage, carried_of
from stages.partition_rows import DECIDED
from workflows.loading import BUILTIN_WORKFLOWS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples"
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_complete(file: Path, tmp_path: Path) -> None:
    text = file.read_text("utf-8")
    # what this machine has to isolate code with is no matter of the file
    overrides = ["sandbox.isolation=none"] if "[sandbox]" in text else []
    plan = assemble(load_settings(file, [f'run.root="{tmp_path}"', *overrides]))
    assert plan.settings.run.name == file.stem
    shipped = {"smollm2-135m-instruct", "tiny-words"}
    assert {model.checkpoint for model in plan.settings.models.values()} <= shipped
    assert text.startswith("# ")


STUDIES = [*sorted((FOLDER / "studies").glob("*.toml")), ROOT / "tests" / "learning" / "cliff.toml"]


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_cell_of_a_study_that_ships_can_be_trained(file: Path, tmp_path: Path) -> None:
    study = read_study(str(file), [f'run.root="{tmp_path}"', 'tracking.uri="none"'])
    plans = check_points(study.sweep)
    assert len(plans) == len(study.cells)
    assert all(plan.resolved.evaluate.test is not None for plan in plans.values())
    assert study.sweep.name == file.stem


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_plays_rewards_and_parts_its_turns(file: Path, tmp_path: Path) -> None:
    """Every shipped team through an iteration, up to where its trainers would start."""
    settings = load_settings(file, [f'run.root="{tmp_path}"', 'tracking.uri="none"'])
    workflow = settings.workflow.use
    forms = workflow in ("code", "math") or file.stem in ("voting", "evaluate_optimise")
    reply = "workflows.echo:echo_form" if forms else "workflows.testing:echo_qa"
    model = {
        "checkpoint": "tiny-scripted",
        "engine": "scripted",
        "engine_options": {"reply": reply},
        "max_model_len": 2048,
        "dtype": "auto",
    }
    models = {name: section.model_copy(update=model) for name, section in settings.models.items()}
    roles = {
        name: section.model_copy(update={"max_response_tokens": 256})
        for name, section in settings.roles.items()
    }
    plan = assemble(settings.model_copy(update={"models": models, "roles": roles}))
    if (
        "[sandbox]" in file.read_text("utf-8")
        and plan.settings.sandbox.isolation == "auto"
        and not isolated()
    ):
        pytest.skip("this machine has no bubblewrap")
    stages = _before_trainers(plan.stages)
    with session(replace(plan, stages=stages), Quiet(), signals=False) as runner:
        place = runner.run.iteration(0)
        done = run_stages(
            stages,
            place,
            plan.fingerprints,
            what="the example",
            progress=Quiet(),
            fleet=runner.fleet,
            tables=carried_tables(runner.run, place, stages),
        )
    for account in done.accounts:
        account.check()
    episodes = done.tables["episodes"].read(["status", "error"]).to_pylist()
    assert {e["status"] for e in episodes} <= {"ok"}, episodes
    rows = sum(t.rows for name, t in done.tables.items() if name.startswith("partition/"))
    credited = done.tables["credit"].read(["excluded"])["excluded"]
    left = sum(account.excluded.get(DECIDED, 0) for account in done.accounts)
    assert rows + left == credited.null_count > 0  # all that is not left out, such as groups without signal


def _before_trainers(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages that need no trainer, and nothing that a trainer writes."""
    known: set[str] = set()
    kept = []
    for stage in stages:
        if stage.lease != "trainer" and set(stage.inputs) - set(carried_of(stage)) <= known:
            kept.append(stage)
            known |= set(stage.outputs)
    return tuple(kept)


def isolated() -> bool:
    return shutil.which("bwrap") is not None


def test_every_built_in_workflow_has_an_example() -> None:
    used = {tomllib.loads(file.read_text("utf-8"))["workflow"]["use"] for file in FILES}
    assert used >= set(BUILTIN_WORKFLOWS) - {"single", "signal"}


GAMES = sorted((FOLDER / "games").glob("*.toml"))


@pytest.mark.parametrize("file", GAMES, ids=lambda file: file.stem)
def test_an_example_with_a_package_of_its_own_is_complete(file: Path, tmp_path: Path) -> None:
    """With stand-ins for the packages, whose family and game have other names."""
    from tests.support.games import ARENA, GYM, stand_in

    changes = {
        "reasoning_gym": ["data.path=sums?train=60&dev=10&test=10", "evaluate.tasks=10"],
        "textarena": ["workflow.options.game=Stones-v0"],
    }
    with stand_in(GYM, tmp_path / "gym"), stand_in(ARENA, tmp_path / "arena"):
        overrides = [f'run.root="{tmp_path}"', *changes[file.stem]]
        plan = assemble(load_settings(file, overrides))
        assert plan.settings.run.name == file.stem
    assert file.read_text("utf-8").startswith("# ")
