"""Two metrics beside each other: distances, subspaces, and one input run with another's metric.

========================  =====================================================================
frobenius                 ‖A - B‖
relative                  ‖A - B‖ / √(‖A‖ ‖B‖)
cosine                    ⟨A, B⟩ / (‖A‖ ‖B‖)
affine_invariant          ‖log(P^(-1/2) Q P^(-1/2))‖              (Pennec, Fillard & Ayache 2006)
log_euclidean             ‖log P - log Q‖                        (Arsigny et al. 2006)
bures_wasserstein         √(tr P + tr Q - 2 tr (P^(1/2) Q P^(1/2))^(1/2))   (Bhatia et al. 2019)
========================  =====================================================================

A trained M is neither symmetric nor positive. The last three compare positive-definite matrices:
P and Q are the positive parts of the symmetric parts, every eigenvalue below 1/1000 of the largest
raised to it. How much of ‖M‖² that keeps is said beside them (`kept`); a distance of two
metrics that keep little says little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from damcha.analysis.ablation import Ablation, ablate
from damcha.analysis.geometry import head_metrics
from damcha.checkpoint.run import Example
from damcha.errors import InputError
from damcha.model import TaskModel

FLOOR = 1e-3
DEFINITIONS = {
    "frobenius": "Root of the sum of squared differences.",
    "relative": "The same over the geometric mean of both norms.",
    "cosine": "1: the same direction; 0: nothing in common; -1: opposite.",
    "affine_invariant": "Between the positive parts; the same in any basis of the channels.",
    "log_euclidean": "Between the positive parts: Frobenius distance of their logarithms.",
    "bures_wasserstein": "Between the positive parts: optimal transport of Gaussians with them as "
    "covariances.",
    "kept": "Part of ‖M‖² that the positive part keeps, of A and of B.",
}


@dataclass(frozen=True)
class Distances:
    """Distances of two metrics of one width; the formulas are in the module's docstring."""

    frobenius: float
    relative: float
    cosine: float
    affine_invariant: float
    log_euclidean: float
    bures_wasserstein: float
    kept: tuple[float, float]


def distances(a: Float[np.ndarray, "d d"], b: Float[np.ndarray, "d d"]) -> Distances:
    """Compare two metrics of one width, in float64.

    Raises
    ------
    InputError
        If the widths differ, or values are not finite.
    """
    from scipy.linalg import eigh, eigvalsh

    _check(a, b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(a), np.linalg.norm(b)
    product = float(norms[0] * norms[1])
    gap = float(np.linalg.norm(a - b))
    p, q = positive_part(a), positive_part(b)
    kept = tuple(
        float(np.square(part).sum() / norm**2) if norm else float("nan")
        for part, norm in zip((p, q), norms, strict=True)
    )
    if not (p.any() and q.any()):
        riemann = log = bures = float("nan")
    else:
        riemann = float(np.sqrt(np.square(np.log(eigvalsh(q, p))).sum()))
        logs = [(v * np.log(w)) @ v.T for w, v in (eigh(p), eigh(q))]
        log = float(np.linalg.norm(logs[0] - logs[1]))
        w, v = eigh(p)
        root = (v * np.sqrt(w)) @ v.T
        cross = eigvalsh(root @ q @ root).clip(min=0)
        bures = float(np.sqrt(max(0.0, np.trace(p) + np.trace(q) - 2 * np.sqrt(cross).sum())))
    return Distances(
        frobenius=gap,
        relative=gap / product**0.5 if product else float("nan"),
        cosine=float((a * b).sum() / product) if product else float("nan"),
        affine_invariant=riemann,
        log_euclidean=log,
        bures_wasserstein=bures,
        kept=(kept[0], kept[1]),
    )


def positive_part(metric: Float[np.ndarray, "d d"]) -> NDArray[np.float64]:
    """The symmetric part with eigenvalues below FLOOR of the largest raised to it.

    The zero matrix where no eigenvalue is positive.
    """
    symmetric = (metric + metric.T) / 2
    values, vectors = np.linalg.eigh(symmetric)
    if values[-1] <= 0:
        return np.zeros_like(symmetric)
    raised = np.maximum(values, FLOOR * values[-1])
    part: NDArray[np.float64] = (vectors * raised) @ vectors.T
    return (part + part.T) / 2


def subspace_overlap(
    a: Float[np.ndarray, "d d"], b: Float[np.ndarray, "d d"], n_heads: int, rank: int
) -> NDArray[np.float64]:
    """Mean squared cosine of the principal angles between heads' leading subspaces, [h, h].

    Entry (i, j) compares the span of the `rank` leading left singular vectors of R_i of A with that
    of R_j of B: 1 for the same subspace, rank/e for unrelated ones on average
    (Björck & Golub 1973).

    Raises
    ------
    InputError
        If the widths differ, or the rank is not between 1 and the head's width.
    """
    _check(a, b)
    e = len(a) // n_heads
    if not 1 <= rank <= e:
        raise InputError(f"rank: {rank} is not between 1 and the head's width {e}")
    bases = []
    for metric in (a, b):
        left, _, _ = np.linalg.svd(head_metrics(metric.astype(np.float64), n_heads))
        bases.append(left[..., :rank])
    cosines = np.einsum("iek,jel->ijkl", *bases)
    overlap: NDArray[np.float64] = np.square(cosines).sum((-1, -2)) / rank
    return overlap


def transplant(
    model: TaskModel, example: Example, metrics: Float[np.ndarray, "sources positions d d"]
) -> Ablation:
    """Run an input as it is, and with another's metrics in place of its own.

    Raises
    ------
    InputError
        If the metrics do not fit: another width, or other refreshes along the sequence.
    """
    fixed = torch.from_numpy(np.array(metrics))

    def edit(metric: torch.Tensor, layer: int | None) -> torch.Tensor:
        donor = fixed[0 if layer is None or len(fixed) == 1 else layer].to(metric)
        if donor.shape[-1] != metric.shape[-1]:
            raise InputError(
                f"transplant: a metric of width {donor.shape[-1]} does not fit a model of width "
                f"{metric.shape[-1]}"
            )
        if len(donor) == 1:  # one metric for the whole input serves every position
            donor = donor.expand(metric.shape[-3], -1, -1)
        if len(donor) < metric.shape[-3]:
            raise InputError(
                f"transplant: the other input refreshes its metric {len(donor)} times, this one "
                f"{metric.shape[-3]} times; choose one that is at least as long"
            )
        return donor[None, : metric.shape[-3]].expand_as(metric)

    return ablate(model, example, {"own metric": lambda metric, _: metric, "the other's": edit})


def _check(a: NDArray[np.floating], b: NDArray[np.floating]) -> None:
    if a.shape != b.shape:
        raise InputError(
            f"the metrics have widths {len(a)} and {len(b)}: entry by entry they cannot be "
            "compared; their spectra can"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("a metric holds NaN or infinite values; choose another epoch or input")
