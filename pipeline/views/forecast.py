"""A forecast as one line of text, and how good forecasts were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from pipeline.metrics.forecast import Forecast, Made, Range
from pipeline.views.progress import duration

WORDS: Final = {"tokens": "sampled tokens", "seconds": "time", "memory_gib": "peak memory"}


def forecast_line(made: Forecast) -> str:
    """`60 iterations: about 30.7 k sampled tokens (24.6 k to 38.4 k), 2:10 (1:31 to 3:15), …`."""
    parts = [
        f"about {_span(made.tokens, count, 'sampled tokens')}",
        _span(made.seconds, duration),
        *([_span(made.memory_gib, lambda value: f"{value:.1f} GiB")] if made.memory_gib else []),
    ]
    plural = "" if made.iterations == 1 else "s"
    basis = f"{made.measured} iteration{'' if made.measured == 1 else 's'} of {made.where}"
    return f"{made.iterations} iteration{plural}: {', '.join(parts)}; from {basis}"


def forecast_text(values: Mapping[str, Any]) -> str:
    """The forecast of `pipeline.plan.ahead.forecast_values`, or why there is none."""
    missing = values.get("missing")
    return str(missing) if missing else forecast_line(Forecast.of_dict(values))


def count(value: float) -> str:
    """Three digits and a unit."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {letter}"
    return f"{value:.3g}"


def verdict(made: Made) -> str:
    """How good a forecast was: `time 2:10 (1:31 to 3:15), was 2:04: off by 5 %, in its range`."""
    texts: dict[str, Callable[[float], str]] = {
        "tokens": count,
        "seconds": duration,
        "memory_gib": lambda value: f"{value:.1f} GiB",
    }
    words = []
    for name, (expected, truth) in made.pairs().items():
        inside = "in its range" if expected.holds(truth) else "OUT of its range"
        words.append(
            f"{WORDS[name]} {_span(expected, texts[name])}, was {texts[name](truth)}: off by "
            f"{expected.error(truth):.0%}, {inside}"
        )
    return "; ".join(words)


def score(made: Sequence[Made]) -> str | None:
    """How good several forecasts were; None without any whose truth is known."""
    pairs = [pair for one in made for pair in one.pairs().values()]
    if not pairs:
        return None
    held = sum(expected.holds(truth) for expected, truth in pairs)
    middle = median(expected.error(truth) for expected, truth in pairs)
    return f"{len(pairs)} numbers: median error {middle:.0%}, {held} of {len(pairs)} in their range"


def _span(expected: Range, text: Callable[[float], str], unit: str = "") -> str:
    unit = f" {unit}" if unit else ""
    return f"{text(expected.middle)}{unit} ({text(expected.low)} to {text(expected.high)})"
