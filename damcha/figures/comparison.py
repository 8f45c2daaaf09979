"""Two metrics side by side, their difference, spectra and subspaces."""

from __future__ import annotations

from collections.abc import Mapping

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
    Scatter,
    Sentence,
    Series,
)
from damcha.figures.style import number, symmetric_scale
from damcha.figures.words import sentence_instead

VIEWS: dict[MetricView, str] = {
    "full": "M",
    "head_metrics": "R, head below head",
    "symmetric": "symmetric part",
    "antisymmetric": "antisymmetric part",
    "diagonal": "diagonal blocks",
    "off_diagonal": "off-diagonal blocks",
    "blocks": "block norms",
}
"""What can be shown of both sides."""
MEASURES: dict[str, str] = {
    "overlap": "mean squared cosine",
    "smallest": "smallest angle, degrees",
    "largest": "largest angle, degrees",
}
MAX_CELLS = 128
"""Cells a side of each of the three matrices; a larger one is pooled."""


def side_by_side_figure(
    a: Array,
    b: Array,
    n_heads: int,
    names: tuple[str, str],
    provenance: Provenance = UNKNOWN,
    *,
    view: MetricView = "full",
    note: str = "",
) -> Figure:
    """Draw A and B ([d, d] each) at one scale, and A − B at its own; a note ends the caption.

    Of a view that is not linear (block norms), the difference is that of what is shown.
    """
    values = [view_values(m, n_heads, view, None).astype(np.float32) for m in (a, b)]
    if view == "head_metrics":
        values = [v.reshape(-1, v.shape[-1]) for v in values]
    gap = values[0] - values[1]
    shared = own = None
    if any(v.any() for v in values):
        if view == "blocks":
            shared = Scale((0.0, float(max(v.max() for v in values))), "sequential", "norm")
        else:
            shared = symmetric_scale(*values, label="value")
    if gap.any():
        own = symmetric_scale(gap, label="A − B")
    pooled = pool(a, len(a) // n_heads, MAX_CELLS)[1]
    words = [
        f"{VIEWS[view][0].upper()}{VIEWS[view][1:]} of A ({names[0]}) and B ({names[1]}) at one "
        "scale; the difference at its own.",
        "" if pooled == 1 or view in ("blocks", "head_metrics") else
        f"Each cell shows, of {pooled}×{pooled}, the value that is largest in absolute terms.",
        note,
    ]  # fmt: skip
    return Figure(
        name=f"compare-{view}".replace("_", "-"),
        panels=(
            _panel(values[0], shared, view, n_heads, f"A: {names[0]}"),
            _panel(values[1], shared, view, n_heads, f"B: {names[1]}"),
            _panel(gap, own, view, n_heads, "A − B"),
        ),
        n_columns=3,
        title="Two metrics and their difference",
        caption=" ".join(filter(None, words)),
        provenance=provenance,
        arrays={"a": a, "b": b, "difference": gap},
        column="double",
    )


def spectra_figure(
    spectra: Mapping[str, tuple[Array, Array]],
    provenance: Provenance = UNKNOWN,
    *,
    note: str = "",
) -> Figure:
    """Draw singular values of metrics, largest first, and their eigenvalues in the plane.

    `spectra` maps a name to (singular values [d], eigenvalues, complex [d]). Where the widths
    differ, values are divided by the metric's largest singular value and counted in parts of the
    width, so that metrics of different models can be compared.
    """
    same = len({len(singular) for singular, _ in spectra.values()}) == 1
    points, lines = [], []
    for name, (singular, eigenvalues) in spectra.items():
        d, largest = len(singular), float(np.max(singular))
        unit = 1.0 if same or not largest else largest
        labels = tuple(f"{name}, eigenvalue {k}" for k in range(d))
        points.append(Series(name, eigenvalues.real / unit, eigenvalues.imag / unit, labels))
        rank = np.arange(1, d + 1)
        lines.append(Series(name, rank if same else rank / d, np.sort(singular)[::-1] / unit))
    low = min(float(line.y.min()) for line in lines)
    high = max(float(line.y.max()) for line in lines)
    few = all(len(line.y) <= 32 for line in lines)
    singular_values = Panel(
        # A zero has no logarithm; then the axis stays linear and shows it.
        Lines(tuple(lines), markers=few, log_y=0 < 10 * low < high)
        if high
        else Sentence("Singular values: all are 0."),
        "singular values" if same else "singular values over the largest",
        "rank" if same else "rank / width",
    )
    plane = Panel(
        Scatter(tuple(points), equal_axes=True),
        "eigenvalues" if same else "eigenvalues over the largest singular value",
        "real part",
        "imaginary part",
    )
    words = [
        "Singular values, largest first; eigenvalues in the plane.",
        "" if same else "The widths differ: values are divided by each metric's largest singular "
        "value.",
        note,
    ]  # fmt: skip
    arrays: dict[str, Array] = {}
    for side, (singular, eigenvalues) in zip("ab", spectra.values(), strict=False):
        arrays |= {f"singular_values_{side}": singular, f"eigenvalues_{side}": eigenvalues}
    return Figure(
        name="compare-spectra",
        panels=(singular_values, plane),  # the legend has room in the first
        n_columns=2,
        title="Spectra",
        caption=" ".join(filter(None, words)),
        provenance=provenance,
        arrays=arrays,
        column="double",
    )


def angles_figure(
    angles: Array,
    values: Array,
    measure: str,
    side: str,
    d_head: int,
    names: tuple[str, str],
    provenance: Provenance = UNKNOWN,
    *,
    note: str = "",
) -> Figure:
    """Draw how the heads' leading subspaces lie to each other: `values` [h, h], in one measure.

    `angles` [h, h, rank] in radians go to the files; NaN where no subspace leads.
    """
    h, _, rank = angles.shape
    title = f"Subspaces of {rank} leading {side} direction{'s' * (rank > 1)}"
    words = [
        f"{MEASURES[measure].capitalize()} of the principal angles between the span of the {rank} "
        f"leading {'left' if side == 'query' else 'right'} singular vectors of R_i of A "
        f"({names[0]}) and that of R_j of B ({names[1]}).",
        f"1: the same subspace; {number(rank / d_head)} on average for unrelated ones."
        if measure == "overlap"
        else "",
        "Blank: no subspace leads, singular values are equal." if np.isnan(values).any() else "",
        note,
    ]
    mark: Heatmap | Sentence
    if rank == d_head:
        mark = Sentence(
            f"All {rank} directions of a head span its whole space, so every pair agrees; choose "
            "fewer."
        )
    elif np.isnan(values).all():
        mark = Sentence(
            f"Singular values {rank} and {rank + 1} are equal in every head of one side (as in "
            "R = I): no subspace leads."
        )
    elif values.size == 1:
        mark = Sentence(f"One head each: {MEASURES[measure]} {number(float(values[0, 0]))}.")
    else:
        limits = (0.0, 1.0) if measure == "overlap" else (0.0, 90.0)
        mark = Heatmap(
            values.astype(np.float32),
            Scale(limits, "sequential", MEASURES[measure]),
            tuple(f"A's head {a}" for a in range(h)),
            tuple(f"B's head {b}" for b in range(h)),
            write_values=h <= 8,
        )
    ticks = tuple((float(a), str(a)) for a in range(h))
    return Figure(
        name="compare-angles",
        panels=(Panel(mark, "", f"head of B: {names[1]}", f"head of A: {names[0]}", ticks, ticks),),
        title=title,
        caption=" ".join(filter(None, words)),
        provenance=provenance,
        arrays={"angles": angles, "values": values},
    )


def _panel(values: Array, scale: Scale | None, view: str, n_heads: int, title: str) -> Panel:
    sentence = sentence_instead(values, title)
    if scale is None or sentence:
        return Panel(Sentence(sentence or f"{title}: every value is 0."), title)
    if view == "blocks":
        rows = tuple(f"query head {a}" for a in range(n_heads))
        columns = tuple(f"key head {b}" for b in range(n_heads))
        ticks = tuple((float(a), str(a)) for a in range(n_heads))
        return Panel(
            Heatmap(values, scale, rows, columns), title, "key head", "query head", ticks, ticks
        )
    if view == "head_metrics":
        e = values.shape[1]
        rows = tuple(f"head {a}, i {i}" for a in range(n_heads) for i in range(e))
        lines = tuple(a * e - 0.5 for a in range(1, n_heads))
        mark = Heatmap(
            values, scale, rows, tuple(f"j {j}" for j in range(e)), lines, cell_aspect=1 / n_heads
        )
        return Panel(mark, title, x_ticks=(), y_ticks=())
    e = len(values) // n_heads
    cells, k = pool(values, e, MAX_CELLS)
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
