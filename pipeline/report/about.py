"""The values beside the episodes of a report: settings in short, versions, accounts, metrics, curves."""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pipeline.metrics.iteration import iteration_metrics, with_measured
from pipeline.report.choose import Chosen
from pipeline.report.source import Source
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.runs import settings_changes
from pipeline.views.curves import points_of
from pipeline.views.files import update_summaries
from pipeline.views.render import number, plain
from pipeline.views.stored import begun_note
from workflows.dag import Rates

RATES: Final = Rates()  # of the courses that the page draws


def settings_of(source: Source) -> tuple[str, dict[str, Any]]:
    """`settings.toml` of the run, as text and as values; empty where it is not there."""
    text = source.run.folder.read_text("settings.toml") or ""
    return text, tomllib.loads(text)


def about(
    source: Source, chosen: Chosen, settings_text: str, settings: Mapping[str, Any], texts_only: Sequence[str]
) -> dict[str, Any]:
    """All that the page says beside the episodes, as plain values.

    `texts_only` are models whose tokenizer is not at hand.
    """
    run = source.run
    manifests = [manifest for place in source.places for manifest in place.manifests.values()]
    facts: dict[str, Any] = plain(
        {
            "run": run.name,
            "kind": source.kind,
            "title": source.title,
            "where": _where(run),
            "created": _day(run.info.get("created_at")),
            "facts": [
                *_replayed(source.changes),
                *_facts(settings, run.info.get("regime")),
                *((f"changed from iteration {index} on", what) for index, what in settings_changes(run)),
            ],
            "settings": settings_text,
            "versions": manifests[-1].packages if manifests else {},
            "shown": chosen.shown,
            "total": chosen.total,
            "how": chosen.how,
            "texts_only": list(texts_only),
            "rates": f"at {RATES.token_seconds:g} s a sampled token and {RATES.tool_seconds:g} s a tool call",
            "places": [_place(place, source.kind) for place in source.places],
            "changes": settings_changes(run) if source.has_curve else [],
            "curve": [asdict(point) for point in points_of(run)] if source.has_curve else [],
        }
    )
    return facts


def _where(run: Run) -> str:
    """The run's folder as a relative path: a page that is shared should not reveal local folders."""
    here = Path.cwd()
    path = Path(run.folder.path)
    return (
        str(path.relative_to(here)) if run.folder.is_local and path.is_relative_to(here) else run.folder.url
    )


def _place(place: Finished, kind: str) -> dict[str, Any]:
    accounts, seconds, notes = place.accounts, place.stage_seconds, place.notes
    if not place.whole:
        notes.append(f"unfinished; finished stages: {', '.join(seconds) or 'none'}")
    if place.begun:
        notes.append(begun_note(place))
    return {
        "index": place.index,
        "accounts": [asdict(account) for account in accounts],
        "seconds": seconds,
        "notes": notes,
        "metrics": _metrics(place, accounts, seconds, kind),
        "updates": update_summaries(place.tables),
        "stops": _stop_curve(place),
        "scores": json.loads(place.store.folder.read_text("result.json") or "{}").get("scores", []),
    }


def _stop_curve(place: Finished) -> list[dict[str, Any]]:
    """Rows of the stop curve: what stopping by each rule costs and scores, on the same traces."""
    if "stop_curve" not in place.tables:
        return []
    columns = ["rule", "setting", "episodes", "cost", "score", "utility"]
    return [
        {k: v for k, v in row.items() if not isinstance(v, float) or math.isfinite(v)}
        for row in place.tables["stop_curve"].read(columns).to_pylist()
        if row["cost"] is not None and row["score"] is not None
    ]


def _metrics(
    place: Finished, accounts: Sequence[Any], seconds: Mapping[str, float], kind: str
) -> dict[str, float]:
    """The metrics that a finished iteration stored, else computed from the tables that are there."""
    if done := json.loads(place.store.folder.read_text("done.json") or "{}").get("metrics"):
        return dict(done)
    shown = ("episodes", "turns") if kind == "evaluation" else tuple(place.tables)
    tables = {name: table for name, table in place.measured.items() if name in shown}
    return with_measured(iteration_metrics(tables, accounts, seconds), place.stage_metrics)


def _replayed(changes: Mapping[str, str] | None) -> list[tuple[str, str]]:
    """The settings that a replay changed; nothing for a run."""
    if changes is None:
        return []
    return [("replayed with", ", ".join(f"{k} = {v}" for k, v in changes.items()) or "its own settings")]


def _facts(settings: Mapping[str, Any], regime: str | None) -> list[tuple[str, str]]:
    """The settings that people ask for first, a name and a line each."""
    part = {name: settings.get(name, {}) for name in ("workflow", "data", "rollout", "credit", "ppo", "run")}
    options = ", ".join(f"{k} = {json.dumps(v)}" for k, v in part["workflow"].get("options", {}).items())
    facts = [("workflow", f"{part['workflow'].get('use')}" + (f" ({options})" if options else ""))]
    for name, model in settings.get("models", {}).items():
        trained = "" if model.get("train", True) else ", frozen"
        facts.append((f"model {name}", f"{model.get('checkpoint')}, engine {model.get('engine')}{trained}"))
    facts += [
        ("sharing", str(regime or "–")),
        ("rewards", ", ".join(_reward(r) for r in settings.get("rewards", ())) or "–"),
        ("credit", str(part["credit"].get("use", "the default"))),
        ("learning rate", number(part["ppo"].get("learning_rate"))),
        ("group size", number(part["rollout"].get("group_size"))),
        ("temperature", number(part["rollout"].get("temperature"))),
        ("data", json.dumps(part["data"].get("path")).strip('"')),
        ("seed", number(part["run"].get("seed"))),
    ]
    return facts


def _reward(section: Mapping[str, Any]) -> str:
    return f"{section.get('name') or section.get('use')} × {number(section.get('weight', 1.0))}"


def _day(seconds: float | None) -> str | None:
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
