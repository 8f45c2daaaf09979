"""What the answer rests on: the metric ablated, replaced, truncated, edited (paper, Table 3).

Every intervention is an edit for :func:`damcha.tap.tap`; nothing in the model changes. One forward
pass serves many interventions on one input: each has its own row of the batch.

Keeping 1 of h blocks of a row, or h - 1, changes the norm of the metric, and much of an ablation's
effect is only that (design.md §3). So each is offered norm-matched, too: block row a is rescaled
until ‖R_a‖ is as before (bilinear aggregation, which sees the blocks apart: ‖M_a,:‖).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from damcha.analysis.inspection import CONTINUATION, picture
from damcha.analysis.progress import Progress
from damcha.analysis.summary import TOP as TOP
from damcha.analysis.summary import interval, lowest, resamples
from damcha.attention.metric import blocks, row_sum, unblocks
from damcha.checkpoint.run import Example
from damcha.config import ModelConfig
from damcha.data.evaluation import EvaluationSet
from damcha.errors import InputError
from damcha.model import ByteLM, ImageClassifier, TaskModel
from damcha.tap import Edit, tap

T = TypeVar("T")
Intervention = Literal[
    "full",
    "diagonal",
    "off_diagonal",
    "diagonal_matched",
    "off_diagonal_matched",
    "mean",
    "identity",
    "zero",
    "random",
]
INTERVENTIONS: dict[Intervention, tuple[str, str]] = {
    "full": ("Full", "M as the model computes it."),
    "diagonal": ("Diagonal only", "The blocks M_aa: each head with itself."),
    "off_diagonal": ("Off-diagonal only", "The blocks M_ab, a ≠ b: what crosses heads."),
    "diagonal_matched": (
        "Diagonal only, norm-matched",
        "The same, each R_a rescaled to the norm it had.",
    ),
    "off_diagonal_matched": (
        "Off-diagonal only, norm-matched",
        "The same, each R_a rescaled to the norm it had.",
    ),
    "mean": ("Data-set mean", "The mean metric of held-out inputs: no input dependence."),
    "identity": ("Identity", "M = I: plain dot products of the input's own channels."),
    "zero": ("Zero", "M = 0: every key gets the same attention."),
    "random": ("Random, same norm", "Gaussian numbers of M's Frobenius norm, seed 0."),
}
"""Name → (title, what it does)."""
MOST_NUMBERS = 2**25
"""Numbers of all metrics of one forward pass (128 MB in float32)."""


@dataclass(frozen=True, eq=False)
class Ablation:
    """One input under several interventions."""

    names: tuple[str, ...]
    loss: Float[np.ndarray, " interventions"]
    """The task's loss; a classifier's is that of the class which the full model gives."""
    pictures: UInt8[np.ndarray, "interventions height width c"] | None = None
    nats: Float[np.ndarray, "interventions length"] | None = None
    probabilities: Float[np.ndarray, "interventions classes"] | None = None
    continuations: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Held-out examples under several interventions."""

    names: tuple[str, ...]
    loss: Float[np.ndarray, "interventions examples"]
    accuracy: Float[np.ndarray, "interventions examples"] | None = None
    """1 where a classifier is right."""


@dataclass(frozen=True)
class Summary:
    """Numbers of one intervention over an evaluation set."""

    name: str
    mean: float
    q25: float
    q75: float
    top50: float
    """Mean of the 50 lowest losses, as the paper's Top-50."""
    difference: float
    """Mean paired difference to the first intervention."""
    interval: tuple[float, float]
    """95 % percentile bootstrap interval of that difference."""


# ---------------------------------------------------------------- edits


def part_of(metric: Float[Tensor, "*batch d d"], n_heads: int, diagonal: bool) -> Tensor:
    """The diagonal blocks of M, or the others; the rest is zero."""
    same = torch.eye(n_heads, dtype=torch.bool, device=metric.device)[..., None, None]
    return unblocks(blocks(metric, n_heads) * (same if diagonal else ~same))


def norm_matched(kept: Tensor, metric: Tensor, n_heads: int, bilinear: bool) -> Tensor:
    """Rescale each block row of `kept` to the norm that ‖R_a‖ (or ‖M_a,:‖) has in `metric`."""

    def norms(m: Tensor) -> Tensor:  # [..., h]
        if bilinear:
            return m.unflatten(-2, (n_heads, -1)).flatten(-2).norm(dim=-1)
        return row_sum(m, n_heads).flatten(-2).norm(dim=-1)

    now = norms(kept)
    factor = torch.where(now > 0, norms(metric) / now.clamp(min=1e-30), torch.zeros_like(now))
    return (kept.unflatten(-2, (n_heads, -1)) * factor[..., None, None]).flatten(-3, -2)


def edit_of(
    name: str, model: TaskModel, mean: Float[np.ndarray, "sources positions d d"] | None = None
) -> Edit:
    """Return the edit of an intervention.

    Raises
    ------
    InputError
        If the name is unknown, or the run has no data-set mean.
    """
    config = model.config.model
    h, bilinear = config.n_heads, _whole_rows(config)
    if name not in get_args(Intervention):
        choices = ", ".join(get_args(Intervention))
        raise InputError(f"intervention: '{name}' is not known; choose from {choices}")
    if name == "mean" and mean is None:
        raise InputError(
            "mean: this run has no data-set mean of its metric (mean-metric.safetensors)"
        )

    def edit(metric: Tensor, layer: int | None) -> Tensor:
        if name == "full":
            return metric
        if name.startswith(("diagonal", "off_diagonal")):
            kept = part_of(metric, h, name.startswith("diagonal"))
            matched = name.endswith("matched")
            return norm_matched(kept, metric, h, bilinear) if matched else kept
        if name == "mean":
            assert mean is not None
            source = 0 if layer is None or len(mean) == 1 else layer
            fixed = torch.from_numpy(np.array(mean[source, : metric.shape[1]])).to(metric)
            return fixed.expand_as(metric)
        if name == "zero":
            return torch.zeros_like(metric)
        if name == "identity":
            return torch.eye(metric.shape[-1]).to(metric).expand_as(metric)
        generator = torch.Generator().manual_seed(layer or 0)
        noise = torch.randn(metric.shape[-2:], generator=generator).to(metric)
        norms = metric.flatten(-2).norm(dim=-1)[..., None, None]
        return noise / noise.norm() * norms

    return edit


def scaled_blocks(factors: Float[np.ndarray, "heads heads"]) -> Edit:
    """An edit by hand: block (a, b) of every metric times factors[a, b]."""
    table = torch.from_numpy(np.array(factors))

    def edit(metric: Tensor, layer: int | None) -> Tensor:
        return unblocks(blocks(metric, len(table)) * table.to(metric)[..., None, None])

    return edit


def of_rank(metric: Tensor, n_heads: int, rank: int, bilinear: bool) -> Tensor:
    """M with each R_a (bilinear: each block row) cut to its `rank` largest singular values.

    Under RowSum the cut R_a stands in the diagonal block: the model uses only the row's sum.
    """
    rows = metric.unflatten(-2, (n_heads, -1)) if bilinear else row_sum(metric, n_heads)
    u, s, v = torch.linalg.svd(rows, full_matrices=False)
    cut = (u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :]
    if bilinear:
        return cut.flatten(-3, -2)
    same = torch.eye(n_heads, dtype=cut.dtype, device=cut.device)[..., None, None]
    return unblocks(cut.unsqueeze(-3) * same)


def _each(edits: Sequence[Edit]) -> Edit:
    """One edit that gives example k of the batch to edit k."""

    def edit(metric: Tensor, layer: int | None) -> Tensor:
        rows = metric.expand(len(edits), -1, -1, -1)
        return torch.cat([one(rows[k : k + 1], layer) for k, one in enumerate(edits)])

    return edit


# ---------------------------------------------------------------- one input


def own_target(model: TaskModel, inputs: Tensor) -> Tensor:
    """Targets for the loss of an input without a label: the class that the model itself gives."""
    if isinstance(model, ImageClassifier):
        return model(inputs).argmax(-1)
    return torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)


@torch.no_grad()
def ablate(model: TaskModel, example: Example, edits: Mapping[str, Edit]) -> Ablation:
    """Run one input under several edits, each a row of one batch; names are the mapping's.

    Raises
    ------
    InputError
        If the model has no cross-head metric.
    """
    inputs = inputs_of(model, example)
    target = own_target(model, inputs)
    many = inputs.expand(len(edits), *inputs.shape[1:])
    with tap(model, _each(list(edits.values()))) as capture:
        output = model(many)
    if not capture.records:
        raise InputError(
            f"attention '{model.config.model.attention}' has no cross-head metric to ablate; "
            "choose another run"
        )
    with tap(model, _each(list(edits.values()))):
        loss = model.score(many, target.expand(len(edits)))["loss"]
    names, losses = tuple(edits), _array(loss)
    if isinstance(model, ByteLM):
        log_p = output.double().log_softmax(-1)
        nats = -log_p.gather(-1, many[..., None])[..., 0]
        nats = nats.masked_fill(~model.counted(many), float("nan"))
        return Ablation(
            names,
            losses,
            nats=_array(nats),
            continuations=_continuations(model, inputs, list(edits.values())),
        )
    if isinstance(model, ImageClassifier):
        return Ablation(names, losses, probabilities=_array(output.double().softmax(-1)))
    pictures = np.stack([picture(model, one[None]) for one in output])
    return Ablation(names, losses, pictures=pictures)


def _continuations(model: ByteLM, inputs: Tensor, edits: Sequence[Edit]) -> tuple[str, ...]:
    """The likeliest next symbols under each edit, or the target that the model itself writes.

    Without the cache, with which an edit would see the newest position alone, as if it were the
    first: it could not tell which position of a mean or of another's metric belongs there.
    """
    known = model.prompt_length(inputs)
    text = inputs[:, :known].expand(len(edits), -1)
    with tap(model, _each(edits)):
        for _ in range(min(CONTINUATION, model.config.seq_len - known)):
            text = torch.cat((text, model.next_logits(text).argmax(-1, keepdim=True)), 1)
    return tuple(model.spelled(row.tolist()) for row in text[:, known:])


@torch.no_grad()
def knock_out(model: TaskModel, example: Example) -> NDArray[np.float64]:
    """Change of the loss when block (a, b) is removed, [h, h], everywhere in the stack.

    All blocks in one batched forward pass, or as few as the memory allows.
    """
    h = model.config.model.n_heads

    def without(a: int, b: int) -> Edit:
        factors = np.ones((h, h), np.float32)
        factors[a, b] = 0
        return scaled_blocks(factors)

    losses = _losses(
        model,
        example,
        [scaled_blocks(np.ones((h, h), np.float32))]
        + [without(a, b) for a in range(h) for b in range(h)],
    )
    return (losses[1:] - losses[0]).reshape(h, h)


@torch.no_grad()
def knock_out_heads(model: TaskModel, example: Example) -> NDArray[np.float64]:
    """Change of the loss when a block row (first line) or block column is removed, [2, h]."""
    h = model.config.model.n_heads
    edits = [scaled_blocks(np.ones((h, h), np.float32))]
    for axis in (0, 1):
        for a in range(h):
            factors = np.ones((h, h), np.float32)
            factors[(a, slice(None)) if axis == 0 else (slice(None), a)] = 0
            edits.append(scaled_blocks(factors))
    losses = _losses(model, example, edits)
    return (losses[1:] - losses[0]).reshape(2, h)


@torch.no_grad()
def over_ranks(model: TaskModel, example: Example) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Loss with every R_a cut to rank 0, 1, …, e: the ranks and the losses."""
    config = model.config.model
    bilinear = _whole_rows(config)

    def cut(rank: int) -> Edit:
        return lambda metric, layer: of_rank(metric, config.n_heads, rank, bilinear)

    ranks = np.unique(np.linspace(0, config.d_head, min(config.d_head, 32) + 1).astype(np.int64))
    return ranks, _losses(model, example, [cut(int(rank)) for rank in ranks])


def _losses(model: TaskModel, example: Example, edits: list[Edit]) -> NDArray[np.float64]:
    """Loss of one input under each edit, many edits a forward pass."""
    inputs = inputs_of(model, example)
    target = own_target(model, inputs)
    size = _room(model)
    found = []
    for first in range(0, len(edits), size):
        part = edits[first : first + size]
        with tap(model, _each(part)) as capture:
            scores = model.score(
                inputs.expand(len(part), *inputs.shape[1:]), target.expand(len(part))
            )
        if not capture.records:
            raise InputError(
                f"attention '{model.config.model.attention}' has no cross-head metric to edit; "
                "choose another run"
            )
        found.append(_array(scores["loss"]))
    return np.concatenate(found).astype(np.float64)


# ---------------------------------------------------------------- many inputs


@torch.no_grad()
def evaluate(
    model: TaskModel, data: EvaluationSet, edits: Mapping[str, Edit]
) -> Iterator[Progress | Evaluation]:
    """Loss of every held-out example under every edit; yields Progress, then the Evaluation."""
    device = next(model.parameters()).device
    size = min(64, _room(model))
    losses: dict[str, list[NDArray[np.float64]]] = {name: [] for name in edits}
    right: dict[str, list[NDArray[np.float64]]] = {name: [] for name in edits}
    done = 0
    for inputs, targets in data.batches(size):
        yield Progress(done, len(data), "held-out examples")
        inputs, targets = inputs.to(device), targets.to(device)
        for name, edit in edits.items():
            with tap(model, edit) as capture:
                scores = model.score(inputs, targets)
            if not capture.records:
                raise InputError(
                    f"attention '{model.config.model.attention}' has no cross-head metric to "
                    "ablate; choose another run"
                )
            losses[name].append(_array(scores["loss"]))
            if "accuracy" in scores:
                right[name].append(_array(scores["accuracy"]))
        done += len(inputs)
    yield Evaluation(
        names=tuple(edits),
        loss=_frozen(np.stack([np.concatenate(parts) for parts in losses.values()])),
        accuracy=_frozen(np.stack([np.concatenate(parts) for parts in right.values()]))
        if all(right.values())
        else None,
    )


def over_snapshots(
    models: Mapping[T, TaskModel], data: EvaluationSet, edits: Callable[[T], Mapping[str, Edit]]
) -> Iterator[Progress | dict[T, Evaluation]]:
    """:func:`evaluate` for several models, e.g. the snapshots of runs; yields Progress on the way.

    `edits` gives each model's own, since the data-set mean is a snapshot's.
    """
    found: dict[T, Evaluation] = {}
    for k, (name, model) in enumerate(models.items()):
        for step in evaluate(model, data, edits(name)):
            if isinstance(step, Progress):
                total = len(models) * step.total
                yield Progress(k * step.total + step.done, total, f"{step.what} × snapshots")
            else:
                found[name] = step
    yield found


def summarise(evaluation: Evaluation, seed: int = 0) -> tuple[Summary, ...]:
    """Mean, quartiles, Top-50 and the paired difference to the first, with 95 % bootstrap."""
    # One set of resamples for all: the comparisons are paired.
    counts = resamples(evaluation.loss.shape[1], seed)
    found = []
    for name, loss in zip(evaluation.names, evaluation.loss, strict=True):
        gap = loss - evaluation.loss[0]
        found.append(
            Summary(
                name=name,
                mean=float(loss.mean()),
                q25=float(np.quantile(loss, 0.25)),
                q75=float(np.quantile(loss, 0.75)),
                top50=float(loss[lowest(loss)].mean()),
                difference=float(gap.mean()),
                interval=interval(gap, counts),
            )
        )
    return tuple(found)


def _whole_rows(config: ModelConfig) -> bool:
    """Whether scores use every block of a row for itself: not so under DAMCHA's RowSum."""
    return config.attention != "damcha" or config.metric.aggregation == "bilinear"


def inputs_of(model: TaskModel, example: Example) -> Tensor:
    """The example's inputs on the model's device, in its precision."""
    like = next(model.parameters())
    inputs = example.inputs.to(like.device)
    return inputs.to(like.dtype) if inputs.is_floating_point() else inputs


def _room(model: TaskModel) -> int:
    """How many examples' metrics fit MOST_NUMBERS."""
    config = model.config.model
    positions = 1
    if config.attention in ("dcmha", "authors-dcmha"):
        positions = model.config.seq_len
    elif config.attention == "damcha" and config.metric.generator == "mlp":
        if config.metric.context == "causal":
            positions = -(-model.config.seq_len // config.metric.context_stride)
    return max(1, MOST_NUMBERS // (positions * config.d_model**2))


def _array(x: Tensor) -> NDArray[np.float64]:
    return _frozen(x.detach().cpu().double().numpy().copy())


def _frozen(array: NDArray[np.float64]) -> NDArray[np.float64]:
    array.setflags(write=False)
    return array
