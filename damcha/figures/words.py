"""Words and ticks that the builders share."""

from __future__ import annotations

import numpy as np

from damcha.figures.spec import Array, Provenance, Ticks
from damcha.figures.style import number

STAND_INS = str.maketrans({"␠": "␣", "⏎": "↵", "␊": "↵", "␉": "⇥"})
"""Signs for unseen characters that most fonts lack, and what they have in their place."""


def sentence_instead(values: Array, what: str) -> str | None:
    """Return what to say where colours would show nothing, or None if they show something."""
    n_bad = int(np.size(values) - np.isfinite(values).sum())
    if n_bad:
        return (
            f"{what}: {n_bad:,} of {np.size(values):,} values are NaN or infinite, "
            "so nothing is drawn."
        )
    first = number(float(np.ravel(values)[0]))
    if np.size(values) == 1:
        return f"{what}: a single value, {first}."
    if values.min() == values.max():
        return f"{what}: constant, every value is {first}."
    return None


def origin(provenance: Provenance) -> str:
    """Return ", run R, epoch k, input name" from what is known."""
    parts = [
        f"run {provenance.run}" if provenance.run else "",
        f"epoch {provenance.epoch}" if provenance.epoch is not None else "",
        f"input {provenance.input_name}" if provenance.input_name else "",
    ]
    return "".join(f", {part}" for part in parts if part)


def index_ticks(n: int) -> Ticks:
    """Number the cells 0 … n-1, every 2nd, 4th, 8th, … where there are more than 9."""
    step = 1
    while -(-n // step) > 9:
        step *= 2
    return tuple((float(k), str(k)) for k in range(0, n, step))
