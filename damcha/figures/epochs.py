"""The metric of one input over epochs: small multiples, landscapes, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from damcha.errors import InputError
from damcha.figures.metric import pool, view_values
from damcha.figures.spec import (
    UNKNOWN,
    Array,
    Contour,
    Figure,
    Heatmap,
    Lines,
    Mark,
    Panel,
    Provenance,
    Scale,
    Sentence,
    Series,
    Surface,
)
from damcha.figures.style import number, symmetric_scale
from damcha.figures.words import sentence_instead

Field = Literal["full", "head", "blocks", "absolute", "from_first", "from_previous"]
FIELDS: dict[Field, str] = {
    "full": "M",
    "head": "R of head {head}",
    "blocks": "block norms of M",
    "absolute": "|M|",
    "from_first": "M minus its first snapshot",
    "from_previous": "M minus its previous snapshot",
}
"""What can be shown over epochs."""
Form = Literal["contour", "heatmap", "surfaces"]
MOST = {"contour": 96, "heatmap": 128, "surface": 128, "surfaces": 64}
"""Cells a side above which a panel is pooled: level lines and landscapes are dear to draw."""


@dataclass(frozen=True, eq=False)
class EpochRow:
    """One run's metrics of the input."""

    name: str
    epochs: tuple[int, ...]
    metrics: tuple[Array, ...]
    """[d, d] each."""
    n_heads: int
    broken: Mapping[int, str]
    """Epochs that cannot be shown, with the reason."""


def field_values(row: EpochRow, field: Field, head: int, smoothing: float) -> dict[int, Array]:
    """The numbers of a field at each epoch of a run, smoothed by a Gaussian of so many cells."""
    if field == "head" and not 0 <= head < row.n_heads:
        raise InputError(f"head: there is no head {head}; this model has 0 to {row.n_heads - 1}")
    found: dict[int, Array] = {}
    for k, (epoch, metric) in enumerate(zip(row.epochs, row.metrics, strict=True)):
        if field == "head":
            values = view_values(metric, row.n_heads, "head_metrics", None)[head]
        elif field == "blocks":
            values = view_values(metric, row.n_heads, "blocks", None)
        elif field == "absolute":
            values = np.abs(metric)
        elif field == "from_first":
            values = metric - row.metrics[0]
        elif field == "from_previous":
            values = metric - row.metrics[max(0, k - 1)]
        else:
            values = metric
        values = np.asarray(values, np.float32)
        if smoothing and np.isfinite(values).all():
            from scipy.ndimage import gaussian_filter

            values = gaussian_filter(values, smoothing, mode="nearest")
        found[epoch] = values
    return found


def epochs_figure(
    rows: Sequence[EpochRow],
    provenance: Provenance = UNKNOWN,
    *,
    field: Field = "full",
    form: Form = "contour",
    head: int = 0,
    smoothing: float = 0.0,
    azimuth: float = -60.0,
    elevation: float = 35.0,
) -> Figure:
    """Draw small multiples: a row a run, a column an epoch, one scale for all (paper, Figure 10).

    Landscapes (``form="surfaces"``) are seen from `azimuth` and `elevation`, in degrees.

    Epochs that a run does not have stay empty, with a sentence.
    """
    values = [field_values(row, field, head, smoothing) for row in rows]
    scale = shared_scale(values, field)
    columns = sorted({epoch for row in rows for epoch in (*row.epochs, *row.broken)})
    what = FIELDS[field].format(head=head)
    panels, pooled = [], 1
    for row, found in zip(rows, values, strict=True):
        for k, epoch in enumerate(columns):
            mark, size = _mark(found.get(epoch), row, epoch, field, scale, form)
            if isinstance(mark, Surface):
                mark = replace(mark, azimuth=azimuth, elevation=elevation)
            pooled = max(pooled, size)
            panels.append(
                Panel(
                    mark,
                    f"epoch {epoch}" if row is rows[0] else "",
                    x_ticks=(),
                    y_ticks=(),
                    row_title=row.name if k == 0 else "",
                )
            )
    return Figure(
        name=f"epochs-{field}".replace("_", "-"),
        panels=tuple(panels),
        n_columns=len(columns),
        title=f"{what[0].upper()}{what[1:]} over epochs" + _smoothed(smoothing),
        caption=_caption(f"{what} over epochs", provenance, scale, smoothing, pooled)
        + (_seen(azimuth, elevation) if form == "surfaces" else ""),
        provenance=provenance,
        arrays={
            f"{row.name}.epoch_{epoch}": array
            for row, found in zip(rows, values, strict=True)
            for epoch, array in found.items()
        },
        column="double",
    )


def frames(
    rows: Sequence[EpochRow],
    provenance: Provenance = UNKNOWN,
    *,
    field: Field = "full",
    head: int = 0,
    smoothing: float = 0.0,
) -> tuple[list[Figure], list[str]]:
    """The same as one figure an epoch, for an animation: the figures and their labels."""
    values = [field_values(row, field, head, smoothing) for row in rows]
    scale = shared_scale(values, field)
    what = FIELDS[field].format(head=head)
    shared = sorted(set.intersection(*(set(found) for found in values)))
    made = []
    for epoch in shared:
        panels = []
        for row, found in zip(rows, values, strict=True):
            mark, _ = _mark(found[epoch], row, epoch, field, scale, "heatmap", always=True)
            panels.append(Panel(mark, row.name, x_ticks=(), y_ticks=()))
        made.append(
            Figure(
                name=f"epoch-{epoch}-{field}".replace("_", "-"),
                panels=tuple(panels),
                n_columns=len(panels),
                title=f"{what[0].upper()}{what[1:]}" + _smoothed(smoothing),
                caption=_caption(f"{what}, epoch {epoch}", provenance, scale, smoothing, 1),
                provenance=provenance,
                column="double",
            )
        )
    return made, [f"epoch {epoch}" for epoch in shared]


def surfaces_figure(
    rows: Sequence[EpochRow],
    epoch: int,
    provenance: Provenance = UNKNOWN,
    *,
    field: Field = "full",
    head: int = 0,
    smoothing: float = 0.0,
    azimuth: float = -60.0,
    elevation: float = 35.0,
) -> Figure:
    """Draw one epoch as landscapes side by side, a run each, at one scale (paper, Figure 11).

    The scale is that of all epochs, so that landscapes of different epochs can be compared.
    """
    values = [field_values(row, field, head, smoothing) for row in rows]
    scale = shared_scale(values, field)
    what = FIELDS[field].format(head=head)
    panels, pooled = [], 1
    for row, found in zip(rows, values, strict=True):
        mark, size = _mark(found.get(epoch), row, epoch, field, scale, "surface")
        if isinstance(mark, Surface):
            mark = replace(mark, azimuth=azimuth, elevation=elevation)
        pooled = max(pooled, size)
        ticks = _head_ticks(mark, row.n_heads) if field not in ("head", "blocks") else None
        panels.append(Panel(mark, row.name, "key", "query", ticks, ticks))
    return Figure(
        name=f"surface-{field}-epoch-{epoch}".replace("_", "-"),
        panels=tuple(panels),
        n_columns=min(2, len(panels)),
        title=f"{what[0].upper()}{what[1:]}, epoch {epoch}" + _smoothed(smoothing),
        caption=_caption(f"{what}, epoch {epoch}", provenance, scale, smoothing, pooled)
        + _seen(azimuth, elevation),
        provenance=provenance,
        arrays={
            row.name: found[epoch]
            for row, found in zip(rows, values, strict=True)
            if epoch in found
        },
        column="double",
    )


def curves_over_epochs(
    curves: Mapping[str, Mapping[str, tuple[Array, Array]]],
    names: Mapping[str, str],
    provenance: Provenance = UNKNOWN,
) -> Figure:
    """Draw numbers over epochs, a panel a number and a line a run; NaN is a gap.

    `curves` maps a number to the runs' (epochs, values); `names` gives the panels' titles.
    """
    panels = []
    for key, lines in curves.items():
        series = tuple(
            Series(name, np.asarray(x, np.float64), np.asarray(y, np.float64))
            for name, (x, y) in lines.items()
            if np.isfinite(np.asarray(y, np.float64)).any()
        )
        mark: Mark = Lines(series, markers=True)
        if not series:
            mark = Sentence(f"{names[key]}: there are no finite numbers.")
        elif all(len(line.x) == 1 for line in series):
            said = ", ".join(f"{line.name} {number(float(line.y[0]))}" for line in series)
            mark = Sentence(f"{names[key]}: one epoch only, {said}.")
        panels.append(Panel(mark, names[key], x_label="epoch"))
    return Figure(
        name="epoch-curves",
        panels=tuple(panels),
        n_columns=min(3, len(panels)),
        title="The metric over epochs",
        caption=f"Numbers of the metric over epochs{_input(provenance)}. Epochs without a snapshot "
        "are not interpolated: points are what was measured, lines join them.",
        provenance=provenance,
        column="double",
    )


def shared_scale(values: Sequence[Mapping[int, Array]], field: Field) -> Scale | None:
    """One scale for all panels; None where every value is zero."""
    arrays = [array for found in values for array in found.values() if np.isfinite(array).all()]
    if not arrays or not any(array.any() for array in arrays):
        return None
    if field in ("blocks", "absolute"):
        label = "Frobenius norm" if field == "blocks" else "absolute value"
        return Scale((0.0, max(float(array.max()) for array in arrays)), "sequential", label)
    return symmetric_scale(*arrays, label="value")


def _mark(
    values: Array | None,
    row: EpochRow,
    epoch: int,
    field: Field,
    scale: Scale | None,
    form: str,
    always: bool = False,
) -> tuple[Mark, int]:
    """The mark of one panel, and how many cells a side became one."""
    if values is None:
        return Sentence(row.broken.get(epoch, f"No snapshot of epoch {epoch}.")), 1
    sentence = sentence_instead(values, f"Epoch {epoch}")
    if (sentence and not always) or scale is None:
        return Sentence(sentence or f"Epoch {epoch}: every value is 0."), 1
    heads = 1 if field in ("head", "blocks") else row.n_heads
    cells, k = pool(values, len(values) // heads, MOST[form])
    n = len(cells)
    labels = tuple(f"{'block row' if field == 'blocks' else 'row'} {i}" for i in range(n))
    across = tuple(f"{'block column' if field == 'blocks' else 'column'} {i}" for i in range(n))
    if form in ("surface", "surfaces"):
        return Surface(cells, scale, labels, across), k
    lines = tuple(a * (n / heads) - 0.5 for a in range(1, heads))
    if form == "contour":
        return Contour(cells, scale, labels, across, lines, lines), k
    return Heatmap(cells, scale, labels, across, lines, lines), k


def _head_ticks(mark: Mark, heads: int) -> tuple[tuple[float, str], ...] | None:
    if not isinstance(mark, Surface):
        return None
    part = len(mark.values) / heads
    return tuple((a * part + (part - 1) / 2, str(a)) for a in range(heads))


def _seen(azimuth: float, elevation: float) -> str:
    return f" Seen from azimuth {azimuth:g}°, elevation {elevation:g}°."


def _smoothed(smoothing: float) -> str:
    return f", smoothed by {smoothing:g} cells" if smoothing else ""


def _input(provenance: Provenance) -> str:
    return f", input {provenance.input_name}" if provenance.input_name else ""


def _caption(
    what: str, provenance: Provenance, scale: Scale | None, smoothing: float, pooled: int
) -> str:
    said = [f"{what[0].upper()}{what[1:]}{_input(provenance)}."]
    if scale is not None:
        low, high = map(number, scale.limits)
        said.append(f"One scale for all panels, {low} to {high}.")
    if pooled > 1:
        said.append(f"Each cell shows, of {pooled}×{pooled}, the value of largest magnitude.")
    if smoothing:
        said.append(f"Smoothed by a Gaussian of standard deviation {smoothing:g} cells.")
    return " ".join(said)
