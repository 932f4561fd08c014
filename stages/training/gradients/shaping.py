"""How far each role's gradient is held back: caps on shares, copies that agree, damping of coherence. Pure.

Factors are worked out from lengths alone; `stages.training.gradients.held` puts them on the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from stages.training.gradients.measures import Products
from stages.training.gradients.spec import ShapingSpec


def role_factors(products: Products, shaping: ShapingSpec) -> dict[str, float]:
    """What the gradient of each role is multiplied by, first for its copies, then for its share."""
    factors = dict.fromkeys(products.roles, 1.0)
    if shaping.damp_copies:
        for role, places in products.copies.items():
            factors[role] = copies_factor(products.redundancy([[place] for place in places]), len(places))
    if shaping.max_role_share < 1:
        norms = {role: factors[role] * products.norm(products.members(role)) for role in products.roles}
        capped = capped_norms(norms, shaping.max_role_share)
        factors = {role: factors[role] * (capped[role] / norms[role] if norms[role] else 1) for role in norms}
    return factors


def copies_factor(redundancy: float | None, copies: int) -> float:
    """min(1, 1/(√N · redundancy)): N copies that agree count as √N, independent ones as they are."""
    return min(1.0, 1 / (math.sqrt(copies) * redundancy)) if redundancy else 1.0


def capped_norms(norms: Mapping[str, float], cap: float) -> dict[str, float]:
    """Lengths with none above `cap` of their sum; those below stay as they are.

    With K lengths that are capped and the sum S of the others, each is cap · S / (1 - K · cap). Among M roles
    that have a gradient none can have less than 1/M at most, so a cap below that makes them equal.
    """
    there = sorted((norm for norm in norms.values() if norm > 0), reverse=True)
    if len(there) < 2:
        return dict(norms)  # a lone role has all of the mass, however short it is
    for count in range(len(there)):
        rest = sum(there[count:])
        limit = cap * rest / (1 - count * cap) if count * cap < 1 else 0.0
        if count * cap < 1 and there[count] <= cap * (rest + count * limit):
            return {role: min(norm, limit) if count else norm for role, norm in norms.items()}
    return {role: min(norm, there[-1]) for role, norm in norms.items()}


def damping_factor(cosine: float | None, damping: float) -> float:
    """1 - λ · max(0, cos(g, ḡ)); 1 where there is no mean yet, or no gradient."""
    return 1 - damping * max(0.0, cosine or 0.0)
