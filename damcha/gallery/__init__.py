"""Every figure by its name: what the dashboard and the shell both show, from runs and inputs.

    open_subject(run, epoch, source) → Subject ─┬→ metric, spectrum, answer, …   → figures.Figure
                                                └→ geometry                      → numbers

A figure made here carries its provenance, and the command that makes it again. Figure functions
take first what the figure is of; their parameters of type ``Annotated[…, "help"]`` are its options,
in the shell too. To add one: write the function in the module of its topic and name it in KINDS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from damcha.figures.spec import Figure
from damcha.gallery import ablation, atlas, comparison, contributions, epochs
from damcha.gallery.inspect import (
    answer,
    attention,
    attention_over_input,
    geometry,
    metric,
    metric_note,
    spectrum,
    surprise,
)
from damcha.gallery.runs import curves
from damcha.gallery.subject import (
    Snapshot,
    Subject,
    has_metric,
    open_snapshot,
    open_subject,
    unfit,
)

__all__ = [
    "KINDS",
    "Kind",
    "Snapshot",
    "Subject",
    "ablation",
    "answer",
    "atlas",
    "attention",
    "attention_over_input",
    "comparison",
    "contributions",
    "curves",
    "epochs",
    "geometry",
    "has_metric",
    "metric",
    "metric_note",
    "open_snapshot",
    "open_subject",
    "spectrum",
    "surprise",
    "unfit",
]


@dataclass(frozen=True)
class Kind:
    """A figure that can be asked for by name."""

    draw: Callable[..., Figure]
    of: Literal["subject", "histories", "pair", "set", "runs"] = "subject"
    """What it takes first: a Subject; one History a run; two Subjects; a Snapshot and an
    EvaluationSet; Runs."""


KINDS: dict[str, Kind] = {
    "metric": Kind(metric),
    "spectrum": Kind(spectrum),
    "answer": Kind(answer),
    "surprise": Kind(surprise),
    "attention": Kind(attention),
    "attention-over-input": Kind(attention_over_input),
    "curves": Kind(curves, of="runs"),
    "ablation": Kind(ablation.answers),
    "knock-out": Kind(ablation.knock_out),
    "rank": Kind(ablation.rank),
    "ablation-set": Kind(ablation.evaluation, of="set"),
    "contributions": Kind(contributions.figure),
    "contributions-compare": Kind(contributions.comparison, of="pair"),
    "atlas": Kind(atlas.chart, of="set"),
    "atlas-moments": Kind(atlas.moments, of="set"),
    "atlas-components": Kind(atlas.principal, of="set"),
    "atlas-relation": Kind(atlas.relation, of="set"),
    "compare": Kind(comparison.side_by_side, of="pair"),
    "compare-spectra": Kind(comparison.spectra, of="pair"),
    "compare-angles": Kind(comparison.angles, of="pair"),
    "transplant": Kind(comparison.transplanted, of="pair"),
    "epochs": Kind(epochs.small_multiples, of="histories"),
    "epochs-surface": Kind(epochs.surface, of="histories"),
    "epoch-curves": Kind(epochs.curves, of="histories"),
}
