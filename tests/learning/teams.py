"""Sequential updates of teams: stale gaps and shifts against size, schedules at five units, the radius.

The game is `tests.learning.chain`: n units hand a word on, each an adapter on one base of random weights.
What an update promised and what it gained is enumerated, not sampled (`chain_exact`), in units of the return,
which goes from 0 to 1. Four parts, all with equal samples:

- `gap`: updates on stale plays by size, in random order as in TeamTR (arXiv:2605.15207), forward and reverse.
  The *stale gap* is |surrogate on the plays - surrogate on fresh ones|, summed over the updates of an
  iteration; the *shift* is the total variation between contexts of those plays and of the team after the
  update, summed likewise. Exponents of n are fitted with intervals over the seeds.
- `twice`: the word goes around twice. Only there can a fresh surrogate err: a unit that speaks once can't
  move its own contexts, so its gap is 0 by identity.
- `final`: the score after equally many iterations of the schedules, at five units.
- `radius`: the share of updates outside the radius with and without a controller, at a high learning rate:
  a radius that nearly all updates are outside, and one that about a fourth are.

With `--keep` a second call goes on where the first was stopped; `--only gap/reverse` runs what begins so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np

from pipeline.run.cluster import start_ray
from tests.learning.teams_cells import (
    ORDERS,
    RADIUS,
    WIDE_RADIUS,
    Played,
    Update,
    cells,
    forecast,
    is_finished,
    measured_pace,
    play,
)

PACE: Final = 2.0  # seconds of a block on two idle cores, before any is measured
PAPER: Final = {"stale gap": 1.94, "fresh gap": 1.07, "stale shift": 1.91, "fresh shift": 1.05}
PAPERS_ORDER: Final = ("fresh", "stale", "every_second", "reweighted", "no_radius")
NOISE: Final = 0.02  # of return: what counts as equal where intervals say nothing else
MOST_TOKENS: Final = 2 / 3  # of those of fresh, for suffix
OUTSIDE, INSIDE, ACCEPTED = 0.2, 0.05, 0.8


@dataclass(frozen=True, slots=True)
class Found:
    """One claim: what was measured, and whether it holds; None where it can't be told from these runs."""

    name: str
    told: str
    holds: bool | None
    values: dict[str, Any]
    required: bool = False  # whether the proof falls short where it does not hold; else it is a finding

    @property
    def reached(self) -> bool:
        return self.holds is True or not self.required

    def line(self) -> str:
        verdict = {True: "holds", False: "refuted", None: "not told"}[self.holds]
        return f"  {self.name:<16} {self.told}   {verdict}"

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "told": self.told, "holds": self.holds, **self.values}


@dataclass(frozen=True, slots=True)
class Run:
    """A run among the results."""

    played: Played

    @property
    def reached(self) -> bool:
        return True

    def as_dict(self) -> dict[str, Any]:
        return self.played.as_dict()


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Run | Found]:
    """Play every cell whose name begins with `only`, with every seed, and tell what follows."""
    import ray

    chosen = [(cell, seed) for cell in cells() if cell.name.startswith(only) for seed in seeds]
    waiting = [(cell, seed) for cell, seed in chosen if not is_finished(cell, folder, seed)]
    print(forecast(waiting, PACE), flush=True)
    played: list[Played] = []
    start_ray("local", 0.2)
    try:
        for place, (cell, seed) in enumerate(chosen):
            played.append(play(cell, folder, seed))
            print(played[-1].line(), flush=True)
            left = [pair for pair in chosen[place + 1 :] if pair in waiting]
            if left and (cell, seed) in waiting:
                print(forecast(left, measured_pace(played, PACE)), flush=True)
    finally:
        ray.shutdown()
    found = findings(played)
    print("\n".join(each.line() for each in found), flush=True)
    return [*map(Run, played), *found]


def findings(played: Sequence[Played]) -> list[Found]:
    """Everything that these runs are enough to tell."""
    by_part: dict[str, list[Played]] = {}
    for one in played:
        by_part.setdefault(one.cell.part, []).append(one)
    found = []
    for order in ORDERS:
        found += _exponents([p for p in by_part.get("gap", []) if p.cell.order == order], f"stale, {order}")
    for rollouts in ("stale", "fresh"):
        of_kind = [p for p in by_part.get("twice", []) if p.cell.rollouts == rollouts]
        found += _exponents(of_kind, f"{rollouts}, twice")
    found += _finals(by_part.get("final", []))
    found += _radius(by_part.get("radius", []))
    found += _certificates([p for p in played if p.updates])
    found += _estimates([u for p in played for u in p.updates if p.cell.rollouts == "stale"])
    return found


def _exponents(played: Sequence[Played], name: str) -> list[Found]:
    """How the gap and the shift of an iteration grow with the number of units."""
    kind = name.partition(",")[0]
    measures: dict[str, Callable[[Played], float]] = {
        "gap": lambda p: sum(u.step.gap for u in p.updates) / p.iterations,
        "shift": lambda p: sum(u.step.shift for u in p.updates) / p.iterations,
        "own shift": lambda p: sum(u.step.own_shift for u in p.updates) / p.iterations,
    }
    found = []
    for measure, of in measures.items():
        points = [(p.cell.units, of(p)) for p in played]
        sizes = sorted({n for n, _ in points})
        if len(sizes) < 3:
            continue
        means = {n: fmean(value for size, value in points if size == n) for n in sizes}
        shown = ", ".join(f"{n}: {mean:.2g}" for n, mean in means.items())
        values = {"means": means}
        if min(means.values()) < 1e-9:  # rounding of enumeration; a power of n can't be fitted to 0
            found.append(Found(f"{measure} ({name})", f"by n {shown}: 0 by identity", None, values))
            continue
        slope, half = fitted(points)
        paper = PAPER.get(f"{kind} {measure}")
        beside = f", the paper's {paper:g}" if paper else ""
        told = f"by n {shown}; grows as n^{slope:.2f} ± {half:.2f}{beside}"
        holds = None if paper is None else abs(slope - paper) <= half
        found.append(Found(f"{measure} ({name})", told, holds, values | {"exponent": slope, "half": half}))
    return found


def fitted(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The exponent of n by least squares of logarithms, and half of its 95 % interval (Student's t)."""
    from scipy import stats

    x, y = np.log([n for n, _ in points]), np.log([value for _, value in points])
    line = stats.linregress(x, y)
    freedom = len(points) - 2
    half = float(stats.t.ppf(0.975, freedom) * line.stderr) if freedom > 0 else math.inf
    return float(line.slope), half


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval over seeds (Student's t)."""
    from scipy import stats

    if len(values) < 2:
        return fmean(values), math.inf
    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return fmean(values), half


def _finals(played: Sequence[Played]) -> list[Found]:
    by_label: dict[str, dict[int, Played]] = {}
    for one in played:
        by_label.setdefault(one.cell.label, {})[one.seed] = one
    found = []
    means = {label: interval([p.scores[-1] for p in of.values()]) for label, of in by_label.items()}
    if len(means) > 1:
        ranked = sorted(means, key=lambda label: -means[label][0])
        shown = " > ".join(f"{label} {means[label][0]:.3f} ± {means[label][1]:.3f}" for label in ranked)
        order = [label for label in ranked if label in PAPERS_ORDER]
        papers = [label for label in PAPERS_ORDER if label in means]
        holds = order == papers if len(papers) == len(PAPERS_ORDER) else None
        found.append(
            Found("final scores", f"{shown}; the paper's {' > '.join(papers)}", holds, {"means": means})
        )
    if {"fresh", "suffix"} <= set(by_label):
        found.append(_suffix(by_label["fresh"], by_label["suffix"]))
    for label, of in by_label.items():
        found.append(_optimism(label, list(of.values())))
    return found


def _suffix(fresh: dict[int, Played], suffix: dict[int, Played]) -> Found:
    """Proof 7: as good as fresh on as many rows, for two thirds of its sampled tokens at most."""
    seeds = sorted(fresh.keys() & suffix.keys())
    share = sum(suffix[s].sampled_tokens for s in seeds) / sum(fresh[s].sampled_tokens for s in seeds)
    rows = sum(suffix[s].rows_trained for s in seeds) / sum(fresh[s].rows_trained for s in seeds)
    mean, half = interval([suffix[s].scores[-1] - fresh[s].scores[-1] for s in seeds])
    told = (
        f"final score {mean:+.3f} ± {half:.3f} against fresh, {share:.3f} of its sampled tokens, "
        f"{rows:.3f} of its rows"
    )
    same = None if half == math.inf else abs(mean) <= max(half, NOISE)
    holds = None if same is None else same and share <= MOST_TOKENS
    return Found(
        "suffix (proof 7)", told, holds, {"difference": mean, "half": half, "token_share": share}, True
    )


def _optimism(label: str, played: Sequence[Played]) -> Found:
    """What updates promised on the rows that they were trained on, against their gain on other tasks."""
    kept = [u for p in played for u in p.updates if u.trust["kept_share"]]
    promised = sum(u.trust["surrogate"] for u in kept)
    gained, held_out = sum(u.step.gain for u in kept), sum(u.held_out.gain for u in kept)
    told = (
        f"{len(kept)} updates promised {promised:.3f} of return on their rows, gained {gained:.3f} on all "
        f"tasks and {held_out:.3f} on those that trained nothing"
    )
    values = {"promised": promised, "gained": gained, "held_out": held_out}
    return Found(f"optimism ({label})", told, None if not kept else promised > held_out, values)


def _radius(played: Sequence[Played]) -> list[Found]:
    """Proof 9: outside the radius, accepted, and the final score, with the controller and without.

    Without it a radius does nothing, so one run without is judged by both.
    """
    by_label: dict[str, list[Played]] = {}
    for one in played:
        by_label.setdefault(one.cell.label, []).append(one)
    found = []
    for label, radius in (("with", RADIUS), ("with_wide", WIDE_RADIUS)):
        if {"without", label} <= by_label.keys():
            found.append(_controlled(by_label["without"], by_label[label], radius))
    return found


def _controlled(without: Sequence[Played], controlled: Sequence[Played], radius: float) -> Found:
    outside = {
        name: fmean(u.trust["divergence"] > radius for p in of for u in p.updates)
        for name, of in (("without", without), ("with", controlled))
    }
    accepted = fmean(u.trust["decision"] != "rejected" for p in controlled for u in p.updates)
    scores = [interval([p.scores[-1] for p in of]) for of in (without, controlled)]
    told = (
        f"outside {outside['without']:.0%} without and {outside['with']:.0%} with a controller, which "
        f"accepts {accepted:.0%} in whole or part; final scores {scores[0][0]:.3f} ± {scores[0][1]:.3f} and "
        f"{scores[1][0]:.3f} ± {scores[1][1]:.3f}"
    )
    holds = None
    if outside["without"] >= OUTSIDE:
        higher = scores[1][0] >= scores[0][0] - NOISE
        holds = outside["with"] <= INSIDE and accepted >= ACCEPTED and higher
    values = {"outside": outside, "accepted": accepted, "scores": scores}
    return Found(f"radius {radius:g} (proof 9)", told, holds, values, required=radius == WIDE_RADIUS)


def _estimates(updates: Sequence[Update]) -> list[Found]:
    """What a run tells of stale plays without playing again, beside what is so: bounds, shifts and gaps."""
    from scipy import stats

    known = [u for u in updates if u.shift["teammates"] and u.shift["surrogate_cached"] is not None]
    if len(known) < 30:
        return []
    bounded = fmean(u.step.own_shift <= u.shift["shift_budget"] + 1e-9 for u in known)
    apart = fmean(abs(u.shift["tv_hat"] - u.step.own_shift) for u in known)
    signed = [u.shift["surrogate_cached"] - u.shift["surrogate_fresh"] for u in known]
    exact = [u.step.promise - u.step.fresh_promise for u in known]
    rank = float(stats.spearmanr(signed, exact).statistic)
    inside = fmean(
        u.shift["stale_low"] <= e <= u.shift["stale_high"] for u, e in zip(known, exact, strict=True)
    )
    told = (
        f"of {len(known)} updates on stale plays: the shift of contexts is within its budget in "
        f"{bounded:.0%}, and {apart:.3f} from its estimate in the mean; estimated and true stale gaps have a "
        f"rank correlation of {rank:.2f}, and {inside:.0%} of the intervals hold the true one"
    )
    values = {"bounded": bounded, "tv_error": apart, "rank": rank, "inside": inside}
    return [Found("estimates", told, bounded >= 0.95 and rank > 0, values)]


def _certificates(played: Sequence[Played]) -> list[Found]:
    """Whether certificates rank updates as their gains do, and how often they are below them."""
    from scipy import stats

    kept = [
        u for p in played for u in p.updates if u.trust["kept_share"] and u.trust["certificate"] is not None
    ]
    if len(kept) < 30:
        return []
    certificates, gains = [u.trust["certificate"] for u in kept], [u.step.gain for u in kept]
    if not np.ptp(certificates) or not np.ptp(gains):
        return []
    rank = float(stats.spearmanr(certificates, gains).statistic)
    below = fmean(c <= g for c, g in zip(certificates, gains, strict=True))
    told = (
        f"of {len(kept)} updates: rank correlation with the gain {rank:.2f} (the paper's 0.73), at or "
        f"below it in {below:.0%}"
    )
    return [Found("certificates", told, below >= 0.95, {"rank": rank, "below": below})]
