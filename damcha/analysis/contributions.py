"""What each entry of the metric contributes to an answer (design.md §5; paper, Figure 9).

For a scalar F of one input, every layer gets its own copy M^(ℓ) of its metric, as a leaf, through
:func:`damcha.tap.tap`; one backward pass then gives ∂F/∂M^(ℓ) of all layers, and captum turns it
into contributions:

=====================  =============================================================================
gradient_x_value       M^(ℓ) ⊙ ∂F/∂M^(ℓ); captum's InputXGradient
integrated_gradients   (M - M₀)^(ℓ) ⊙ ∫ ∂F/∂M^(ℓ) from M₀ to M; captum's IntegratedGradients. They
                       sum to F(M) - F(M₀); what is missing is the completeness error
gradient               ∂F/∂M^(ℓ) alone; captum's Saliency, signed
=====================  =============================================================================

Captum's methods for layers hook modules, which a shared generator and other threads would not
survive (design.md §4); as functions of the leaves they are the same methods, without hooks, and
:func:`as_function` gives that function to any other method of captum's. Summed over the layers, the
contributions are those of the metric that the stack shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from damcha.analysis.ablation import MOST_NUMBERS, own_target
from damcha.checkpoint.run import Example
from damcha.errors import InputError
from damcha.model import ByteLM, ImageClassifier, TaskModel
from damcha.tap import tap

Method = Literal["gradient_x_value", "integrated_gradients", "gradient"]
METHODS: dict[Method, str] = {
    "gradient_x_value": "Gradient × value",
    "integrated_gradients": "Integrated gradients",
    "gradient": "Gradient alone",
}
Baseline = Literal["zero", "mean"]


@dataclass(frozen=True)
class Target:
    """The number that is explained."""

    kind: Literal["loss", "class", "token", "patch"] = "loss"
    """``loss``: the task's; ``class``: the log-probability of class `index`; ``token``: that of the
    byte at position `index`; ``patch``: the squared error of patch `index`."""
    index: int = 0


@dataclass(frozen=True, eq=False)
class Contributions:
    """Contributions of every entry of the metric in every layer, summed over positions."""

    layers: Float[np.ndarray, "layers d d"]
    method: Method
    value: float
    """F, the number that is explained."""
    baseline_value: float | None
    """F at the baseline metric, where the method has one."""
    completeness_error: float | None
    """Sum of the contributions minus (F - F at the baseline): 0 for an exact integral."""

    @property
    def total(self) -> Float[np.ndarray, "d d"]:
        """The contribution of the metric as the whole stack uses it."""
        summed: Float[np.ndarray, "d d"] = self.layers.sum(0)
        return summed


def contributions(
    model: TaskModel,
    example: Example,
    target: Target = Target(),  # frozen
    method: Method = "gradient_x_value",
    *,
    baseline: Baseline = "zero",
    mean: Float[np.ndarray, "sources positions d d"] | None = None,
    steps: int = 32,
    position: int | None = None,
) -> Contributions:
    """Attribute a number to the entries of the metric, layer by layer.

    Parameters
    ----------
    baseline, mean, steps
        Where integrated gradients start: at the zero metric, or at the data-set mean; and in how
        many steps (Gauss-Legendre) they get to M.
    position
        One refresh of a causal metric; None sums over all of them.

    Raises
    ------
    InputError
        If the model has no metric, or the target or the method does not fit.
    """
    if method not in get_args(Method):
        raise InputError(f"method: '{method}' is not one of {', '.join(get_args(Method))}")
    if not 1 <= steps <= 4096:
        raise InputError(f"steps: {steps} is not between 1 and 4096")
    inputs = _like(model, example.inputs)
    with torch.no_grad(), tap(model, per_layer=True) as capture:
        model(inputs)
    if not capture.records:
        raise InputError(
            f"attention '{model.config.model.attention}' has no cross-head metric to attribute to; "
            "choose another run"
        )
    leaves = tuple(record.metric.detach().clone() for record in capture.records)
    n_positions = leaves[0].shape[1]
    if position is not None and not -n_positions <= position < n_positions:
        raise InputError(f"position: {position} is not one of 0 to {n_positions - 1}")
    function = as_function(model, inputs, target)
    starts = tuple(map(torch.zeros_like, leaves))
    if baseline == "mean":
        if mean is None:
            raise InputError("baseline: this run has no data-set mean of its metric; use 'zero'")
        starts = tuple(
            torch.from_numpy(np.array(mean[k if len(mean) > 1 else 0, :n_positions]))[None].to(leaf)
            for k, leaf in enumerate(leaves)
        )
    found = _attribute(function, leaves, starts, method, steps)
    with torch.no_grad():
        value, start = float(function(*leaves)), float(function(*starts))
    has_baseline = method == "integrated_gradients"
    total = sum(float(part.double().sum()) for part in found)
    at = (
        slice(None)
        if position is None
        else slice(position % n_positions, position % n_positions + 1)
    )
    layers = torch.stack([part[0, at].sum(0) for part in found]).cpu().numpy().copy()
    layers.setflags(write=False)
    return Contributions(
        layers=layers,
        method=method,
        value=value,
        baseline_value=start if has_baseline else None,
        completeness_error=total - (value - start) if has_baseline else None,
    )


def as_function(model: TaskModel, inputs: Tensor, target: Target) -> Callable[..., Tensor]:
    """F as a function of the layers' metrics, n of each at a time: [n, P, d, d] · layers → [n].

    Raises
    ------
    InputError
        If the target does not fit the model or the input.
    """
    read = _reader(model, inputs, target)

    def function(*metrics: Tensor) -> Tensor:
        def edit(metric: Tensor, layer: int | None) -> Tensor:
            return metrics[layer or 0]

        many = inputs.expand(len(metrics[0]), *inputs.shape[1:])
        with tap(model, edit, per_layer=True):
            return read(many)

    return function


def _reader(model: TaskModel, inputs: Tensor, target: Target) -> Callable[[Tensor], Tensor]:
    """F of a batch of equal inputs, [n]."""
    k = target.index
    if target.kind == "loss":
        with torch.no_grad():
            label = own_target(model, inputs)
        return lambda many: model.score(many, label.expand(len(many)))["loss"]
    if target.kind == "class" and isinstance(model, ImageClassifier):
        _check(k, model.config.data.n_classes, "class")
        return lambda many: model(many).log_softmax(-1)[:, k]
    if target.kind == "token" and isinstance(model, ByteLM):
        _check(k, inputs.shape[1], "token")
        byte = int(inputs[0, k])
        return lambda many: model(many)[:, k].log_softmax(-1)[:, byte]
    if target.kind == "patch" and not isinstance(model, ByteLM | ImageClassifier):
        patches = model.patches(inputs)  # type: ignore[operator]
        _check(k, patches.shape[1], "patch")
        wanted = patches[:, k]
        return lambda many: F.mse_loss(
            model(many)[:, k], wanted.expand(len(many), -1), reduction="none"
        ).mean(-1)
    raise InputError(
        f"target: '{target.kind}' does not fit a model of task '{model.config.task}'; use 'loss', "
        "or 'class' for classifiers, 'token' for text, 'patch' for pictures"
    )


def _check(index: int, count: int, what: str) -> None:
    if not 0 <= index < count:
        raise InputError(f"target: there is no {what} {index}; choose 0 to {count - 1}")


def _attribute(
    function: Callable[..., Tensor],
    leaves: tuple[Tensor, ...],
    starts: tuple[Tensor, ...],
    method: Method,
    steps: int,
) -> tuple[Tensor, ...]:
    """Attributions of each layer's leaf, [1, P, d, d] each."""
    from captum.attr import InputXGradient, IntegratedGradients, Saliency

    found: Any
    if method == "gradient_x_value":
        found = InputXGradient(function).attribute(_tracked(leaves))
    elif method == "gradient":
        found = Saliency(function).attribute(_tracked(leaves), abs=False)
    else:
        numbers = sum(leaf.numel() for leaf in leaves)
        found = IntegratedGradients(function).attribute(
            _tracked(leaves),
            starts,
            n_steps=steps,
            method="gausslegendre",
            internal_batch_size=max(1, MOST_NUMBERS // numbers),
        )
    return tuple(part.detach() for part in found)


def _tracked(leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(leaf.clone().requires_grad_() for leaf in leaves)


def _like(model: TaskModel, inputs: Tensor) -> Tensor:
    like = next(model.parameters())
    inputs = inputs.to(like.device)
    return inputs.to(like.dtype) if inputs.is_floating_point() else inputs
