"""Contributions of the metric's entries, blocks, heads and layers to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from damcha.errors import InputError
from damcha.figures.metric import pool
from damcha.figures.spec import UNKNOWN, Array, Figure, Heatmap, Panel, Provenance, Scale, Sentence
from damcha.figures.style import number, symmetric_scale
from damcha.figures.words import origin, sentence_instead

View = Literal["blocks", "layers", "heads", "metric"]
VIEWS: dict[View, str] = {
    "blocks": "Blocks",
    "layers": "Blocks by layer",
    "heads": "Heads by layer",
    "metric": "Every entry",
}


def contributions_figure(
    layers: Array,
    n_heads: int,
    what: str,
    provenance: Provenance = UNKNOWN,
    *,
    view: View = "blocks",
    layer: int | None = None,
    absolute: bool = False,
    notes: Sequence[str] = (),
) -> Figure:
    """Draw contributions [layers, d, d] to `what`, e.g. "gradient × value, loss".

    Parameters
    ----------
    view
        ``blocks`` and ``metric`` show one `layer`, or the sum over all (None); ``layers`` one panel
        a layer; ``heads`` sums block rows, layers × heads.
    absolute
        Sum absolute values instead of signed ones: how much, not in which direction.
    """
    n_layers = len(layers)
    if layer is not None and not 0 <= layer < n_layers:
        raise InputError(f"layer: {layer} is not one of 0 to {n_layers - 1}")
    values = np.abs(layers) if absolute else layers
    chosen = values.sum(0) if layer is None else values[layer]
    of = "all layers" if layer is None else f"layer {layer}"
    panels: tuple[Panel, ...]
    if view == "metric":
        panels = (_entries(chosen, n_heads, absolute, of),)
    elif view == "blocks":
        panels = (_blocks(sums(chosen, n_heads), None, absolute, of),)
    elif view == "heads":
        panels = (_heads(sums(values, n_heads).sum(-1), absolute),)
    else:
        cut = sums(values, n_heads)
        scale = _scale(cut, absolute)
        panels = tuple(_blocks(part, scale, absolute, f"layer {k}") for k, part in enumerate(cut))
    title = f"Contributions to {what}" + (", absolute" if absolute else "")
    return Figure(
        name=f"contributions-{view}",
        panels=panels,
        n_columns=min(4, len(panels)),
        title=title,
        caption=" ".join([f"{title}{origin(provenance)}.", *notes]),
        provenance=provenance,
        arrays={"contributions": layers},
    )


def comparison_figure(
    rows: Sequence[tuple[str, Array, int]],
    what: str,
    provenance: Provenance = UNKNOWN,
    *,
    absolute: bool = False,
    notes: Sequence[str] = (),
) -> Figure:
    """Draw block contributions by layer, a row a run, at one scale (paper, Figure 9).

    `rows` holds (name, contributions [layers, d, d], heads).
    """
    cut = [sums(np.abs(layers) if absolute else layers, heads) for _, layers, heads in rows]
    scale = _scale(np.concatenate([part.ravel() for part in cut]), absolute)
    n_columns = max(len(part) for part in cut)
    panels = []
    for (name, _, _), part in zip(rows, cut, strict=True):
        for k in range(n_columns):
            panel = (
                _blocks(part[k], scale, absolute, f"layer {k}")
                if k < len(part)
                else Panel(Sentence("no such layer"))
            )
            panels.append(
                Panel(
                    panel.mark,
                    panel.title,
                    x_ticks=(),
                    y_ticks=(),
                    row_title=name if k == 0 else "",
                )
            )
    title = f"Contributions to {what}" + (", absolute" if absolute else "")
    return Figure(
        name="contributions-compare",
        panels=tuple(panels),
        n_columns=n_columns,
        title=title,
        caption=" ".join([f"{title}{origin(provenance)}. One scale for all panels.", *notes]),
        provenance=provenance,
        arrays={f"{name}.contributions": layers for name, layers, _ in rows},
        column="double",
    )


def sums(values: Array, n_heads: int) -> Array:
    """Sum within blocks: [..., d, d] → [..., h, h]."""
    e = values.shape[-1] // n_heads
    cut = values.reshape(*values.shape[:-2], n_heads, e, n_heads, e)
    return np.asarray(cut.sum((-3, -1), dtype=np.float64))


def _scale(values: Array, absolute: bool) -> Scale | None:
    if not np.isfinite(values).all() or not values.any():
        return None
    if absolute:
        return Scale((0.0, float(values.max())), "sequential", "contribution")
    return symmetric_scale(values, label="contribution")


def _blocks(values: Array, scale: Scale | None, absolute: bool, title: str) -> Panel:
    h = len(values)
    ticks = tuple((float(a), str(a)) for a in range(h))
    own = scale or _scale(values, absolute)
    sentence = sentence_instead(values, "Contributions")
    if own is None or (sentence and h > 1 and scale is None):
        return Panel(Sentence(sentence or "Contributions: all are 0."), title)
    rows = tuple(f"query head {a}" for a in range(h))
    columns = tuple(f"key head {b}" for b in range(h))
    mark = Heatmap(values.astype(np.float32), own, rows, columns)
    return Panel(mark, title, "key head b", "query head a", ticks, ticks)


def _heads(values: Array, absolute: bool) -> Panel:
    n_layers, h = values.shape
    scale = _scale(values, absolute)
    if scale is None:
        return Panel(Sentence("Contributions: all are 0."))
    rows = tuple(f"layer {k}" for k in range(n_layers))
    mark = Heatmap(
        values.astype(np.float32),
        scale,
        rows,
        tuple(f"query head {a}" for a in range(h)),
        write_values=h <= 8,
    )
    ticks = tuple((float(a), str(a)) for a in range(h))
    return Panel(
        mark, "", "query head", "layer", ticks, tuple((float(k), str(k)) for k in range(n_layers))
    )


def _entries(values: Array, n_heads: int, absolute: bool, title: str) -> Panel:
    scale = _scale(values, absolute)
    sentence = sentence_instead(values, "Contributions")
    if scale is None or sentence:
        return Panel(Sentence(sentence or "Contributions: all are 0."), title)
    e = len(values) // n_heads
    cells, k = pool(values.astype(np.float32), e, 256)
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
    middles = tuple((a * n + (n - 1) / 2, str(a)) for a in range(n_heads))
    return Panel(mark, title, "key head b", "query head a", middles, middles)


def error_note(value: float, baseline: float | None, error: float | None) -> str:
    """Say how complete an attribution is."""
    said = f"F = {number(value)}."
    if baseline is None or error is None:
        return said
    gap = abs(value - baseline)
    share = f" ({abs(error) / gap:.2%} of the change)" if gap else ""
    return (
        f"{said} At the baseline F = {number(baseline)}; completeness error {number(error)}{share}."
    )
