"""MLflow's page of a real run, in a real browser: its metrics, alarms, files, and episodes as traces."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.cli.ui import ui
from pipeline.plan.assemble import assemble
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from tests.conftest import merge
from tests.project.test_metrics_page import undocumented
from tests.support.browser import Browser
from workflows.errors import UsageError


def show(root: str = "runs", uri: str | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
    ui(root, uri, host, port, anyone=False)


def test_a_host_that_others_reach_is_refused(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.com"):
        with pytest.raises(UsageError, match="asks for no password"):
            show(root=str(tmp_path), host=host)


def test_a_root_without_a_record_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no record at .*mlflow\.db.*run iteration"):
        show(root=str(tmp_path))


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is taken"):
            show(root=str(tmp_path), port=port)


def test_a_server_elsewhere_is_only_named(capsys: pytest.CaptureFixture[str]) -> None:
    show(uri="http://me:secret@host:5000")
    assert capsys.readouterr().out == "MLflow runs at http://me:***@host:5000: open it there\n"


@pytest.fixture(scope="module")
def run(scripted_module: dict[str, Any], ray_cluster: None) -> dict[str, Any]:
    """One iteration of a real run: what its `run.json` and `done.json` say, and its root."""
    limits = {"iterations": 1, "no_signal_rate": 0.0}  # any share of groups without a signal
    tracking = {"uri": None, "sample_episodes": 3, "alarms": limits}
    raw = merge(scripted_module, {"tracking": tracking})
    with session(assemble(parse_settings(raw)), signals=False) as runner:
        runner.run_iteration()
    folder = Path(runner.run.folder.url)
    done = json.loads((folder / "iterations/00000/done.json").read_text())
    assert [alarm["name"] for alarm in done["alarms"]] == ["no_signal"]
    assert (folder / "iterations/00000/tracked.json").exists()
    return {**json.loads((folder / "run.json").read_text()), **done, "root": raw["run"]["root"]}


@pytest.fixture(scope="module")
def address(run: dict[str, Any]) -> Iterator[str]:
    """Where `python -m pipeline ui` serves the record of that run; it ends with Ctrl-C."""
    command = [sys.executable, "-m", "pipeline", "ui", "--root", run["root"], "--port", "0"]
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", said)
            assert found, said
            yield found.group()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    with pytest.raises(httpx.TransportError):
        httpx.get(found.group(), trust_env=False)


@pytest.fixture
def page(browser: Browser, address: str, run: dict[str, Any]) -> Iterator[tuple[Browser, str]]:
    """The browser, and the URL of the run's page without its part for a tab."""
    browser.resize(2000, 1200)
    link = run["tracker"]["link"]
    assert " ui --uri " in link
    yield browser, f"{address}/{link.partition('5000/')[2].partition('?')[0]}"
    browser.resize(1400, 900)


@pytest.mark.slow
def test_the_runs_page_shows_its_summary_metrics_and_alarms(
    page: tuple[Browser, str], tmp_path: Path
) -> None:
    browser, url = page
    browser.open(f"{url}?workflowType=machine_learning")
    browser.wait_for_text("Alarms: no_signal")
    browser.wait_for_text("iteration 0 of run r: mean return")
    for name in ("role/reader/return_mean", "model/team/kl_old", "rows/trainable_excluded_rate"):
        browser.wait(f"document.body.textContent.includes('{name}')")
    browser.wait_for_text("since iteration 0: ")
    browser.screenshot(tmp_path / "run.png")


@pytest.mark.slow
def test_charts_come_in_sections_by_role_model_and_stage(page: tuple[Browser, str], tmp_path: Path) -> None:
    browser, url = page
    browser.open(f"{url}/model-metrics")
    sections = (
        "return",
        "reward/token_f1",
        "role/answerer",
        "model/team",
        "rollout",
        "time",
        "tool/retriever",
    )
    for section in sections:
        head = json.dumps(f"\n{section} (")
        browser.wait(rf"document.body.innerText.replace(/\s*\n\s*[(]/g, ' (').includes({head})")
    browser.screenshot(tmp_path / "charts.png")


@pytest.mark.slow
def test_an_episode_is_a_trace_with_its_turns_nested_as_they_ran(
    page: tuple[Browser, str], tmp_path: Path
) -> None:
    browser, url = page
    browser.open(f"{url}/traces")
    browser.wait_for_text("3 of 3")
    found = browser.wait("(document.body.innerHTML.match(/tr-[0-9a-f]{32}/) || [''])[0]")
    browser.open(f"{url}/traces?selectedEvaluationId={found}")
    browser.wait_for_text("answer: answerer")
    plan, branch, tool = lefts_of(browser, "decompose: decomposer", "branch 0", "retrieve: retriever")
    assert plan == branch < tool
    browser.click_text("decompose: decomposer")
    browser.click_text("Inputs / Outputs")  # a turn that is not ok opens with why it is not
    browser.wait_for_text("Write search queries")
    browser.screenshot(tmp_path / "turn.png")
    browser.click_text("Attributes")
    for name in ("policy_version", "reward_parts", "advantage", "finish_reason"):
        browser.wait_for_text(name)
    browser.screenshot(tmp_path / "attributes.png")


@pytest.mark.slow
def test_the_sample_of_episodes_is_a_file_to_read(page: tuple[Browser, str], tmp_path: Path) -> None:
    browser, url = page
    browser.open(f"{url}/artifacts/iterations/00000/episodes.txt")
    browser.wait_for_text("episode 00000/facts-")
    browser.screenshot(tmp_path / "artifacts.png")


def lefts_of(browser: Browser, *texts: str) -> list[float]:
    """Where the innermost elements with these texts begin, in pixels from the left, all at one moment."""
    found: list[float] = browser.run(
        f"{json.dumps(texts)}.map(text => [...document.querySelectorAll('body *')].filter(e => "
        "e.checkVisibility() && e.innerText && e.innerText.trim() === text).pop().getBoundingClientRect().x)"
    )
    return found


@pytest.mark.slow
def test_everything_that_a_real_run_logs_is_documented(run: dict[str, Any]) -> None:
    assert undocumented(run["metrics"]) == []
