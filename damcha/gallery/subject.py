"""What figures are of: one input in one snapshot of a run, and where its numbers come from."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from damcha import __version__
from damcha.analysis.inspection import Inspection, inspect
from damcha.attention import ATTENTIONS, DAMCHAttention
from damcha.checkpoint.run import Device, Example, Run, Source
from damcha.data.evaluation import EvaluationSet
from damcha.data.text import Passage
from damcha.errors import InputError
from damcha.figures.spec import Provenance
from damcha.model import PairLM, TaskModel


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run's model at the end of one epoch."""

    run: Run
    epoch: int
    weights_digest: str
    model: TaskModel
    """In eval mode; others may share it, so it is never changed."""


@dataclass(frozen=True, eq=False)
class Subject(Snapshot):
    """One input in one snapshot of a run, and what was found there."""

    example: Example
    inspection: Inspection
    reference: Float[np.ndarray, "sources positions d d"] | None
    """The metric's mean over held-out inputs, where the run has it."""

    @property
    def n_heads(self) -> int:
        """Heads of the model."""
        return self.run.config.model.n_heads

    @property
    def source_names(self) -> tuple[str, ...]:
        """One name for each metric: the stack's, or each layer's."""
        if self.inspection.metrics is None:
            return ()
        if len(self.inspection.metrics) == 1 and self.run.config.model.n_layers > 1:
            return ("all layers",)
        return tuple(f"layer {k}" for k in range(len(self.inspection.metrics)))

    def metric(self, source: int = 0, position: int = -1) -> NDArray[np.float32]:
        """One metric [d, d]; a negative position counts from the last.

        Raises
        ------
        InputError
            If the model has no metric, or none of that source or position.
        """
        return self._pick(self.inspection.metrics, source, position)

    def serving(self, source: int = 0, position: int = -1) -> NDArray[np.float32]:
        """As :meth:`metric`, but one metric for all layers or positions serves each of them."""
        metrics = self.inspection.metrics
        if metrics is not None:
            source = source if metrics.shape[0] > 1 else 0
            position = position if metrics.shape[1] > 1 else 0
        return self.metric(source, position)

    def _pick(
        self, metrics: NDArray[np.float32] | None, source: int, position: int
    ) -> NDArray[np.float32]:
        if metrics is None:
            raise InputError(
                f"run '{self.run.name}' uses {self.run.config.model.attention}, which has no "
                "cross-head metric; choose another run"
            )
        n_sources, n_positions = metrics.shape[:2]
        if not 0 <= source < n_sources:
            raise InputError(f"layer: {source} is not one of 0 to {n_sources - 1}")
        if not -n_positions <= position < n_positions:
            raise InputError(f"position: {position} is not one of 0 to {n_positions - 1}")
        picked: NDArray[np.float32] = metrics[source, position]
        return picked


BASES = (
    "An implied metric has its rows in the basis of the queries and its columns in that of the "
    "keys: norms, singular values and shares mean what they do elsewhere; eigenvalues, symmetry "
    "and signature do not."
)


def unfit(run: Run, view: str) -> str:
    """Why a view says nothing about the metric of this run's attention; "" where it does."""
    kind = ATTENTIONS.get(run.config.model.attention)
    if kind is None:  # opening the run says what is wrong with it
        return ""
    if view == "head_metrics" and kind.heads_meet:
        return (
            f"{view}: in {kind.__name__} a row of blocks holds forms in different bases, so their "
            "sum is not what a head uses; look at M or at its blocks"
        )
    if view in ("symmetric", "antisymmetric") and kind.LENS:
        return f"{view}: {BASES[0].lower()}{BASES[1:]}"
    return ""


def has_metric(run: Run) -> bool:
    """Whether the attention of a run has a cross-head metric, its own or an implied one."""
    kind = ATTENTIONS.get(run.config.model.attention)  # one unknown run must not spoil the others
    return kind is not None and (kind is DAMCHAttention or bool(kind.LENS))


def check_fits(run: Run, view: str) -> None:
    """Refuse a view that says nothing about this run's attention."""
    reason = unfit(run, view)
    if reason:
        raise InputError(reason)


def open_snapshot(run: Run, epoch: int | None = None, device: Device = "auto") -> Snapshot:
    """Load the model of an epoch, the last by default."""
    epoch = run.epochs[-1] if epoch is None else epoch
    return Snapshot(run, epoch, run.weights_digest(epoch), run.load(epoch, device))


def open_subject(
    run: Run,
    epoch: int | None,
    source: Source | Example,
    *,
    device: Device = "auto",
    model: TaskModel | None = None,
    **options: Any,
) -> Subject:
    """Prepare an input, run the model, and gather what the figures need.

    Parameters
    ----------
    run, epoch
        The snapshot; the last one by default.
    source
        An input as :meth:`Run.prepare` takes it (with `options`), or an Example of that run.
    device, model
        Where to run; or the model itself, if it is loaded already.
    """
    epoch = run.epochs[-1] if epoch is None else epoch
    example = source if isinstance(source, Example) else run.prepare(source, **options)
    model = run.load(epoch, device) if model is None else model
    if isinstance(model, PairLM) and not model.counted(example.inputs).any():
        last = model if epoch == run.epochs[-1] else run.load(run.epochs[-1], device)
        example = with_target(run, last, example)
    return Subject(
        run=run,
        epoch=epoch,
        weights_digest=run.weights_digest(epoch),
        model=model,
        example=example,
        inspection=inspect(model, example),
        reference=run.mean_metric(epoch),
    )


def with_target(run: Run, model: TaskModel, example: Example) -> Example:
    """Return a source that came without a target with the one that a run's last snapshot writes.

    Losses and contributions are of the target, so there must be one, the same at all epochs.
    """
    assert isinstance(model, PairLM)
    inputs = model.answer(example.inputs.to(next(model.parameters()).device)).cpu()
    labels = run.labels(inputs[0].numpy())
    note = "No target was given (after a tab): what the run's last snapshot writes stands for it."
    return replace(
        example,
        inputs=inputs,
        labels=labels,
        seen=labels,
        notes=(*example.notes, note),
        digest=hashlib.sha256(inputs.numpy().tobytes()).hexdigest(),
    )


def counted(subject: Subject, nats: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...], str]:
    """Surprise [..., n] at the symbols that the loss counts, their labels, and their name."""
    places = np.isfinite(nats.reshape(-1, nats.shape[-1])[0])
    labels = tuple(compress(subject.example.labels, places))
    return nats[..., places], labels, subject.run.config.symbol


# Where the numbers come from ----------------------------------------------------------------------


def provenance(subject: Subject, kind: str, settings: Mapping[str, Any]) -> Provenance:
    """State where the numbers of a figure of one input come from, and the command for it."""
    settings = {**subject.example.settings, **settings}
    return Provenance(
        run=subject.run.name,
        epoch=subject.epoch,
        weights_digest=subject.weights_digest,
        input_digest=subject.example.digest,
        input_name=subject.example.name,
        settings=settings,
        version=__version__,
        command=command(kind, snapshot_words(subject), input_words(subject), settings),
    )


def pair_provenance(
    first: Subject, second: Subject, kind: str, settings: Mapping[str, Any]
) -> Provenance:
    """The same for a figure that sets one input and snapshot beside another."""
    made = provenance(first, kind, settings)
    other = {
        "run": second.run.name,
        "epoch": second.epoch,
        "weights": second.weights_digest,
        "input": second.example.digest,
        "input_name": second.example.name,
    }
    line = command(
        kind,
        [*snapshot_words(first), *input_words(first), *option_words(first.example.settings)],
        [*snapshot_words(second, "other-"), *input_words(second, "other-")],
        [*option_words(second.example.settings, "other-"), *option_words(settings)],
    )
    return replace(made, settings={**made.settings, "other": other}, command=line)


def set_provenance(
    snapshot: Snapshot, data: EvaluationSet, kind: str, settings: Mapping[str, Any]
) -> Provenance:
    """The same for a figure of one snapshot and many held-out inputs."""
    of = ["--n", str(len(data))]
    if data.root and Path(data.root) != snapshot.run.data_folder:
        of += ["--data", data.root]
    return Provenance(
        run=snapshot.run.name,
        epoch=snapshot.epoch,
        weights_digest=snapshot.weights_digest,
        input_digest=data.digest,
        input_name=data.name,
        settings=dict(settings),
        version=__version__,
        command=command(kind, snapshot_words(snapshot), of, settings),
    )


def command(kind: str, *parts: Sequence[str] | Mapping[str, Any]) -> str:
    """Write `damcha figure KIND …` with words as they are and settings as options."""
    line = ["damcha", "figure", kind]
    for part in parts:
        line += option_words(part) if isinstance(part, Mapping) else part
    return shlex.join([*line, "--out", f"{kind}.pdf"])


def option_words(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Write settings as options; None and False are left out, tuples become A,B."""
    words = []
    for name, value in settings.items():
        option = f"--{prefix}{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            several = isinstance(value, tuple)
            words += [option, ",".join(map(str, value)) if several else str(value)]
    return words


def snapshot_words(snapshot: Snapshot, prefix: str = "") -> list[str]:
    """Name a run and an epoch, as options."""
    path, epoch = snapshot.run.path, snapshot.epoch
    return [f"--{prefix}run", str(path), f"--{prefix}epoch", str(epoch)]


def input_words(subject: Subject, prefix: str = "") -> list[str]:
    """Name an input, as options: a text itself, a picture by where it can be found again."""
    if isinstance(subject.example.original, Passage):
        return [f"--{prefix}text", subject.example.original.text]
    return [f"--{prefix}input", _place(subject)]


def _place(subject: Subject) -> str:
    """Where a picture can be found again: its path, a sample's path, or the name of an upload."""
    example = subject.example
    if example.path is None:
        for sample in subject.run.samples:
            if sample.name == example.name:
                content = sample.read_bytes()
                if hashlib.sha256(content).hexdigest() == example.original.digest:
                    return str(sample)
    return str(example.path or example.name)
