"""The pages of a run that was renamed, and of its replays and ablations, in MLflow."""

from __future__ import annotations

import json
from typing import Any, Final

from pipeline.settings.names import without_password
from pipeline.settings.reading import read_toml
from pipeline.store.run import Run
from pipeline.tracking.deadline import Worker
from pipeline.tracking.mlflow_record import MlflowRecord
from pipeline.tracking.mlflow_store import tracking_uri

SECONDS: Final = 45.0  # importing MLflow takes seconds


def rename_pages(run: Run, before: Run) -> str:
    """Change what the pages say that name the run; a sentence about it for people.

    Args:
        run: by its new name.
        before: by its old one; its folder is gone.
    """
    settings = read_toml((run.folder.read_text("settings.toml") or "").encode(), "settings.toml")
    tracking = settings.get("tracking", {})
    if tracking.get("uri") == "none":
        return "nothing is recorded of it in MLflow"
    uri = tracking_uri(tracking.get("uri"), run.folder.url.rpartition("/")[0])
    record = MlflowRecord(uri, tracking.get("experiment", "cadre"), None)
    worker = Worker("cadre-tracking")
    try:
        count = worker.run(lambda: _rename(record, run, before), SECONDS)
    except Exception as error:  # whatever MLflow raises: the run itself is renamed
        cause = without_password(str(error).strip().partition("\n")[0][:300])
        return (
            f"MLflow at {without_password(uri)} does not work ({type(error).__name__}: {cause}): its pages "
            "keep the old name"
        )
    finally:
        worker.close()
    return f"{count} page{'' if count == 1 else 's'} in MLflow renamed"


def _rename(record: MlflowRecord, run: Run, before: Run) -> int:
    if record.find_experiment() is None:
        return 0
    old, new = before.folder.url, run.folder.url
    pages = {page.info.run_id: page for page in record.pages("run_folder", old)}
    pages |= {page.info.run_id: page for page in record.pages("source_run", old)}
    for run_id, page in pages.items():
        tags = page.data.tags
        folder = new + tags.get("run_folder", old).removeprefix(old)
        changed = {"run_folder": folder}
        changed |= {"source_run": new} if "source_run" in tags else {"run": run.name}
        name = page.info.run_name or ""
        if name == before.name or name.startswith(f"{before.name} "):  # not one that a person has given it
            name = run.name + name.removeprefix(before.name)
        record.rename_page(run_id, name, changed, key_of(run, tags, folder))
    return len(pages)


def key_of(run: Run, tags: dict[str, Any], folder: str) -> str:
    """The key of a page, as the process that begins it makes it of the folder that the page is about."""
    if "source_run" not in tags:
        return f"{folder} {run.info['created_at']}"
    if "replay" in tags:
        label = folder.removeprefix(f"{run.folder.url}/")
        return (
            f"{folder} {json.loads(run.folder.read_text(f'{label}/replay.json') or '{}').get('created_at')}"
        )
    return f"{folder} {tags['variant']}" if "variant" in tags else folder
