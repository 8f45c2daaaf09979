"""How the metric of one input grows over the epochs of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from damcha.analysis.geometry import describe
from damcha.model import TaskModel
from damcha.tap import tap

CURVES = {
    "norm": "Frobenius norm of M",
    "diagonal_share": "Part of the squared norm within heads",
    "effective_rank": "Directions that M uses, by the entropy of its singular values",
    "negative_share": "Part of the eigenvalues of M's symmetric part that are negative",
    "distance": "Frobenius distance to the last epoch's M, over that M's norm",
    "adaptivity": "Between-input variance of M over its mean squared norm, on held-out inputs",
}
"""The curves of a trajectory and what they say."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Numbers of one input's metric at each epoch, all [epochs]; see `CURVES`."""

    epochs: NDArray[np.int64]
    norm: NDArray[np.float64]
    diagonal_share: NDArray[np.float64]
    effective_rank: NDArray[np.float64]
    negative_share: NDArray[np.float64]
    distance: NDArray[np.float64]


def trajectory(
    epochs: Sequence[int], metrics: Sequence[Float[np.ndarray, "d d"]], n_heads: int
) -> Trajectory:
    """Describe the metric of one input at each of its epochs.

    Raises
    ------
    InputError
        As :func:`describe`.
    """
    found = [describe(metric, n_heads) for metric in metrics]
    last = np.asarray(metrics[-1], np.float64)
    whole = float(np.linalg.norm(last)) or 1.0
    columns = {
        "norm": [one.norm for one in found],
        "diagonal_share": [one.diagonal_share for one in found],
        "effective_rank": [one.effective_rank for one in found],
        "negative_share": [one.signature[2] / sum(one.signature) for one in found],
        "distance": [float(np.linalg.norm(metric - last)) / whole for metric in metrics],
    }
    arrays = {name: np.array(values, np.float64) for name, values in columns.items()}
    for array in arrays.values():
        array.setflags(write=False)
    return Trajectory(epochs=np.array(epochs, np.int64), **arrays)


@torch.no_grad()
def adaptivity(
    model: TaskModel, inputs: torch.Tensor, source: int = 0, position: int = -1
) -> float:
    """Between-input variance of the metric over its mean squared norm (design.md §6).

    1 - ‖E M‖² / E‖M‖² over the inputs: 0 where every input has the same metric, towards 1 where
    they share nothing. NaN for a model without a metric.
    """
    with tap(model) as capture:
        model(inputs.to(next(model.parameters()).device))
    if not capture.records:
        return float("nan")
    record = capture.records[source]
    if len(record.metric) == 1 and len(inputs) > 1:  # a static metric has one row for all
        return 0.0
    metrics = record.metric[:, position].double()
    squares = float(metrics.square().sum((1, 2)).mean())
    return 1 - float(metrics.mean(0).square().sum()) / squares if squares else 0.0
