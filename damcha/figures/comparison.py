"""Two metrics side by side, their difference, spectra and subspaces."""

from __future__ import annotations

import numpy as np

from damcha.figures.metric import MetricView, pool, view_values
from damcha.figures.spec import (
    UNKNOWN,
    Array,
    Figure,
    Heatmap,
    Lines,
    Panel,
    Provenance,
    Scale,
    Sentence,
    Series,
)
from damcha.figures.style import number, symmetric_scale
from damcha.figures.words import sentence_instead


def side_by_side_figure(
    a: Array,
    b: Array,
    n_heads: int,
    names: tuple[str, str],
    provenance: Provenance = UNKNOWN,
    *,
    view: MetricView = "full",
) -> Figure:
    """Draw A and B at one scale, and A - B at its own; [d, d] each."""
    values = [view_values(m, n_heads, view, None).astype(np.float32) for m in (a, b)]
    if view == "head_metrics":  # as one matrix, head below head
        values = [v.reshape(-1, v.shape[-1]) for v in values]
    gap = values[0] - values[1]
    shared: Scale | None = None
    if all(np.isfinite(v).all() for v in values) and any(v.any() for v in values):
        if view == "blocks":
            shared = Scale((0.0, float(max(v.max() for v in values))), "sequential", "norm")
        else:
            shared = symmetric_scale(*values, label="value")
    own = symmetric_scale(gap, label="A − B") if np.isfinite(gap).all() and gap.any() else None
    panels = [
        _panel(values[0], shared, view, n_heads, f"A: {names[0]}"),
        _panel(values[1], shared, view, n_heads, f"B: {names[1]}"),
        _panel(gap, own, view, n_heads, "A − B"),
    ]
    relative = float(np.linalg.norm(gap) / (np.linalg.norm(values[0]) or 1))
    return Figure(
        name=f"compare-{view}".replace("_", "-"),
        panels=tuple(panels),
        n_columns=3,
        title="Two metrics and their difference",
        caption=f"A: {names[0]}. B: {names[1]}. A and B at one scale; the difference at its own, "
        f"‖A − B‖/‖A‖ = {number(relative)}.",
        provenance=provenance,
        arrays={"a": a, "b": b},
        column="double",
    )


def spectra_figure(
    spectra: dict[str, tuple[Array, Array]], provenance: Provenance = UNKNOWN
) -> Figure:
    """Draw singular values and eigenvalue magnitudes of metrics, largest first, on a log axis.

    `spectra` maps a name to (singular values, eigenvalues). Indices run over 0 … 1 where the widths
    differ, so that metrics of different models can be compared.
    """
    widths = {len(singular) for singular, _ in spectra.values()}
    same = len(widths) == 1
    panels = []
    for k, title in enumerate(("singular values", "eigenvalue magnitudes")):
        series = []
        for name, pair in spectra.items():
            y = np.sort(np.abs(np.asarray(pair[k])))[::-1].astype(np.float64)
            x = np.arange(len(y)) if same else np.arange(len(y)) / len(y)
            series.append(Series(name, x, np.where(y > 0, y, np.nan)))
        drawn = [line for line in series if np.isfinite(line.y).any()]
        mark = Lines(tuple(drawn), log_y=True) if drawn else Sentence(f"{title}: all are 0.")
        panels.append(Panel(mark, title, "index" if same else "index / width"))
    return Figure(
        name="compare-spectra",
        panels=tuple(panels),
        n_columns=2,
        title="Spectra",
        caption="Singular values and eigenvalue magnitudes, largest first; zeros are left out.",
        provenance=provenance,
        column="double",
    )


def angles_figure(
    overlap: Array, rank: int, names: tuple[str, str], provenance: Provenance = UNKNOWN
) -> Figure:
    """Draw the overlap of heads' leading subspaces, [h, h] in 0 … 1."""
    h = len(overlap)
    ticks = tuple((float(a), str(a)) for a in range(h))
    rows = tuple(f"A's head {a}" for a in range(h))
    columns = tuple(f"B's head {b}" for b in range(h))
    scale = Scale((0.0, 1.0), "sequential", "mean squared cosine")
    mark = Heatmap(overlap.astype(np.float32), scale, rows, columns, write_values=h <= 8)
    return Figure(
        name="compare-angles",
        panels=(Panel(mark, "", f"head of B: {names[1]}", f"head of A: {names[0]}", ticks, ticks),),
        title=f"Overlap of the heads' {rank} leading directions",
        caption=f"Mean squared cosine of the principal angles between the {rank} leading left "
        f"singular vectors of R_i of A ({names[0]}) and R_j of B ({names[1]}).",
        provenance=provenance,
        arrays={"overlap": overlap},
    )


def _panel(values: Array, scale: Scale | None, view: str, n_heads: int, title: str) -> Panel:
    sentence = sentence_instead(values, title)
    if scale is None or sentence:
        return Panel(Sentence(sentence or f"{title}: every value is 0."), title)
    if view == "blocks":
        rows = tuple(f"query head {a}" for a in range(n_heads))
        columns = tuple(f"key head {b}" for b in range(n_heads))
        return Panel(Heatmap(values, scale, rows, columns), title, x_ticks=(), y_ticks=())
    if view == "head_metrics":
        e = values.shape[1]
        rows = tuple(f"head {a}, i {i}" for a in range(n_heads) for i in range(e))
        lines = tuple(a * e - 0.5 for a in range(1, n_heads))
        mark = Heatmap(
            values, scale, rows, tuple(f"j {j}" for j in range(e)), lines, cell_aspect=1 / n_heads
        )
        return Panel(mark, title, x_ticks=(), y_ticks=())
    e = len(values) // n_heads
    cells, k = pool(values, e, 128)
    n = -(-e // k)
    lines = tuple(a * n - 0.5 for a in range(1, n_heads))
    names = [f"head {a}, {i * k}" for a in range(n_heads) for i in range(n)]
    mark = Heatmap(
        cells,
        scale,
        tuple(f"query {name}" for name in names),
        tuple(f"key {name}" for name in names),
        lines,
        lines,
    )
    return Panel(mark, title, x_ticks=(), y_ticks=())
