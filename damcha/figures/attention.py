"""Attention weights: query by key, or of one query over what the model saw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from damcha.errors import InputError
from damcha.figures.spec import (
    UNKNOWN,
    Array,
    Figure,
    Heatmap,
    ImageGrid,
    Panel,
    Provenance,
    Scale,
    Sentence,
    Ticks,
    Tokens,
)
from damcha.figures.style import number, symmetric_scale
from damcha.figures.words import origin, sentence_instead


def attention_figure(
    attention: Array,
    labels: Sequence[str],
    provenance: Provenance = UNKNOWN,
    *,
    title: str = "Attention",
) -> Figure:
    """Draw one head's attention [queries, keys], row by row what a query attends to.

    ``labels`` name the tokens (as many as keys; queries take the first of them).
    """
    if attention.ndim != 2 or attention.size == 0:
        raise InputError(f"attention: a figure needs one matrix [L, L], not {attention.shape}")
    if len(labels) < max(attention.shape):
        raise InputError(
            f"labels: {len(labels)} labels for attention {attention.shape}; give one a token"
        )
    values = attention.astype(np.float32)
    sentence = sentence_instead(values, title)
    caption = f"{title}{origin(provenance)}."
    if sentence:
        panel = Panel(Sentence(sentence))
    else:
        scale = _scale(values)
        rows = _numbered("query", labels[: len(values)])
        columns = _numbered("key", labels[: values.shape[1]])
        mark = Heatmap(values, scale, rows, columns)
        panel = Panel(
            mark, "", "key", "query", _ticks(labels, values.shape[1]), _ticks(labels, len(values))
        )
        low, high = map(number, scale.limits)
        caption += f" Colours run from {low} to {high}; "
        if np.allclose(values.sum(1), 1, atol=1e-3):
            caption += "each row sums to 1."
        else:  # talking heads and the like
            caption += "rows do not sum to 1: heads are mixed after the softmax."
    return Figure(
        name="attention",
        panels=(panel,),
        title=title,
        caption=caption,
        provenance=provenance,
        arrays={"attention": attention},
    )


def attention_over_input_figure(
    weights: Array,
    seen: Array | Sequence[str],
    provenance: Provenance = UNKNOWN,
    *,
    title: str = "Attention over the input",
) -> Figure:
    """Draw one query's attention [L] over the picture, or over the text, that the model saw.

    ``seen`` is uint8 [S, S(, C)], cut into √L × √L patches, or one label a token. Keys that do
    not exist for the query (the future) may be NaN: they stay blank.
    """
    values = weights.astype(np.float32)
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"weights: one query has weights [L], not {weights.shape}")
    sentence = (
        sentence_instead(values[~np.isnan(values)], title)
        if (values == values).any()
        else f"{title}: every weight is NaN, so nothing is drawn."
    )
    panels: tuple[Panel, ...]
    if sentence:
        panels = (Panel(Sentence(sentence)),)
    elif isinstance(seen, np.ndarray):
        side = round(float(np.sqrt(len(values))))
        if side * side != len(values):
            raise InputError(f"weights: {len(values)} patches make no square picture")
        scale = _scale(values)
        names = tuple(f"row {k}" for k in range(side)), tuple(f"column {k}" for k in range(side))
        heat = Heatmap(values.reshape(side, side), scale, *names)
        panels = (
            Panel(ImageGrid((seen,)), "seen", x_ticks=(), y_ticks=()),
            Panel(heat, "attention", x_ticks=(), y_ticks=()),
        )
    else:
        if len(seen) != len(values):
            raise InputError(
                f"weights: {len(values)} weights for {len(seen)} tokens; give one each"
            )
        panels = (Panel(Tokens(tuple(seen), values, _scale(values)), x_ticks=(), y_ticks=()),)
    return Figure(
        name="attention-over-input",
        panels=panels,
        n_columns=len(panels),
        title=title,
        caption=f"{title}{origin(provenance)}.",
        provenance=provenance,
        arrays={"weights": weights},
    )


def _scale(values: Array) -> Scale:
    """From 0 for probabilities; symmetric where a mixture of them is negative somewhere."""
    if np.nanmin(values) < -1e-6:
        return symmetric_scale(values[np.isfinite(values)], label="weight")
    return Scale((0.0, float(np.nanmax(values))), "sequential", "weight")


def _numbered(side: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Make labels unique: the same byte may stand at many positions."""
    return tuple(f"{side} {k}: {label}" for k, label in enumerate(labels))


def _ticks(labels: Sequence[str], n: int) -> Ticks:
    return tuple((float(k), labels[k]) for k in range(n))
