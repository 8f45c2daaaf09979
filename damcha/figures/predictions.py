"""What the model answers: a picture with its error, or probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from damcha.errors import InputError
from damcha.figures.spec import (
    UNKNOWN,
    Array,
    Bars,
    Figure,
    Heatmap,
    ImageGrid,
    Panel,
    Provenance,
    Scale,
    Sentence,
    Tokens,
)
from damcha.figures.style import number
from damcha.figures.words import origin, sentence_instead


def reconstruction_figure(
    seen: Array,
    predicted: Array,
    error: Array,
    provenance: Provenance = UNKNOWN,
    *,
    title: str = "Prediction",
    error_label: str = "squared error",
) -> Figure:
    """Draw the picture seen, the picture predicted (uint8 [S, S(, C)]) and its error [r, c].

    The error may be one value a pixel or one a patch; it is not negative.
    """
    if seen.shape[:2] != predicted.shape[:2]:
        raise InputError(
            f"predicted: its size {predicted.shape[:2]} is not that of the picture seen, "
            f"{seen.shape[:2]}"
        )
    if error.ndim != 2:
        raise InputError(f"error: a figure needs a map [rows, columns], not {error.shape}")
    values = error.astype(np.float32)
    sentence = sentence_instead(values, error_label.capitalize())
    caption = f"{title}{origin(provenance)}."
    if sentence:
        last = Panel(Sentence(sentence), error_label)
    else:
        scale = Scale((0.0, float(values.max())), "sequential", error_label)
        rows = tuple(f"row {k}" for k in range(error.shape[0]))
        columns = tuple(f"column {k}" for k in range(error.shape[1]))
        last = Panel(Heatmap(values, scale, rows, columns), error_label, x_ticks=(), y_ticks=())
        caption += f" Mean {error_label} {number(float(values.mean()))}."
    return Figure(
        name="reconstruction",
        panels=(
            Panel(ImageGrid((seen,)), "seen", x_ticks=(), y_ticks=()),
            Panel(ImageGrid((predicted,)), "predicted", x_ticks=(), y_ticks=()),
            last,
        ),
        n_columns=3,
        title=title,
        caption=caption,
        provenance=provenance,
        arrays={"seen": seen, "predicted": predicted, "error": error},
    )


def distribution_figure(
    probabilities: Array,
    labels: Sequence[str],
    top: int = 10,
    provenance: Provenance = UNKNOWN,
    *,
    title: str = "Probabilities",
) -> Figure:
    """Draw the ``top`` most probable of n classes or next tokens, the most probable first."""
    if probabilities.shape != (len(labels),):
        raise InputError(
            f"probabilities: {probabilities.shape} values for {len(labels)} labels; give one each"
        )
    order = np.argsort(-probabilities, kind="stable")[:top]
    caption = f"{title}{origin(provenance)}."
    if not np.isfinite(probabilities).all():
        n_bad = int((~np.isfinite(probabilities)).sum())
        panel = Panel(Sentence(f"{title}: {n_bad} of {len(labels)} values are NaN or infinite."))
    else:
        mark = Bars(tuple(labels[k] for k in order), probabilities[order].astype(np.float64))
        panel = Panel(mark, "", "probability")
        rest = 1 - float(probabilities[order].sum())
        if len(order) < len(labels):
            others = len(labels) - len(order)
            caption += f" The other {others} share {number(max(0.0, rest))}."
    return Figure(
        name="distribution",
        panels=(panel,),
        title=title,
        caption=caption,
        provenance=provenance,
        arrays={"probabilities": probabilities},
    )


def surprise_figure(
    nats: Array,
    labels: Sequence[str],
    provenance: Provenance = UNKNOWN,
    *,
    title: str = "Surprise",
    unit: str = "byte",
) -> Figure:
    """Draw a text, each symbol on the colour of its surprise -log p in nats ([n])."""
    if nats.shape != (len(labels),):
        raise InputError(f"nats: {nats.shape} values for {len(labels)} labels; give one each")
    values = nats.astype(np.float32)
    bits = float(nats.mean() / np.log(2))
    sentence = sentence_instead(values, title)
    if sentence:
        panel = Panel(Sentence(sentence))
    else:
        scale = Scale((0.0, float(values.max())), "sequential", "surprise (nats)")
        panel = Panel(Tokens(tuple(labels), values, scale), x_ticks=(), y_ticks=())
    return Figure(
        name="surprise",
        panels=(panel,),
        title=f"{title}, {number(bits)} bits a {unit}",
        caption=f"{title} at each {unit} given those before it{origin(provenance)}.",
        provenance=provenance,
        arrays={"nats": nats},
    )
