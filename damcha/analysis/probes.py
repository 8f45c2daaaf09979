"""What can be read from the metrics of many inputs, by cross-validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from damcha.analysis.atlas import Atlas, Feature, all_same
from damcha.errors import InputError


@dataclass(frozen=True)
class Probe:
    """How well the class can be read from something, by cross-validation."""

    name: str
    accuracy: float
    spread: float
    """Standard deviation over folds."""


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

    if all_same(values):
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
