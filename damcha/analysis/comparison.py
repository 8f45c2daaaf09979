"""Two metrics beside each other: distances, subspaces, and one input run with another's metric.

========================  =====================================================================
frobenius                 ‖A − B‖
relative                  ‖A − B‖ / √(‖A‖ ‖B‖)
cosine                    ⟨A, B⟩ / (‖A‖ ‖B‖)
bures_wasserstein         min over orthogonal U of ‖P^½ − Q^½ U‖      (Bhatia, Jain & Lim 2019)
affine_invariant          ‖log(P^-½ Q P^-½)‖                    (Pennec, Fillard & Ayache 2006)
log_euclidean             ‖log P − log Q‖            (Arsigny, Fillard, Pennec & Ayache 2006)
========================  =====================================================================

A trained M is neither symmetric nor positive; the last three compare positive matrices.

- bures_wasserstein takes semi-definite ones: P and Q are the semi-definite matrices nearest to the
  symmetric parts (negative eigenvalues become 0; Higham 1988). `kept` says how much of ‖M‖² that
  leaves.
- affine_invariant and log_euclidean need definite ones and are infinitely far from the edge, so
  that any small number put in place of a negative eigenvalue decides the distance. Measured on a
  shipped run with 1 negative eigenvalue of 64: 2.4 with 1/100 of the largest in its place, 4.2 with
  1/1000, 13.5 with a millionth. So they are NaN where a symmetric part is not definite, unless the
  caller says what to take instead (`Indefinite`).

scipy solves the eigenproblems; pyRiemann, which the tests compare with, takes 2 to 3 s to import
even after torch, and brings pyplot along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from damcha.analysis.ablation import Ablation, ablate, inputs_of
from damcha.analysis.geometry import head_metrics
from damcha.checkpoint.run import Example
from damcha.errors import InputError
from damcha.model import TaskModel
from damcha.tap import tap

Matrix = NDArray[np.float64]
Indefinite = Literal["leave_out", "raise", "absolute"]
INDEFINITE: dict[Indefinite, str] = {
    "leave_out": "No affine-invariant or log-Euclidean distance where a symmetric part has an "
    "eigenvalue that is not positive.",
    "raise": "Eigenvalues below 1/100 of the largest are raised to it; the two distances then "
    "measure that choice, too.",
    "absolute": "Eigenvalues lose their sign: a direction and its opposite count as equal.",
}
"""What stands in for a symmetric part that is not positive definite."""
FLOOR = 0.01
DEFINITIONS = {
    "frobenius": "‖A − B‖: root of the sum of squared differences.",
    "relative": "‖A − B‖ / √(‖A‖ ‖B‖): the same in units of the norms.",
    "cosine": "⟨A, B⟩ / (‖A‖ ‖B‖): 1 the same direction, 0 nothing in common, −1 opposite.",
    "bures_wasserstein": "Between the positive semi-definite matrices nearest to the symmetric "
    "parts: the optimal transport of Gaussians with them as covariances.",
    "affine_invariant": "‖log(P^-½ Q P^-½)‖ of definite symmetric parts P, Q: the same in every "
    "basis of the channels.",
    "log_euclidean": "‖log P − log Q‖ of definite symmetric parts P, Q.",
    "kept": "Part of ‖A‖² and of ‖B‖² that the nearest semi-definite matrix keeps.",
    "not_positive": "How many eigenvalues of A's and of B's symmetric part are not positive.",
}
"""One line for each field of `Distances`."""
Side = Literal["query", "key"]
Measure = Literal["overlap", "smallest", "largest"]


@dataclass(frozen=True)
class Distances:
    """Distances of two metrics of one width; the formulas are in the module's docstring."""

    frobenius: float
    relative: float
    """NaN, as `cosine`, where a metric is zero."""
    cosine: float
    bures_wasserstein: float
    affine_invariant: float
    log_euclidean: float
    kept: tuple[float, float]
    not_positive: tuple[int, int]


def distances(
    a: Float[np.ndarray, "d d"],
    b: Float[np.ndarray, "d d"],
    indefinite: Indefinite = "leave_out",
) -> Distances:
    """Compare two metrics of one width, in float64.

    Raises
    ------
    InputError
        If the widths differ, values are not finite, or `indefinite` is not one of its choices.
    """
    _check(a, b)
    if indefinite not in get_args(Indefinite):
        choices = ", ".join(get_args(Indefinite))
        raise InputError(f"indefinite: '{indefinite}' is not known; choose from {choices}")
    a, b = a.astype(np.float64), b.astype(np.float64)
    norms = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    product = norms[0] * norms[1]
    gap = float(np.linalg.norm(a - b))
    nearest = nearest_semidefinite(a), nearest_semidefinite(b)
    kept = [
        float(np.square(part).sum()) / norm**2 if norm else float("nan")
        for part, norm in zip(nearest, norms, strict=True)
    ]
    p, q = definite_part(a, indefinite), definite_part(b, indefinite)
    if p is None or q is None:
        affine = log = float("nan")
    elif np.array_equal(p, q):  # a rounding of 1e-15 would be shown as a distance
        affine = log = 0.0
    else:
        affine, log = affine_invariant(p, q), float(np.linalg.norm(_log(p) - _log(q)))
    return Distances(
        frobenius=gap,
        relative=gap / product**0.5 if product else float("nan"),
        cosine=float((a * b).sum()) / product if product else float("nan"),
        bures_wasserstein=0.0 if np.array_equal(*nearest) else bures_wasserstein(*nearest),
        affine_invariant=affine,
        log_euclidean=log,
        kept=(kept[0], kept[1]),
        not_positive=(_not_positive(a), _not_positive(b)),
    )


def affine_invariant(p: Matrix, q: Matrix) -> float:
    """√Σ log² λ_i, λ the generalised eigenvalues of (Q, P), both positive definite."""
    from scipy.linalg import eigvalsh

    return float(np.linalg.norm(np.log(eigvalsh(q, p))))


def bures_wasserstein(p: Matrix, q: Matrix) -> float:
    """Return min ‖P^½ − Q^½ U‖ over orthogonal U, P and Q positive semi-definite.

    Equal to √(tr P + tr Q − 2 tr (P^½ Q P^½)^½), which loses half of the digits near P = Q. The
    best U is the orthogonal polar factor of Q^½ P^½ (Bhatia, Jain & Lim 2019, theorem 1).
    """
    roots = _root(p), _root(q)
    u, _, vt = np.linalg.svd(roots[1] @ roots[0])
    return float(np.linalg.norm(roots[0] - roots[1] @ (u @ vt)))


def nearest_semidefinite(metric: Float[np.ndarray, "d d"]) -> Matrix:
    """The positive semi-definite matrix nearest to M in the Frobenius norm (Higham 1988, thm 2.1).

    The symmetric part with its negative eigenvalues set to 0.
    """
    values, vectors = np.linalg.eigh(_symmetric(metric))
    return _symmetric((vectors * values.clip(min=0)) @ vectors.T)


def definite_part(metric: Float[np.ndarray, "d d"], indefinite: Indefinite) -> Matrix | None:
    """The symmetric part where it is positive definite, else what stands in for it, or None.

    An eigenvalue counts as zero below d · ε · (the largest magnitude), ε the rounding unit of
    float32, in which models compute.
    """
    symmetric = _symmetric(metric)
    values, vectors = np.linalg.eigh(symmetric)
    if not _zero_or_less(values).any():
        return symmetric
    if indefinite == "raise" and values[-1] > 0:
        values = np.maximum(values, FLOOR * values[-1])
    elif indefinite == "absolute":
        values = np.abs(values)
    if _zero_or_less(values).any():
        return None
    return _symmetric((vectors * values) @ vectors.T)


def principal_angles(
    a: Float[np.ndarray, "d d"],
    b: Float[np.ndarray, "d d"],
    n_heads: int,
    rank: int,
    side: Side = "query",
) -> NDArray[np.float64]:
    """Principal angles between the heads' leading subspaces, in radians, [h, h, rank] ascending.

    Entry (i, j) compares R_i of A with R_j of B: the spans of their `rank` leading left singular
    vectors (side "query": S = X R Xᵀ multiplies the queries from the left) or right ones ("key").
    Cosines are the singular values of U_iᵀ U_j (Björck & Golub 1973). NaN where singular values
    `rank` and `rank` + 1 are equal: then no subspace leads, as in R = I.

    Raises
    ------
    InputError
        If the widths differ, values are not finite, or the rank is not 1 to the head's width.
    """
    _check(a, b)
    pair = [head_metrics(metric.astype(np.float64), n_heads) for metric in (a, b)]
    e = pair[0].shape[-1]
    if not 1 <= rank <= e:
        raise InputError(f"rank: {rank} is not between 1 and the head's width, {e}")
    bases, leads = [], []
    for heads in pair:
        left, sigma, right = np.linalg.svd(heads)
        vectors = left if side == "query" else np.swapaxes(right, -1, -2)
        after = np.concatenate([sigma, np.zeros_like(sigma[:, :1])], axis=1)[:, rank]
        leads.append(sigma[:, rank - 1] - after > e * np.finfo(np.float32).eps * sigma[:, 0])
        bases.append(vectors[..., :rank])
    products = np.einsum("iek,jel->ijkl", *bases)
    angles = np.arccos(np.linalg.svd(products, compute_uv=False).clip(max=1))  # [h, h, rank]
    found: NDArray[np.float64] = np.where((leads[0][:, None] & leads[1])[..., None], angles, np.nan)
    found.setflags(write=False)
    return found


def measured(angles: Float[np.ndarray, "h h rank"], measure: Measure) -> NDArray[np.float64]:
    """One number of each pair's angles: mean cos² (1: same, rank/e: unrelated), or degrees."""
    if measure == "overlap":
        return np.asarray(np.square(np.cos(angles)).mean(-1))
    return np.asarray(np.degrees(angles[..., 0 if measure == "smallest" else -1]))


def transplant(
    model: TaskModel,
    example: Example,
    metrics: Float[np.ndarray, "sources positions d d"],
    stride: int | None = None,
) -> Ablation:
    """Run an input as it is, and with another's metrics in place of its own.

    In a causal model each query takes the metric that served the same query of the donor. One
    source serves every layer, and a donor without positions (stride 0) every query.

    Parameters
    ----------
    model, example
        What runs.
    metrics
        The donor's.
    stride
        Queries that one position of the donor serves, 0 where one metric serves all; by default
        as in this model.

    Raises
    ------
    InputError
        If the metrics do not fit: another width, another number of layers' metrics, or fewer
        queries than the example has.
    """
    config = model.config.model
    if metrics.shape[-1] != config.d_model:
        raise InputError(
            f"transplant: a metric of width {metrics.shape[-1]} does not fit a model of width "
            f"{config.d_model}"
        )
    with torch.no_grad(), tap(model) as capture:
        model(inputs_of(model, example))
    if not capture.records:
        raise InputError(f"transplant: attention '{config.attention}' has no cross-head metric")
    sources = len(capture.records)
    if len(metrics) not in (1, sources):
        raise InputError(
            f"transplant: the other run has {len(metrics)} metrics, one a layer, and this one uses "
            f"{sources}; choose one layer of the other"
        )
    own, n = capture.records[0].stride, capture.records[0].metric.shape[1]
    theirs = own if stride is None else stride
    n_donor = metrics.shape[1]
    if n_donor > 1 and not own:
        raise InputError(
            f"transplant: the other input has {n_donor} metrics along its sequence, and this model "
            "uses one for the whole input; choose one position of the other"
        )
    if theirs and (n - 1) * own >= n_donor * theirs:
        raise InputError(
            f"transplant: the other input's metrics serve {n_donor * theirs} queries, and this "
            f"one's last begins at query {(n - 1) * own}; choose one that is at least as long"
        )
    fixed = torch.from_numpy(np.array(metrics))

    def edit(metric: torch.Tensor, layer: int | None) -> torch.Tensor:
        donor = fixed[0 if layer is None or len(fixed) == 1 else layer].to(metric)
        if not theirs:
            return donor.expand_as(metric)
        # By the first query of each position; a continuation goes on with the donor's last metric.
        places = torch.arange(metric.shape[-3]) * own // theirs
        return donor[places.clamp(max=n_donor - 1)].expand_as(metric)

    return ablate(model, example, {"its own metric": lambda metric, _: metric, "the other's": edit})


def _symmetric(metric: Float[np.ndarray, "d d"]) -> Matrix:
    return np.asarray((metric + metric.T) / 2, np.float64)


def _zero_or_less(values: NDArray[np.floating]) -> NDArray[np.bool_]:
    unit = len(values) * np.finfo(np.float32).eps
    return np.asarray(values <= unit * np.abs(values).max())


def _not_positive(metric: Matrix) -> int:
    return int(_zero_or_less(np.linalg.eigvalsh(_symmetric(metric))).sum())


def _log(p: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(p)
    return np.asarray((vectors * np.log(values)) @ vectors.T)


def _root(p: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(p)
    return np.asarray((vectors * np.sqrt(values.clip(min=0))) @ vectors.T)


def _check(a: NDArray[np.floating], b: NDArray[np.floating]) -> None:
    if a.shape != b.shape:
        raise InputError(
            f"the metrics have widths {len(a)} and {len(b)}: entry by entry they cannot be "
            "compared; their spectra can"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("a metric holds NaN or infinite values; choose another epoch or input")
