"""A figure's numbers and where they come from: NPZ, CSV, JSON, equal figures giving equal bytes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import singledispatch
from typing import Any

import numpy as np

from damcha.figures.spec import (
    Array,
    Bars,
    Contour,
    Distributions,
    Figure,
    Heatmap,
    ImageGrid,
    Intervals,
    Lines,
    Mark,
    Panel,
    Scatter,
    Sentence,
    Series,
    Surface,
    Tokens,
)

COLUMNS = ("panel", "series", "y", "x", "value")
"""Of the CSV. A matrix cell has its row in ``y`` and its column in ``x``."""

Row = tuple[str, Any, Any, Any]


def to_npz(figure: Figure) -> bytes:
    """Return the arrays behind the figure, and those drawn, as an uncompressed .npz.

    Names: those of ``figure.arrays``; ``panel_K.values`` and ``panel_K.limits`` of matrices,
    ``panel_K.NAME.x`` and ``.y`` of series, and so on; ``provenance`` is the JSON text.
    """
    arrays: dict[str, Array] = {name: np.asarray(data) for name, data in figure.arrays.items()}
    for k, panel in enumerate(figure.panels):
        for name, data in _arrays(panel.mark):
            arrays[f"panel_{k}.{name}"] = data
    arrays["provenance"] = np.array(to_json(figure).decode())
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def to_csv(figure: Figure) -> bytes:
    """Return the drawn numbers as UTF-8 CSV, one number a line, columns ``COLUMNS``."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for k, panel in enumerate(figure.panels):
        name = _cell(panel.title or str(k))
        writer.writerows((name, *map(_cell, row)) for row in _rows(panel.mark))
    return buffer.getvalue().encode("utf-8", "replace")


def to_json(figure: Figure) -> bytes:
    """Return provenance, words, limits and page size as indented UTF-8 JSON."""
    provenance = asdict(figure.provenance)
    if figure.provenance.command:
        provenance["command"] += f" --venue {figure.venue} --column {figure.column}"
    content = {
        "figure": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "page": {"venue": figure.venue, "column": figure.column},
        "panels": [_words(panel) for panel in figure.panels],
        "arrays": {
            name: {"shape": list(np.shape(data)), "dtype": str(np.asarray(data).dtype)}
            for name, data in figure.arrays.items()
        },
        "provenance": provenance,
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    return (text + "\n").encode("utf-8", "replace")


def _words(panel: Panel) -> dict[str, Any]:
    words: dict[str, Any] = {"mark": type(panel.mark).__name__}
    for name in ("title", "row_title", "x_label", "y_label"):
        if text := getattr(panel, name):
            words[name] = text
    if (scale := getattr(panel.mark, "scale", None)) is not None:
        words["scale"] = asdict(scale)
    if isinstance(panel.mark, Surface):
        words["camera"] = {"azimuth": panel.mark.azimuth, "elevation": panel.mark.elevation}
    if isinstance(panel.mark, Sentence):
        words["sentence"] = panel.mark.text
    return words


@singledispatch
def _arrays(mark: Mark) -> Iterable[tuple[str, Array]]:
    """Return a mark's arrays by name."""
    raise TypeError(f"no sidecar for {type(mark).__name__}; add one to sidecar.py")


@singledispatch
def _rows(mark: Mark) -> Iterable[Row]:
    """Return a mark's numbers as (series, y, x, value)."""
    raise TypeError(f"no sidecar for {type(mark).__name__}; add one to sidecar.py")


@_arrays.register(Heatmap)
@_arrays.register(Contour)
@_arrays.register(Surface)
def _(mark: Heatmap | Contour | Surface) -> Iterable[tuple[str, Array]]:
    return [("values", mark.values), ("limits", np.array(mark.scale.limits))]


@_rows.register(Heatmap)
@_rows.register(Contour)
@_rows.register(Surface)
def _(mark: Heatmap | Contour | Surface) -> Iterator[Row]:
    for row, values in zip(mark.row_labels, mark.values.tolist(), strict=True):
        yield from (
            ("", row, column, value)
            for column, value in zip(mark.column_labels, values, strict=True)
        )


@_arrays.register
def _(mark: Tokens) -> Iterable[tuple[str, Array]]:
    labels = [label.encode("utf-8", "replace").decode() for label in mark.labels]
    limits = np.array(mark.scale.limits)
    return [("values", mark.values), ("limits", limits), ("labels", np.array(labels))]


@_rows.register
def _(mark: Tokens) -> Iterable[Row]:
    pairs = zip(mark.labels, mark.values.tolist(), strict=True)
    return [("", label, k, value) for k, (label, value) in enumerate(pairs)]


@_arrays.register(Lines)
@_arrays.register(Scatter)
def _(mark: Lines | Scatter) -> Iterable[tuple[str, Array]]:
    return [
        (f"{series.name}.{axis}", np.asarray(getattr(series, axis)))
        for series in mark.series
        for axis in ("x", "y", "low", "high", "values")
        if getattr(series, axis) is not None
    ]


@_rows.register(Lines)
@_rows.register(Scatter)
def _(mark: Lines | Scatter) -> Iterable[Row]:
    return [row for series in mark.series for row in _points(series)]


def _points(series: Series) -> Iterator[Row]:
    labels = series.labels or [""] * len(series.x)
    for label, x, y in zip(labels, series.x.tolist(), series.y.tolist(), strict=True):
        yield series.name, y, x, label


@_arrays.register
def _(mark: Bars) -> Iterable[tuple[str, Array]]:
    labels = [label.encode("utf-8", "replace").decode() for label in mark.labels]
    return [("values", np.asarray(mark.values)), ("labels", np.array(labels))]


@_rows.register
def _(mark: Bars) -> Iterable[Row]:
    pairs = zip(mark.labels, mark.values.tolist(), strict=True)
    return [("", label, "", value) for label, value in pairs]


@_arrays.register
def _(mark: Intervals) -> Iterable[tuple[str, Array]]:
    names = ("centres", "lows", "highs")
    found = [(name, np.asarray(getattr(mark, name))) for name in names]
    return [*found, ("labels", np.array(mark.labels))]


@_rows.register
def _(mark: Intervals) -> Iterator[Row]:
    for name in ("lows", "centres", "highs"):
        for label, value in zip(mark.labels, getattr(mark, name).tolist(), strict=True):
            yield name, label, "", value


@_arrays.register
def _(mark: Distributions) -> Iterable[tuple[str, Array]]:
    return zip(mark.labels, map(np.asarray, mark.samples), strict=True)


@_rows.register
def _(mark: Distributions) -> Iterator[Row]:
    for label, sample in zip(mark.labels, mark.samples, strict=True):
        yield from ((label, "", k, value) for k, value in enumerate(sample.tolist()))


@_arrays.register
def _(mark: ImageGrid) -> Iterable[tuple[str, Array]]:
    return [(f"image_{k}", image) for k, image in enumerate(mark.images)]


@_rows.register
def _(mark: ImageGrid) -> Iterator[Row]:
    for k, image in enumerate(mark.images):
        planes = image[..., None] if image.ndim == 2 else image
        for c in range(planes.shape[2]):
            for (y, x), value in np.ndenumerate(planes[..., c]):
                yield f"image {k} channel {c}", y, x, int(value)


@_arrays.register
def _(mark: Sentence) -> Iterable[tuple[str, Array]]:
    return []


@_rows.register
def _(mark: Sentence) -> Iterable[Row]:
    return [("", mark.text, "", "")]


def _cell(value: Any) -> Any:
    """Guard words that a spreadsheet would run as a formula."""
    if isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r":
        return "'" + value
    return value
