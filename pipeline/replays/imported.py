"""What a replay of imported traces can do: score and credit them all, train on those that have logprobs."""

from __future__ import annotations

from pipeline.store.run import Run
from workflows.errors import UsageError


def lays_out_tokens(run: Run, update: bool) -> bool:
    """Whether a run has turns that an update could read; of other than imported ones, always.

    Raises:
        UsageError: with `update`, an imported run without logprobs, or without the weights that sampled.
    """
    imported = run.info.get("identity", {}).get("imported")
    if imported is None:
        return True
    if update and not imported["trainable"]:
        raise UsageError(
            f"--update: run {run.name!r} is of imported traces, and PPO can't train on them: no reply has "
            "its ids with their logprobs, prompt ids and a temperature; imitate those that have text "
            "instead: `demonstrations` writes them to a file for engine = 'demonstrations'"
        )
    if update and imported["checkpoint"] is None:
        raise UsageError(
            f"--update: run {run.name!r} is of imported traces, and which weights sampled them is not known; "
            "import them again with --checkpoint"
        )
    return bool(imported["trainable"])
