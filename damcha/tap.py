"""Capture and intervention on the cross-head metric (design.md §4).

``with tap(model) as capture: model(x)`` records what f_θ produced; ``tap(model, edit=fn)``
replaces it before the scores are formed. The open taps live in a context variable: they belong to
the running thread or task, nest, and close themselves on an exception. Nothing is attached to the
model, so any number of threads may tap one shared model at once.

This module is a leaf: it knows no model. Attention modules ask :func:`listening` and report here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from damcha.errors import CaptureError

if TYPE_CHECKING:  # `damcha.tap` is bound when the package is imported, which must not load torch
    from jaxtyping import Float
    from torch import Tensor, nn

Edit = Callable[["Tensor", "int | None"], "Tensor"]
"""``edit(metric [batch, positions, d, d], layer or None where shared) -> metric of that shape``."""
Recordable = Literal["attention", "scores", "inputs"]


@dataclass(frozen=True, eq=False)
class MetricRecord:
    """One metric as the model used it, after any edit."""

    layer: int | None
    """Index of the layer that uses it; None where the whole stack shares it."""
    metric: Float[Tensor, "batch positions d d"]
    head_metrics: Float[Tensor, "batch positions heads e e"]
    """R_a = Σ_b M_ab."""
    context: Float[Tensor, "batch positions c"] | None
    """What f_θ was given, c = d or a multiple; None for a static metric."""
    stride: int
    """Queries served by one position; 0 where a single metric serves all."""


@dataclass(eq=False)
class Capture:
    """What the tapped forward passes reported, in the order of computation."""

    records: list[MetricRecord] = field(default_factory=list)
    attention: dict[int, Float[Tensor, "batch heads query key"]] = field(default_factory=dict)
    scores: dict[int, Float[Tensor, "batch heads query key"]] = field(default_factory=dict)
    inputs: dict[int, Float[Tensor, "batch tokens d"]] = field(default_factory=dict)

    @property
    def metric(self) -> Tensor | tuple[Tensor, ...]:
        """M of a single example, [positions, d, d]; a tuple, one per layer, where not shared."""
        return self._single("metric")

    @property
    def head_metrics(self) -> Tensor | tuple[Tensor, ...]:
        """R of a single example, [positions, heads, e, e]; a tuple where not shared."""
        return self._single("head_metrics")

    @property
    def context(self) -> Tensor | tuple[Tensor, ...]:
        """f_θ's input for a single example, [positions, c]; a tuple where not shared."""
        return self._single("context")

    def _single(self, name: str) -> Tensor | tuple[Tensor, ...]:
        if not self.records:
            raise CaptureError(
                f"{name}: nothing was captured; run the tapped model inside the `with` block, and "
                "check that its attention has a cross-head metric (MoA has none)"
            )
        values = [getattr(record, name) for record in self.records]
        for value in values:
            if value is None:
                raise CaptureError(f"{name}: a static metric has no context")
            if value.shape[0] != 1:
                raise CaptureError(
                    f"{name}: {value.shape[0]} examples were captured at once; "
                    f"read capture.records[i].{name}, which keeps the batch axis"
                )
        shared = len(values) == 1 and self.records[0].layer is None
        return values[0][0] if shared else tuple(value[0] for value in values)


@dataclass(frozen=True, eq=False)
class _Tap:
    members: frozenset[int]
    """Identities of the tapped model's modules; the model is alive as long as the tap is open."""
    edit: Edit | None
    per_layer: bool
    record: frozenset[str]
    capture: Capture


_open_taps: ContextVar[tuple[_Tap, ...]] = ContextVar("damcha_open_taps", default=())


@contextmanager
def tap(
    model: nn.Module,
    edit: Edit | None = None,
    *,
    per_layer: bool = False,
    record: tuple[Recordable, ...] = (),
) -> Iterator[Capture]:
    """Record, and optionally replace, the metric of every forward pass of `model` in this thread.

    Parameters
    ----------
    model
        Any module that contains DAMCHA attention, or a part of it.
    edit
        Replaces M before RowSum: ``edit(metric, layer)`` gets [batch, positions, d, d] and returns
        the same shape (or one that broadcasts to it). With nested taps the outer edit comes first.
    per_layer
        Hand a shared metric to `edit`, and record it, once per layer instead of once per stack.
    record
        Also keep ``"attention"`` (probabilities), ``"scores"`` (before masks and softmax), or
        ``"inputs"`` (of each attention layer), keyed by layer.

    Tensors stay in the autograd graph; use ``torch.no_grad()`` to look without it.
    """
    unknown = set(record) - {"attention", "scores", "inputs"}
    if unknown:
        raise CaptureError(
            f"record: {sorted(unknown)[0]!r} cannot be recorded; "
            "choose from 'attention', 'scores', 'inputs'"
        )
    capture = Capture()
    members = frozenset(id(module) for module in model.modules())
    opened = _Tap(members, edit, per_layer, frozenset(record), capture)
    token = _open_taps.set((*_open_taps.get(), opened))
    try:
        yield capture
    finally:
        _open_taps.reset(token)


def _taps_of(module: nn.Module) -> list[_Tap]:
    return [opened for opened in _open_taps.get() if id(module) in opened.members]


def listening(module: nn.Module) -> bool:
    """Whether a tap of this thread covers `module`."""
    return bool(_open_taps.get()) and bool(_taps_of(module))


def wants_per_layer(module: nn.Module) -> bool:
    """Whether a tap of this thread wants the metric of `module` layer by layer."""
    return any(opened.per_layer for opened in _taps_of(module))


def wants(module: nn.Module, what: Recordable) -> bool:
    """Whether a tap of this thread records `what` of `module`."""
    return any(what in opened.record for opened in _taps_of(module))


def edit_metric(module: nn.Module, metric: Tensor, layer: int | None, batch: int) -> Tensor:
    """Pass a metric through the edits of all open taps, outermost first.

    A static metric has one row for any batch; an edit may give one to each of `batch` examples.
    """
    import torch

    for opened in _taps_of(module):
        if opened.edit is None:
            continue
        # A copy: an edit in place would reach into the model's own weights.
        edited = opened.edit(metric.clone(), layer)
        if not isinstance(edited, torch.Tensor):
            raise CaptureError(f"edit must return a tensor, not {type(edited).__name__}")
        if edited.is_complex():
            raise CaptureError(f"edit returned {edited.dtype}; a metric is real")
        try:
            shape = torch.broadcast_shapes(edited.shape, metric.shape)
        except RuntimeError:
            shape = torch.Size()
        fits = shape[-3:] == metric.shape[-3:] and len(shape) == metric.dim()
        if not fits or shape[0] not in (1, batch):
            raise CaptureError(
                f"edit returned shape {tuple(edited.shape)} for a metric of shape "
                f"{tuple(metric.shape)} and a batch of {batch}; it must return "
                "[batch, positions, d, d]"
            )
        if metric.isfinite().all() and not edited.isfinite().all():
            raise CaptureError("edit returned NaN or infinite values for a finite metric")
        metric = edited.expand(shape).to(metric)
    return metric


def report_metric(module: nn.Module, record: MetricRecord) -> None:
    """Hand a metric that is about to be used to all open taps."""
    for opened in _taps_of(module):
        opened.capture.records.append(record)


def report(module: nn.Module, what: Recordable, layer: int, value: Tensor) -> None:
    """Hand another recorded quantity to the open taps that want it."""
    for opened in _taps_of(module):
        if what in opened.record:
            getattr(opened.capture, what)[layer] = value
