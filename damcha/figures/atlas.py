"""Many metrics at once: maps, moments, relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from damcha.figures.metric import metric_figure, pool
from damcha.figures.spec import (
    UNKNOWN,
    Array,
    Bars,
    Figure,
    Heatmap,
    Panel,
    Provenance,
    Scale,
    Scatter,
    Sentence,
    Series,
)
from damcha.figures.style import number
from damcha.figures.words import sentence_instead

MAX_SHARES = 8
"""Components whose share of the variance is drawn."""


def map_figure(
    places: Array,
    names: Sequence[str],
    title: str,
    note: str,
    provenance: Provenance = UNKNOWN,
    *,
    groups: Sequence[str] | None = None,
    values: Array | None = None,
    label: str = "",
) -> Figure:
    """Draw inputs in the plane, [n, 2], a colour and a shape a group, or coloured by a number.

    Points keep their order within a group; ``order`` in the arrays maps drawn points to inputs.
    """
    scale = None
    if groups is not None:
        order, series = [], []
        for group in dict.fromkeys(sorted(groups)):
            at = np.flatnonzero(np.array(groups) == group)
            order.append(at)
            series.append(
                Series(group, places[at, 0], places[at, 1], tuple(names[int(k)] for k in at))
            )
        drawn = np.concatenate(order)
    else:
        drawn = np.arange(len(places))
        if values is not None and np.isfinite(values).all() and np.ptp(values) > 0:
            scale = Scale((float(values.min()), float(values.max())), "sequential", label)
        series = [Series("inputs", places[:, 0], places[:, 1], tuple(names), values=values)]
    mark = Scatter(tuple(series), scale=scale, clickable=True)
    return Figure(
        name="atlas",
        panels=(Panel(mark, x_ticks=(), y_ticks=()),),
        title=title,
        caption=f"{title}, {len(places):,} inputs. {note}",
        provenance=provenance,
        arrays={"places": places, "order": drawn},
    )


def moments_figure(
    mean: Array,
    variance: Array,
    n_heads: int,
    n: int,
    adaptivity: float,
    provenance: Provenance = UNKNOWN,
) -> Figure:
    """Draw the mean metric and the variance of each entry between inputs."""
    first = metric_figure(mean.astype(np.float32), n_heads).panels[0]
    pooled = pool(variance, len(variance) // n_heads, 256)[1]
    sentence = sentence_instead(variance, "Variance")
    if sentence:
        second = Panel(Sentence(sentence), "variance")
    else:
        e = len(variance) // n_heads
        cells, k = pool(variance.astype(np.float32), e, 256)
        size = -(-e // k)
        lines = tuple(a * size - 0.5 for a in range(1, n_heads))
        names = [f"head {a}, {i * k}" for a in range(n_heads) for i in range(size)]
        scale = Scale((0.0, float(variance.max())), "sequential", "variance")
        mark = Heatmap(
            cells,
            scale,
            tuple(f"query {name}" for name in names),
            tuple(f"key {name}" for name in names),
            lines,
            lines,
        )
        second = Panel(mark, "variance between inputs", first.x_label, "", first.x_ticks, ())
    left = Panel(first.mark, "mean", first.x_label, first.y_label, first.x_ticks, first.y_ticks)
    return Figure(
        name="atlas-moments",
        panels=(left, second),
        n_columns=2,
        title="Mean and variance of the metric",
        caption=f"Over {n:,} held-out inputs. Adaptivity, the variance over the mean squared norm: "
        f"{number(adaptivity)}."
        + ("" if pooled == 1 else f" Each cell shows the largest of {pooled}×{pooled}."),
        provenance=provenance,
        arrays={"mean": mean, "variance": variance},
        column="double",
    )


def components_figure(
    shares: Array,
    components: Array,
    n_heads: int,
    n: int,
    note: str = "",
    provenance: Provenance = UNKNOWN,
) -> Figure:
    """Draw how much each principal component explains, and the first ones, [few, d, d]."""
    drawn = min(MAX_SHARES, len(shares))
    bars = Bars(tuple(f"component {k + 1}" for k in range(drawn)), 100 * shares[:drawn])
    largest = float(np.abs(components).max())
    panels = [Panel(bars, "variance", "% of the variance between inputs")]
    for k, component in enumerate(components.astype(np.float32)):
        panel = metric_figure(component, n_heads, limits=(-largest, largest)).panels[0]
        panels.append(replace(panel, title=f"component {k + 1}: {shares[k]:.1%}"))
    return Figure(
        name="atlas-components",
        panels=tuple(panels),
        n_columns=2,
        title="Principal components of the metric",
        caption=f"Over {n:,} held-out inputs; the first {drawn} components hold "
        f"{shares[:drawn].sum():.1%} of the variance. Components have Frobenius norm 1 and one "
        f"scale; their sign means nothing.{note}",
        provenance=provenance,
        arrays={"shares": shares, "components": components},
        column="double",
    )


def relation_figure(
    x: Array,
    y: Array,
    x_label: str,
    y_label: str,
    correlation: tuple[float, float, float] | None,
    provenance: Provenance = UNKNOWN,
) -> Figure:
    """Draw one number of each input against another, with (ρ, low, high), or None if unknown."""
    good = np.isfinite(x) & np.isfinite(y)
    if good.sum() < 3 or np.ptp(x[good]) == 0 or np.ptp(y[good]) == 0:
        mark: Scatter | Sentence = Sentence(f"{x_label} against {y_label}: nothing varies.")
        said = ""
    else:
        mark = Scatter((Series("inputs", x[good], y[good]),))
        said = " Too few inputs for a correlation."
        if correlation is not None:
            rho, low, high = (f"{value:.2f}".replace("-", "−") for value in correlation)
            said = f" Spearman's ρ = {rho}, 95 % interval [{low}, {high}]."
    return Figure(
        name="atlas-relation",
        panels=(Panel(mark, "", x_label, y_label),),
        title=f"{y_label} against: {x_label}",
        caption=f"{int(good.sum()):,} inputs.{said}",
        provenance=provenance,
        arrays={"x": x, "y": y},
    )
