"""Which tokens are whitened together: those of a model, or of each of its roles."""

from __future__ import annotations

import numpy as np

from stages.token_advantages.ragged import Bools, row_of
from stages.token_advantages.rows import Rows
from stages.token_advantages.spec import Whiten


def together(rows: Rows, whiten: Whiten) -> dict[str, Bools]:
    """By key, the trained tokens (N,) that share a mean and a deviation; "" is the key of a whole model."""
    if whiten != "role":
        return {"": rows.mask}
    role = rows.frame["role"].fill_null("").to_numpy()[row_of(rows.lengths)]
    return {str(name): (role == name) & rows.mask for name in np.unique(role)}
