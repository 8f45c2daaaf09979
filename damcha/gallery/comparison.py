"""Figures of two subjects: two inputs, two epochs, two runs, or any mixture."""

from __future__ import annotations

from typing import Annotated

from damcha.analysis.ablation import Ablation
from damcha.analysis.comparison import Distances, distances, subspace_overlap, transplant
from damcha.analysis.geometry import describe
from damcha.errors import InputError
from damcha.figures import ablation as answers
from damcha.figures.comparison import angles_figure, side_by_side_figure, spectra_figure
from damcha.figures.metric import MetricView
from damcha.figures.spec import Array, Figure
from damcha.gallery.inspect import Layer, Position
from damcha.gallery.subject import Subject, pair_provenance

OtherLayer = Annotated[int | None, "The other side's layer; the same one by default."]


def names_of(first: Subject, second: Subject) -> tuple[str, str]:
    """Name both sides by what tells them apart."""
    parts = []
    for one in (first, second):
        said = []
        if first.run != second.run:
            said.append(one.run.name)
        if first.epoch != second.epoch or first.run != second.run:
            said.append(f"epoch {one.epoch}")
        if first.example.digest != second.example.digest:
            said.append(one.example.name)
        parts.append(", ".join(said) or one.example.name)
    return parts[0], parts[1]


def _metrics(
    first: Subject, second: Subject, layer: int, other: int | None, position: int
) -> tuple[Array, Array]:
    return first.serving(layer, position), second.serving(
        layer if other is None else other, position
    )


def numbers(
    first: Subject,
    second: Subject,
    layer: int = 0,
    other_layer: int | None = None,
    position: int = -1,
) -> Distances:
    """Distances of the two metrics."""
    return distances(*_metrics(first, second, layer, other_layer, position))


def side_by_side(
    first: Subject,
    second: Subject,
    view: Annotated[MetricView, "What to show."] = "full",
    layer: Layer = 0,
    other_layer: OtherLayer = None,
    position: Position = -1,
) -> Figure:
    """Both metrics at one scale, and their difference."""
    a, b = _metrics(first, second, layer, other_layer, position)
    if a.shape != b.shape or first.n_heads != second.n_heads:
        raise InputError(
            f"the metrics have {first.n_heads} heads in width {len(a)} and {second.n_heads} heads "
            f"in width {len(b)}: entry by entry they cannot be compared; their spectra can"
        )
    if view == "difference":
        raise InputError("view: 'difference' is drawn anyway; choose another view")
    settings = {"view": view, "layer": layer, "other_layer": other_layer, "position": position}
    made = pair_provenance(first, second, "compare", settings)
    return side_by_side_figure(a, b, first.n_heads, names_of(first, second), made, view=view)


def spectra(
    first: Subject,
    second: Subject,
    layer: Layer = 0,
    other_layer: OtherLayer = None,
    position: Position = -1,
) -> Figure:
    """Singular values and eigenvalue magnitudes of both metrics; widths may differ."""
    found = {}
    pair = _metrics(first, second, layer, other_layer, position)
    for side, name, metric, one in zip(
        "AB", names_of(first, second), pair, (first, second), strict=True
    ):
        numbers = describe(metric, one.n_heads)
        found[f"{side}: {name}"] = (numbers.singular_values, numbers.eigenvalues)
    settings = {"layer": layer, "other_layer": other_layer, "position": position}
    return spectra_figure(found, pair_provenance(first, second, "compare-spectra", settings))


def angles(
    first: Subject,
    second: Subject,
    rank: Annotated[int, "How many leading directions of each head."] = 2,
    layer: Layer = 0,
    other_layer: OtherLayer = None,
    position: Position = -1,
) -> Figure:
    """Overlap of the heads' leading subspaces, by principal angles."""
    a, b = _metrics(first, second, layer, other_layer, position)
    overlap = subspace_overlap(a, b, first.n_heads, rank)
    settings = {"rank": rank, "layer": layer, "other_layer": other_layer, "position": position}
    made = pair_provenance(first, second, "compare-angles", settings)
    return angles_figure(overlap, rank, names_of(first, second), made)


def swap(first: Subject, second: Subject) -> Ablation:
    """Run the first input with its own metric, and with the second's.

    Raises
    ------
    InputError
        If either side has no metric, or they do not fit.
    """
    first.metric(), second.metric()
    assert second.inspection.metrics is not None
    return transplant(first.model, first.example, second.inspection.metrics)


def transplanted(first: Subject, second: Subject, result: Ablation | None = None) -> Figure:
    """What the first input's model answers with the second's metric."""
    found = swap(first, second) if result is None else result
    made = pair_provenance(first, second, "transplant", {})
    if found.pictures is not None:
        return answers.pictures_figure(found.pictures, found.names, found.loss, made)
    if found.nats is not None:
        return answers.nats_figure(found.nats, found.names, first.example.labels, found.loss, made)
    assert found.probabilities is not None
    data = first.run.config.data
    classes = data.class_names or tuple(f"class {k}" for k in range(data.n_classes))
    return answers.probabilities_figure(found.probabilities, found.names, classes, found.loss, made)
