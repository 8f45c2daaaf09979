"""The figures: distributions of losses, the metric, its contributions, its way over epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from damcha import gallery
from damcha.analysis import subspaces as task
from damcha.analysis.progress import Progress, relayed
from damcha.errors import InputError
from damcha.figures.spec import Array, Distributions, Figure, Intervals, Panel
from damcha.figures.subspaces import outcome, subspaces_figure, subspaces_table
from damcha.gallery.epochs import open_history, small_multiples, surface
from damcha.gallery.subject import Subject
from damcha.reproduce.experiment import Arrays, Desk, Outcome
from damcha.reproduce.tables import PARTS, compared, made, numbers, summaries

VIEWS = ("full", "head_metrics", "blocks")
"""Views of Figure 8: M, R, and the norms of M's blocks."""


def parts(desk: Desk) -> Iterator[Progress | Outcome]:
    """Distributions of losses with the full metric, and without parts of it."""
    figures: dict[str, Figure] = {}
    values: dict[str, Any] = {}
    for label in dict.fromkeys(one.system for one in desk.made):
        seeds = []
        for snapshot in desk.runs(label):
            got = yield from desk.ablations(snapshot, PARTS)
            seeds.append(got)
        systems = {name: {"loss": np.stack([got[name] for got in seeds])} for name in seeds[0]}
        dataset = snapshot.run.config.data.dataset
        values[dataset] = numbers(systems)
        what = f"{label}: losses without parts of the metric"
        figures[_file(desk, dataset, figures)] = distributions(desk, systems, what)
    yield Outcome(values, figures=figures)


def mechanisms(desk: Desk) -> Iterator[Progress | Outcome]:
    """Distributions of losses of mechanisms beside each other."""
    found = yield from compared(desk)
    figures: dict[str, Figure] = {}
    for dataset, systems in found.items():
        name = _file(desk, dataset, figures)
        figures[name] = distributions(desk, systems, f"Losses of mechanisms on {dataset}")
    values: dict[str, Any] = {data: numbers(systems) for data, systems in found.items()}
    yield Outcome(values, figures=figures)


def _file(desk: Desk, dataset: str, figures: Mapping[str, Figure]) -> str:
    return f"{desk.experiment.name}-{dataset}" if figures else desk.experiment.name


def distributions(desk: Desk, systems: Mapping[str, Arrays], title: str) -> Figure:
    """Losses as boxes, and paired differences to the first."""
    losses: dict[str, Array] = {name: own["loss"].mean(0) for name, own in systems.items()}
    rows = summaries(systems)[1:]
    first, unit, n = (
        next(iter(losses)),
        desk.made[0].snapshot.run.unit,
        len(next(iter(losses.values()))),
    )
    panels = [Panel(Distributions(tuple(losses), tuple(losses.values())), "losses", unit)]
    if rows:
        gaps = Intervals(
            tuple(one.name for one in rows),
            np.array([one.difference for one in rows]),
            np.array([one.interval[0] for one in rows]),
            np.array([one.interval[1] for one in rows]),
            reference=0.0,
        )
        panels.append(Panel(gaps, f"paired difference to {first}", "difference of loss"))
    return Figure(
        name=desk.experiment.name,
        panels=tuple(panels),
        title=title,
        caption=f"{title}; {n:,} held-out examples, {unit}. Boxes: quartiles and the middle 90 %, "
        "diamond or dashed line: mean. Differences: mean over examples with its 95 % bootstrap "
        "interval.",
        provenance=made(desk),
        arrays={f"loss.{name}": values for name, values in losses.items()},
        column="double",
    )


# ---------------------------------------------------------------- one input


def _subject(desk: Desk, system: str) -> Subject:
    """The first sample of a run, in its last snapshot."""
    snapshot = desk.runs(system)[0]
    if not snapshot.run.samples:
        raise InputError(f"run '{snapshot.run.name}' has no samples to draw; train it again")
    sample = snapshot.run.samples[0]
    return gallery.open_subject(snapshot.run, None, sample, model=snapshot.model)


def metric(desk: Desk) -> Iterator[Progress | Outcome]:
    """Figure 8: the metric of one input."""
    subject = _subject(desk, desk.made[0].system)
    yield Progress(0, 1, "the metric")
    name = desk.experiment.name
    figures = {
        name if view == "full" else f"{name}-{view.replace('_', '-')}": gallery.metric(
            subject,
            view,  # type: ignore[arg-type]  # a name of VIEWS
        )
        for view in VIEWS
    }
    found = gallery.geometry(subject)
    values = {k: float(v) for k, v in vars(found).items() if isinstance(v, float)}
    yield Outcome({"input": subject.example.name, "geometry": values}, figures=figures)


def contributions(desk: Desk) -> Iterator[Progress | Outcome]:
    """Figure 9: block contributions by layer, a generator a layer against a shared one."""
    first, second = (_subject(desk, one.system) for one in desk.made)
    yield Progress(0, 1, "contributions")
    found = tuple(gallery.contributions.explain(one) for one in (first, second))
    drawn = gallery.contributions.comparison(first, second, results=found)  # type: ignore[arg-type]
    values = {
        one.run.name: {
            "value": float(part.value),
            "completeness_error": _number(part.completeness_error),
        }
        for one, part in zip((first, second), found, strict=True)
    }
    yield Outcome({"input": first.example.name, **values}, figures={desk.experiment.name: drawn})


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def contours(desk: Desk) -> Iterator[Progress | Outcome]:
    """Figure 10: contours of the metric of one input over epochs, w/o f(x) above DAMCHA."""
    yield from _epochs(desk, small_multiples)


def landscapes(desk: Desk) -> Iterator[Progress | Outcome]:
    """Figure 11: the metric of one input in 3D, w/o f(x) beside DAMCHA."""
    yield from _epochs(desk, surface)


def _epochs(desk: Desk, draw: Any) -> Iterator[Progress | Outcome]:
    runs = [one.snapshot.run for one in desk.made]
    if not runs[-1].samples:
        raise InputError(f"run '{runs[-1].name}' has no samples to draw; train it again")
    example = runs[-1].prepare(runs[-1].samples[0])
    histories = []
    for k, run in enumerate(runs):
        yield Progress(k, len(runs), "runs over epochs")
        histories.append(open_history(run, example, device=desk.device))
    values = {
        one.run.name: {"epochs": [subject.epoch for subject in one.subjects]} for one in histories
    }
    figures = {desk.experiment.name: draw(histories)}
    yield Outcome({"input": example.name, **values}, figures=figures)


# ---------------------------------------------------------------- cross-subspace tasks


def subspaces(kind: task.Kind) -> Callable[[Desk], Iterator[Progress | Outcome]]:
    """Figures 12 and 13: tasks whose target couples head subspaces."""

    def measure(desk: Desk) -> Iterator[Progress | Outcome]:
        size = task.SMALL if desk.small else task.FULL
        cells = []
        for width, level in product(size.widths, size.levels):
            key = ("subspaces", f"{kind}-{width}-{level:g}", repr(size), repr(task.SYSTEMS))
            found = yield from desk.kept(key, partial(_cell, kind, size, width, level))
            cells.append(task.Cell(width, level, found["values"], found["best"]))
        name = desk.experiment.name
        figure = subspaces_figure(kind, size, cells, made(desk))
        table = subspaces_table(kind, size, cells, f"tab:{name}")
        values = {
            "kind": kind, "size": asdict(size), "parameters": task.parameters(size),
            "systems": list(task.SYSTEMS),
            "cells": [
                {"width": c.width, "level": c.level, "best": c.best.tolist(),
                 "values": c.values.tolist()}
                for c in cells
            ],
        }  # fmt: skip
        yield Outcome(values, table, {name: replace(figure, name=name)}, notes=outcome(kind, cells))

    return measure


def _cell(
    kind: task.Kind, size: task.Size, width: int, level: float
) -> Iterator[Progress | Arrays]:
    found = yield from relayed(task.measure(kind, size, width, level))
    yield {"values": found.values, "best": found.best}
