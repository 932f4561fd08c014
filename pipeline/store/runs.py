"""Finding, listing and opening runs by name."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from pipeline.settings.program import again, hint
from pipeline.settings.reading import parse_settings, read_toml
from pipeline.settings.schema import Settings
from pipeline.store.differences import differences, plain
from pipeline.store.folder import Folder
from pipeline.store.history import changes_in, evaluation_results
from pipeline.store.lock import RunLock
from pipeline.store.manifest import package_versions
from pipeline.store.readers import readers_of
from pipeline.store.run import Run
from pipeline.store.shelf import replay_labels
from workflows.errors import UsageError, did_you_mean

# sections that no weight depends on
_OF_NO_WEIGHT: Final = ("tracking", "cluster", "checkpoints", "replace", "reward_model")


def find_run(root: str, name: str) -> Run:
    """The run that the command line names: a path or URL, a name under the root, or `latest`.

    Raises:
        UsageError: there is none; the message lists what there is.
    """
    if name == "latest":
        found = runs_under(root)
        if not found:
            raise UsageError(f"no runs under {root!r}; start one with: {hint('run iteration')}")
        return found[-1]
    elif "/" in name:
        root, name = name.rstrip("/").rsplit("/", 1)
    run = Run(root, name)
    if not run.exists:
        if is_sweep(root, name):
            raise UsageError(
                f"{name!r} under {root!r} is a sweep of several runs; put them side by side with: "
                f"{hint(f'compare {name}')}, or name one of them ({hint('runs')})"
            )
        if run.folder.read_text("replay.json") is not None:
            raise UsageError(f"{run.folder.url} is a replay; name its run, and pass --replay {name}")
        names = [r.name for r in runs_under(root)]
        raise UsageError(
            f"no run {name!r} under {root!r}{did_you_mean(name, names)}; "
            f"there are: {', '.join(names) or 'none'}"
        )
    run.read_info()
    return run


def runs_under(root: str) -> list[Run]:
    """Every run under the root with what its `run.json` says, the one last written to at the end."""
    found = [run for name in Folder(root).names() if (run := Run(root, name)).exists]
    return sorted(found, key=lambda run: run.read_info()["used_at"])


def list_runs(root: str) -> list[dict[str, Any]]:
    """What there is to say of `runs_under` the root, in that order."""
    found = []
    sweep_of = sweeps_under(root)
    for run in runs_under(root):
        info, indices = run.info, run.iterations()
        found.append(
            {
                "name": run.name,
                "uri": run.folder.url,
                "workflow": info["identity"]["workflow"]["use"],
                "regime": info["regime"],
                "created_at": info["created_at"],
                "used_at": info["used_at"],
                "iterations": len(indices),
                "unfinished": [i for i in indices if not run.is_finished(i)],
                "replays": replay_labels(run),
                "return": last_return(run),
                "score": last_score(run),
                "bytes": run.folder.size() if run.folder.is_local else None,
                "sweep": sweep_of.get(run.name),
            }
        )
    return found


def last_return(run: Run) -> float | None:
    """The mean return of the newest finished iteration; None where there is none."""
    for index in reversed(run.iterations()):
        text = run.iteration(index).folder.read_text("done.json")
        if text is not None:
            value = json.loads(text).get("metrics", {}).get("return/mean")
            return None if value is None else float(value)
    return None


def last_score(run: Run) -> dict[str, Any] | None:
    """The first score of the newest evaluation: its `split`, `name`, `mean` and `index`."""
    results = [result for result in evaluation_results(run) if result["scores"]]
    if not results:
        return None
    newest = max(results, key=lambda result: result["index"])
    score = newest["scores"][0]
    return {"split": newest["split"], "name": score["name"], "mean": score["mean"], "index": newest["index"]}


def sweeps_under(root: str) -> dict[str, str]:
    """By the name of each run that belongs to a sweep under the root, the name of the sweep."""
    folder = Folder(root)
    texts = {name: folder.child(name).read_text("sweep.json") for name in folder.names()}
    return {
        run["name"]: name for name, text in texts.items() if text for run in json.loads(text).get("runs", ())
    }


def remove_run(root: str, name: str) -> None:
    """Remove a run with all that is in its folder, or a sweep's own folder; runs of the sweep stay.

    Raises:
        UsageError: there is no such run or sweep, another run stands on its files, or a process writes to it.
    """
    folder = Folder(root)
    if "/" in name or name not in folder.names():
        raise UsageError(
            f"no run or sweep {name!r} under {root!r}{did_you_mean(name, folder.names())}; "
            f"`{hint('runs')}` lists them"
        )
    child = folder.child(name)
    if not (Run(root, name).exists or is_sweep(root, name)):
        raise UsageError(f"{child.url} is neither a run nor a sweep, so it is not removed")
    if readers := readers_of(folder, name):
        raise UsageError(
            f"run {name!r} is not removed: {'; '.join(readers)}; those runs could not go on. Remove them "
            f"first, or copy the weights elsewhere (`{hint(f'export FOLDER --run {name}')}`)"
        )
    with RunLock(child):
        # what makes it a run goes first: half of one must not look whole
        for file in ("run.json", "sweep.json"):
            if child.read_text(file) is not None:
                child.remove(file)
    folder.remove(name)


def new_name(root: str, name: str) -> str:
    """`name`, or `name-2`, `name-3`, … where it is taken."""
    taken = set(Folder(root).names())
    if name not in taken:
        return name
    return next(n for i in range(2, 10**6) if (n := f"{name}-{i}") not in taken)


def renamed(settings: Settings) -> Settings:
    """The settings of a new run beside the one that they name: `run.name` is one that is not taken yet."""
    name = new_name(settings.run.root, settings.run.name)
    return settings.model_copy(update={"run": settings.run.model_copy(update={"name": name})})


def is_sweep(root: str, name: str) -> bool:
    """Whether the folder `name` under `root` holds a sweep, which is several runs."""
    return Folder(root).child(name).read_text("sweep.json") is not None


def create_or_open(
    run: Run,
    settings: str,
    identity: Mapping[str, Any],
    regime: str,
    graph: Mapping[str, Any] | None = None,
) -> str | None:
    """Write `run.json` of a new run, or check that the run is the one that the settings describe.

    Settings that are not part of what a run is may change between two calls. What changed is noted in
    `run.json` (`settings_changes`) with the iteration that it holds from, and returned as a remark.

    Args:
        run: its folder, locked.
        settings: the TOML text that the run keeps.
        identity: what may not change under one run name.
        regime: a label of who shares weights with whom.
        graph: the workflow as `workflows.draw.drawing` gives it: viewing a run executes none of its code.

    Raises:
        UsageError: the run of that name has another workflow, model, model map, data or seed.
    """
    identity = plain(identity)
    if run.exists:
        have = run.read_info()["identity"]
        if have != identity:
            raise UsageError(
                f"run {run.name!r} was started with other settings: {differences(have, identity)}; use "
                f"another name (--set run.name=...), start anew with --new, or set them back"
                f"{_or_redo(run, have, identity)}"
            )
        run.write_info(used_at=time.time(), graph=graph)
        remark = _note_changes(run, settings)
    else:
        now, remark = time.time(), None
        run.write_info(
            name=run.name,
            identity=identity,
            regime=regime,
            created_at=now,
            used_at=now,
            packages=package_versions(),
            tracker={},
            graph=graph,
        )
    run.folder.write_text("settings.toml", settings)
    return remark


def settings_changes(run: Run) -> list[tuple[int, str]]:
    """`(iteration, changes)` of each time that settings changed within the run: from that iteration on."""
    return changes_in(run.info)


def _note_changes(run: Run, settings: str) -> str | None:
    """Note what differs between the settings that the run keeps and those of now."""
    finished = [index for index in run.iterations() if run.is_finished(index)]
    before, now = (_learning(text) for text in (run.folder.read_text("settings.toml"), settings))
    if not finished or before is None or now is None or before == now:
        return None
    first = finished[-1] + 1
    noted: list[dict[str, Any]] = [dict(change) for change in run.info.get("settings_changes", [])]
    base = before
    if noted and noted[-1]["iteration"] == first:  # no iteration has run since: it is one change, or none
        base = noted.pop().get("before", before)
    for change in noted:
        change.pop("before", None)
    if whole := differences(base, now):
        noted.append({"iteration": first, "changes": whole, "before": base})
    run.write_info(settings_changes=noted)
    return f"settings of run {run.name!r} differ from iteration {first} on: {differences(before, now)}"


def _learning(text: str | None) -> dict[str, Any] | None:
    """The settings in a TOML text that what is learned may depend on; None where they can't be read today."""
    try:
        settings = parse_settings(read_toml((text or "").encode(), "settings.toml"))
    except UsageError:
        return None
    # a default that was a number and now depends on the loss is no change
    sections = settings.fingerprint()
    kept = {name: value for name, value in sections.items() if name not in (*_OF_NO_WEIGHT, "run")}
    return kept | {"run": {"seed": settings.run.seed}}


def only_rows_differ(have: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two identities of a run differ in the rows of their data, and in nothing else."""
    rows = {"rows": now.get("data", {}).get("rows")}
    return have != now and {**have, "data": {**have.get("data", {}), **rows}} == now


def _or_redo(run: Run, have: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What else may be done about rows of data that were mended while an iteration is unfinished."""
    if not only_rows_differ(have, now) or all(run.is_finished(index) for index in run.iterations()):
        return ""
    return f"; if the rows were mended, `{again('--redo sample')}` samples the unfinished iteration from them"
