"""Every figure of a run and an input, by name: what the dashboard and the shell both show.

    open_subject(run, epoch, source) → Subject ─┬→ metric, spectrum, answer, …   → figures.Figure
                                                └→ geometry                      → numbers

A figure made here carries its provenance, and the command that makes it again.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from damcha import __version__, figures
from damcha.analysis.geometry import Geometry, describe
from damcha.analysis.inspection import (
    ClassAnswer,
    ImageAnswer,
    Inspection,
    attention_maps,
    inspect,
)
from damcha.checkpoint.run import Device, Example, Run, Source
from damcha.data.text import Passage, byte_label
from damcha.errors import InputError
from damcha.figures.metric import MetricView
from damcha.figures.spec import Figure, Provenance
from damcha.model import TaskModel


@dataclass(frozen=True, eq=False)
class Subject:
    """One input in one snapshot of a run, and what was found there."""

    run: Run
    epoch: int
    weights_digest: str
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

    def _pick(
        self, metrics: NDArray[np.float32] | None, source: int, position: int
    ) -> NDArray[np.float32]:
        if metrics is None:
            raise InputError(
                f"run '{self.run.name}' uses {self.run.config.model.attention}, which has no "
                "cross-head metric; choose a DAMCHA run"
            )
        n_sources, n_positions = metrics.shape[:2]
        if not 0 <= source < n_sources:
            raise InputError(f"layer: {source} is not one of 0 to {n_sources - 1}")
        if not -n_positions <= position < n_positions:
            raise InputError(f"position: {position} is not one of 0 to {n_positions - 1}")
        picked: NDArray[np.float32] = metrics[source, position]
        return picked


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
    return Subject(
        run=run,
        epoch=epoch,
        weights_digest=run.weights_digest(epoch),
        example=example,
        inspection=inspect(model, example),
        reference=run.mean_metric(epoch),
    )


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


def provenance(subject: Subject, kind: str, settings: Mapping[str, Any]) -> Provenance:
    """State where a figure's numbers come from, and the command that makes it again."""
    example = subject.example
    if isinstance(example.original, Passage):
        given = ["--text", example.original.text]
    else:
        given = ["--input", _place(subject)]
    options = []
    for name, value in {**example.settings, **settings}.items():
        if value is True:
            options.append(f"--{name}")
        elif value is not None:
            several = isinstance(value, tuple)
            options += [f"--{name}", ",".join(map(str, value)) if several else str(value)]
    command = [
        "damcha", "figure", kind, "--run", str(subject.run.path), "--epoch", str(subject.epoch),
        *given, *options, "--out", f"{kind}.pdf",
    ]  # fmt: skip
    return Provenance(
        run=subject.run.name,
        epoch=subject.epoch,
        weights_digest=subject.weights_digest,
        input_digest=example.digest,
        input_name=example.name,
        settings={**example.settings, **settings},
        version=__version__,
        command=shlex.join(command),
    )


def metric(
    subject: Subject,
    view: MetricView = "full",
    source: int = 0,
    position: int = -1,
    block: tuple[int, int] | None = None,
) -> Figure:
    """The metric of the input, in one of the views of :func:`damcha.figures.metric_figure`.

    Raises
    ------
    InputError
        If there is no such metric, or no data-set mean to take the difference from.
    """
    matrix = subject.metric(source, position)
    position %= subject.inspection.metrics.shape[1]  # type: ignore[union-attr]
    reference = None
    if view == "difference":
        if subject.reference is None:
            raise InputError(
                f"run '{subject.run.name}' has no data-set mean for epoch {subject.epoch} "
                "(mean-metric.safetensors), so there is nothing to take the difference from"
            )
        # A short text has fewer positions than the mean; they are the first ones.
        reference = subject._pick(subject.reference, source, position)
    settings = {"view": view, "layer": source, "position": position, "block": block}
    return figures.metric_figure(
        matrix,
        subject.n_heads,
        view,
        provenance(subject, "metric", settings),
        reference=reference,
        block=block,
    )


def geometry(subject: Subject, source: int = 0, position: int = -1) -> Geometry:
    """The numbers of design.md §6 for the metric of the input."""
    return describe(subject.metric(source, position), subject.n_heads)


def spectrum(subject: Subject, source: int = 0, position: int = -1) -> Figure:
    """Eigenvalues and singular values of the metric of the input."""
    found = geometry(subject, source, position)
    settings = {"layer": source, "position": position}
    return figures.spectrum_figure(
        found.eigenvalues, found.singular_values, provenance(subject, "spectrum", settings)
    )


def answer(subject: Subject) -> Figure:
    """What the model makes of the input: reconstruction, next byte, or classes."""
    given, made = subject.inspection.answer, provenance(subject, "answer", {})
    if isinstance(given, ImageAnswer):
        seen = subject.example.seen
        assert isinstance(seen, np.ndarray)  # an image model's example
        return figures.reconstruction_figure(
            seen, given.predicted, given.error, made, error_label="squared error"
        )
    if isinstance(given, ClassAnswer):
        return figures.distribution_figure(
            given.probabilities, given.class_names, provenance=made, title="Class probabilities"
        )
    full = len(subject.example.labels) >= subject.run.config.data.seq_len
    return figures.distribution_figure(
        given.next_byte,
        [byte_label(k) for k in range(256)],
        provenance=made,
        title="Last byte, from those before it (there is no room for another)"
        if full
        else "Next byte",
    )


def surprise(subject: Subject) -> Figure:
    """How unexpected each byte of the text was.

    Raises
    ------
    InputError
        If the run does not model text.
    """
    given = subject.inspection.answer
    if isinstance(given, ImageAnswer | ClassAnswer):
        raise InputError(f"run '{subject.run.name}' does not model text, so no byte surprises it")
    return figures.surprise_figure(
        given.nats, subject.example.labels, provenance(subject, "surprise", {})
    )


def attention(
    subject: Subject, maps: Float[np.ndarray, "heads query key"], layer: int, head: int
) -> Figure:
    """One head's attention map; `maps` are the layer's, from :func:`attention_maps`."""
    settings = {"layer": layer, "head": head}
    return figures.attention_figure(
        _head(maps, head),
        subject.inspection.tokens,
        provenance(subject, "attention", settings),
        title=f"Attention, layer {layer}, head {head}",
    )


def attention_over_input(
    subject: Subject,
    maps: Float[np.ndarray, "heads query key"],
    layer: int,
    head: int,
    query: int,
) -> Figure:
    """What one query of one head attends to, laid over the input it stands for.

    In an autoregressive model, key k > 0 is input token k - 1, and key 0 the start token, which
    has no place in the input: its weight is in the title.
    """
    weights = _head(maps, head)
    tokens = subject.inspection.tokens
    if not 0 <= query < len(tokens):
        raise InputError(f"query: {query} is not one of 0 to {len(tokens) - 1}")
    row = weights[query].astype(np.float32)
    title = f"Layer {layer}, head {head}: what {tokens[query]} attends to"
    if subject.run.config.model.causal:
        row = np.where(np.arange(len(row)) <= query, row, np.nan)
    if tokens[0] == "start":
        title += f" ({row[0]:.0%} on the start token)"
        row = np.append(row[1:], np.float32(np.nan))
    settings = {"layer": layer, "head": head, "query": query}
    return figures.attention_over_input_figure(
        row,
        subject.example.seen,
        provenance(subject, "attention-over-input", settings),
        title=title,
    )


def curves(run: Run) -> Figure:
    """Training and validation loss over the run's epochs."""
    command = shlex.join(
        ["damcha", "figure", "curves", "--run", str(run.path), "--out", "curves.pdf"]
    )
    made = Provenance(run=run.name, version=__version__, command=command)
    return figures.curves_figure(run.metrics, made)


def identifiability_note(subject: Subject) -> str | None:
    """The caveat that belongs beside every picture of M under RowSum (design.md §3)."""
    model = subject.run.config.model
    if model.attention != "damcha" or model.metric.aggregation != "rowsum":
        return None
    return (
        "This run adds up each block row: the model uses only R_a = Σ_b M_ab. Blocks of one row "
        "get the same gradient, so they differ only by their initial values; read R_a for what "
        "was learned."
    )


def _head(maps: NDArray[Any], head: int) -> NDArray[Any]:
    if not 0 <= head < len(maps):
        raise InputError(f"head: there is no head {head}; this model has 0 to {len(maps) - 1}")
    picked: NDArray[Any] = maps[head]
    return picked


def draw(kind: str, subject: Subject, model: TaskModel, options: Mapping[str, Any]) -> Figure:
    """A figure by its name, with options as they come from the shell; unknown ones are refused.

    Raises
    ------
    InputError
        If the kind is unknown or does not take an option that was given.
    """
    if kind not in KINDS:
        raise InputError(f"{kind}: no such figure; choose from {', '.join(sorted(KINDS))}")
    function, takes = KINDS[kind]
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in takes:
            raise InputError(
                f"--{name}: figure '{kind}' has no such option; it takes "
                f"{', '.join('--' + t for t in takes) or 'none'}"
            )
    if function in (attention, attention_over_input):
        given.setdefault("layer", 0)
        given.setdefault("head", 0)
        if function is attention_over_input:
            given.setdefault("query", len(subject.inspection.tokens) - 1)
        given["maps"] = attention_maps(model, subject.example, given["layer"])
    elif "layer" in given:
        given["source"] = given.pop("layer")
    return function(subject, **given)


KINDS: dict[str, tuple[Callable[..., Figure], tuple[str, ...]]] = {
    "metric": (metric, ("view", "layer", "position", "block")),
    "spectrum": (spectrum, ("layer", "position")),
    "answer": (answer, ()),
    "surprise": (surprise, ()),
    "attention": (attention, ("layer", "head")),
    "attention-over-input": (attention_over_input, ("layer", "head", "query")),
}
"""Figure of an input → the function that makes it, and the options that it takes."""
