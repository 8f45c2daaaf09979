"""The metrics of many inputs at once: how they vary and how they lie.

Inputs are streamed; kept are the moments of M, a few numbers an input, and features for maps and
probes: M, R or block norms at one position.

An unconstrained f_θ ends in an affine layer, so the metrics of a run lie in w + 1 dimensions, w the
width of its last hidden layer. M and R are therefore kept as coordinates in an orthonormal basis
that grows with the stream until nothing is left over: distances, PCA and probes are those of the
whole matrices, and N inputs take N·(w + 1) numbers instead of N·d². The basis stops growing at MOST
numbers; what then lies outside it is counted in `lost`, never dropped unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from damcha.analysis.ablation import MOST_NUMBERS
from damcha.analysis.progress import Progress
from damcha.attention.metric import blocks, row_sum
from damcha.config import ModelConfig
from damcha.data.evaluation import EvaluationSet
from damcha.errors import InputError
from damcha.model import TaskModel
from damcha.tap import MetricRecord, tap

MOST_RANKED = 256
"""Width up to which a survey takes the singular values of every metric: thousands of them."""
Feature = Literal["head_metrics", "metric", "blocks"]
FEATURES: dict[Feature, str] = {
    "head_metrics": "R, what the scores use",
    "metric": "M, every entry",
    "blocks": "Block norms",
}
Map = Literal["pca", "mds", "tsne"]
MAPS: dict[Map, str] = {"pca": "PCA", "mds": "MDS", "tsne": "t-SNE"}
STATISTICS = {
    "loss": "Loss of the input",
    "norm": "Frobenius norm of M",
    "diagonal_share": "Part of ‖M‖² within heads",
    "effective_rank": "Directions that M uses, by the entropy of its singular values",
}
MOST = 2**24
"""Numbers in the basis of one feature (64 MB), and about so many in its coordinates."""
FEWEST_DIMENSIONS = 64
"""A basis may have so many directions however wide the metric and however many the inputs."""
ROUNDING = 1e-6
"""What is left of a batch of float32 metrics below this part of its norm is no new direction."""
MOST_MDS = 1000
"""MDS needs every pairwise distance and many passes over them."""


@dataclass(frozen=True, eq=False)
class Atlas:
    """What is kept of the metrics of N inputs."""

    features: Mapping[str, Float[np.ndarray, "inputs dims"]]
    """Coordinates of M and R in their bases; the block norms themselves."""
    basis: Mapping[str, Float[np.ndarray, "dims size"]]
    """Orthonormal rows: features["metric"] @ basis["metric"] are the metrics, [N, d²]."""
    lost: Mapping[str, float]
    """Part of the squared norm of M and R that lies outside the basis: 0 to rounding, if exact."""
    context: Float[np.ndarray, "inputs d"] | None
    """What f_θ was given; None for a static metric."""
    statistics: Mapping[str, Float[np.ndarray, " inputs"]]
    """See `STATISTICS`."""
    labels: Int[np.ndarray, " inputs"] | None
    mean: Float[np.ndarray, "d d"]
    variance: Float[np.ndarray, "d d"]
    adaptivity: float
    """Between-input variance over mean squared norm: Σ variance / E‖M‖²."""

    @property
    def is_constant(self) -> bool:
        """Whether every input has the same metric, to rounding."""
        return self.adaptivity < 1e-12


@dataclass(frozen=True, eq=False)
class Components:
    """Principal components of the metrics of many inputs."""

    shares: Float[np.ndarray, " components"]
    """Part of the variance between inputs along each, largest first."""
    metrics: Float[np.ndarray, "few d d"]
    """The first of them as metrics of Frobenius norm 1; the sign means nothing."""


class _Basis:
    """Orthonormal directions of a stream of vectors, found as they come (block Gram-Schmidt)."""

    def __init__(self, size: int, n: int) -> None:
        self.most = min(size, max(FEWEST_DIMENSIONS, MOST // max(size, n)))
        self.rows = torch.zeros(0, size, dtype=torch.float64)
        self.left_out = self.power = 0.0

    def coordinates(self, values: torch.Tensor) -> torch.Tensor:
        """Extend the basis by what `values`, [B, size], have outside it; their coordinates."""
        values = values.double()
        norm = float(values.norm())
        rest = values - values @ self.rows.T @ self.rows
        room = self.most - len(self.rows)
        if room and float(rest.norm()) > ROUNDING * norm:
            _, sigma, new = torch.linalg.svd(rest, full_matrices=False)
            new = new[: min(room, int((sigma > ROUNDING * norm).sum()))]
            # Once more: the first subtraction leaves rounding of the size of `values`, not `rest`.
            new = torch.linalg.qr((new - new @ self.rows.T @ self.rows).T).Q.T
            self.rows = torch.cat([self.rows, new])
        found = values @ self.rows.T
        self.power += norm**2
        self.left_out += max(0.0, norm**2 - float(found.square().sum()))
        return found

    @property
    def lost(self) -> float:
        return self.left_out / self.power if self.power else 0.0


@torch.no_grad()
def survey(
    model: TaskModel, data: EvaluationSet, source: int = 0, position: int = -1
) -> Iterator[Progress | Atlas]:
    """Run every input of a set through the model; yields Progress, then the Atlas.

    Raises
    ------
    InputError
        If the model has no metric, or none of that source or position, or it is not finite.
    """
    config = model.config.model
    h, d, n = config.n_heads, config.d_model, len(data)
    e = d // h
    device = next(model.parameters()).device
    bases = {"head_metrics": _Basis(h * e * e, n), "metric": _Basis(d * d, n)}
    kept: dict[str, list[torch.Tensor]] = {name: [] for name in (*FEATURES, "context", *STATISTICS)}
    total = torch.zeros(d, d, dtype=torch.float64)
    squares = torch.zeros(d, d, dtype=torch.float64)
    done = 0
    for inputs, targets in data.batches(max(1, min(64, MOST_NUMBERS // (8 * d * d)))):
        yield Progress(done, n, "held-out inputs")
        with tap(model) as capture:
            loss = model.score(inputs.to(device), targets.to(device))["loss"]
        metric, context = _captured(capture.records, source, position, len(inputs), config)
        found = {
            "head_metrics": row_sum(metric, h).flatten(1),
            "metric": metric.flatten(1),
            "blocks": blocks(metric, h).flatten(-2).norm(dim=-1).flatten(1),
        }
        for name, values in found.items():
            kept[name].append(bases[name].coordinates(values) if name in bases else values)
        if context is not None:
            kept["context"].append(context)
        own = found["blocks"].unflatten(1, (h, h)).diagonal(dim1=1, dim2=2).square().sum(1)
        norm = metric.flatten(1).norm(dim=1)
        kept["loss"].append(loss.cpu())
        kept["norm"].append(norm)
        kept["diagonal_share"].append(own / norm.square().clamp(min=1e-30))
        kept["effective_rank"].append(_effective_rank(metric))
        wide = metric.double()
        total += wide.sum(0)
        squares += wide.square().sum(0)
        done += len(inputs)
    arrays = {name: _array(_stacked(parts)) for name, parts in kept.items() if parts}
    mean = (total / n).numpy()
    variance = (squares / n - (total / n) ** 2).clamp(min=0).numpy()
    power = float(squares.sum() / n)
    yield Atlas(
        features={name: arrays[name] for name in FEATURES},
        basis={name: _array(basis.rows) for name, basis in bases.items()},
        lost={name: basis.lost for name, basis in bases.items()},
        context=arrays.get("context"),
        statistics={name: arrays[name] for name in STATISTICS},
        labels=data.labels,
        mean=mean,
        variance=variance,
        adaptivity=float(variance.sum()) / power if power else 0.0,
    )


def _captured(
    records: Sequence[MetricRecord], source: int, position: int, n: int, config: ModelConfig
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One metric of each input, [n, d, d], and what f_θ was given for it, [n, d]."""
    if not records:
        raise InputError(
            f"attention '{config.attention}' has no cross-head metric to survey; choose another run"
        )
    if not 0 <= source < len(records):
        raise InputError(f"layer: {source} is not one of 0 to {len(records) - 1}")
    record = records[source]
    count = record.metric.shape[1]
    if not -count <= position < count:
        raise InputError(f"position: {position} is not one of 0 to {count - 1}")
    metric = record.metric[:, position].float().cpu().expand(n, -1, -1)
    if not torch.isfinite(metric).all():
        raise InputError("the metric has NaN or infinite values; choose another epoch")
    context = None if record.context is None else record.context[:, position].float().cpu()
    return metric, context


def _stacked(parts: list[torch.Tensor]) -> torch.Tensor:
    """All batches; coordinates of early ones are 0 along directions that came later."""
    if parts[0].ndim == 1:
        return torch.cat(parts)
    width = parts[-1].shape[1]
    return torch.cat([torch.nn.functional.pad(p, (0, width - p.shape[1])) for p in parts])


def _effective_rank(metric: torch.Tensor) -> torch.Tensor:
    """Exp of the entropy of the normalised singular values, [B]; NaN above MOST_RANKED (slow)."""
    if metric.shape[-1] > MOST_RANKED:
        return torch.full((len(metric),), float("nan"))
    sigma = torch.linalg.svdvals(metric)
    share = sigma / sigma.sum(-1, keepdim=True).clamp(min=1e-30)
    return torch.special.entr(share).sum(-1).exp()


# ------------------------------------------------------------ maps, components, neighbours


def embed(
    features: Float[np.ndarray, "inputs dims"], method: Map, seed: int = 0
) -> tuple[Float[np.ndarray, "inputs 2"], str]:
    """Place inputs in the plane so that like metrics lie close; also a note on what was done.

    Raises
    ------
    InputError
        If there is nothing to place: fewer than 3 inputs, or all of them the same.
    """
    if method not in get_args(Map):
        raise InputError(f"map: '{method}' is not one of {', '.join(get_args(Map))}")
    n = len(features)
    if n < 3:
        raise InputError(f"a map needs at least 3 inputs, not {n}")
    _refuse_constant(features)
    from sklearn.decomposition import PCA

    pca = PCA(min(50, n - 1, features.shape[1]), random_state=seed)
    reduced = pca.fit_transform(features.astype(np.float64))
    shares = pca.explained_variance_ratio_
    if method == "pca":
        flat = reduced[:, :2] if reduced.shape[1] > 1 else np.pad(reduced, ((0, 0), (0, 1)))
        first = ", ".join(f"{share:.0%}" for share in shares[:2])
        return flat, f"The two axes hold {first} of the variance."
    if method == "mds":
        from sklearn.manifold import MDS

        if n > MOST_MDS:
            raise InputError(f"MDS takes at most {MOST_MDS} inputs, not {n}; use PCA or t-SNE")
        scaled = MDS(2, random_state=seed, n_init=1, init="classical_mds").fit_transform(reduced)
        return scaled, "Metric MDS of Euclidean distances."
    from sklearn.manifold import TSNE

    perplexity = float(min(30, (n - 1) / 3))
    placed = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced)
    said = f"t-SNE of {reduced.shape[1]} principal components, perplexity {perplexity:.3g}"
    return placed, said + (" (capped: there are few inputs)." if perplexity < 30 else ".")


def components(atlas: Atlas, few: int = 3) -> Components:
    """Principal components of M over the inputs: their shares, and the first few as metrics.

    PCA of the coordinates, taken back through the orthonormal basis, is PCA of the metrics.

    Raises
    ------
    InputError
        If there are fewer than 3 inputs, or all have the same metric.
    """
    features, basis = atlas.features["metric"].astype(np.float64), atlas.basis["metric"]
    if len(features) < 3:
        raise InputError(f"principal components need at least 3 inputs, not {len(features)}")
    _refuse_constant(features)
    from sklearn.decomposition import PCA

    pca = PCA(min(50, len(features) - 1, features.shape[1]), random_state=0).fit(features)
    d = len(atlas.mean)
    return Components(
        shares=_array(torch.from_numpy(pca.explained_variance_ratio_)),
        metrics=_array(torch.from_numpy(pca.components_[:few] @ basis)).reshape(-1, d, d),
    )


def project(
    atlas: Atlas, feature: Feature, metric: Float[np.ndarray, "d d"], n_heads: int
) -> Float[np.ndarray, " dims"]:
    """Return the features of one more metric, in the coordinates of the atlas."""
    one = torch.from_numpy(np.array(metric, np.float64))[None]
    if feature == "blocks":
        return _array(blocks(one, n_heads).flatten(-2).norm(dim=-1).flatten())
    values = row_sum(one, n_heads) if feature == "head_metrics" else one
    coordinates: NDArray[np.float32] = atlas.basis[feature] @ _array(values.flatten())
    return coordinates


def all_same(features: Float[np.ndarray, "inputs dims"]) -> bool:
    """Whether every input has the same features, to the rounding of float32 metrics."""
    spread = float(np.ptp(features, axis=0).max(initial=0.0))
    return spread <= ROUNDING * float(np.abs(features).max(initial=0.0))


def _refuse_constant(features: NDArray[Any]) -> None:
    """t-SNE of identical rows kills the process inside scikit-learn; PCA of them is 0 / 0."""
    if all_same(features):
        raise InputError(
            "every input has the same metric, so there is no map to draw: it is one point"
        )


def rank_correlation(
    x: Float[np.ndarray, " inputs"], y: Float[np.ndarray, " inputs"]
) -> tuple[float, float, float] | None:
    """Spearman's ρ with a 95 % interval; None with fewer than 4 pairs, or where nothing varies.

    tanh(artanh ρ ± 1.96 √((1 + ρ²/2) / (n − 3))), ties by average ranks (Bonett & Wright 2000,
    doi:10.1007/BF02294183).
    """
    if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    from scipy.stats import rankdata

    rho = float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])
    z = np.arctanh(np.clip(rho, -1 + 1e-12, 1 - 1e-12))
    half = 1.96 * float(np.sqrt((1 + rho**2 / 2) / (len(x) - 3)))
    return rho, float(np.tanh(z - half)), float(np.tanh(z + half))


def nearest(
    features: Float[np.ndarray, "inputs dims"], own: Float[np.ndarray, " dims"], k: int = 8
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """The k inputs whose features are closest to `own`, and their Euclidean distances."""
    gaps = np.linalg.norm(features.astype(np.float64) - own.astype(np.float64), axis=1)
    order = np.argsort(gaps, kind="stable")[:k]
    return order, gaps[order]


def _array(x: torch.Tensor) -> NDArray[np.float32]:
    array = x.float().numpy()
    array.setflags(write=False)
    return array
