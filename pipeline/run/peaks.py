"""The best that a run has been: which weights stay for it, and whether it is time to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeline.metrics.falls import Peak
from pipeline.settings.evaluation import EvaluateSection
from pipeline.store.evaluated import stopped_early
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.views.output import print_lines


def note_peak(
    run: Run,
    done: Finished,
    best: Peak | None,
    models: Sequence[str],
    version_of: Callable[[str], int],
) -> Mapping[str, int]:
    """The versions that played the newest of the iterations with the highest mean return; {} before there is
    such a peak.

    They are noted in `run.json`, so that their weights are kept when others are removed.

    Args:
        run: open for writing.
        done: the iteration that has just finished.
        best: the peak of the run up to it.
        models: ids of those that are trained.
        version_of: where a model is now, for those that the iteration did not update.
    """
    if best is not None and best.iteration == done.index:
        versions = {model: _played(done, model, version_of) for model in models}
        run.write_info(peak={"iteration": best.iteration, "return": best.value, "versions": versions})
    noted: Mapping[str, int] = run.info.get("peak", {}).get("versions", {})
    return noted


def _played(done: Finished, model_id: str, version_of: Callable[[str], int]) -> int:
    """The version of a model that played the first block of a finished iteration."""
    update = next((m for m in done.manifests.values() if m.stage == f"update/{model_id}"), None)
    return version_of(model_id) if update is None else int(update.metrics["version_before"])


def patience_is_spent(run: Run, section: EvaluateSection, split: str, index: int) -> bool:
    """Whether the evaluations after the best one are as many as `evaluate.patience`: then the best is the
    run's result, which is noted in `run.json` and said.

    Args:
        run: open for writing, with its best evaluation noted.
        section: [evaluate].
        split: that is evaluated.
        index: iterations before the newest evaluation.
    """
    best = run.info["best"][split]
    spent = bool(section.patience) and index - best["iterations"] >= section.patience * section.every
    if spent:
        print_lines([stopped_early(best, section.patience)])
        run.write_info(result=best | {"split": split, "stopped_after": index})
    elif run.info.get("result"):
        run.write_info(result=None)  # an earlier call stopped here, with less patience
    return spent
