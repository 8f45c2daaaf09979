"""Figures of two subjects: two inputs, two epochs, two runs, or any mixture."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from damcha.analysis import comparison as analysis
from damcha.analysis.ablation import Ablation
from damcha.analysis.comparison import DEFINITIONS, Distances, Indefinite, Measure, Side, distances
from damcha.analysis.geometry import describe
from damcha.errors import InputError
from damcha.figures import transplant as answers
from damcha.figures.comparison import angles_figure, side_by_side_figure, spectra_figure
from damcha.figures.spec import Array, Figure
from damcha.figures.style import number
from damcha.figures.table import Cell, Table
from damcha.gallery.inspect import Layer, Position
from damcha.gallery.subject import Subject, check_fits, counted, pair_provenance

OtherLayer = Annotated[int | None, "The other side's layer; the same one by default."]
View = Literal[
    "full", "head_metrics", "symmetric", "antisymmetric", "diagonal", "off_diagonal", "blocks"
]
TRAINED_APART = (
    "The runs were trained apart: channel k of one need not mean what channel k of the other does. "
    "Only spectra do not depend on that."
)


def names_of(
    first: Subject, second: Subject, layer: int = 0, other_layer: int | None = None
) -> tuple[str, str]:
    """Name both sides by what tells them apart."""
    layers = _layers(first, second, layer, other_layer)
    found = []
    apart = _trained_apart(first, second)
    for one, its_layer in zip((first, second), layers, strict=True):
        said = [one.run.name] if apart else []
        if first.epoch != second.epoch or apart:
            said.append(f"epoch {one.epoch}")
        if layers[0] != layers[1] and len(one.source_names) > 1:
            said.append(f"layer {its_layer}")
        if first.example.digest != second.example.digest:
            said.append(one.example.name)
        found.append(", ".join(said) or one.example.name)
    return found[0], found[1]


def numbers(
    first: Subject,
    second: Subject,
    layer: int = 0,
    other_layer: int | None = None,
    position: int = -1,
    indefinite: Indefinite = "leave_out",
) -> Distances:
    """Distances of the two metrics (design.md §6)."""
    return distances(*_metrics(first, second, layer, other_layer, position), indefinite)


def said(found: Distances) -> str:
    """The distances that every pair has, in a sentence."""
    if found.frobenius == 0:
        return "A and B are the same metric: every distance is 0."
    words = [f"‖A − B‖ = {number(found.frobenius)}"]
    if np.isfinite(found.cosine):
        words.append(f"relative to the norms {number(found.relative)}")
        words.append(f"cosine {number(found.cosine)}")
    return ", ".join(words) + "."


def distances_table(found: Distances, names: tuple[str, str]) -> Table:
    """The distances as a table, each with its definition; what does not exist is left empty."""
    rows: list[tuple[Cell, ...]] = []
    for name, words in DEFINITIONS.items():
        value = getattr(found, name)
        for part, number_ in (
            zip(("A", "B"), value, strict=True) if isinstance(value, tuple) else (("", value),)
        ):
            cell = float(number_) if np.isfinite(number_) else None
            rows.append((f"{name.replace('_', ' ')} {part}".strip(), cell, words))
    return Table(
        ("Distance", "Value", "Definition"),
        tuple(rows),
        f"Distances of two metrics. A: {names[0]}. B: {names[1]}.",
        "tab:distances",
        digits=6,
    )


def side_by_side(
    first: Subject,
    second: Subject,
    view: Annotated[View, "What to show."] = "full",
    layer: Layer = 0,
    other_layer: OtherLayer = None,
    position: Position = -1,
) -> Figure:
    """Both metrics at one scale, and their difference.

    Raises
    ------
    InputError
        If their widths or heads differ, or a value is not finite.
    """
    same_heads(first, second)
    for one in (first, second):
        check_fits(one.run, view)
    a, b = _metrics(first, second, layer, other_layer, position)
    settings = {"view": view, "layer": layer, "other_layer": other_layer, "position": position}
    return side_by_side_figure(
        a,
        b,
        first.n_heads,
        names_of(first, second, layer, other_layer),
        pair_provenance(first, second, "compare", settings),
        view=view,
        note=f"{said(distances(a, b))} {_note(first, second)}".strip(),
    )


def spectra(
    first: Subject,
    second: Subject,
    layer: Layer = 0,
    other_layer: OtherLayer = None,
    position: Position = -1,
) -> Figure:
    """Eigenvalues and singular values of both metrics; widths may differ."""
    found = {}
    pair = _metrics(first, second, layer, other_layer, position)
    names = names_of(first, second, layer, other_layer)
    for side, name, metric, one in zip("AB", names, pair, (first, second), strict=True):
        shape = describe(metric, one.n_heads)
        found[f"{side}: {name}"] = (shape.singular_values, shape.eigenvalues)
    settings = {"layer": layer, "other_layer": other_layer, "position": position}
    made = pair_provenance(first, second, "compare-spectra", settings)
    note = said(distances(*pair)) if np.array_equal(*pair) else ""
    return spectra_figure(found, made, note=note)


def angles(
    first: Subject,
    second: Subject,
    rank: Annotated[int, "How many leading directions of each head."] = 2,
    side: Annotated[Side, "Directions of the queries (left singular) or of the keys."] = "query",
    measure: Annotated[Measure, "Mean cos² of the angles, or one of them in degrees."] = "overlap",
    layer: Layer = 0,
    other_layer: OtherLayer = None,
    position: Position = -1,
) -> Figure:
    """Principal angles between the heads' leading subspaces, every head against every head.

    Raises
    ------
    InputError
        If their widths or heads differ, a value is not finite, or the rank does not fit.
    """
    same_heads(first, second)
    a, b = _metrics(first, second, layer, other_layer, position)
    found = analysis.principal_angles(a, b, first.n_heads, rank, side)
    settings = {
        **{"rank": rank, "side": side, "measure": measure, "layer": layer},
        **{"other_layer": other_layer, "position": position},
    }
    return angles_figure(
        found,
        analysis.measured(found, measure),
        measure,
        side,
        len(a) // first.n_heads,
        names_of(first, second, layer, other_layer),
        pair_provenance(first, second, "compare-angles", settings),
        note=_note(first, second),
    )


def swap(
    first: Subject, second: Subject, other_layer: int | None = None, position: int = -1
) -> Ablation:
    """Run the first input with its own metric, and with the second's.

    `other_layer` and `position` choose among the second's metrics where the first's model uses
    fewer: one for all layers, or one for the whole input.

    Raises
    ------
    InputError
        If either side has no metric, or they do not fit.
    """
    first.metric(), second.serving(other_layer or 0, position)  # refuse what is not there
    same_heads(first, second)
    mine, donor = first.inspection.metrics, second.inspection.metrics
    assert mine is not None and donor is not None
    if len(mine) == 1 < len(donor) and other_layer is not None:
        donor = donor[[other_layer]]
    stride = second.inspection.stride
    if not first.inspection.stride and stride:  # one metric for the whole input
        donor, stride = donor[:, [position]], 0
    return analysis.transplant(first.model, first.example, donor, stride)


def transplanted(
    first: Subject,
    second: Subject,
    other_layer: Annotated[int | None, "The other's layer, if this model has one metric."] = None,
    position: Annotated[int, "The other's position, if this model has one metric."] = -1,
    result: Ablation | None = None,
) -> Figure:
    """What the first input's model answers with the second's metric."""
    found = swap(first, second, other_layer, position) if result is None else result
    settings = {"other_layer": other_layer, "position": position}
    made = pair_provenance(first, second, "transplant", settings)
    names = names_of(first, second)
    words = " ".join(
        filter(
            None,
            [
                f"{names[0]} with its own metric and with that of {names[1]}.",
                _served(first, second, position),
                _note(first, second),
            ],
        )
    )
    if found.pictures is not None:
        seen = first.example.seen
        assert isinstance(seen, np.ndarray)  # an image model's example
        return answers.pictures_figure(seen, found.pictures, found.loss, words, made)
    if found.nats is not None:
        nats, labels, unit = counted(first, found.nats)
        return answers.nats_figure(nats, labels, found.loss, words, made, unit=unit)
    assert found.probabilities is not None
    data = first.run.config.data
    classes = data.class_names or tuple(f"class {k}" for k in range(data.n_classes))
    return answers.probabilities_figure(found.probabilities, classes, found.loss, words, made)


def _served(first: Subject, second: Subject, position: int) -> str:
    """Say which of the donor's metrics serves where."""
    mine, theirs = first.inspection.stride, second.inspection.stride
    if mine and theirs:
        return "Each query takes the metric that served the same query of the other."
    if mine:
        return "The other's one metric serves every query."
    if theirs:
        last = len(second.inspection.position_labels)
        return f"This model uses one metric: the other's of position {position % last}."
    return ""


def same_heads(first: Subject, second: Subject) -> None:
    """Refuse two models whose metrics cannot be laid over each other.

    Raises
    ------
    InputError
        If their widths or numbers of heads differ.
    """
    pair = [(one.n_heads, one.run.config.model.d_model) for one in (first, second)]
    if pair[0] != pair[1]:
        words = [f"{h} heads in width {d}" for h, d in pair]
        raise InputError(
            f"the metrics have {words[0]} and {words[1]}: their entries, subspaces and transplants "
            "cannot be compared; their spectra can"
        )


def _metrics(
    first: Subject, second: Subject, layer: int, other: int | None, position: int
) -> tuple[Array, Array]:
    layers = _layers(first, second, layer, other)
    return first.serving(layers[0], position), second.serving(layers[1], position)


def _layers(first: Subject, second: Subject, layer: int, other: int | None) -> tuple[int, int]:
    """The layer of each side, 0 where one metric serves all."""
    wanted = (layer, layer if other is None else other)
    several = [len(one.source_names) > 1 for one in (first, second)]
    return wanted[0] * several[0], wanted[1] * several[1]


def _trained_apart(first: Subject, second: Subject) -> bool:
    # A run may have been opened twice: its folder tells.
    return first.run.path.resolve() != second.run.path.resolve()


def _note(first: Subject, second: Subject) -> str:
    return TRAINED_APART if _trained_apart(first, second) else ""
