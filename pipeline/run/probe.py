"""A probe: one small iteration in a folder of its own, measured for a forecast, and thrown away."""

from __future__ import annotations

import time

from pipeline.metrics.cost import PEAK_MEMORY
from pipeline.metrics.forecast import Pace, Step
from pipeline.plan.assemble import Plan
from pipeline.plan.overview import check_start
from pipeline.run.session import session
from stages.base import Quiet


def measure(small: Plan) -> Pace:
    """The pace of a plan's next iteration: of one task, where the plan is a probe's.

    Raises:
        UsageError, RunFailed: as the iteration would.
    """
    check_start(small)
    began = time.monotonic()
    with session(small, Quiet()) as runner:
        ready = time.monotonic()
        done = runner.run_iteration()
        seconds, starts = time.monotonic() - ready, runner.fleet.start_seconds
    step = Step(
        done.metrics.get("rollout/response_tokens", 0.0),
        max(0.0, seconds - starts),
        done.metrics.get(PEAK_MEMORY),
        done.metrics.get("rollout/episodes", 0.0),
        is_cold=True,
    )
    return Pace("probe", "a probe", [step], starts=ready - began + starts)
