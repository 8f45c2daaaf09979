"""Figures and tables of ablations: of one input, and of held-out inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from damcha.analysis import ablation as analysis
from damcha.analysis.ablation import (
    INTERVENTIONS,
    TOP,
    Ablation,
    Evaluation,
    edit_of,
    scaled_blocks,
    summarise,
)
from damcha.analysis.progress import finished
from damcha.data.evaluation import EvaluationSet
from damcha.errors import InputError
from damcha.figures import ablation as figures
from damcha.figures.spec import Figure
from damcha.figures.table import Table
from damcha.gallery.subject import Snapshot, Subject, counted, provenance, set_provenance
from damcha.tap import Edit

USUAL = (
    "full",
    "diagonal",
    "off_diagonal",
    "diagonal_matched",
    "off_diagonal_matched",
    "mean",
    "zero",
)
BY_HAND = "Edited by hand"
Names = Annotated[str, "Interventions, separated by commas; the first is compared with."]


def names_of(text: str, has_mean: bool) -> tuple[str, ...]:
    """Read a list of interventions; those that a run cannot have are left out of "usual"."""
    if text == "usual":
        return tuple(name for name in USUAL if name != "mean" or has_mean)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise InputError("interventions: name at least one, e.g. full,diagonal,zero")
    return names


def edits(
    snapshot: Snapshot, names: Sequence[str], factors: np.ndarray | None = None
) -> dict[str, Edit]:
    """The edits of interventions, by title; `factors` [h, h] adds one by hand."""
    mean = snapshot.run.mean_metric(snapshot.epoch)
    found = {}
    for name in names:
        edit = edit_of(name, snapshot.model, mean)
        found[INTERVENTIONS[name][0]] = edit  # type: ignore[index]  # edit_of knows it
    if factors is not None:
        found[BY_HAND] = scaled_blocks(factors)
    return found


def ablate(subject: Subject, names: Sequence[str], factors: np.ndarray | None = None) -> Ablation:
    """Run the input under interventions.

    Raises
    ------
    InputError
        If the run has no cross-head metric.
    """
    subject.metric()  # refuses a model without one
    return analysis.ablate(subject.model, subject.example, edits(subject, names, factors))


def answers(
    subject: Subject, interventions: Names = "usual", result: Ablation | None = None
) -> Figure:
    """What the model answers under each intervention, beside the full one."""
    names = names_of(interventions, subject.reference is not None)
    found = ablate(subject, names) if result is None else result
    made = provenance(subject, "ablation", {"interventions": ",".join(names)})
    if found.pictures is not None:
        return figures.pictures_figure(found.pictures, found.names, found.loss, made)
    if found.nats is not None:
        nats, labels, unit = counted(subject, found.nats)
        return figures.nats_figure(nats, found.names, labels, found.loss, made, unit=unit)
    assert found.probabilities is not None
    data = subject.run.config.data
    classes = data.class_names or tuple(f"class {k}" for k in range(data.n_classes))
    return figures.probabilities_figure(found.probabilities, found.names, classes, found.loss, made)


def knock_out(subject: Subject) -> Figure:
    """Change of the loss when each block, and each head, is removed."""
    subject.metric()
    effects = analysis.knock_out(subject.model, subject.example)
    heads = analysis.knock_out_heads(subject.model, subject.example)
    made = provenance(subject, "knock-out", {})
    return figures.knock_out_figure(effects, heads, subject.run.unit, made)


def rank(subject: Subject) -> Figure:
    """Loss with every head metric cut to rank 0, 1, …, its width."""
    subject.metric()
    ranks, losses = analysis.over_ranks(subject.model, subject.example)
    return figures.rank_figure(ranks, losses, subject.run.unit, provenance(subject, "rank", {}))


def evaluation(
    snapshot: Snapshot,
    data: EvaluationSet,
    interventions: Names = "usual",
    result: Evaluation | None = None,
) -> Figure:
    """Losses of held-out inputs under each intervention, with paired differences."""
    names = names_of(interventions, snapshot.run.mean_metric(snapshot.epoch) is not None)
    if result is None:
        result = finished(analysis.evaluate(snapshot.model, data, edits(snapshot, names)))
    made = set_provenance(snapshot, data, "ablation-set", {"interventions": ",".join(names)})
    losses = dict(zip(result.names, result.loss, strict=True))
    differences = {s.name: (s.difference, *s.interval) for s in summarise(result)[1:]}
    if not differences:
        raise InputError("interventions: name at least two, to compare")
    return figures.evaluation_figure(losses, differences, snapshot.run.unit, len(data), made)


def table(snapshot: Snapshot, data: EvaluationSet, result: Evaluation) -> Table:
    """The same as a table (paper, Table 3)."""
    rows = [
        (s.name, s.mean, s.q25, s.q75, s.top50, (s.difference, *s.interval))
        for s in summarise(result)
    ]
    source = f"{snapshot.run.name}, epoch {snapshot.epoch}; {data.name}"
    return figures.evaluation_table(rows, snapshot.run.unit, len(data), TOP, source)


def runs_table(
    snapshots: Sequence[Snapshot],
    data: EvaluationSet,
    results: Mapping[tuple[str, int], Evaluation],
) -> Table:
    """The same of several runs, each at its last epoch among the results."""
    last = {snapshot.run.name: snapshot for snapshot in sorted(snapshots, key=lambda s: s.epoch)}
    rows = [
        (name, one.epoch, s.name, s.mean, s.q25, s.q75, s.top50, (s.difference, *s.interval))
        for name, one in last.items()
        for s in summarise(results[name, one.epoch])
    ]
    return figures.runs_table(rows, snapshots[0].run.unit, len(data), TOP, data.name)


def over_epochs(
    snapshots: Sequence[Snapshot],
    data: EvaluationSet,
    names: Sequence[str],
    results: Mapping[tuple[str, int], Evaluation],
) -> Figure:
    """Mean losses of snapshots, by (run, epoch), under each intervention over epochs."""
    runs: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for run in dict.fromkeys(snapshot.run.name for snapshot in snapshots):
        found = sorted((epoch, one) for (name, epoch), one in results.items() if name == run)
        x = np.array([epoch for epoch, _ in found], np.float64)
        runs[run] = {
            title: (x, np.array([one.loss[k].mean() for _, one in found]))
            for k, title in enumerate(found[0][1].names)
        }
    made = set_provenance(snapshots[-1], data, "ablation-set", {"interventions": ",".join(names)})
    shown = replace(made, run=", ".join(runs), epoch=None, command="")
    return figures.over_epochs_figure(runs, snapshots[0].run.unit, len(data), shown)
