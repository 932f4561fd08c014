"""Several runs side by side: a pure function of the settings and numbers that each has stored.

Runs that differ in their seed alone are repeats of one *variant*. A variant's numbers are means over its
repeats; intervals are over them, at 95 %, and are missing where there is one run. They are Student's t, and
Wilson's, which stays from 0 to 1, for scores and returns that are known to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

from pipeline.experiments.differences import Differences, differences_of, without_seed
from pipeline.metrics.cost import total_cost
from pipeline.settings.program import hint
from pipeline.store.history import History
from pipeline.views.plots import MAX_SERIES
from stages.evaluate import Estimate, estimate_mean, estimate_score
from workflows.errors import UsageError

RETURN: Final = "return/mean"
OF: Final = " of "  # between a score and the source of its tasks
LAST: Final = 5  # iterations whose mean is the beginning and the end of a run
COSTS: Final = (
    "sampled_tokens",
    "trained_tokens",
    "seconds",
    "peak_memory_gib",
    "parameters_trained",
    "parameters_held",
)


@dataclass(frozen=True, slots=True)
class Change:
    """A number at the beginning and at the end: means over the runs that have it."""

    first: Estimate
    last: Estimate
    runs: int


@dataclass(frozen=True, slots=True)
class Variant:
    """Runs with the same settings but for the seed."""

    label: str
    runs: tuple[History, ...]
    returns: Change | None  # None: no run has finished an iteration
    roles: Mapping[str, Change]
    scores: Mapping[str, Change]  # by `split/metric`: first and last evaluation
    cost: Mapping[str, float]  # of one run, the mean over runs; what was not measured is left out

    @property
    def iterations(self) -> list[int]:
        return [len(run.iterations) for run in self.runs]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Variants and how their settings differ. `last`: iterations that a first or last return averages."""

    variants: tuple[Variant, ...]
    differences: Differences
    names: tuple[str, ...]  # of the runs, in the order of `differences`
    last: int
    notes: tuple[str, ...]

    @property
    def histories(self) -> list[History]:
        return [run for variant in self.variants for run in variant.runs]


def compare(
    histories: Sequence[History], labels: Mapping[str, str] | None = None, last: int | None = None
) -> Comparison:
    """Group the runs into variants and sum each up.

    Args:
        histories: of at least two runs.
        labels: by URL of a run: what its variant is called, where a sweep has named it.
        last: over how many iterations the first and last returns are means; None: `LAST`, or half of the
            shortest run where that is less.

    Raises:
        UsageError: fewer than two runs.
    """
    if len({h.url for h in histories}) < 2:
        raise UsageError(
            f"compare needs at least two runs, got {len({h.url for h in histories})}: "
            f"{', '.join(h.name for h in histories) or 'none'}; `{hint('runs')}` lists them"
        )
    histories = list({h.url: h for h in histories}.values())
    groups = _grouped(histories, labels or {})
    histories = [h for runs in groups.values() for h in runs]
    shortest = min((len(h.iterations) for h in histories if h.iterations), default=1)
    window = last or min(LAST, max(1, shortest // 2))
    variants = tuple(_variant(label, runs, window) for label, runs in groups.items())
    return Comparison(
        variants=variants,
        differences=differences_of(histories),
        names=tuple(h.name for h in histories),
        last=window,
        notes=tuple(_notes(variants)),
    )


def series_of(variant: Variant, metric: str) -> list[list[float]]:
    """A metric of every iteration of each run that has it in all of them."""
    runs = [[m[metric] for m in run.iterations if metric in m] for run in variant.runs]
    return [
        values
        for values, run in zip(runs, variant.runs, strict=True)
        if len(values) == len(run.iterations) > 0
    ]


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Plain values for `--json`."""

    def change(one: Change | None) -> dict[str, Any] | None:
        return asdict(one) if one else None

    return {
        "runs": list(comparison.names),
        "differences": comparison.differences,
        "mean_over_iterations": comparison.last,
        "variants": [
            {
                "label": v.label,
                "runs": [r.name for r in v.runs],
                "seeds": [r.seed for r in v.runs],
                "iterations": v.iterations,
                "settings_changes": {
                    r.name: [{"iteration": index, "changes": what} for index, what in r.settings_changes]
                    for r in v.runs
                    if r.settings_changes
                },
                "return": change(v.returns),
                "roles": {role: change(c) for role, c in v.roles.items()},
                "scores": {name: change(c) for name, c in v.scores.items()},
                "cost": dict(v.cost),
                "forecasts": [one.as_dict() for run in v.runs for one in run.forecasts],
            }
            for v in comparison.variants
        ],
        "notes": list(comparison.notes),
    }


def _grouped(histories: Sequence[History], labels: Mapping[str, str]) -> dict[str, list[History]]:
    """Runs by variant, in the order in which variants come first."""
    differing = without_seed(differences_of(histories))
    groups: dict[tuple[str, ...], list[History]] = {}
    for index, history in enumerate(histories):
        values = (labels.get(history.url, ""), *(v[index] for v in differing.values()))
        groups.setdefault(values, []).append(history)
    named: dict[str, list[History]] = {}
    for values, runs in groups.items():
        label = values[0] or _label(differing, values[1:], runs)
        while label in named:  # the same name in two sweeps
            label = f"{label} ({runs[0].name})"
        named[label] = runs
    return named


def _label(differing: Differences, values: Sequence[str], runs: Sequence[History]) -> str:
    """The name of a run that is alone; of repeats the settings that differ, where they are short."""
    if len(runs) == 1:
        return runs[0].name
    settings = {k: v for k, v in zip(differing, values, strict=True) if not k.startswith("models")} or dict(
        zip(differing, values, strict=True)
    )
    text = ", ".join(v if k == "sharing" else f"{k.rsplit('.', 1)[-1]}={v}" for k, v in settings.items())
    return text if 0 < len(text) <= 40 else runs[0].name


def _variant(label: str, runs: Sequence[History], window: int) -> Variant:
    roles = sorted({n for r in runs for m in r.iterations for n in m if _is_role_return(n)})
    # those of sources come last: plots have room for a few
    scores = sorted({name for run in runs for name in scores_of(run)}, key=lambda name: (OF in name, name))
    return Variant(
        label=label,
        runs=tuple(runs),
        returns=_change_of(runs, RETURN, window),
        roles=_present({role_of(name): _change_of(runs, name, window) for name in roles}),
        scores=_present({name: _score_change(runs, name) for name in scores}),
        cost=_cost(runs),
    )


def scores_of(run: History) -> dict[str, list[tuple[int, Estimate]]]:
    """By `split/metric`, and `split/metric of source` where tasks have several: a run's evaluations, each
    after how many iterations, with its interval over tasks."""
    estimates: dict[str, list[tuple[int, Estimate]]] = {}
    for result in run.evaluations:
        for s in result["scores"]:
            name = f"{result['split']}/{s['name']}"
            of_sources = {f"{name}{OF}{source}": values for source, values in s.get("by_source", {}).items()}
            for each, values in {name: s, **of_sources}.items():
                estimate = Estimate(values["mean"], values["low"], values["high"], values["tasks"])
                estimates.setdefault(each, []).append((result["index"], estimate))
    return estimates


def role_of(metric: str) -> str:
    return metric.split("/")[1]


def _is_role_return(metric: str) -> bool:
    return metric.startswith("role/") and metric.endswith("/return_mean")


def _present(changes: Mapping[str, Change | None]) -> dict[str, Change]:
    return {name: change for name, change in changes.items() if change is not None}


def _ends(run: History, metric: str, window: int) -> tuple[float, float] | None:
    values = [m[metric] for m in run.iterations if metric in m]
    return (fmean(values[:window]), fmean(values[-window:])) if values else None


def _change_of(runs: Sequence[History], metric: str, window: int) -> Change | None:
    estimate = _of_means if all(_is_share(run) for run in runs) else estimate_mean
    return _change(runs, lambda run: _ends(run, metric, window), estimate)


def _of_means(values: Sequence[float]) -> Estimate:
    return estimate_score(values, of_means=True)


def _is_share(run: History) -> bool:
    """Whether all returns of a run are known to be from 0 to 1."""
    ends = [(m.get("return/min"), m.get("return/max")) for m in run.iterations if RETURN in m]
    return all(low is not None and high is not None and low >= 0 and high <= 1 for low, high in ends)


def _change(
    runs: Sequence[History],
    ends: Callable[[History], tuple[float, float] | None],
    estimate: Callable[[Sequence[float]], Estimate],
) -> Change | None:
    pairs = [pair for run in runs if (pair := ends(run)) is not None]
    if not pairs:
        return None
    return Change(estimate([f for f, _ in pairs]), estimate([t for _, t in pairs]), len(pairs))


def _score_change(runs: Sequence[History], name: str) -> Change | None:
    """Over repeats where there are some; a single run's interval is that of its evaluation, over tasks."""
    series = [scores[name] for run in runs if name in (scores := scores_of(run))]
    if len(series) == 1:
        return Change(series[0][0][1], series[0][-1][1], 1)
    return _change(runs, lambda run: _score_ends(run, name), _of_means)


def _score_ends(run: History, name: str) -> tuple[float, float] | None:
    values = scores_of(run).get(name)
    return (values[0][1].mean, values[-1][1].mean) if values else None


def cost_of(run: History) -> dict[str, float]:
    """The cost of one run, by the names of `COSTS` and more; what was not measured is left out."""
    parameters = {f"parameters_{k}": float(v) for k, v in run.info.get("parameters", {}).items()}
    return total_cost(run.iterations) | parameters


def _cost(runs: Sequence[History]) -> dict[str, float]:
    run_costs = [cost_of(run) for run in runs if run.iterations]
    names = dict.fromkeys(name for cost in run_costs for name in cost)
    return {name: fmean(cost[name] for cost in run_costs if name in cost) for name in names}


def _notes(variants: Sequence[Variant]) -> list[str]:
    """Notes that a reader needs before believing a difference."""
    runs = [run for v in variants for run in v.runs]
    notes = [
        f"{r.name}: iteration {r.unfinished[0]} is unfinished and not counted" for r in runs if r.unfinished
    ]
    notes += [f"{r.name} has no finished iteration" for r in runs if not r.iterations]
    notes += [
        f"{r.name}: settings changed from iteration {index} on: {what}"
        for r in runs
        for index, what in r.settings_changes
    ]
    if len({len(run.iterations) for run in runs}) > 1:
        notes.append("the runs have different numbers of iterations; the last ones of each are compared")
    if len({tuple(sorted(run.seed for run in v.runs)) for v in variants}) > 1:
        notes.append("the variants have different seeds, so their tasks differ too")
    for what, of in (("tasks", _tasks), ("numbers of episodes an iteration", _episodes)):
        if len({of(run) for run in runs}) > 1:
            notes.append(f"the runs have different {what}")
    if all(len(v.runs) == 1 for v in variants):
        notes.append("one run each, so returns have no interval; repeat with other seeds before you decide")
        if any(v.scores for v in variants):
            notes.append("intervals of scores are over the tasks of the last evaluation")
    elif any(len(v.runs) == 2 for v in variants):
        notes.append("an interval from two runs is wide; a third narrows it by half and more")
    if len(variants) > MAX_SERIES:
        notes.append(f"{len(variants)} variants: in plots colours repeat after {MAX_SERIES}")
    if overlapping := _overlapping(variants):
        notes.append(overlapping)
    return notes


def _tasks(run: History) -> str:
    return str(run.info.get("identity", {}).get("data"))


def _episodes(run: History) -> Any:
    identity, rollout = run.info.get("identity", {}), run.kept.get("rollout", {})
    return identity.get("tasks_per_iteration"), rollout.get("group_size")


def _overlapping(variants: Sequence[Variant]) -> str | None:
    """A word of warning where the best two returns have intervals that overlap."""
    ends = [(v.label, v.returns.last) for v in variants if v.returns is not None]
    ranked = sorted(ends, key=lambda end: -end[1].mean)[:2]
    if len(ranked) < 2 or ranked[0][1].low is None or ranked[1][1].high is None:
        return None
    if ranked[0][1].low > ranked[1][1].high:
        return None
    return (
        f"the intervals of the best two, {ranked[0][0]!r} and {ranked[1][0]!r}, overlap: these runs do not "
        "tell which is better"
    )
