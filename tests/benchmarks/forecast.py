"""How good are forecasts after one iteration? Every shipped example, three iterations each, as people run it.

A forecast is made after the first iteration, of the tokens, the wall time and the peak memory of the rest.
Goals: a median error of at most 25 % over all numbers, and 8 of 10 of them within their range. An example
that can't run here (no sandbox, no memory) is named and left out. About an hour and a half on two cores.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pipeline.experiments.process import cause_of
from pipeline.metrics.forecast import Made
from pipeline.store.pace import read_record
from pipeline.store.run import Run
from pipeline.views.forecast import verdict
from tests.benchmarks.measure import Figure, Options, Say

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"
ITERATIONS: Final = 3
ERROR_GOAL: Final = 0.25
HELD_GOAL: Final = 0.8


def run(options: Options, say: Say) -> list[Figure]:
    """Run every example and judge its forecast; what is finished under the folder is not run again."""
    known: list[tuple[str, Made]] = []
    notes = []
    for file in sorted(EXAMPLES.glob("*.toml")):
        cause = _trained(file, options)
        made = after_one(Run(options.folder, file.stem))
        if cause or made is None:
            notes.append(f"{file.stem}: left out: {cause or 'it made no forecast'}")
            say(notes[-1])
            continue
        known.append((file.stem, made))
        notes.append(f"{file.stem}: {verdict(made)}")
        say(notes[-1])
    return figures([made for _, made in known], notes)


def after_one(run: Run) -> Made | None:
    """The forecast that a run made after its first iteration, with its outcome."""
    made = [one for one in read_record(run).made if one.after == 1 and one.forecast.source == "run"]
    return made[0] if made and made[0].pairs() else None


def figures(made: Sequence[Made], notes: Sequence[str]) -> list[Figure]:
    """The median error of all numbers, and the share of them within their range; none without a forecast."""
    pairs = [pair for one in made for pair in one.pairs().values()]
    if not pairs:
        return []
    errors = tuple(expected.error(truth) for expected, truth in pairs)
    held = sum(expected.holds(truth) for expected, truth in pairs) / len(pairs)
    counted = f"{len(pairs)} numbers of {len(made)} examples"
    return [
        Figure(
            "forecast error", "relative", errors, (1.0,) * len(errors), ERROR_GOAL, "most", "of the truth",
            (counted, *notes),
        ),
        Figure("forecast range", "held", (held,), (1.0,), HELD_GOAL, "least", "of all", (counted,)),
    ]  # fmt: skip


def _trained(file: Path, options: Options) -> str | None:
    """Why the example did not run, or None."""
    log = Path(options.folder) / f"{file.stem}.log"
    own = [f'run.root="{options.folder}"', 'tracking.uri="none"', "evaluate.every=0"]
    command = [sys.executable, "-m", "pipeline", "run", "train", "--iterations", str(ITERATIONS)]
    command += ["--config", str(file), *(part for value in own for part in ("--set", value))]
    with log.open("ab") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    return None if done.returncode == 0 else cause_of(done.returncode, log.read_text("utf-8", "replace"))
