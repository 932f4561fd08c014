"""What the gradients of roles say of each other: norms, shares, cosines, interference, redundancy. Pure.

Everything is worked out from the inner products of the parts, so that it is the same arithmetic for whole
gradients and for projections. A part is a role, or one copy of a role (role, branch); a role's gradient is
the sum over its parts, and the whole's that over all. What is not defined, such as a cosine with a gradient
of length 0, is None.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stages.training.gradients.parts import Part, cosine_of


@dataclass(frozen=True, slots=True)
class Products:
    """The inner products of the parts of one optimizer step."""

    parts: Sequence[Part]
    matrix: np.ndarray  # (parts, parts) float64
    roles: list[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", list(dict.fromkeys(role for role, _ in self.parts)))

    def members(self, role: str) -> list[int]:
        """The places of a role's parts."""
        return [place for place, (name, _) in enumerate(self.parts) if name == role]

    @property
    def copies(self) -> dict[str, list[int]]:
        """The places of the copies of each role that has several: its parts that have a branch."""
        places = {r: [place for place in self.members(r) if self.parts[place][1]] for r in self.roles}
        return {role: members for role, members in places.items() if len(members) > 1}

    def between(self, some: Sequence[int], others: Sequence[int]) -> float:
        """The inner product of two sums of parts."""
        return float(self.matrix[np.ix_(some, others)].sum())

    def norm(self, places: Sequence[int]) -> float:
        """The length of a sum of parts."""
        square = self.between(places, places)
        return math.sqrt(square) if square > 0 else (0.0 if square <= 0 else math.nan)

    def cosine(self, some: Sequence[int], others: Sequence[int]) -> float | None:
        return cosine_of(self.between(some, others), self.between(some, some), self.between(others, others))

    def redundancy(self, groups: Sequence[Sequence[int]]) -> float | None:
        """Length of the sum over the sum of lengths: 1 where all point the same way, 1/√N where N of equal
        length have nothing in common."""
        lengths = sum(self.norm(group) for group in groups)
        together = [place for group in groups for place in group]
        return self.norm(together) / lengths if lengths > 0 else None

    def mean_cosine(self, places: Sequence[int]) -> float | None:
        """The mean cosine of two different parts out of these."""
        pairs = [self.cosine([a], [b]) for a, b in itertools.combinations(places, 2)]
        known = [cosine for cosine in pairs if cosine is not None]
        return sum(known) / len(known) if known else None


def role_measures(products: Products) -> list[dict[str, Any]]:
    """One row for the whole (role None), for each role, and for each copy of a role that has several."""
    everything = list(range(len(products.parts)))
    members = {role: products.members(role) for role in products.roles}
    mass = sum(products.norm(places) for places in members.values())
    norm = products.norm(everything)
    rows: list[dict[str, Any]] = [
        {
            "role": None,
            "branch": None,
            "gradient_norm": norm,
            "interference": mass - norm,
            "redundancy": products.redundancy(list(members.values())),
        }
    ]
    for role, places in members.items():
        rows.append(
            {
                "role": role,
                "branch": None,
                "gradient_norm": products.norm(places),
                "gradient_share": products.norm(places) / mass if mass > 0 else None,
                "cosine_whole": products.cosine(places, everything),
            }
        )
        copies = products.copies.get(role)
        if copies is None:
            continue
        rows[-1] |= {
            "copies": len(copies),
            "redundancy": products.redundancy([[place] for place in copies]),
            "copies_cosine": products.mean_cosine(copies),
        }
        lengths = sum(products.norm([place]) for place in copies)
        rows += [
            {
                "role": role,
                "branch": products.parts[place][1],
                "gradient_norm": products.norm([place]),
                "gradient_share": products.norm([place]) / lengths if lengths > 0 else None,
                "cosine_whole": products.cosine([place], copies),
            }
            for place in copies
        ]
    return rows


def pair_measures(products: Products) -> list[dict[str, Any]]:
    """The cosine of each pair of roles, and of each pair of copies of one role; pairs without one are left
    out."""
    pairs = [
        ((role, None, products.members(role)), (other, None, products.members(other)))
        for role, other in itertools.combinations(products.roles, 2)
    ]
    for role, places in products.copies.items():
        pairs += [
            ((role, products.parts[a][1], [a]), (role, products.parts[b][1], [b]))  # type: ignore[misc]
            for a, b in itertools.combinations(places, 2)
        ]
    rows = []
    for (role, branch, some), (other, other_branch, others) in pairs:
        cosine = products.cosine(some, others)
        if cosine is not None:
            names = {"role": role, "branch": branch, "other_role": other, "other_branch": other_branch}
            rows.append({**names, "cosine": cosine})
    return rows


def means_over_steps(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], values: Sequence[str]) -> Any:
    """One row for each combination of `keys`, in the order of the first step: the mean of each of `values`
    over the steps that have it."""
    grouped: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    means = []
    for names, group in grouped.items():
        mean: dict[str, Any] = dict(zip(keys, names, strict=True))
        for name in values:
            known = [row[name] for row in group if row.get(name) is not None]
            if known:
                mean[name] = sum(known) / len(known)
        means.append(mean)
    return means
