"""Figures of the metrics of many held-out inputs."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from damcha.analysis.atlas import (
    FEATURES,
    MAPS,
    MOST_RANKED,
    STATISTICS,
    Atlas,
    Feature,
    Map,
    components,
    embed,
    rank_correlation,
    survey,
)
from damcha.analysis.progress import finished
from damcha.data.evaluation import EvaluationSet
from damcha.errors import InputError
from damcha.figures.atlas import (
    components_figure,
    map_figure,
    moments_figure,
    relation_figure,
)
from damcha.figures.spec import Array, Figure
from damcha.gallery.inspect import Layer, Position
from damcha.gallery.subject import Snapshot, check_fits, set_provenance

Colour = Annotated[str, "Colour by: label, part, or loss, norm, diagonal_share, effective_rank."]


def _atlas(
    snapshot: Snapshot, data: EvaluationSet, layer: int, position: int, result: Atlas | None
) -> Atlas:
    if result is not None:
        return result
    return finished(survey(snapshot.model, data, layer, position))


def lost(found: Atlas, feature: Feature) -> str:
    """Say how much of a feature its coordinates leave out, where that is more than rounding."""
    part = found.lost.get(feature, 0.0)
    if part < 1e-6:
        return ""
    return (
        f" The metrics lie in more than the {len(found.basis[feature])} dimensions that are kept; "
        f"{part:.2g} of their squared norm lies outside."
    )


def statistic_of(found: Atlas, name: str) -> Array:
    """A number of every input.

    Raises
    ------
    InputError
        If it is unknown, or was not computed.
    """
    if name not in STATISTICS:
        raise InputError(f"statistic: '{name}' is not one of {', '.join(STATISTICS)}")
    values = found.statistics[name]
    if np.isnan(values).all():
        raise InputError(
            f"{name}: it takes the singular values of every metric, which a survey leaves out "
            f"where metrics are wider than {MOST_RANKED}; choose norm or diagonal_share"
        )
    return values


def chart(
    snapshot: Snapshot,
    data: EvaluationSet,
    feature: Annotated[Feature, "What of the metric to map."] = "head_metrics",
    map: Annotated[Map, "How to map."] = "pca",  # the option's name
    colour: Colour = "label",
    layer: Layer = 0,
    position: Position = -1,
    result: Atlas | None = None,
    placed: tuple[Array, str] | None = None,
) -> Figure:
    """A map of the inputs by their metrics."""
    check_fits(snapshot.run, feature)
    found = _atlas(snapshot, data, layer, position, result)
    places, note = embed(found.features[feature], map) if placed is None else placed
    note += lost(found, feature)
    settings = {
        "feature": feature,
        "map": map,
        "colour": colour,
        "layer": layer,
        "position": position,
    }
    made = set_provenance(snapshot, data, "atlas", settings)
    names = [f"input {k}" for k in range(len(data))]
    groups, values, label = None, None, ""
    if colour == "label" and found.labels is not None:
        known = data.class_names
        groups = [known[k] if k < len(known) else f"class {k}" for k in found.labels]
    elif colour in ("label", "part") and data.parts:
        groups = list(data.parts)
    elif colour in STATISTICS:
        values, label = statistic_of(found, colour), STATISTICS[colour]
    else:
        raise InputError(
            f"colour: '{colour}' is not there; choose from label, part, {', '.join(STATISTICS)}"
        )
    title = f"{MAPS[map]} of {FEATURES[feature]}"
    return map_figure(places, names, title, note, made, groups=groups, values=values, label=label)


def moments(
    snapshot: Snapshot,
    data: EvaluationSet,
    layer: Layer = 0,
    position: Position = -1,
    result: Atlas | None = None,
) -> Figure:
    """The mean metric, and the variance of each entry between inputs."""
    found = _atlas(snapshot, data, layer, position, result)
    made = set_provenance(snapshot, data, "atlas-moments", {"layer": layer, "position": position})
    heads = snapshot.run.config.model.n_heads
    return moments_figure(found.mean, found.variance, heads, len(data), found.adaptivity, made)


def principal(
    snapshot: Snapshot,
    data: EvaluationSet,
    few: Annotated[int, "How many components to draw as metrics."] = 3,
    layer: Layer = 0,
    position: Position = -1,
    result: Atlas | None = None,
) -> Figure:
    """Principal components of the metric over the inputs, and what each explains."""
    if not 1 <= few <= 11:
        raise InputError(f"few: {few} components do not fit a figure; use 1 to 11")
    found = _atlas(snapshot, data, layer, position, result)
    settings = {"few": few, "layer": layer, "position": position}
    made = set_provenance(snapshot, data, "atlas-components", settings)
    parts = components(found, few)
    heads = snapshot.run.config.model.n_heads
    words = lost(found, "metric")
    return components_figure(parts.shares, parts.metrics, heads, len(data), words, made)


def relation(
    snapshot: Snapshot,
    data: EvaluationSet,
    statistic: Annotated[str, "norm, diagonal_share or effective_rank."] = "norm",
    layer: Layer = 0,
    position: Position = -1,
    result: Atlas | None = None,
) -> Figure:
    """The loss of each input against a number of its metric."""
    found = _atlas(snapshot, data, layer, position, result)
    settings = {"statistic": statistic, "layer": layer, "position": position}
    made = set_provenance(snapshot, data, "atlas-relation", settings)
    x, y = (np.asarray(statistic_of(found, name), np.float64) for name in (statistic, "loss"))
    good = np.isfinite(x) & np.isfinite(y)
    rho = rank_correlation(x[good], y[good])
    return relation_figure(x, y, STATISTICS[statistic], STATISTICS["loss"], rho, made)
