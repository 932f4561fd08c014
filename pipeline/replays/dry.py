"""`--dry-run` of a replay: what would run on which iterations, and what would not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.plan.memory import memory_report
from pipeline.replays.chain import check_beginnings
from pipeline.replays.plan import ReplayPlan, due_stages
from pipeline.replays.replayer import Replayed, carried_into, check_label
from pipeline.replays.show import change_lines
from pipeline.views.render import cell, number, open_table, places, visible


@dataclass(frozen=True, slots=True)
class Due:
    """One iteration or evaluation: `stages` have to run; the first `finished` have, under this label."""

    index: int
    rows: int  # of its turns or, of an evaluation, those of its own
    stages: tuple[str, ...]
    finished: int

    @property
    def state(self) -> str:
        if not self.stages:
            return "nothing to do"
        if self.finished == len(self.stages):
            return "finished before"
        return f"goes on after {self.stages[self.finished - 1]}" if self.finished else "would run"


def due_of(plan: ReplayPlan, indices: Sequence[int]) -> list[Due]:
    """The stages that each iteration still needs. Reads manifests; writes and starts nothing.

    Raises:
        UsageError: what the replay itself would refuse before its first stage: a label that holds another
            replay, scores that are not stored, checkpoints to begin with that are gone.
    """
    check_label(plan)
    if plan.training is not None:
        check_beginnings(plan, plan.training, indices)
    dues = []
    for index in indices:
        names, there = [], []
        for stored in plan.source.blocks(index):
            of_block, place = plan.of_block(stored), plan.place(index).at(stored.store.block)
            due = due_stages(of_block, stored, carried_into(of_block, stored, Replayed(plan)))
            if plan.training is not None:
                due += plan.training.stages(index)
            names += [stage.name for stage in due]
            there += [place.manifest(stage) is not None for stage in due]
        finished = there.index(False) if False in there else len(there)
        rows = plan.source.stored(index).tables["turns"].rows
        dues.append(Due(index, rows, tuple(names), finished))
    return dues


def dry_page(plan: ReplayPlan, due: Sequence[Due]) -> RenderableType:
    """The dry run of one replay."""
    one = "iteration" if plan.source.split is None else f"evaluation on {plan.source.split}"
    head = Text.assemble(
        ("dry run", "bold"), f" of replay {visible(plan.label)} of run {visible(plan.source.run.name)}"
    )
    table = open_table(f"  {one}", ">turns", "stages", "state")
    for each in due:
        stages = ", ".join(each.stages) or None
        table.add_row(cell(f"  {each.index}"), cell(number(each.rows)), cell(stages), cell(each.state))
    where = {"run": plan.source.run.folder.url, "tables": plan.folder.url}
    return Group(head, *change_lines(plan), Text(), table, *_training(plan), Text(), places(where))


def dry_dict(plan: ReplayPlan, due: Sequence[Due]) -> dict[str, Any]:
    """The dry run of a replay as plain values, for `--json`."""
    return {
        "dry_run": True,
        "run": plan.source.run.folder.url,
        "split": plan.source.split,
        "label": plan.label,
        "folder": plan.folder.url,
        "changes": plan.change_records,
        "iterations": {
            str(each.index): {
                "turns": each.rows,
                "stages": list(each.stages),
                "finished": list(each.stages[: each.finished]),
            }
            for each in due
        },
        "begins_at": dict(plan.training.versions) if plan.training else {},
        "memory_gib": memory_report(plan.training.trainers) if plan.training else {},
    }


def _training(plan: ReplayPlan) -> list[RenderableType]:
    if plan.training is None:
        return []
    memory = memory_report(plan.training.trainers)
    begins = ", ".join(f"{visible(m)} at version {v}" for m, v in plan.training.versions.items())
    return [
        Text(),
        Text(f"trains from the weights that sampled iteration {plan.training.first}: {begins}"),
        Text(f"needs about {memory['total']:.1f} GiB of memory; {memory['available']:.1f} GiB is available"),
    ]
