"""Saved views of MLflow's page of runs: grouped by what differs, what people look for first at the top.

MLflow keeps a view as a tag of the experiment, and a link with its key opens the page as the view says. The
form of that tag is the one of MLflow 3.17; a version that does not know it opens the plain list of runs.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.settings.names import slug

TAG: Final = "mlflow.sharedViewState."
KIND: Final = "kind"
TRAINING: Final = "training"  # the value of KIND of a run that trains
VARIES: Final = "varies"  # the tag with the names of the parameters in which a sweep's runs differ
MAX_TAG: Final = 5000  # characters of one tag of an experiment
UNNAMED: Final = "Model metrics"  # what MLflow calls the section of metrics without a section
MOST_COLUMNS: Final = 12

# What people look for first, in order: the section, and the metrics in it.
SECTIONS: Final[tuple[tuple[str, str], ...]] = (
    ("return", r"return/mean|reward/mean|role/[^/]+/return_mean|reward/[^/]+/mean"),
    ("evaluation", r"evaluate/[^/]+/[^/]+"),
    ("format", r"role/[^/]+/(format_valid_rate|malformed_rate)"),
    ("length", r"role/[^/]+/(response_tokens_mean|truncated_rate)"),
    ("gradients", r"role/[^/]+/(gradient_share|gradient_cosine|gradient_persistence|copies_cosine)"),
    ("update", r"model/[^/]+/(kl_old|kl_reference|clip_fraction|gradient_norm|loss|explained_variance)"),
)


@dataclass(frozen=True, slots=True)
class View:
    """Which training runs of an experiment a page shows.

    Args:
        key: part of the link.
        title: the view's name in MLflow's list of saved views.
        by: names of the parameters by which runs are grouped; a chart has a curve for each group.
        where: a filter in MLflow's words; empty: all runs.
    """

    key: str
    title: str
    by: tuple[str, ...] = ("regime",)
    where: str = ""


def all_runs() -> View:
    """All training runs of an experiment, by sharing regime."""
    return View("cadre", "training runs by regime", where=f"tags.{KIND} = '{TRAINING}'")


def of_sweep(name: str, varies: Sequence[str]) -> View:
    """The runs of one sweep, by what it varies."""
    quoted = name.replace("'", "''")
    return View(
        f"sweep-{slug(name)}",
        f"sweep {name}",
        tuple(varies) or ("regime",),
        f"tags.{KIND} = '{TRAINING}' AND tags.sweep = '{quoted}'",
    )


def of_runs(run_ids: Sequence[str]) -> View:
    """Some runs by their ids, by sharing regime."""
    ids = ", ".join(f"'{run_id}'" for run_id in sorted(run_ids))
    return View(
        f"compare-{slug(' '.join(sorted(run_ids)))[-6:]}", "compared runs", where=f"run_id IN ({ids})"
    )


def view_tag(
    view: View, metrics: Sequence[str], params: Sequence[str], at: float, others: Sequence[str] = ()
) -> tuple[str, str]:
    """The tag of the experiment that keeps a view: its name and its value.

    Args:
        metrics, params: names that the runs of the view have.
        at: when the view was made, in seconds since the epoch.
        others: metrics of other runs of the experiment. MLflow shows the parent of a run beside it, and the
            parent's charts would come open.
    """
    by_section = [(section, _chosen(pattern, metrics)) for section, pattern in SECTIONS]
    by_section = [(section, names) for section, names in by_section if names]
    while True:
        value = _value(view, by_section, sorted({*metrics, *others}), params, at)
        if len(value) <= MAX_TAG or not by_section:
            return f"{TAG}{view.key}", value[:MAX_TAG]
        longest = max(by_section, key=lambda each: len(each[1]))
        longest[1].pop()  # what is left out has its chart in a section of its own
        by_section = [each for each in by_section if each[1]]


def view_page(experiment_id: str, key: str | None) -> str:
    """The part of a link after the server's address: an experiment's training runs, not its traces."""
    page = f"/#/experiments/{experiment_id}/runs?workflowType=machine_learning&compareRunsMode=CHART"
    return page if key is None else f"{page}&viewStateShareKey={key}"


def _value(
    view: View,
    by_section: Sequence[tuple[str, list[str]]],
    metrics: Sequence[str],
    params: Sequence[str],
    at: float,
) -> str:
    state = json.dumps(_state(view, by_section, metrics, params), separators=(",", ":"))
    packed = "deflate;" + base64.b64encode(zlib.compress(state.encode(), 9)).decode()
    milliseconds = int(at * 1000)
    return json.dumps(
        {"name": view.title, "createdAt": milliseconds, "updatedAt": milliseconds, "state": packed},
        ensure_ascii=False,
    )


def _state(
    view: View, by_section: Sequence[tuple[str, list[str]]], metrics: Sequence[str], params: Sequence[str]
) -> dict[str, Any]:
    """What MLflow's page keeps of its look: filter, columns, groups, sections and charts."""
    first = {name for _, names in by_section for name in names}
    rest = sorted({name.rpartition("/")[0] or UNNAMED for name in metrics if name not in first})
    named = [section for section, _ in by_section]
    return {
        "searchFilter": view.where,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "selectedColumns": _columns(view, by_section, params),
        "groupBy": {
            "aggregateFunction": "average",
            "groupByKeys": [{"mode": "param", "groupByData": name} for name in view.by],
        },
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "runsHiddenMode": "FIRST_20_RUNS",
        "isAccordionReordered": True,  # keeps the order of sections
        "compareRunSections": [
            *(_section(name, open_=True) for name in named),
            *(_section(name, open_=False) for name in rest if name not in named),
        ],
        "compareRunCharts": [_chart(name, section) for section, names in by_section for name in names],
    }


def _columns(view: View, by_section: Sequence[tuple[str, list[str]]], params: Sequence[str]) -> list[str]:
    """What differs and how it came out, for the table."""
    chosen = [*view.by, *(name for name in ("workflow", "model", "run.seed") if name in params)]
    head = [f"params.`{name}`" for name in dict.fromkeys(chosen)]
    ends = [name for section, names in by_section if section in ("return", "evaluation") for name in names]
    alone = [name for name in ends if not name.startswith("role/")]
    return [
        *head,
        *(f"metrics.`{name}`" for name in alone[: MOST_COLUMNS - len(head)]),
        "tags.`alarms`",
        "attributes.`Duration`",
    ]


def _section(name: str, *, open_: bool) -> Mapping[str, Any]:
    return {"uuid": name, "name": name, "display": open_, "isReordered": True}


def _chart(metric: str, section: str) -> Mapping[str, Any]:
    """One chart with a curve for each group. `isGenerated` lets the page make bars of single points."""
    kind, name, last = [*metric.split("/"), "", ""][:3]
    title = f"{name}: {last}" if kind in ("role", "model", "evaluate") and last else metric
    return {
        "uuid": metric,
        "type": "LINE",
        "metricSectionId": section,
        "metricKey": metric,
        "displayName": title.replace("_", " "),
        "runsCountToCompare": 20,
        "isGenerated": True,
        "deleted": False,
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisScaleType": "linear",
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "range": {},
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _chosen(pattern: str, metrics: Sequence[str]) -> list[str]:
    """The metrics that a section takes, those of the whole team first."""
    matching = [name for name in metrics if re.fullmatch(pattern, name)]
    return sorted(matching, key=lambda name: (name.count("/") > 1, name))
