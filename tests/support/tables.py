"""Small helpers for tables that tests make: named numbers as a column has them, and credit without counts."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from rewards.base import Credit
from rewards.credit.assign import credit_turns
from rewards.credit.silent import LeaveOutSilent


def named_values(values: dict[str, float]) -> list[dict[str, Any]]:
    """A mapping as rows of a `list<struct<name, value>>` column; values that are not finite become null."""
    return [{"name": k, "value": float(v) if math.isfinite(v) else None} for k, v in values.items()]


def assign_credit(
    turns: pa.Table,
    episodes: pa.Table,
    rewards: pa.Table,
    method: Credit,
    leave_out: LeaveOutSilent | None = None,
) -> pa.Table:
    """The table of `credit_turns`."""
    return credit_turns(turns, episodes, rewards, method, leave_out).table
