"""Signs that a team is about to fall, or has begun to: in gradients by role, and in the mean return. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from pipeline.metrics.signs import Alarm, Metrics, Series, above, since_when
from pipeline.settings.program import hint
from pipeline.settings.tracking import AlarmsSection

QUIET_SHARE: Final = 0.05  # of the gradients of its model: a role with less earns nothing
SURE: Final = 3.0  # standard errors by which a mean return must have fallen
_RETURN: Final = "return/mean"


@dataclass(frozen=True, slots=True)
class Peak:
    """The iterations in a row whose mean return is the highest: the last of them, and that mean."""

    iteration: int
    value: float


def peak(series: Series, count: int) -> Peak | None:
    """The highest mean return of `count` iterations in a row, of equal ones the first; None for too few."""
    windows = _windows(series, count)
    return max(windows, key=lambda peak: (peak.value, -peak.iteration), default=None)


def fell_from_peak(
    series: Series, limits: AlarmsSection, versions: Mapping[str, int] | None
) -> Iterator[Alarm]:
    """The mean return lies below its peak by more than chance and more than `peak_fall` of its height."""
    windows, best = _windows(series, limits.iterations), peak(series, limits.iterations)
    if not windows or best is None:
        return
    least = max(limits.peak_fall * abs(best.value), SURE * _error(series, limits.iterations))
    lost = best.value - windows[-1].value
    if not lost > least:
        return
    after = [window for window in windows if window.iteration > best.iteration]
    since = next(window.iteration for window in after if best.value - window.value > least)
    places = sorted((versions or {}).items())
    kept = ", ".join(f"{model} version {number}" for model, number in places if number)
    yield Alarm(
        "fell_from_peak",
        "",
        since,
        f"the mean return fell from {best.value:.4g} (until iteration {best.iteration}) to "
        f"{windows[-1].value:.4g}",
        (f"the weights of the peak are kept: {kept} (`{hint('export')} --version`); " if kept else "")
        + "a lower ppo.learning_rate, a ppo.kl_coefficient, or evaluate.patience, which stops at the peak",
    )


def _windows(series: Series, count: int) -> list[Peak]:
    """The mean return of each `count` iterations in a row, by the last of them."""
    known = [(index, metrics[_RETURN]) for index, metrics in series if _RETURN in metrics]
    return [
        Peak(known[end - 1][0], fmean(value for _, value in known[end - count : end]))
        for end in range(count, len(known) + 1)
    ]


def _error(series: Series, count: int) -> float:
    """The standard error of the difference of two means of `count` iterations, by the newest ones."""
    squares = [
        metrics.get("return/std", 0.0) ** 2 / max(1.0, metrics.get("rollout/episodes", 1.0))
        for _, metrics in series[-count:]
    ]
    return math.sqrt(2 * sum(squares)) / count


def of_gradients(series: Series, limits: AlarmsSection, role: str) -> Iterator[Alarm]:
    """The alarms of one role that its gradients raise; none where they are not measured."""
    last = series[-1][1]

    def name(metric: str) -> str:
        return f"role/{role}/{metric}"

    def dominates(metrics: Metrics, _: int) -> bool:
        share, tokens = metrics.get(name("gradient_share")), metrics.get(name("token_share"))
        if share is None or tokens is None or tokens == 1:
            return False  # alone in its model, it has all
        return share >= limits.role_share and _odds(share) >= limits.role_odds * _odds(tokens)

    if (since := since_when(series, dominates, limits.iterations)) is not None:
        yield Alarm(
            "role_dominates",
            role,
            since,
            f"it has {last[name('gradient_share')]:.0%} of the gradients of its model with "
            f"{last[name('token_share')]:.0%} of the tokens",
            "look at the scale of its rewards; ppo.max_role_share caps the share, roles.<name>.ppo.weight "
            "sets it, a model of its own separates the role",
        )
    copies = name("copies_cosine")
    if (since := since_when(series, above(copies, limits.copies_cosine), limits.iterations)) is not None:
        yield Alarm(
            "copies_add_up",
            role,
            since,
            f"the gradients of its {last.get(name('copies'), 2):.0f} copies have a mean cosine of "
            f"{last[copies]:.2f}: they add up in one direction",
            "ppo.damp_copies counts copies that agree as the root of their number; or a lower "
            "ppo.learning_rate, or ppo.coherence_damping",
        )
    yield from _style_leaks(series, limits, role)


def _style_leaks(series: Series, limits: AlarmsSection, role: str) -> Iterator[Alarm]:
    """The role moved away from its reference within the iterations up to now in which it earned nothing."""
    distance = f"role/{role}/kl_reference"
    stretch: list[tuple[int, float]] = []
    for index, metrics in reversed(series):
        if not _is_quiet(metrics, role):
            break
        if distance in metrics:
            stretch.append((index, metrics[distance]))
    if len(stretch) <= limits.iterations:
        return
    (_, now), (since, before) = stretch[0], stretch[-1]
    if now - before >= limits.style_leak:
        yield Alarm(
            "style_leaks",
            role,
            since,
            f"it earned nothing, and went from {before:.3g} to {now:.3g} nats per token from its reference: "
            "what other roles of its model learn changes it",
            f"roles.{role}.ppo.kl_coefficient anchors it; a model of its own separates it",
        )


def _is_quiet(metrics: Metrics, role: str) -> bool:
    """Whether a role earned nothing: no advantage, or next to nothing of its model's gradients."""
    if metrics.get(f"role/{role}/advantage_abs_mean") == 0:
        return True
    return metrics.get(f"role/{role}/gradient_share", 1.0) <= QUIET_SHARE


def _odds(share: float) -> float:
    return share / (1 - share) if share < 1 else math.inf
