"""Where MLflow keeps its record and what it takes: addresses, a new database, names and values.

Limits and refusals are those of MLflow 3.17.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from pipeline.settings.names import without_password
from pipeline.settings.program import version
from workflows.errors import UsageError, did_you_mean

DATABASE: Final = "mlflow.db"
ARTIFACTS: Final = "mlflow-artifacts"
MARK: Final = "iteration"  # the metric that says an iteration is logged
MAX_VALUE: Final = 500  # characters of one setting; the settings file is logged whole
NOT_FINITE: Final = "not_finite"  # the metric that counts numbers which were NaN or infinite
STALE_SECONDS: Final = 600.0
_SCHEMES: Final = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks", "databricks-uc")


def tracking_uri(uri: str | None, root: str) -> str:
    """The address to give MLflow, checked: `uri`, or MLFLOW_TRACKING_URI of the environment, or by
    default a database file under the run root.

    A root that is not a local folder can't hold a database: then it lies in the working folder.

    Raises:
        UsageError: a folder or `file:` address, which MLflow no longer writes to, or an unknown scheme.
    """
    setting = "tracking.uri" if uri else "MLFLOW_TRACKING_URI"
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        folder = Path(root.removeprefix("file://")) if _is_local(root) else Path()
        return f"sqlite:///{(folder / DATABASE).absolute()}"
    if uri.startswith("sqlite:///") and uri != "sqlite:///:memory:":
        return f"sqlite:///{Path(uri.removeprefix('sqlite:///')).absolute()}"
    scheme = uri.partition(":")[0].partition("+")[0] if ":" in uri or uri == "databricks" else ""
    if scheme == "databricks" or (scheme in _SCHEMES and "://" in uri) or scheme in _plugin_schemes():
        return uri
    if scheme in ("", "file"):
        raise UsageError(
            f"{setting} = {uri!r} is a folder, which MLflow no longer writes to; use a database, for "
            'example "sqlite:///runs/mlflow.db", a server ("http://…"), or "none" to record nothing'
        )
    raise UsageError(
        f"{setting} = {without_password(uri)!r} begins with {scheme!r}{did_you_mean(scheme, _SCHEMES)}; "
        f"MLflow knows {', '.join(_SCHEMES)}"
    )


def local_database(uri: str) -> Path | None:
    """The file of a sqlite address; None for any other."""
    name = uri.removeprefix("sqlite:///")
    return Path(name) if name != uri and name not in ("", ":memory:") else None


def artifact_folder(uri: str) -> str | None:
    """Where a new experiment keeps files: beside the database file; None leaves it to the server."""
    database = local_database(uri)
    return None if database is None else str(database.parent / ARTIFACTS)


def create_database(path: Path, artifacts: str | None) -> None:
    """Make the database file if it is not there: whole, or not at all.

    Making the tables takes seconds, and MLflow can't go on with a file in which some are missing
    ("table … already exists"). So they are made in a folder beside it, and the finished file is
    linked into place.
    """
    if path.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{path.name}.new-*"):  # by processes that were killed
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=f"{path.name}.new-", dir=path.parent) as folder:
        new = Path(folder) / path.name
        SqlAlchemyStore(f"sqlite:///{new}", artifacts or str(path.parent / ARTIFACTS)).engine.dispose()
        try:
            os.link(new, path)
        except FileExistsError:
            pass  # another process was first; its file is as good
        except OSError:  # a filesystem without links
            new.rename(path)


def clean(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics as MLflow takes them: finite numbers under names that it allows.

    A name that it does not allow is changed as `distinct_key` does. Numbers that are not finite are left out
    and counted in `not_finite`; what is not a number is left out.
    """
    kept, not_finite = {}, 0
    for name, value in metrics.items():
        if not isinstance(value, int | float):
            continue
        if math.isfinite(value):
            kept[distinct_key(name, name if name == MARK else None)] = float(value)
        else:
            not_finite += 1
    if not_finite:
        kept[NOT_FINITE] = kept.get(NOT_FINITE, 0.0) + not_finite
    return kept


def distinct_key(name: str, what: str | None = None) -> str:
    """A name that MLflow takes: `name` itself or, where it had to change, one that ends with a hash, so that
    `a[0]` and `a_0_` stay two. `what` tells two of one name apart."""
    key = mlflow_key(name)
    if key == name and what is None:
        return key
    return (
        f"{key[:240]}-{hashlib.blake2b((what or name).encode('utf-8', 'replace'), digest_size=3).hexdigest()}"
    )


def flatten(settings: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as `section.key` to text. Passwords in URLs are left out, long values cut.

    A name that MLflow does not take, or that another setting has, is changed as `distinct_key` does.
    """
    flat: dict[str, str] = {}
    for path, text in leaves(settings):
        name = ".".join(path)
        key = distinct_key(name)
        flat[key if key not in flat else distinct_key(name, json.dumps(path))] = text
    return flat


def leaves(settings: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every setting of a nested mapping: its path, and its value as text."""
    for name, value in settings.items():
        here = (*path, str(name))
        if isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value):
            value = dict(enumerate(value))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, here)
            continue
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
        text = without_password(text)
        yield here, text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def mlflow_key(name: str) -> str:
    """A name that MLflow takes for a parameter, tag or metric."""
    cleaned = re.sub(r"[^/\w.\- :]", "_", name)[:250]
    return "/".join(p for p in cleaned.split("/") if p.strip(". ")) or "_"


def run_tags(regime: str, workflow: str, folder: Path | None = None) -> dict[str, str]:
    """Tags of a run: sharing regime, workflow, versions, machine, and the commit of `folder` if any."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    tags = {
        "regime": regime,
        "workflow": workflow,
        "cadre_version": version(),
        "machine": f"{platform.node()}, {platform.machine()}, {cores} cores",
        "mlflow.source.name": "python -m pipeline",
    }
    if commit := git_commit(folder or Path.cwd()):
        tags |= {"git_commit": commit, "mlflow.source.git.commit": commit.removesuffix("-dirty")}
    return tags


def git_commit(folder: Path) -> str | None:
    """The commit that `folder` is at, with `-dirty` if tracked files differ; None if it is not in git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _is_local(root: str) -> bool:
    return root.startswith("file://") or "://" not in root


def _plugin_schemes() -> set[str]:
    return {entry.name for entry in metadata.entry_points(group="mlflow.tracking_store")}
