"""Figures of whole runs: how they trained."""

from __future__ import annotations

from collections.abc import Sequence

from damcha import __version__, figures
from damcha.checkpoint.run import Run
from damcha.errors import InputError
from damcha.figures.spec import Figure, Provenance
from damcha.gallery.subject import command


def curves(runs: Sequence[Run]) -> Figure:
    """Training and validation loss over the epochs of a run."""
    if len(runs) != 1:
        raise InputError(f"run: the curves of one run are drawn, not of {len(runs)}")
    run = runs[0]
    made = Provenance(
        run=run.name,
        version=__version__,
        command=command("curves", ["--run", str(run.path)]),
    )
    return figures.curves_figure(run.metrics, made)
