"""One input through one model: its metric, what the model answers, and attention maps.

Everything that leaves this module is NumPy, read-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from damcha.checkpoint.run import Example
from damcha.errors import InputError
from damcha.model import (
    ByteLM,
    ImageAutoregressor,
    ImageClassifier,
    ImageReconstructor,
    PairLM,
    TaskModel,
    unpatchify,
)
from damcha.tap import tap

CONTINUATION = 48
"""Symbols by which a text is continued."""

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ImageAnswer:
    """What an image model made of a picture."""

    predicted: UInt8[np.ndarray, "size size c"]
    """Each patch as the model predicts it: from the true earlier patches, or from the visible."""
    completed: UInt8[np.ndarray, "size size c"]
    """The upper half as given, the lower half as the model makes it up."""
    error: Float[np.ndarray, "rows columns"]
    """Mean squared error of each patch of `predicted`, pixels in [-1, 1]."""

    @property
    def mse(self) -> float:
        """Mean squared error of `predicted`."""
        return float(self.error.mean())


@dataclass(frozen=True, eq=False)
class TextAnswer:
    """What a language model made of a text."""

    nats: Float[np.ndarray, " length"]
    """Surprise at each symbol, -log p(symbol | earlier ones); NaN at what the loss does not count,
    such as the source of a pair."""
    next_symbol: Float[np.ndarray, " symbols"]
    """Distribution of the symbol after the text (of its last, where it fills the model); of the
    first of a pair's target."""
    continuation: str
    """The likeliest next symbols, one after the other, or the target that the model itself writes;
    U+FFFD where they are not UTF-8."""

    @property
    def bits(self) -> float:
        """Mean surprise in bits."""
        return float(np.nanmean(self.nats) / np.log(2))


@dataclass(frozen=True, eq=False)
class ClassAnswer:
    """What a classifier made of a picture."""

    probabilities: Float[np.ndarray, " classes"]
    class_names: tuple[str, ...]


Answer = ImageAnswer | TextAnswer | ClassAnswer


@dataclass(frozen=True, eq=False)
class Inspection:
    """The metric of one input, and the answer that rests on it."""

    metrics: Float[np.ndarray, "sources positions d d"] | None
    """M; one source where the stack shares it, else one per layer. None: the model has no M."""
    stride: int
    """Queries served by one position; 0 where one metric serves all."""
    tokens: tuple[str, ...]
    """Labels of the tokens that the stack sees (an autoregressive model sees a start token)."""
    answer: Answer
    tapped_difference: float
    """Largest absolute difference between the tapped output and the plain one."""

    @property
    def position_labels(self) -> tuple[str, ...]:
        """Which queries each position serves, by token."""
        if self.metrics is None or self.stride == 0:
            return ("all tokens",)
        last = len(self.tokens) - 1
        spans = []
        for k in range(self.metrics.shape[1]):
            first, end = k * self.stride, min((k + 1) * self.stride - 1, last)
            name = f"{self.tokens[first]} to {self.tokens[end]}"
            spans.append(name if end > first else self.tokens[first])
        return tuple(spans)


def stack_tokens(model: TaskModel, labels: Sequence[str]) -> tuple[str, ...]:
    """Labels of the tokens in the stack: autoregressive models read a start token first."""
    if isinstance(model, ImageAutoregressor | ByteLM):
        return ("start", *labels[:-1])
    return tuple(labels)


@torch.no_grad()
def inspect(model: TaskModel, example: Example) -> Inspection:
    """Run one input through a model, tapped and plain, and return what there is to see.

    Raises
    ------
    InputError
        If the example was prepared for another model.
    """
    inputs = example.inputs.to(next(model.parameters()).device)
    plain = model(inputs)
    with tap(model) as capture:
        tapped = model(inputs)
    metrics, stride = None, 0
    if capture.records:
        metrics = _numpy(torch.stack([record.metric[0] for record in capture.records]))
        stride = capture.records[0].stride
    return Inspection(
        metrics=metrics,
        stride=stride,
        tokens=stack_tokens(model, example.labels),
        answer=_answer(model, inputs, plain),
        tapped_difference=float((tapped - plain).abs().max()),
    )


@torch.no_grad()
def attention_maps(
    model: TaskModel, example: Example, layer: int
) -> Float[np.ndarray, "heads query key"]:
    """Attention probabilities of one layer for one input.

    Raises
    ------
    InputError
        If the model has no such layer.
    """
    n_layers = model.config.model.n_layers
    if not 0 <= layer < n_layers:
        raise InputError(f"layer: there is no layer {layer}; this model has 0 to {n_layers - 1}")
    with tap(model, record=("attention",)) as capture:
        model(example.inputs.to(next(model.parameters()).device))
    return _numpy(capture.attention[layer][0])


def _answer(model: TaskModel, inputs: Tensor, output: Tensor) -> Answer:
    if isinstance(model, ImageAutoregressor | ImageReconstructor):
        truth = model.patches(inputs)
        side = round(truth.shape[1] ** 0.5)
        hidden = side // 2 * side
        if isinstance(model, ImageAutoregressor):
            completed = model.generate(truth[:, : len(truth[0]) - hidden])
        else:
            completed = torch.where(model.default_mask(1, inputs.device)[..., None], output, truth)
        error = (output - truth).square().mean(-1)[0].reshape(side, side)
        return ImageAnswer(picture(model, output), picture(model, completed), _numpy(error))
    if isinstance(model, ByteLM):
        log_p = output.double().log_softmax(-1)
        nats = -log_p.gather(-1, inputs[..., None])[..., 0]
        nats = nats.masked_fill(~model.counted(inputs), float("nan"))[0]
        if isinstance(model, PairLM):
            known = inputs[:, : model.prompt_length(inputs)]
            text, following = model.answer(known)[0, known.shape[1] :], model.next_logits(known)
        else:
            room = min(CONTINUATION, model.config.seq_len - inputs.shape[1])
            text = model.generate(inputs, room)[0, inputs.shape[1] :]
            # No room for another byte: the last one's own distribution.
            following = model.next_logits(inputs) if room else output[:, -1]
        return TextAnswer(
            _numpy(nats), _numpy(following.double().softmax(-1)[0]), model.spelled(text.tolist())
        )
    assert isinstance(model, ImageClassifier)
    data = model.config.data
    names = data.class_names or tuple(f"class {k}" for k in range(data.n_classes))
    return ClassAnswer(_numpy(output.double().softmax(-1)[0]), names)


def picture(model: TaskModel, patches: Tensor) -> NDArray[np.uint8]:
    """Patches [1, n, p] in [-1, 1] → uint8 [S, S, C], clipped."""
    data = model.config.data
    image = unpatchify(patches, data.patch_size, data.channels)[0].permute(1, 2, 0)
    pixels = ((image + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    pixels.setflags(write=False)
    return pixels


def _numpy(x: Tensor) -> Array:
    """float32 or float64 NumPy, read-only: NumPy knows no bfloat16."""
    if x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    array: Array = x.detach().cpu().numpy().copy()
    array.setflags(write=False)
    return array
