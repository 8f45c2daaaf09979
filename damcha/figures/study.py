"""Variants of one training over seeds: where they ended, and how they got there."""

from __future__ import annotations

import numpy as np

from damcha.analysis.study import Study
from damcha.figures.spec import UNKNOWN, Figure, Intervals, Lines, Panel, Provenance, Series


def study_figure(found: Study, provenance: Provenance = UNKNOWN) -> Figure:
    """Draw each variant's validation loss with its interval, best first, and the mean curves."""
    variants = sorted(found.variants, key=lambda variant: variant.loss[1])
    low, centre, high = np.array([variant.loss for variant in variants]).T
    single = np.isnan(low)  # one seed: a point without an interval
    labels = tuple(f"{v.name}, {v.parameters / 1000:.0f}k" for v in variants)
    dots = Intervals(labels, centre, np.where(single, centre, low), np.where(single, centre, high))
    lines = []
    for variant in variants:
        curves = np.array(variant.curves)
        lines.append(Series(
            variant.name, np.array(variant.steps, np.float64), curves.mean(0),
            low=curves.min(0), high=curves.max(0),
        ))  # fmt: skip
    seeds = sorted({len(variant.seeds) for variant in variants})
    caption = (
        f"Validation loss after {found.step} steps of a schedule of {found.schedule}, "
        f"{' or '.join(map(str, seeds))} seed{'s' * (seeds[-1] > 1)}, with parameters in thousands."
    )
    if seeds[-1] > 1:
        caption += " Intervals: 95 %, Student's t; bands: all seeds; a single seed is a dot."
    else:
        caption += " A single seed has no interval."
    return Figure(
        name="study",
        panels=(
            Panel(dots, f"after {found.step} steps", "nats per byte"),
            Panel(Lines(tuple(lines)), "over training", "steps", "nats per byte"),
        ),
        n_columns=2,
        title="Variants of one training",
        caption=caption,
        provenance=provenance,
        arrays={
            "loss": np.array([variant.loss for variant in variants]),
            "parameters": np.array([variant.parameters for variant in variants]),
            "variant": np.array([variant.name for variant in variants]),
        },
        column="double",
    )
