"""How numbers of many examples are summed up: the best of them, and bootstrap intervals."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

TOP = 50
"""Examples in the paper's Top-50: those of lowest loss."""
BOOTSTRAP = 2000


def lowest(losses: Float[np.ndarray, " examples"], top: int = TOP) -> NDArray[np.int64]:
    """Return the places of the `top` lowest losses, or of all; of equal ones the first."""
    return np.argsort(losses, kind="stable")[:top]


def resamples(n: int, seed: int = 0) -> Int[np.ndarray, "resamples n"]:
    """How often each of n examples is drawn in each bootstrap resample."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=BOOTSTRAP)


def interval(
    values: Float[np.ndarray, " n"], counts: Int[np.ndarray, "resamples n"]
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean."""
    low, high = np.quantile(counts @ values / len(values), (0.025, 0.975))
    return float(low), float(high)
