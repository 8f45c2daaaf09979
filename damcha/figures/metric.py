"""The cross-head metric of one input: d×d, its parts, its blocks, its head metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from damcha.errors import InputError
from damcha.figures.spec import Array, Figure, Heatmap, Panel, Provenance, Scale, Sentence, Ticks
from damcha.figures.style import number, symmetric_scale
from damcha.figures.words import index_ticks, origin, sentence_instead

MetricView = Literal[
    "full",
    "head_metrics",
    "symmetric",
    "antisymmetric",
    "diagonal",
    "off_diagonal",
    "difference",
    "blocks",
]

TITLES: dict[MetricView, str] = {
    "full": "Cross-head metric M",
    "head_metrics": "Head metrics R, the sums over key heads",
    "symmetric": "Symmetric part (M + Mᵀ)/2",
    "antisymmetric": "Antisymmetric part (M − Mᵀ)/2",
    "diagonal": "Diagonal blocks of M",
    "off_diagonal": "Off-diagonal blocks of M",
    "difference": "M minus the reference metric",
    "blocks": "Block norms of M",
}
"""What each view is called, in the order in which interfaces offer them."""

MAX_PANELS = 64
"""Head metrics that are drawn together; above that one is chosen with ``block=(a, a)``."""


def metric_figure(
    metric: Array,
    n_heads: int,
    view: MetricView = "full",
    provenance: Provenance = Provenance(),
    *,
    reference: Array | None = None,
    limits: tuple[float, float] | None = None,
    block: tuple[int, int] | None = None,
    max_cells: int = 256,
) -> Figure:
    """Draw one view of a cross-head metric.

    Parameters
    ----------
    metric, reference
        [d, d]. The reference is what view ``difference`` subtracts, e.g. the data-set mean.
    limits
        Colour limits (-v, v), or (0, v) for ``blocks``; by default v is the largest absolute
        value shown.
    block
        (query head, key head): that block alone, every cell. ``head_metrics`` takes (a, a).
    max_cells
        Cells a side of an overview. A larger metric is pooled, within its blocks, to the value
        that is largest in absolute terms, sign kept; title and caption say so.

    Raises
    ------
    InputError
        If the arguments do not fit each other, in one sentence.
    """
    _check(metric, n_heads, view, reference, block, max_cells)
    h, e = n_heads, len(metric) // n_heads
    # Complaints of NumPy about NaN, infinity or overflow would only repeat the sentence below.
    with np.errstate(invalid="ignore", over="ignore"):
        values = view_values(metric, h, view, reference).astype(np.float32)
    title, heads = TITLES[view], {}
    if block is not None:
        a, b = block
        if view == "head_metrics":
            values, title = values[a], f"Head metric of head {a}"
        else:
            values, title = values[a * e : (a + 1) * e, b * e : (b + 1) * e], f"{title}, block ({a}, {b})"
    arrays: Mapping[str, Array] = {
        "metric": metric,
        "view": values,
        **({} if reference is None else {"reference": reference}),
    }
    caption = f"{title}{origin(provenance)}."
    sentence = sentence_instead(values, title)
    if sentence:
        panels, n_columns = (Panel(Sentence(sentence), title),), 1
    else:
        scale = _scale(values, view, limits)
        panels, n_columns, k = _panels(values, h, e, view, block, scale, max_cells)
        if k > 1:
            pooled = f"{k}×{k} cells shown as one, the largest in absolute value"
            title = f"{title} ({k}×{k} pooled)"
            caption += f" Overview: {pooled}."
        caption += f" {_legend(view, block)} Colours from {number(scale.limits[0])} to "
        caption += f"{number(scale.limits[1])}."
        if len(panels) == 1:
            panels = (Panel(panels[0].mark, title, *_words(panels[0])),)
    return Figure(
        name=f"metric-{view}" + ("" if block is None else f"-{block[0]}-{block[1]}"),
        panels=panels,
        n_columns=n_columns,
        title=title if len(panels) > 1 else "",
        caption=caption,
        provenance=provenance,
        arrays=arrays,
    )


def view_values(metric: Array, n_heads: int, view: MetricView, reference: Array | None) -> Array:
    """Return the numbers of a view: [d, d], or [h, e, e] head metrics, or [h, h] block norms."""
    d, h = len(metric), n_heads
    e = d // h
    parts = metric.reshape(h, e, h, e)
    if view == "head_metrics":
        return parts.sum(axis=2)
    if view == "blocks":
        return np.sqrt(np.square(parts.astype(np.float64)).sum(axis=(1, 3)))
    if view == "symmetric":
        return (metric + metric.T) / 2
    if view == "antisymmetric":
        return (metric - metric.T) / 2
    if view == "difference" and reference is not None:
        return metric - reference
    same = np.eye(h, dtype=bool)[:, None, :, None]
    if view == "diagonal":
        return np.where(same, parts, 0).reshape(d, d)
    if view == "off_diagonal":
        return np.where(same, 0, parts).reshape(d, d)
    return metric


def pool(values: Array, part: int, max_cells: int) -> tuple[Array, int]:
    """Shrink a square matrix to at most ``max_cells`` a side, within parts of ``part`` cells.

    Each group of k×k cells becomes its value of largest absolute value, sign kept, with the
    smallest k that fits; the last group of a part may be smaller. Returns (pooled, k).
    """
    n = len(values)
    k = 1
    while (n // part) * -(-part // k) > max_cells and k < part:
        k += 1
    if k == 1:
        return values, 1
    starts = np.arange(0, n, part)[:, None] + np.arange(0, part, k)
    high, low = (
        ufunc.reduceat(ufunc.reduceat(values, starts.ravel(), axis=0), starts.ravel(), axis=1)
        for ufunc in (np.maximum, np.minimum)
    )
    return np.where(high >= -low, high, low), k


def _panels(
    values: Array,
    h: int,
    e: int,
    view: MetricView,
    block: tuple[int, int] | None,
    scale: Scale,
    max_cells: int,
) -> tuple[tuple[Panel, ...], int, int]:
    """Return the panels, their number of columns, and how many cells a side became one."""
    if view == "head_metrics" and block is None:
        n_columns = 1 if h == 1 else int(np.ceil(np.sqrt(h)))
        # Few heads look best in one or two rows: 2, 3, 4 → one row of at most 4, 8 → 2 × 4.
        n_columns = h if h <= 4 else 4 if h <= 8 else n_columns
        panels = []
        for a in range(h):
            cells, k = pool(values[a], e, max(1, max_cells // n_columns))
            rows, columns = _index_labels(e, k, f"head {a}, i "), _index_labels(e, k, "j ")
            mark = Heatmap(cells, scale, rows, columns)
            panels.append(Panel(mark, f"head {a}" if h > 1 else "", "j", "i", (), ()))
        return tuple(panels), n_columns, k
    if block is not None:
        a, b = block
        row, column = f"query head {a}, i ", f"key head {b}, j "
        if view == "head_metrics":
            row, column = f"head {a}, i ", "j "
        mark = Heatmap(values, scale, _index_labels(e, 1, row), _index_labels(e, 1, column))
        ticks = index_ticks(e)
        return (Panel(mark, "", column.strip(" "), row.strip(" "), ticks, ticks),), 1, 1
    if view == "blocks":
        part, inner = 1, 1
    else:
        part, inner = (e, e) if h <= max_cells else (len(values), e)
    cells, k = pool(values, part if view != "blocks" or h <= max_cells else h, max_cells)
    n = len(cells)
    rows, columns = _block_labels(n, part, inner, k, "query"), _block_labels(n, part, inner, k, "key")
    per_head = n / h
    ticks = tuple(((a + 0.5) * per_head - 0.5, str(a)) for a in range(h))
    ruled = view != "blocks" and h <= MAX_PANELS and per_head > 1
    lines = tuple(a * per_head - 0.5 for a in range(1, h)) if ruled else ()
    mark = Heatmap(
        cells,
        scale,
        rows,
        columns,
        lines,
        lines,
        clickable=view == "blocks" and k == 1,
        write_values=view == "blocks" and h <= 8,
    )
    return (Panel(mark, "", "key head b", "query head a", ticks, ticks),), 1, k
