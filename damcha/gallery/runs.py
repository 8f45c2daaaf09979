"""Figures and tables of whole runs: how they trained, what they cost, what came out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from damcha import __version__, figures
from damcha.analysis.runs import Cost, last_results
from damcha.checkpoint.run import Run
from damcha.figures.spec import Figure, Provenance
from damcha.figures.table import Cell, Table
from damcha.gallery.subject import command

if TYPE_CHECKING:  # its readers are needed by few
    from damcha.checkpoint.authors import OldMetrics


def curves(
    runs: Sequence[Run], log: Annotated[bool, "Logarithmic losses, for several runs."] = False
) -> Figure:
    """Training and validation loss over the epochs of runs."""
    words = [word for run in runs for word in ("--run", str(run.path))]
    settings = {"log": log}
    made = Provenance(
        run=", ".join(run.name for run in runs),
        settings=settings,
        version=__version__,
        command=command("curves", words, settings),
    )
    if len(runs) == 1:
        return figures.curves_figure(runs[0].metrics, made)
    units = {run.unit for run in runs}
    return figures.runs_figure(
        {run.name: run.metrics for run in runs},
        made,
        log=log,
        unit=units.pop() if len(units) == 1 else "",
    )


def old_metric(old: OldMetrics, layer: int = 0) -> Figure:
    """M of a layer of a version-1 checkpoint, the same for every input."""
    made = Provenance(
        run=old.name,
        weights_digest=old.digest,
        settings={"layer": layer},
        version=__version__,
        command=f"damcha import {shlex.quote(old.name)} --old-metrics M.npz",
    )
    drawn = figures.metric_figure(old.metrics[layer], old.n_heads or 1, "full", made)
    return replace(
        drawn,
        name=f"old-metric-{layer}",
        title=f"M of layer {layer}",
        caption=f"M of layer {layer}, the same for every input. {drawn.caption}",
    )


def results_table(runs: Sequence[Run], costs: Mapping[str, Cost | None] | None = None) -> Table:
    """Losses of runs, and where they are counted, parameters and multiply-adds."""
    found = [(run, last_results(run)) for run in runs]
    with_accuracy = any(result["accuracy"] is not None for _, result in found)
    columns = ["Run", "Train", "Valid", "Best valid", "at epoch"]
    columns += ["Accuracy"] * with_accuracy
    columns += ["Parameters", "of f_θ", "Multiply-adds"] * (costs is not None)
    rows: list[tuple[Cell, ...]] = []
    for run, result in found:
        row: list[Cell] = [run.name, result["train"], result["valid"], result["best"]]
        row.append(None if result["best_epoch"] is None else int(result["best_epoch"]))
        row += [result["accuracy"]] * with_accuracy
        if costs is not None:
            cost = costs[run.name]
            parts = ("parameters", "generator", "multiply_adds")
            row += [None if cost is None else getattr(cost, part) for part in parts]
        rows.append(tuple(row))
    units = ", ".join(dict.fromkeys(run.unit for run in runs))
    return Table(
        tuple(columns),
        tuple(rows),
        f"Losses on held-out data: {units}."
        + " Multiply-adds: one forward pass of one example." * (costs is not None),
        "tab:runs",
    )
