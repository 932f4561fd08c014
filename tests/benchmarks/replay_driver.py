"""The driver of replays that `tests.benchmarks.replay` measures, in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.replays.ablation.ablate import ablate
from pipeline.replays.ablation.variants import variant_plans
from pipeline.replays.plan import replay_plan
from pipeline.replays.replayer import replay
from pipeline.replays.source import Source
from pipeline.run.cluster import start_ray
from pipeline.settings.schema import Settings
from pipeline.store.run import Run
from stages.base import Quiet
from stages.tables.parquet import TableRef
from tests.benchmarks.peer import peak_memory, serve
from tests.support.stored_runs import Shape, settings_of, write_iterations

REWARDS = [{"use": "f1_by_round", "options": {"mode": "official_hotpot"}}]  # the loop's normaliser


def settings_for(folder: str, size: str) -> Settings:
    return settings_of(f"{folder}/runs", run={"name": size, "root": f"{folder}/runs"}, rewards=REWARDS)


def prepare(arguments: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Start Ray, and answer requests to write the stored runs, to replay one, or to ablate."""
    folder = arguments["folder"]
    prompt, response = arguments["tokens"]
    start_ray("local", 0.5)

    def write() -> dict[str, Any]:
        rows = {}
        for size, turns in arguments["sizes"].items():
            settings = settings_for(folder, size)
            run = Run(settings.run.root, size)
            if not run.exists:
                shape = Shape(turns, prompt_tokens=prompt, response_tokens=response)
                run, _ = write_iterations(settings, shape)
            rows[size] = run.iteration(0).tables()[0]["turns"].rows
        return rows

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "write":
            return write()
        run = Run(f"{folder}/runs", request["size"])
        run.read_info()
        work = _replay if request["do"] == "replay" else _ablate
        return work(run, request, folder)

    return handle


def _replay(run: Run, request: dict[str, Any], folder: str) -> dict[str, Any]:
    before = peak_memory(os.getpid())
    plan = replay_plan(
        Source(run), settings_for(folder, request["size"]), label=request["label"], until="credit"
    )
    started = time.monotonic()
    result = replay(plan, [0], Quiet(), compare=False)
    seconds = time.monotonic() - started
    peak = peak_memory(os.getpid())
    turns = result.done[0].tables["turns"]
    answer = {
        "rows_per_second": turns.rows / seconds,
        "seconds": seconds,
        "rows": turns.rows,
        "parts": len(turns.parts),
        "table_mib": sum(part.bytes for part in turns.parts) / 2**20,
        "before_mib": before / 2**20,
        "peak_mib": peak / 2**20,
        **sums_of(result.done[0].tables["credit"]),
    }
    plan.folder.fs.rm(plan.folder.path, recursive=True)
    return answer


def _ablate(run: Run, request: dict[str, Any], folder: str) -> dict[str, Any]:
    plans = variant_plans(Source(run), str(Path(folder) / request["file"]), request["label"])
    started = time.monotonic()
    found = ablate(plans, [0], Quiet())
    seconds = time.monotonic() - started
    found.folder.fs.rm(found.folder.path, recursive=True)
    return {"seconds": seconds, "turns": found.agreement.turns}


def sums_of(credit: TableRef) -> dict[str, float]:
    """What ours and the loop must agree on."""
    returns = advantages = 0.0
    for part in range(len(credit.parts)):
        frame = pl.DataFrame(credit.read_part(part, ["return", "advantage"]))
        returns += frame["return"].sum()
        advantages += frame["advantage"].abs().sum()
    return {"return": returns, "advantage": advantages}


if __name__ == "__main__":
    serve(prepare)
