"""The measured pace of runs: what a run keeps of it, and which stored run is like a new one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from pipeline.metrics.forecast import Pace, Record, Source
from pipeline.store.folder import Folder
from pipeline.store.run import Run

FILE: Final = "forecast.json"
_CPU_INFO: Final = "/proc/cpuinfo"


def machine_kind() -> str:
    """This kind of machine, for comparisons of pace: cores, processor and whether it has a GPU."""
    gpu = "with a GPU" if os.path.exists("/proc/driver/nvidia/version") else "no GPU"
    return f"{len(os.sched_getaffinity(0))} cores, {_processor()}, {gpu}"


def _processor() -> str:
    try:
        with open(_CPU_INFO, encoding="utf-8", errors="replace") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown processor"


def read_record(run: Run) -> Record:
    """What a run has kept of its pace; an empty record where it has nothing that can be read."""
    text = run.folder.read_text(FILE)
    try:
        return Record.of_dict(json.loads(text)) if text else Record()
    except (ValueError, TypeError, KeyError):  # a kill while it was written: forecasts are no reason to fail
        return Record()


def write_record(run: Run, record: Record) -> None:
    run.folder.write_text(FILE, json.dumps(record.as_dict(), indent=1))


def own_pace(run: Run, record: Record) -> Pace | None:
    """The pace of the run itself; None where no iteration was measured on this kind of machine."""
    if not record.steps or record.machine != machine_kind():
        return None
    return Pace("run", "this run", record.steps, record.evaluations, record.starts)


def stored_pace(root: str, identity: Mapping[str, Any], regime: str, but: str = "") -> Pace | None:
    """The pace of the newest run under a root that is like a new one, on this kind of machine.

    First choice is a run of the same workflow, models and regime, then one of another regime.

    Args:
        identity: of the new run, as `run.json` has it.
        regime: its sharing regime.
        but: a run that does not count.
    """
    machine, best, newest = machine_kind(), None, (False, 0.0)
    for name in Folder(root).names():
        run = Run(root, name)
        text = run.folder.read_text("run.json") if name != but else None
        if text is None or not _is_like(info := json.loads(text), identity):
            continue
        rank = (info.get("regime") == regime, float(info.get("used_at", 0.0)))
        if rank <= newest:
            continue
        record = read_record(run)
        if record.steps and record.machine == machine:
            source: Source = "stored" if rank[0] else "similar"
            best, newest = Pace(source, f"run {name}", record.steps, record.evaluations, record.starts), rank
    return best


def _is_like(info: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
    other = info.get("identity", {})
    weights = {str(model) for model in other.get("models", {}).values()}
    return other.get("workflow") == identity.get("workflow") and weights == {
        str(model) for model in identity.get("models", {}).values()
    }
