"""Rows that became no task: what a person is told about them, and when they are too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workflows.errors import DataError

CAUSES_SHOWN: Final = 5
EXAMPLES_SHOWN: Final = 2  # of each cause


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that became no task. `row` counts from 1 in its file: the line of a .jsonl file."""

    row: int
    cause: str  # one of `workflows.data.fields`, to count by
    reason: str  # the detail
    file: str = ""


def count_by_cause(rejects: Sequence[Reject]) -> dict[str, int]:
    """Most frequent first, then by name."""
    counts = Counter(reject.cause for reject in rejects)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def report(rejects: Sequence[Reject]) -> list[str]:
    """A line for each cause, with its number of rows and the first of them."""
    files = {reject.file for reject in rejects}
    lines = []
    for cause, count in list(count_by_cause(rejects).items())[:CAUSES_SHOWN]:
        of_cause = [reject for reject in rejects if reject.cause == cause]
        examples = "; ".join(
            f"{r.file + ', ' if len(files) > 1 else ''}row {r.row}: {r.reason}"
            for r in of_cause[:EXAMPLES_SHOWN]
        )
        more = f"; and {count - EXAMPLES_SHOWN} more" if count > EXAMPLES_SHOWN else ""
        lines.append(f"{count} × {cause} ({examples}{more})")
    if (further := len(count_by_cause(rejects)) - CAUSES_SHOWN) > 0:
        lines.append(f"and {further} more causes")
    return lines


def check_share(
    where: str, num_tasks: int, rejects: Sequence[Reject], max_bad_share: float, expected: str
) -> None:
    """Refuse a data set that is mostly bad, or empty.

    Raises:
        DataError: there is no task, or more than `max_bad_share` of the rows are rejected.
    """
    total = num_tasks + len(rejects)
    if total == 0:
        raise DataError(f"tasks {where}: there are no rows; expected {expected}")
    if num_tasks == 0 or len(rejects) > max_bad_share * total:
        raise DataError(
            f"tasks {where}: {len(rejects)} of {total} rows can't be used, allowed is a share of "
            f"{max_bad_share:g}: {'; '.join(report(rejects))}. Repair them, or raise [data] max_bad_share"
        )


def as_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())
