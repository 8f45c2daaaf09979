"""The geometry of one cross-head metric: its blocks, its symmetry, its spectrum.

For a metric M [d, d] with h heads of width e = d/h, blocks M_ab [e, e] and effective head metrics
R_a = Σ_b M_ab:

==========================  ===================================================================
block_coupling              ‖M_ab‖_F
diagonal_share              Σ_a ‖M_aa‖² / ‖M‖²
off_diagonal_share          Σ_{a≠b} ‖M_ab‖² / ‖M‖²
symmetric_share             ‖(M + Mᵀ)/2‖² / ‖M‖²
antisymmetric_share         ‖(M − Mᵀ)/2‖² / ‖M‖²
eigenvalues                 of M, complex
head_eigenvalues            of each R_a, complex
signature                   how many eigenvalues of (M + Mᵀ)/2 are > 0, = 0, < 0
head_signatures             the same for each R_a
singular_values             σ_1 ≥ … ≥ σ_d of M
effective_rank              exp(−Σ p_i ln p_i) with p_i = σ_i / Σσ  (Roy & Vetterli 2007)
stable_rank                 ‖M‖² / σ_1²                            (Rudelson & Vershynin 2007)
condition_number            σ_1 / σ_d
norm                        ‖M‖, the Frobenius norm everywhere
==========================  ===================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from damcha.errors import InputError

Array = npt.NDArray[np.float64]
Complex = npt.NDArray[np.complex128]

DEFINITIONS = {
    "block_coupling": "How strongly heads a and b are coupled: Frobenius norm of block (a, b).",
    "diagonal_share": "Part of the squared norm within heads (diagonal blocks).",
    "off_diagonal_share": "Part of the squared norm between different heads.",
    "symmetric_share": "Part of the squared norm that is symmetric; a true metric has 1.",
    "antisymmetric_share": "Part that scores (x, y) and (y, x) with opposite signs.",
    "eigenvalues": "Eigenvalues of M; imaginary parts come from the antisymmetric part.",
    "head_eigenvalues": "Eigenvalues of each R_a, the metric that head a really uses.",
    "signature": "Positive, zero, negative directions of M's symmetric part; "
    "a true metric has only positive ones.",
    "head_signatures": "Positive, zero, negative directions of each R_a's symmetric part.",
    "singular_values": "How much M stretches along its principal directions, largest first.",
    "effective_rank": "How many directions M uses, counted by the entropy of its singular values.",
    "stable_rank": "Squared norm over the largest squared singular value; small noise barely "
    "changes it.",
    "condition_number": "Largest over smallest singular value; infinite for a singular M.",
    "norm": "Frobenius norm of M: root of the sum of squares.",
}
"""One line for each field of `Geometry`, for a reader who has not seen the formula."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """Numbers that describe one metric; the formulas are in the module's docstring.

    Arrays are read-only. Of the zero metric, shares and condition number are NaN and ranks 0.
    """

    block_coupling: Array
    """[h, h], row: query head."""
    diagonal_share: float
    off_diagonal_share: float
    symmetric_share: float
    antisymmetric_share: float
    eigenvalues: Complex
    """[d], largest magnitude first."""
    head_eigenvalues: Complex
    """[h, e], largest magnitude first."""
    signature: tuple[int, int, int]
    """(positive, zero, negative)."""
    head_signatures: tuple[tuple[int, int, int], ...]
    singular_values: Array
    """[d], descending."""
    effective_rank: float
    stable_rank: float
    condition_number: float
    norm: float


def blocks(metric: npt.NDArray[Any], n_heads: int) -> npt.NDArray[Any]:
    """Return the blocks M_ab of metrics [..., d, d] as a view [..., h, h, e, e].

    Raises
    ------
    InputError
        If the last two axes are not equal, or the heads do not divide them.
    """
    if metric.ndim < 2 or metric.shape[-1] != metric.shape[-2] or not metric.shape[-1]:
        raise InputError(f"a metric is a square matrix [d, d], not {list(metric.shape)}")
    d = metric.shape[-1]
    if n_heads < 1 or d % n_heads:
        raise InputError(
            f"a metric of width {d} cannot be cut into {n_heads} heads; choose a divisor"
        )
    e = d // n_heads
    cut = metric.reshape(*metric.shape[:-2], n_heads, e, n_heads, e)
    return np.swapaxes(cut, -3, -2)  # [..., a, i, b, j] -> [..., a, b, i, j]


def head_metrics(metric: npt.NDArray[Any], n_heads: int) -> npt.NDArray[Any]:
    """Return R_a = Σ_b M_ab of metrics [..., d, d] as [..., h, e, e].

    Raises
    ------
    InputError
        As `blocks`.
    """
    summed: npt.NDArray[Any] = blocks(metric, n_heads).sum(axis=-3)
    return summed


def describe(metric: npt.NDArray[Any], n_heads: int) -> Geometry:
    """Compute the geometry of one metric, in float64 whatever its dtype.

    An eigenvalue or singular value counts as zero below d · ε · (the largest), where ε is the
    rounding unit of the dtype that came in (as in numpy's ``matrix_rank``).

    Parameters
    ----------
    metric
        [d, d], real.
    n_heads
        Divides d.

    Raises
    ------
    InputError
        If the metric is not a real square matrix, is not divisible into heads, or holds NaN or
        infinite values.
    """
    metric = np.asarray(metric)
    if metric.ndim != 2 or metric.dtype.kind not in "fiu":
        raise InputError(
            f"a metric is a real matrix [d, d], not {list(metric.shape)} of {metric.dtype}"
        )
    unit = float(np.finfo(metric.dtype if metric.dtype.kind == "f" else np.float64).eps)
    values = metric.astype(np.float64)
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise InputError(
            f"{bad:,} of the {values.size:,} values of the metric are NaN or infinite, "
            "so it has no geometry; choose another epoch or input"
        )
    blocks(values, n_heads)  # refuses a shape that does not divide, before anything is computed
    size = float(np.abs(values).max())
    scaled = values / (size or 1.0)  # squares of 1e200 would overflow
    squares: Array = (blocks(scaled, n_heads) ** 2).sum(axis=(-2, -1))
    total = float(squares.sum())
    within = float(np.trace(squares))
    between = float(squares[~np.eye(n_heads, dtype=bool)].sum())
    symmetric = (scaled + scaled.T) / 2
    heads = head_metrics(scaled, n_heads)
    sigma: Array = np.linalg.svd(scaled, compute_uv=False).astype(np.float64)
    return Geometry(
        block_coupling=_frozen(np.sqrt(squares) * size),
        diagonal_share=_ratio(within, total),
        off_diagonal_share=_ratio(between, total),
        symmetric_share=_ratio(float((symmetric**2).sum()), total),
        antisymmetric_share=_ratio(float(((scaled - symmetric) ** 2).sum()), total),
        eigenvalues=_frozen(_eigenvalues(scaled) * size),
        head_eigenvalues=_frozen(np.stack([_eigenvalues(head) for head in heads]) * size),
        signature=_signature(scaled, unit),
        head_signatures=tuple(_signature(head, unit) for head in heads),
        singular_values=_frozen(sigma * size),
        effective_rank=_effective_rank(sigma),
        stable_rank=total / float(sigma[0]) ** 2 if size else 0.0,
        condition_number=_condition_number(sigma, unit),
        norm=float(np.sqrt(total)) * size,
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def _eigenvalues(matrix: Array) -> Complex:
    # The symmetric solver gives real eigenvalues exactly, without imaginary rounding noise.
    solve = np.linalg.eigvalsh if np.array_equal(matrix, matrix.T) else np.linalg.eigvals
    found = solve(matrix).astype(np.complex128)
    # Conjugates have equal magnitudes: the imaginary part settles their order.
    return found[np.lexsort((-found.imag, -np.abs(found)))]


def _signature(matrix: Array, unit: float) -> tuple[int, int, int]:
    found = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    zero = len(matrix) * unit * float(np.abs(found).max())
    positive, negative = int((found > zero).sum()), int((found < -zero).sum())
    return positive, len(found) - positive - negative, negative


def _effective_rank(sigma: Array) -> float:
    if not sigma[0]:
        return 0.0
    share = sigma / sigma.sum()
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def _condition_number(sigma: Array, unit: float) -> float:
    if not sigma[0]:
        return float("nan")
    return float(sigma[0] / sigma[-1]) if sigma[-1] > len(sigma) * unit * sigma[0] else float("inf")


def _frozen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values.setflags(write=False)
    return values
