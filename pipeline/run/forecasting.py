"""Forecasts of one training as it goes on: measured, said, and compared with what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pipeline.metrics.cost import PEAK_MEMORY
from pipeline.metrics.forecast import Forecast, Made, Pace, Step, forecast
from pipeline.plan.ahead import NO_PACE, ahead_of, known_pace
from pipeline.plan.assemble import Plan
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.store.finished import Finished
from pipeline.store.pace import machine_kind, read_record, write_record
from pipeline.store.run import Run
from pipeline.views.forecast import forecast_line

KEPT: Final = 50  # iterations and evaluations whose pace a run keeps


class ForecastLog:
    """The forecasts of one call of `run train` or `run iteration`.

    The first is made before anything starts, from earlier runs; the second after the first iteration of the
    call, from the run's own pace. Both are kept in the run's folder, with what came of them.

    Args:
        plan: what the run is.
        evaluation: what is evaluated on the way; None: nothing.
        wanted: how many iterations the run has in the end; None: one more.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        plan: Plan,
        evaluation: EvaluationPlan | None = None,
        wanted: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.evaluation, self._clock = plan, evaluation, clock
        self.run = Run(plan.resolved.run.root, plan.resolved.run.name)
        self.wanted = self._done() + 1 if wanted is None else wanted
        self._began = self._mark = clock()
        self._started = 0.0  # seconds that engines, players and trainers took to start, up to the mark
        self._said: list[tuple[Made, float]] = []  # each with the time when it was made
        self._steps: list[Step] = []
        self._evaluations: list[float] = []
        self._ready = 0.0  # seconds until the first stage could run

    def begin(self) -> str:
        """The forecast before anything starts, as a line."""
        done = self._done()
        pace = known_pace(self.plan)
        ahead = ahead_of(self.plan, self.evaluation, done, self.wanted)
        if pace is None or not ahead.iterations:
            return f"forecast  {NO_PACE}" if ahead.iterations else "forecast  nothing is left to do"
        return self._say(forecast(pace, ahead), done)

    def ready(self) -> None:
        """The session is up: what follows is iterations and evaluations."""
        self._mark = self._clock()
        self._ready = self._mark - self._began

    def evaluated(self, start_seconds: float) -> None:
        """An evaluation is done. `start_seconds`: what all starts of the call have taken by now."""
        self._evaluations.append(self._lap(start_seconds))

    def finished(self, done: Finished, start_seconds: float) -> str | None:
        """An iteration is done; after the first one of the call, the forecast of the rest as a line."""
        metrics = done.metrics
        self._steps.append(
            Step(
                metrics.get("rollout/response_tokens", 0.0),
                self._lap(start_seconds),
                metrics.get(PEAK_MEMORY),
                metrics.get("rollout/episodes", 0.0),
                is_cold=not self._steps,
            )
        )
        line = None
        left = ahead_of(self.plan, self.evaluation, done.index + 1, self.wanted, starts=False)
        if len(self._steps) == 1 and left.iterations:
            pace = Pace("run", "this run", self._steps, self._evaluations)
            line = self._say(forecast(pace, left), done.index + 1)
        self._keep()
        return line

    def end(self) -> None:
        """All iterations are done: note what came of the forecasts."""
        now, done = self._clock(), self._done()
        if done < self.wanted:
            return
        peaks = [step.memory_gib for step in self._steps if step.memory_gib is not None]
        known = []
        for made, at in self._said:
            first = len(self._steps) - (done - made.after)
            tokens = sum(step.tokens for step in self._steps[max(0, first) :])
            memory = max(peaks, default=None)
            known.append(replace(made, tokens=tokens, seconds=now - at, memory_gib=memory))
        self._keep(known)

    def _done(self) -> int:
        return sum(self.run.is_finished(index) for index in self.run.iterations()) if self.run.exists else 0

    def _say(self, made: Forecast, after: int) -> str:
        self._said.append((Made(made, after), self._clock()))
        return f"forecast  {forecast_line(made)}"

    def _lap(self, start_seconds: float) -> float:
        """Seconds since the last mark, without those that starts took."""
        now = self._clock()
        seconds = now - self._mark - (start_seconds - self._started)
        self._mark, self._started = now, start_seconds
        return max(0.0, seconds)

    def _keep(self, known: list[Made] | None = None) -> None:
        record, machine = read_record(self.run), machine_kind()
        if record.machine != machine:  # the pace of another machine says nothing here
            record = replace(record, machine=machine, steps=[], evaluations=[], starts=None)
        new = 1 if known is None else 0
        record = replace(
            record,
            steps=[*record.steps, *self._steps[len(self._steps) - new :]][-KEPT:],
            evaluations=[*record.evaluations, *self._evaluations][-KEPT:],
            starts=self._ready + self._started,
            made=[*record.made, *(known or ())][-KEPT:],
        )
        self._evaluations = [] if known is None else self._evaluations
        write_record(self.run, record)
