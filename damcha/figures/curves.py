"""Training curves of a run, or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from damcha.figures.spec import UNKNOWN, Figure, Lines, Panel, Provenance, Sentence, Series
from damcha.figures.style import number
from damcha.figures.words import origin


def curves_figure(
    metrics: Sequence[Mapping[str, Any]],
    provenance: Provenance = UNKNOWN,
    *,
    fields: Mapping[str, str] | None = None,
    title: str = "Training",
) -> Figure:
    """Draw fields of a run's ``metrics.jsonl`` over its epochs.

    ``fields`` maps a field to its name in the legend; by default every field that ends in
    ``loss``. Epochs whose value is missing or not finite leave a gap, and the caption says so.
    """
    found = dict.fromkeys(key for row in metrics for key in row if key.endswith("loss"))
    names = fields or {key: key.replace("_", " ") for key in found}
    epochs = np.array([row.get("epoch", k) for k, row in enumerate(metrics)], np.float64)
    series, gaps = [], 0
    for key, name in names.items():
        y = np.array([_finite(row.get(key)) for row in metrics], np.float64)
        gaps += int(np.isnan(y).sum())
        if not np.isnan(y).all():
            series.append(Series(name, epochs, y))
    caption = f"{title}{origin(provenance)}."
    if not series:
        mark: Lines | Sentence = Sentence(f"{title}: no finite values were recorded.")
    elif len(metrics) == 1:
        said = ", ".join(f"{line.name} {number(float(line.y[0]))}" for line in series)
        mark = Sentence(f"{title}: one epoch only, {said}.")
    else:
        mark = Lines(tuple(series), markers=len(metrics) <= 12)
        if gaps:
            caption += f" {gaps} values are missing or not finite and leave gaps."
    return Figure(
        name="curves",
        panels=(Panel(mark, "", "epoch", "loss" if fields is None else "value"),),
        title=title,
        caption=caption,
        provenance=provenance,
        arrays={"epoch": epochs, **{line.name: line.y for line in series}},
    )


def _finite(value: Any) -> float:
    """Return a number, or NaN for what is none."""
    number_ = float(value) if isinstance(value, int | float) else np.nan
    return number_ if np.isfinite(number_) else np.nan


def runs_figure(
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    provenance: Provenance = UNKNOWN,
    *,
    log: bool = False,
    unit: str = "",
) -> Figure:
    """Draw train and validation loss of several runs, a line a run, one panel each.

    `records` maps a run's name to the lines of its ``metrics.jsonl``; missing values are gaps.
    """
    panels = []
    for field, title in (("train_loss", "train loss"), ("valid_loss", "validation loss")):
        series = []
        for name, rows in records.items():
            y = np.array([_finite(row.get(field)) for row in rows], np.float64)
            x = np.array([row.get("epoch", k) for k, row in enumerate(rows)], np.float64)
            if len(y) and not np.isnan(y).all():
                series.append(Series(name, x, y))
        positive = all(np.nanmin(line.y) > 0 for line in series)
        mark: Lines | Sentence = Lines(tuple(series), log_y=log and positive)
        if not series:
            mark = Sentence(f"{title}: no finite values were recorded.")
        panels.append(Panel(mark, title, "epoch", "loss"))
    return Figure(
        name="curves",
        panels=tuple(panels),
        n_columns=2,
        title="Training",
        caption=f"Losses over epochs of {', '.join(records)}" + (f"; {unit}." if unit else "."),
        provenance=provenance,
        column="double",
    )
