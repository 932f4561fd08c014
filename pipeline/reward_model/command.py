"""`reward-model train` from the command line to what is printed."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.reward_model.asked import asked_of, check_memory
from pipeline.reward_model.record import record_model
from pipeline.reward_model.show import dry_page, dry_values, model_page
from pipeline.reward_model.train import run_training
from pipeline.run.late_ray import ray_when_needed
from pipeline.store.runs import find_run
from pipeline.views.output import print_pages
from pipeline.views.progress import RichProgress


def train_model(
    runs: Sequence[str],
    base: str,
    out: str,
    *,
    root: str,
    split: str | None,
    overrides: Sequence[str],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train a reward model, or say what that would take.

    Raises:
        UsageError: what can't work, with what to do.
        RunFailed: an optimizer step failed.
    """
    found = [find_run(root, run) for run in dict.fromkeys(runs)]
    asked = asked_of(found, base, out, root=root, split=split, overrides=overrides)
    if dry_run:
        print_pages([dry_page(asked)], dry_values(asked), as_json)
        return
    check_memory(asked)
    with ray_when_needed(asked.cluster) as start:
        info = run_training(asked, RichProgress(), start)
    link = record_model(asked, info)
    page = model_page(asked.folder.url, info, {"MLflow": link} if link else {})
    print_pages([page], info, as_json)
