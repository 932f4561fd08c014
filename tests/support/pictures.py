"""The README's pictures of MLflow's page, from your own run: `python -m tests.support.pictures ROOT`."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.store.runs import find_run
from pipeline.tracking.mlflow_store import tracking_uri
from pipeline.tracking.server import serving
from tests.support.browser import Browser, start_browser

PICTURES = Path(__file__).parents[2] / "docs/pictures"
SPAN = "read: reader"  # the turn that is opened: that of pipeline.toml's workflow


def main(root: str) -> None:
    """Take the pictures of the newest run under `root`."""
    page = find_run(root, "latest").info["tracker"]["link"].partition("5000/")[2].partition("?")[0]
    with (
        serving(tracking_uri(None, root), "127.0.0.1", 0) as (_, address),
        start_browser(1400, 860) as browser,
    ):
        mlflow_trace(browser, f"{address}/{page}")


def mlflow_trace(browser: Browser, url: str) -> None:
    """The newest sampled episode with branches, one of its turns opened."""
    browser.open(f"{url}/traces?workflowType=machine_learning")
    browser.click("[data-component-id='mlflow.assistant.chat_panel.close']")  # it is open at first
    found = browser.wait("[...new Set(document.body.innerHTML.match(/tr-[0-9a-f]{32}/g) || [])]")
    for trace in found:
        browser.open(f"{url}/traces?selectedEvaluationId={trace}")
        browser.wait_for_text("Spans")
        browser.wait_for_text("answer: ")
        if "branch 1" in browser.text():
            break
    browser.click_text(SPAN)
    browser.wait_for_text("Assistant\n")
    PICTURES.mkdir(exist_ok=True)
    browser.screenshot(PICTURES / "mlflow-trace.png")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs")
