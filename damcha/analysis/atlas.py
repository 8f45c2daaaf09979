"""The metrics of many inputs at once: how they vary, how they lie, what can be read from them.

Inputs are streamed; kept are the moments of M, a few numbers an input, and features for maps and
probes: M, R or block norms at one position. Features of more than MOST numbers in all are projected
to fewer dimensions by a seeded Gaussian matrix, which keeps distances (Johnson & Lindenstrauss
1984) and bounds the memory whatever the number of inputs; `projected` says so.
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
"""Numbers of one kind of feature that are kept (64 MB)."""
MOST_MDS = 1000
"""MDS needs every pairwise distance and many passes over them."""


@dataclass(frozen=True, eq=False)
class Atlas:
    """What is kept of the metrics of N inputs."""

    features: Mapping[str, Float[np.ndarray, "inputs dims"]]
    context: Float[np.ndarray, "inputs d"] | None
    """What f_θ was given; None for a static metric."""
    statistics: Mapping[str, Float[np.ndarray, " inputs"]]
    """See `STATISTICS`."""
    labels: Int[np.ndarray, " inputs"] | None
    mean: Float[np.ndarray, "d d"]
    variance: Float[np.ndarray, "d d"]
    adaptivity: float
    """Between-input variance over mean squared norm: Σ variance / E‖M‖²."""
    projected: tuple[str, ...]
    """Features that were projected to fewer dimensions."""

    @property
    def is_constant(self) -> bool:
        """Whether every input has the same metric, to rounding."""
        return self.adaptivity < 1e-12


@dataclass(frozen=True)
class Probe:
    """How well the class can be read from something, by cross-validation."""

    name: str
    accuracy: float
    spread: float
    """Standard deviation over folds."""


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
    dims = {"head_metrics": h * e * e, "metric": d * d, "blocks": h * h}
    generator = torch.Generator().manual_seed(0)
    projections = {}
    for name, size in dims.items():
        room = max(2, MOST // n)
        if size > room:
            projections[name] = torch.randn(size, room, generator=generator) / room**0.5
    kept: dict[str, list[torch.Tensor]] = {name: [] for name in (*dims, "context", *STATISTICS)}
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
            kept[name].append(values @ projections[name] if name in projections else values)
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
    arrays = {name: _array(torch.cat(parts)) for name, parts in kept.items() if parts}
    mean = (total / n).numpy()
    variance = (squares / n - (total / n) ** 2).clamp(min=0).numpy()
    power = float(squares.sum() / n)
    yield Atlas(
        features={name: arrays[name] for name in dims},
        context=arrays.get("context"),
        statistics={name: arrays[name] for name in STATISTICS},
        labels=data.labels,
        mean=mean,
        variance=variance,
        adaptivity=float(variance.sum()) / power if power else 0.0,
        projected=tuple(projections),
    )


def _captured(
    records: Sequence[MetricRecord], source: int, position: int, n: int, config: ModelConfig
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One metric of each input, [n, d, d], and what f_θ was given for it, [n, d]."""
    if not records:
        raise InputError(
            f"attention '{config.attention}' has no cross-head metric to survey; choose a DAMCHA "
            "run"
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


def _effective_rank(metric: torch.Tensor) -> torch.Tensor:
    """Exp of the entropy of the normalised singular values, [B]; NaN for wide metrics (slow)."""
    if metric.shape[-1] > 256:
        return torch.full((len(metric),), float("nan"))
    sigma = torch.linalg.svdvals(metric)
    share = sigma / sigma.sum(-1, keepdim=True).clamp(min=1e-30)
    return torch.special.entr(share).sum(-1).exp()


# ---------------------------------------------------------------- maps, probes, neighbours


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
    spread = float(np.ptp(features, axis=0).max())
    if spread <= 1e-9 * max(1.0, float(np.abs(features).max())):
        raise InputError(
            "every input has the same metric, so there is no map to draw: it is one point"
        )
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

    # Rows that are all the same would kill the process inside scikit-learn: refused above.
    perplexity = float(min(30, (n - 1) / 3))
    placed = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced)
    said = f"t-SNE of {reduced.shape[1]} principal components, perplexity {perplexity:.3g}"
    return placed, said + (" (capped: there are few inputs)." if perplexity < 30 else ".")


def probes(
    atlas: Atlas, feature: Feature, seed: int = 0, folds: int = 5
) -> tuple[tuple[Probe, ...], str]:
    """Read the class from the metric alone, and from f_θ's own input; also a note.

    Stratified cross-validation of a k-nearest-neighbour and of a linear classifier on principal
    components. The metric is a function of the context: what the context tells is a ceiling.

    Raises
    ------
    InputError
        If there are no classes, or too few inputs of one.
    """
    if atlas.labels is None:
        raise InputError("text has no classes to read from the metric")
    rare = set(np.flatnonzero(np.bincount(atlas.labels) < 2).tolist())
    keep = np.array([label not in rare for label in atlas.labels])
    labels = atlas.labels[keep]
    if len(np.unique(labels)) < 2:
        raise InputError("probes need at least two classes with two inputs each")
    folds = int(min(folds, np.bincount(labels)[np.unique(labels)].min()))
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neighbors import KNeighborsClassifier

    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    smallest = len(labels) - -(-len(labels) // folds)
    knn = KNeighborsClassifier(min(10, smallest))
    linear = LogisticRegression(max_iter=1000)
    found = [_probe("Chance", DummyClassifier(), np.zeros((len(labels), 1)), labels, split)]
    sources = [("metric", atlas.features[feature][keep])]
    if atlas.context is not None:
        sources.append(("context", atlas.context[keep]))
    for name, values in sources:
        values = _compact(values)
        for what, classifier in (("k-NN", knn), ("linear", linear)):
            found.append(_probe(f"{what}, {name}", classifier, values, labels, split))
    note = f"{folds}-fold stratified cross-validation on {len(labels):,} inputs."
    return tuple(found), note + (" Classes with one input are left out." if rare & set(
        atlas.labels.tolist()) else "")  # fmt: skip


def _compact(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """At most 64 principal components: what a low-dimensional generator can vary."""
    from sklearn.decomposition import PCA

    if np.ptp(values, axis=0).max() == 0:
        return np.zeros((len(values), 1))
    size = min(64, len(values) - 1, values.shape[1])
    reduced: NDArray[np.float64] = PCA(size, random_state=0).fit_transform(
        values.astype(np.float64)
    )
    # One unit for all: to scale each component by itself would raise the noise to the signal.
    return reduced / reduced.std(0).max()


def _probe(
    name: str, classifier: Any, values: NDArray[Any], labels: NDArray[np.int64], split: Any
) -> Probe:
    from sklearn.model_selection import cross_val_score

    scores = cross_val_score(classifier, values, labels, cv=split)
    return Probe(name, float(scores.mean()), float(scores.std()))


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
