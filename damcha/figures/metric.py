"""The cross-head metric of one input: d×d, its parts, its blocks, its head metrics."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from damcha.analysis.geometry import head_metrics
from damcha.errors import InputError
from damcha.figures.spec import UNKNOWN, Array, Figure, Heatmap, Panel, Provenance, Scale, Sentence
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
    provenance: Provenance = UNKNOWN,
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
    # NumPy's complaints about NaN, infinity or overflow would only repeat the sentence below.
    with np.errstate(invalid="ignore", over="ignore"):
        values = view_values(metric, n_heads, view, reference).astype(np.float32)
    title = TITLES[view]
    if block is not None:
        a, b = block
        e = len(metric) // n_heads
        if view == "head_metrics":
            values, title = values[a], f"Head metric R of head {a}"
        else:
            values = values[a * e : (a + 1) * e, b * e : (b + 1) * e]
            title = f"{title}, block ({a}, {b})"
    n_columns, k, notes = 1, 1, []
    sentence = sentence_instead(values, title)
    if sentence:
        panels: tuple[Panel, ...] = (Panel(Sentence(sentence)),)
    else:
        scale = _scale(values, view, limits)
        if view == "blocks":
            panels = (_norms(values, scale),)
        elif block is not None:
            panels = (_one_block(values, block, view, scale),)
        elif view == "head_metrics":
            panels, n_columns, k = _heads(values, scale, max_cells)
        else:
            panel, k = _whole(values, n_heads, scale, max_cells)
            panels = (panel,)
        if k > 1:
            title = f"{title}, {k}×{k} cells pooled"
            notes.append(
                f"Overview: each cell shows, of {k}×{k}, the value that is largest in absolute "
                "terms."
            )
        low, high = map(number, scale.limits)
        notes.append(
            f"Colours run from {low} to {high}"
            + (", zero is neutral." if view != "blocks" else ".")
        )
    arrays = {"metric": metric, "view": values}
    if reference is not None:
        arrays["reference"] = reference
    return Figure(
        name=f"metric-{view}".replace("_", "-") + ("" if block is None else f"-{a}-{b}"),
        panels=panels,
        n_columns=n_columns,
        title=title,
        caption=" ".join([f"{title}{origin(provenance)}.", *notes]),
        provenance=provenance,
        arrays=arrays,
    )


def view_values(metric: Array, n_heads: int, view: MetricView, reference: Array | None) -> Array:
    """Return the numbers of a view: [d, d], or [h, e, e] head metrics, or [h, h] block norms."""
    d, h = len(metric), n_heads
    e = d // h
    parts = metric.reshape(h, e, h, e)
    if view == "head_metrics":
        return head_metrics(metric, h)
    if view == "blocks":
        return np.asarray(np.sqrt(np.square(parts.astype(np.float64)).sum(axis=(1, 3))))
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
    """Shrink a square matrix to about ``max_cells`` a side, within blocks of ``part`` cells.

    Each group of k×k cells becomes its value of largest absolute value, sign kept, with the
    smallest k that fits, at most one block; the last group of a block may be smaller.

    Shapes: [n, n] → [m, m], m = n/part · ⌈part/k⌉. Returns (pooled, k).
    """
    n_parts = len(values) // part
    k = 1
    while n_parts * -(-part // k) > max_cells and k < part:
        k += 1
    if k == 1:
        return values, 1
    starts = np.add.outer(np.arange(n_parts) * part, np.arange(0, part, k)).ravel()
    high, low = (
        extreme.reduceat(extreme.reduceat(values, starts, axis=0), starts, axis=1)
        for extreme in (np.maximum, np.minimum)
    )
    return np.where(high >= -low, high, low), k


def _whole(values: Array, h: int, scale: Scale, max_cells: int) -> tuple[Panel, int]:
    """All blocks, ruled at the heads; also how many cells a side became one."""
    e = len(values) // h
    cells, k = pool(values, e, max_cells)
    n = -(-e // k)
    middles = tuple((a * n + (n - 1) / 2, str(a)) for a in range(h))
    lines = tuple(a * n - 0.5 for a in range(1, h)) if h <= MAX_PANELS and n > 1 else ()
    rows = tuple(f"query head {a}, {i}" for a in range(h) for i in _spans("i", e, k))
    columns = tuple(f"key head {b}, {j}" for b in range(h) for j in _spans("j", e, k))
    mark = Heatmap(cells, scale, rows, columns, lines, lines)
    return Panel(mark, "", "key head b", "query head a", middles, middles), k


def _norms(values: Array, scale: Scale) -> Panel:
    h = len(values)
    ticks = tuple((float(a), str(a)) for a in range(h))
    rows = tuple(f"query head {a}" for a in range(h))
    columns = tuple(f"key head {b}" for b in range(h))
    mark = Heatmap(values, scale, rows, columns, clickable=True, write_values=h <= 8)
    return Panel(mark, "", "key head b", "query head a", ticks, ticks)


def _one_block(values: Array, block: tuple[int, int], view: MetricView, scale: Scale) -> Panel:
    e = len(values)
    row, column = f"query head {block[0]}, ", f"key head {block[1]}, "
    if view == "head_metrics":
        row, column = f"head {block[0]}, ", ""
    rows = tuple(row + i for i in _spans("i", e, 1))
    columns = tuple(column + j for j in _spans("j", e, 1))
    ticks = index_ticks(e)
    return Panel(Heatmap(values, scale, rows, columns), "", f"{column}j", f"{row}i", ticks, ticks)


def _heads(values: Array, scale: Scale, max_cells: int) -> tuple[tuple[Panel, ...], int, int]:
    """One panel a head: the panels, how many in a row, cells a side that became one."""
    h, e = values.shape[:2]
    # One row up to 4 heads, two rows up to 8, then nearly square.
    n_columns = min(h, 4) if h <= 8 else int(np.ceil(np.sqrt(h)))
    panels = []
    for a in range(h):
        cells, k = pool(values[a], e, max(1, max_cells // n_columns))
        rows = tuple(f"head {a}, {i}" for i in _spans("i", e, k))
        mark = Heatmap(cells, scale, rows, _spans("j", e, k))
        panels.append(Panel(mark, f"head {a}", x_ticks=(), y_ticks=()))
    return tuple(panels), n_columns, k


def _spans(name: str, e: int, k: int) -> tuple[str, ...]:
    """Name each group of k indices below e: "i 3", or "i 4–7"."""
    groups = ((start, min(start + k, e) - 1) for start in range(0, e, k))
    return tuple(f"{name} {i}" if i == last else f"{name} {i}–{last}" for i, last in groups)


def _scale(values: Array, view: MetricView, limits: tuple[float, float] | None) -> Scale:
    if view == "blocks":
        return Scale(limits or (0.0, float(values.max())), "sequential", "Frobenius norm")
    if limits is not None:
        return Scale(limits, "diverging", "value")
    return symmetric_scale(values, label="value")


def _check(
    metric: Array,
    n_heads: int,
    view: str,
    reference: Array | None,
    block: tuple[int, int] | None,
    max_cells: int,
) -> None:
    if view not in get_args(MetricView):
        names = ", ".join(get_args(MetricView))
        raise InputError(f"view: '{view}' is not a view of the metric; choose one of {names}")
    if metric.ndim != 2 or metric.shape[0] != metric.shape[1] or metric.size == 0:
        raise InputError(f"metric: a figure needs one square matrix [d, d], not {metric.shape}")
    if n_heads < 1 or len(metric) % n_heads:
        raise InputError(f"n_heads: a metric of width {len(metric)} has no {n_heads} equal heads")
    if view == "difference" and reference is None:
        raise InputError("reference: view 'difference' needs the metric to subtract; give one")
    if reference is not None and reference.shape != metric.shape:
        raise InputError(
            f"reference: its shape {reference.shape} is not the metric's {metric.shape}; "
            "compare metrics of one width"
        )
    if max_cells < 1:
        raise InputError(f"max_cells: {max_cells} is not a number of cells; use 1 or more")
    if block is None:
        if view == "head_metrics" and n_heads > MAX_PANELS:
            raise InputError(
                f"head_metrics: {n_heads} heads are more than the {MAX_PANELS} that fit one "
                "figure; choose one with block=(a, a)"
            )
        return
    if view == "blocks":
        raise InputError("block: view 'blocks' shows every block; choose another view to open one")
    if not all(0 <= head < n_heads for head in block):
        raise InputError(f"block: {block} is outside 0 to {n_heads - 1}")
    if view == "head_metrics" and block[0] != block[1]:
        raise InputError(f"block: a head metric belongs to one head; use ({block[0]}, {block[0]})")
