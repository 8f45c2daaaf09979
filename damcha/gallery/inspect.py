"""Figures of one input in one snapshot: its metric, its answer, its attention."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from damcha import figures
from damcha.analysis.geometry import Geometry, describe
from damcha.analysis.inspection import ClassAnswer, ImageAnswer, attention_maps
from damcha.attention import ATTENTIONS
from damcha.errors import InputError
from damcha.figures.metric import MetricView
from damcha.figures.spec import Figure
from damcha.gallery.subject import BASES, Subject, check_fits, counted, provenance

Layer = Annotated[int, "Layer, where the stack does not share its metric."]
Position = Annotated[int, "Which refresh of a causal metric; the last by default."]
Maps = Float[np.ndarray, "heads query key"] | None


def metric(
    subject: Subject,
    view: Annotated[MetricView, "What to show."] = "full",
    layer: Layer = 0,
    position: Position = -1,
    block: Annotated[tuple[int, int] | None, "Block (A, B) alone: query head, key head."] = None,
) -> Figure:
    """The metric of the input: M, R, its parts, or its block norms.

    Raises
    ------
    InputError
        If there is no such metric, or no data-set mean to take the difference from.
    """
    check_fits(subject.run, view)
    matrix = subject.metric(layer, position)
    position %= subject.inspection.metrics.shape[1]  # type: ignore[union-attr]
    reference = None
    if view == "difference":
        if subject.reference is None:
            raise InputError(
                f"run '{subject.run.name}' has no data-set mean for epoch {subject.epoch} "
                "(mean-metric.safetensors), so there is nothing to take the difference from"
            )
        # A short text has fewer positions than the mean; they are the first ones.
        reference = subject._pick(subject.reference, layer, position)
    settings = {"view": view, "layer": layer, "position": position, "block": block}
    return figures.metric_figure(
        matrix,
        subject.n_heads,
        view,
        provenance(subject, "metric", settings),
        reference=reference,
        block=block,
    )


def geometry(subject: Subject, layer: int = 0, position: int = -1) -> Geometry:
    """The numbers of design.md §6 for the metric of the input."""
    return describe(subject.metric(layer, position), subject.n_heads)


def spectrum(subject: Subject, layer: Layer = 0, position: Position = -1) -> Figure:
    """Eigenvalues and singular values of the metric of the input."""
    found = geometry(subject, layer, position)
    settings = {"layer": layer, "position": position}
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
    if subject.run.task == "sequence_to_sequence":
        title = "First symbol of the target"
        names = subject.run.labels(np.arange(len(given.next_symbol)))
    else:
        symbol = subject.run.config.symbol
        title, names = f"Next {symbol}", subject.run.labels(np.arange(len(given.next_symbol)))
        if len(subject.example.labels) >= subject.run.config.data.seq_len:
            title = f"Last {symbol}, from those before it (there is no room for another)"
    return figures.distribution_figure(given.next_symbol, names, provenance=made, title=title)


def surprise(subject: Subject) -> Figure:
    """How unexpected each symbol of the text, or of a pair's target, was.

    Raises
    ------
    InputError
        If the run does not model text.
    """
    given = subject.inspection.answer
    if isinstance(given, ImageAnswer | ClassAnswer):
        raise InputError(f"run '{subject.run.name}' does not model text, so no symbol surprises it")
    nats, labels, unit = counted(subject, given.nats)
    made = provenance(subject, "surprise", {})
    return figures.surprise_figure(nats, labels, made, unit=unit)


def attention(
    subject: Subject,
    layer: Annotated[int, "Layer of the attention."] = 0,
    head: Annotated[int, "Head."] = 0,
    maps: Maps = None,
) -> Figure:
    """One head's attention map.

    `maps` are the layer's, where :func:`attention_maps` ran before.
    """
    maps = attention_maps(subject.model, subject.example, layer) if maps is None else maps
    settings = {"layer": layer, "head": head}
    return figures.attention_figure(
        _head(maps, head),
        subject.inspection.tokens,
        provenance(subject, "attention", settings),
        title=f"Attention, layer {layer}, head {head}",
    )


def attention_over_input(
    subject: Subject,
    layer: Annotated[int, "Layer of the attention."] = 0,
    head: Annotated[int, "Head."] = 0,
    query: Annotated[int, "Which token attends; the last by default."] = -1,
    maps: Maps = None,
) -> Figure:
    """What one query of one head attends to, laid over the input it stands for.

    In an autoregressive model, key k > 0 is input token k - 1, and key 0 the start token, which
    has no place in the input: its weight is in the title.
    """
    maps = attention_maps(subject.model, subject.example, layer) if maps is None else maps
    weights = _head(maps, head)
    tokens = subject.inspection.tokens
    query = query + len(tokens) if query == -1 else query
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


def metric_note(subject: Subject) -> str | None:
    """What belongs beside every picture of M: what it is where it is implied, else the caveat of
    RowSum (design.md §3).
    """
    model = subject.run.config.model
    kind = ATTENTIONS[model.attention]
    if kind.LENS:
        what = f"{kind.__name__} has no f_θ; this is the metric that it implies."
        return f"{what} {kind.LENS} {BASES}"
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
