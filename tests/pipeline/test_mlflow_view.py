"""MLflow's page of a sweep, in a real browser and as tags: regimes side by side, without digging."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from pipeline.experiments.process import Progress
from pipeline.experiments.sweep import SweepOptions, plan_sweep, run_sweep
from pipeline.plan.assemble import assemble
from pipeline.run.tracker import open_tracker
from pipeline.settings.schema import Settings
from pipeline.store.folder import Folder
from pipeline.tracking.mlflow_view import MAX_TAG, all_runs, of_runs, of_sweep, view_page, view_tag
from pipeline.tracking.tracker import EvaluationRecord, IterationRecord
from tests.support.browser import Browser
from tests.support.small_runs import make_run
from tests.whole.test_sweep import SIGNAL


def state_of(value: str) -> dict[str, Any]:
    packed = json.loads(value)["state"]
    assert packed.startswith("deflate;")
    state: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed.removeprefix("deflate;"))))
    return state


METRICS = [
    "evaluate/dev/exact_match",
    "evaluate/dev/rollout/episodes",
    "model/team/kl_old",
    "model/team/version",
    "return/max",
    "return/mean",
    "role/reader/format_valid_rate",
    "role/reader/response_tokens_mean",
    "role/reader/return_mean",
    "time/total_seconds",
]


def test_a_view_has_first_what_people_look_for_and_the_rest_closed() -> None:
    state = state_of(view_tag(of_sweep("it's", ["regime", "ppo.learning_rate"]), METRICS, ["model"], 0)[1])
    sections = {s["name"]: s["display"] for s in state["compareRunSections"]}
    assert list(sections)[:5] == ["return", "evaluation", "format", "length", "update"]
    assert [name for name, shown in sections.items() if shown] == list(sections)[:5]
    assert {"model/team", "time", "evaluate/dev/rollout"} <= sections.keys()
    charts = [(c["metricSectionId"], c["metricKey"]) for c in state["compareRunCharts"]]
    assert charts == [
        ("return", "return/mean"),
        ("return", "role/reader/return_mean"),
        ("evaluation", "evaluate/dev/exact_match"),
        ("format", "role/reader/format_valid_rate"),
        ("length", "role/reader/response_tokens_mean"),
        ("update", "model/team/kl_old"),
    ]
    assert [k["groupByData"] for k in state["groupBy"]["groupByKeys"]] == ["regime", "ppo.learning_rate"]
    assert state["searchFilter"] == "tags.kind = 'training' AND tags.sweep = 'it''s'"
    assert state["selectedColumns"][:3] == ["params.`regime`", "params.`ppo.learning_rate`", "params.`model`"]
    assert "metrics.`evaluate/dev/exact_match`" in state["selectedColumns"]


def test_a_view_of_many_roles_fits_into_a_tag() -> None:
    metrics = [
        f"role/{n:03d}-a-role-with-a-long-name/{m}" for n in range(400) for m in ("return_mean", "turns")
    ]
    name, value = view_tag(all_runs(), ["return/mean", *metrics], [], 0)
    assert name == "mlflow.sharedViewState.cadre"
    assert len(value) <= MAX_TAG
    assert "return/mean" in [c["metricKey"] for c in state_of(value)["compareRunCharts"]]


def test_views_of_other_runs_have_other_keys() -> None:
    views = [all_runs(), of_sweep("a", []), of_sweep("b", []), of_runs(["1", "2"]), of_runs(["1", "3"])]
    assert len({view.key for view in views}) == len(views)
    assert of_runs(["2", "1"]) == of_runs(["1", "2"])


RETURNS = {"full": (0.1, 0.2, 0.35), "separate": (0.1, 0.4, 0.8)}


class Recorded:
    """Makes a run by writing its folder and its record, as a real one is recorded."""

    def __call__(
        self, settings: Settings, iterations: int, logs: Folder, on_progress: Progress
    ) -> str | None:
        regime = settings.tracking.tags["regime"]
        returns = RETURNS[regime][:iterations]
        made = make_run(
            Path(settings.run.root), settings.run.name, returns, regime=regime, seed=settings.run.seed
        )
        tracker = open_tracker(assemble(settings), made)
        for index, value in enumerate(returns):
            metrics = {
                "return/mean": value + settings.run.seed / 100,
                "role/sender/format_valid_rate": 1.0,
                "role/sender/response_tokens_mean": 2.0,
                f"model/{'team' if regime == 'full' else 'sender'}/kl_old": 0.01,
                "time/total_seconds": 2.0,
            }
            assert tracker.log_iteration(IterationRecord(index, metrics))
            assert tracker.log_evaluation(EvaluationRecord("dev", index, {"evaluate/dev/exact_match": value}))
        tracker.close()
        on_progress(iterations)
        return None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The root of a sweep of two regimes with two seeds each, and what it printed."""
    folder = tmp_path_factory.mktemp("swept")
    config = folder / "signal.toml"
    config.write_text(tomlkit.dumps(SIGNAL | {"tracking": {}}))
    options = SweepOptions(iterations=3, sharing=True, regimes="full,separate", seeds="0,1", name="regimes")
    sweep = plan_sweep(str(config), [f'run.root="{folder}/runs"'], options)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        said: list[str] = []
        patch.setattr("pipeline.experiments.sweep.echo", lambda _, *parts: said.extend(map(str, parts)))
        run_sweep(sweep, Recorded())
    return f"{folder}/runs", "\n".join(said)


@pytest.mark.slow
def test_the_regime_and_all_that_varies_are_parameters_of_children_and_of_their_parent(
    recorded: tuple[str, str],
) -> None:
    from mlflow import MlflowClient

    root, said = recorded
    client = MlflowClient(f"sqlite:///{root}/mlflow.db")
    pages = {run.info.run_name: run for run in client.search_runs(["1"])}
    children = ["full · seed 0", "full · seed 1", "separate · seed 0", "separate · seed 1"]
    assert sorted(pages) == sorted([*children, "regimes"])
    parent = pages["regimes"].data
    assert parent.params["regime"] == parent.tags["regime"] == "full, separate"
    assert parent.params["run.seed"] == "0, 1"
    for name in children:
        data, (regime, seed) = pages[name].data, name.split(" · seed ")
        assert data.params["regime"] == data.tags["regime"] == regime
        assert (data.params["workflow"], data.params["model"]) == ("signal", "tiny-words")
        assert data.params["run.seed"] == seed
        assert "ppo.clip_low" not in data.params  # at its default
        assert data.params["data.tasks_per_iteration"] == "2"
        assert len(data.params) < 60
        files = {f.path for f in client.list_artifacts(pages[name].info.run_id)}
        assert "settings.toml" in files
    assert "viewStateShareKey=sweep-regimes" in said


@pytest.fixture(scope="module")
def link(recorded: tuple[str, str]) -> Iterator[str]:
    """The link that `python -m pipeline ui` prints; its server ends with the block."""
    command = [sys.executable, "-m", "pipeline", "ui", "--root", recorded[0], "--port", "0"]
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            printed = re.search(r"http://\S+", process.stdout.readline())
            assert printed
            yield printed.group()
        finally:
            process.send_signal(signal.SIGINT)


@pytest.mark.slow
def test_the_link_of_ui_opens_the_curves_of_the_regimes(browser: Browser, link: str, tmp_path: Path) -> None:
    browser.resize(1800, 1300)
    try:
        assert link.endswith(view_page("1", "sweep-regimes"))
        browser.open(link)
        for regime in RETURNS:
            browser.wait_for_text(f"Group: {regime}")
        for section in ("return", "evaluation", "format", "length", "update"):
            browser.wait(rf"/(^|\n)\s*{section}\s*\n?\s*\(\d+\)/.test(document.body.innerText)")
        # a curve for each regime: the mean over its seeds, three points each
        curves = browser.wait(CURVES)
        assert {len(curve["y"]) for curve in curves} == {3}
        assert {round(curve["y"][-1], 3) for curve in curves} == {0.355, 0.805}
        shown = " ".join(browser.text().split())
        for name in ("point/full", "time", "Model metrics"):  # what is left over comes later, and closed
            assert shown.index("update (") < shown.index(f" {name} (")
        assert "time/total" not in shown.replace("_", " ")
        assert "telemetry" not in browser.text().lower()
        sent = [url for url in browser.requests if "127.0.0.1" not in url and url.startswith("http")]
        assert sent == []
    finally:
        browser.screenshot(tmp_path / "regimes.png")
        browser.resize(1400, 900)


# the traces of the first chart, as the drawing library holds them
CURVES = """(() => {
  const plot = document.querySelector('.js-plotly-plot')
  if (!plot || !plot.data) return null
  const curves = plot.data.filter(d => d.y && d.y.length === 3 && d.mode !== 'none' && d.fill !== 'toself')
  return curves.length >= 2 ? curves.map(d => ({name: d.name, y: [...d.y]})) : null
})()"""
