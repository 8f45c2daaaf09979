"""Eigenvalues and singular values of a metric."""

from __future__ import annotations

import numpy as np

from damcha.figures.spec import (
    UNKNOWN,
    Array,
    Figure,
    Lines,
    Panel,
    Provenance,
    Scatter,
    Sentence,
    Series,
)
from damcha.figures.words import origin, sentence_instead


def spectrum_figure(
    eigenvalues: Array,
    singular_values: Array,
    provenance: Provenance = UNKNOWN,
    *,
    title: str = "Spectrum of M",
) -> Figure:
    """Draw eigenvalues (complex [d]) in the plane, and singular values ([d]) by rank."""
    singular = np.sort(singular_values)[::-1]
    points = Series(
        "eigenvalue",
        eigenvalues.real.astype(np.float64),
        eigenvalues.imag.astype(np.float64),
        tuple(f"eigenvalue {k}" for k in range(len(eigenvalues))),
    )
    line = Series("singular value", np.arange(1, len(singular) + 1), singular)
    # A zero has no logarithm; then the axis stays linear and shows it.
    log = bool(singular.min(initial=1.0) > 0)
    panels = (
        _or_sentence(
            np.abs(eigenvalues),
            Panel(
                Scatter((points,), equal_axes=True), "eigenvalues", "real part", "imaginary part"
            ),
            constant=False,
        ),
        _or_sentence(
            singular,
            Panel(
                Lines((line,), markers=len(singular) <= 32, log_y=log),
                "singular values",
                "rank",
                "value",
            ),
            constant=True,
        ),
    )
    return Figure(
        name="spectrum",
        panels=panels,
        n_columns=2,
        title=title,
        caption=f"{title}{origin(provenance)}.",
        provenance=provenance,
        arrays={"eigenvalues": eigenvalues, "singular_values": singular_values},
    )


def _or_sentence(values: Array, panel: Panel, *, constant: bool) -> Panel:
    """Return a sentence in place of a panel whose values are not finite, single, or constant."""
    sentence = sentence_instead(values, panel.title.capitalize())
    if sentence is None or (not constant and "constant" in sentence):
        return panel
    return Panel(Sentence(sentence), panel.title)
