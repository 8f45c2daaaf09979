"""Figures of one input over the epochs of one run or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from damcha import __version__
from damcha.analysis.epochs import CURVES, adaptivity, trajectory
from damcha.checkpoint.run import Device, Example, Run
from damcha.errors import CheckpointError, InputError
from damcha.figures.epochs import (
    EpochRow,
    Field,
    Form,
    curves_over_epochs,
    epochs_figure,
    surfaces_figure,
)
from damcha.figures.epochs import frames as frames_of
from damcha.figures.spec import Figure, Provenance
from damcha.gallery.inspect import Layer, Position
from damcha.gallery.subject import Subject, check_fits, command, input_words, open_subject

Head = Annotated[int, "Head, for field 'head'."]
Smoothing = Annotated[float, "Standard deviation of a Gaussian, in cells; 0 for none."]
Shown = Annotated[Field, "What to show."]
ADAPTIVITY_INPUTS = 64
"""Held-out inputs that adaptivity is measured on."""


Azimuth = Annotated[float, "Degrees around, from the key axis towards the query axis."]
Elevation = Annotated[float, "Degrees above the plane."]


@dataclass(frozen=True, eq=False)
class History:
    """One input in all snapshots of a run."""

    run: Run
    subjects: tuple[Subject, ...]
    """Ascending epochs."""
    broken: Mapping[int, str]
    """Epochs that cannot be opened, with the reason."""

    @property
    def name(self) -> str:
        """The run's name; "w/o f(x)" is the paper's word for a static metric."""
        static = self.run.config.model.metric.generator == "static"
        return f"{self.run.name}, w/o f(x)" if static else self.run.name


def open_history(
    run: Run,
    example: Example | None = None,
    *,
    device: Device = "auto",
    open_one: Callable[[int], Subject] | None = None,
) -> History:
    """Run one input through every snapshot of a run; `open_one` may take it from a cache."""
    subjects, broken = [], {}
    for epoch in run.epochs:
        try:
            if open_one is not None:
                subjects.append(open_one(epoch))
            else:
                assert example is not None  # one of the two is given
                subjects.append(open_subject(run, epoch, example, device=device))
        except CheckpointError as error:
            broken[epoch] = str(error)
    if not subjects:
        raise InputError(f"run '{run.name}' has no snapshot that can be opened: {broken}")
    return History(run, tuple(subjects), broken)


def small_multiples(
    histories: Sequence[History],
    field: Shown = "full",
    form: Annotated[Form, "Level lines, cells or landscapes."] = "contour",
    layer: Layer = 0,
    position: Position = -1,
    head: Head = 0,
    smoothing: Smoothing = 0.0,
    azimuth: Azimuth = -60.0,
    elevation: Elevation = 35.0,
) -> Figure:
    """A row a run, a column an epoch, one scale for all (paper, Figure 10)."""
    settings = {
        "field": field,
        "form": form,
        "layer": layer,
        "position": position,
        "head": head,
        "smoothing": smoothing,
    }
    camera = {"azimuth": azimuth, "elevation": elevation} if form == "surfaces" else {}
    made = _provenance(histories, "epochs", settings | camera)
    _check_field(histories, field)
    return epochs_figure(
        _rows(histories, layer, position),
        made,
        field=field,
        form=form,
        head=head,
        smoothing=smoothing,
        **camera,
    )


def _check_field(histories: Sequence[History], field: Field) -> None:
    if field == "head":
        for one in histories:
            check_fits(one.run, "head_metrics")


def animation(
    histories: Sequence[History],
    field: Field,
    layer: int,
    position: int,
    head: int,
    smoothing: float,
) -> tuple[list[Figure], list[str]]:
    """One figure an epoch at one scale, and their labels; epochs that every run has."""
    settings = {
        "field": field,
        "form": "heatmap",
        "layer": layer,
        "position": position,
        "head": head,
        "smoothing": smoothing,
    }
    made = _provenance(histories, "epochs", settings)
    rows = _rows(histories, layer, position)
    return frames_of(rows, made, field=field, head=head, smoothing=smoothing)


def surface(
    histories: Sequence[History],
    at: Annotated[int, "Epoch; the last by default."] = -1,
    field: Shown = "full",
    layer: Layer = 0,
    position: Position = -1,
    head: Head = 0,
    smoothing: Smoothing = 0.0,
    azimuth: Azimuth = -60.0,
    elevation: Elevation = 35.0,
) -> Figure:
    """One epoch as landscapes side by side, a run each (paper, Figure 11)."""
    at = max(subject.epoch for one in histories for subject in one.subjects) if at < 0 else at
    settings = {
        "at": at,
        "field": field,
        "layer": layer,
        "position": position,
        "head": head,
        "smoothing": smoothing,
        "azimuth": azimuth,
        "elevation": elevation,
    }
    made = _provenance(histories, "epochs-surface", settings)
    _check_field(histories, field)
    return surfaces_figure(
        _rows(histories, layer, position),
        at,
        made,
        field=field,
        head=head,
        smoothing=smoothing,
        azimuth=azimuth,
        elevation=elevation,
    )


def curves(histories: Sequence[History], layer: Layer = 0, position: Position = -1) -> Figure:
    """Norm, shares, ranks, distance and adaptivity over epochs, beside the losses."""
    found: dict[str, dict[str, tuple[Any, Any]]] = {key: {} for key in CURVES}
    losses: dict[str, dict[str, tuple[Any, Any]]] = {"train_loss": {}, "valid_loss": {}}
    for history in histories:
        (row,) = _rows([history], layer, position)
        numbers = trajectory(row.epochs, row.metrics, row.n_heads)
        for key in found:
            if key != "adaptivity":
                found[key][row.name] = (numbers.epochs, getattr(numbers, key))
        spread = _adaptivity(history, layer, position)
        if spread is not None:
            found["adaptivity"][row.name] = (numbers.epochs, spread)
        records = history.run.metrics
        for key, lines in losses.items():
            values = [record.get(key) for record in records]
            y = [v if isinstance(v, int | float) else np.nan for v in values]
            lines[row.name] = ([record["epoch"] for record in records], y)
    if not found["adaptivity"]:
        del found["adaptivity"]
    names = {key: key.replace("_", " ").capitalize() for key in found}
    names |= {"train_loss": "Train loss", "valid_loss": "Validation loss"}
    made = _provenance(histories, "epoch-curves", {"layer": layer, "position": position})
    return curves_over_epochs({**found, **losses}, names, made)


def _adaptivity(history: History, layer: int, position: int) -> list[float] | None:
    """Adaptivity of each snapshot on held-out inputs; None where there are none beside the run."""
    try:
        data = history.run.evaluation_set(n=ADAPTIVITY_INPUTS)
    except InputError:
        return None
    inputs, _ = next(data.batches(ADAPTIVITY_INPUTS))
    return [adaptivity(subject.model, inputs, layer, position) for subject in history.subjects]


def _rows(histories: Sequence[History], layer: int, position: int) -> list[EpochRow]:
    return [
        EpochRow(
            name=one.name,
            epochs=tuple(subject.epoch for subject in one.subjects),
            metrics=tuple(subject.serving(layer, position) for subject in one.subjects),
            n_heads=one.run.config.model.n_heads,
            broken=one.broken,
        )
        for one in histories
    ]


def _provenance(histories: Sequence[History], kind: str, settings: dict[str, Any]) -> Provenance:
    first = histories[0].subjects[-1]
    settings = {**first.example.settings, **settings}
    runs = [word for one in histories for word in ("--run", str(one.run.path))]
    weights = {
        f"{one.run.name} epoch {s.epoch}": s.weights_digest
        for one in histories
        for s in one.subjects
    }
    return Provenance(
        run=", ".join(one.run.name for one in histories),
        weights_digest=first.weights_digest,
        input_digest=first.example.digest,
        input_name=first.example.name,
        settings={**settings, "weights": weights},
        version=__version__,
        command=command(kind, runs, input_words(first), settings),
    )
