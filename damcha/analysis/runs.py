"""What runs are and cost: their settings' differences, parameters and multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from damcha.attention import CrossHeadMetric
from damcha.checkpoint.run import Run
from damcha.config import RunConfig
from damcha.model import ByteLM, TaskModel, build_model


@dataclass(frozen=True)
class Cost:
    """Parameters by part, and multiply-adds of one forward pass of one full-length example."""

    generator: int
    """f_θ, or the static metric."""
    attention: int
    """Projections of the attention layers, without f_θ."""
    feed_forward: int
    rest: int
    """Embeddings, positions, norms, head."""
    multiply_adds: int

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.generator + self.attention + self.feed_forward + self.rest


@torch.no_grad()
def cost(model: TaskModel) -> Cost:
    """Count parameters and multiply-adds.

    Matrix products are counted by PyTorch's FLOP counter, masked ones included. It does not know
    the fused attention of CPUs, so attention runs as plain products here.
    """
    config = model.config
    parts = dict.fromkeys(("generator", "attention", "feed_forward", "rest"), 0)
    sources = [module for module in model.modules() if isinstance(module, CrossHeadMetric)]
    seen = {id(parameter) for source in sources for parameter in source.parameters()}
    parts["generator"] = sum(p.numel() for p in model.parameters() if id(p) in seen)
    for name, parameter in model.named_parameters():
        if id(parameter) in seen:
            continue
        part = (
            "attention" if ".attention." in name else "feed_forward" if ".ff." in name else "rest"
        )
        parts[part] += parameter.numel()
    device = next(model.parameters()).device
    if isinstance(model, ByteLM):
        inputs = torch.zeros(1, config.data.seq_len, dtype=torch.long, device=device)
    else:
        side = config.data.image_size
        inputs = torch.zeros(1, config.data.channels, side, side, device=device)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(inputs)
    return Cost(multiply_adds=counter.get_total_flops() // 2, **parts)


def cost_of(config: RunConfig) -> Cost:
    """The same for a configuration, with weights as at the start of training.

    BudgetFormer skips heads by its weights: at the start it keeps nearly all.
    """
    with torch.random.fork_rng(devices=()):
        return cost(build_model(config).eval())


def differences(runs: Sequence[Run]) -> dict[str, tuple[Any, ...]]:
    """Settings in which runs differ: name → value of each run, None where it has none."""
    flat = [run.config.flat() for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    found = {}
    for name in names:
        values = tuple(settings.get(name) for settings in flat)
        if name != "name" and any(value != values[0] for value in values):
            found[name] = values
    return found


def last_results(run: Run) -> dict[str, float | None]:
    """Last and best losses of a run, and the epoch of the best."""
    valid = [(record["valid_loss"], record["epoch"]) for record in run.metrics
             if isinstance(record.get("valid_loss"), int | float)]  # fmt: skip
    last = run.metrics[-1] if run.metrics else {}
    best = min(valid) if valid else (None, None)

    def number(name: str) -> float | None:
        value = last.get(name)
        return float(value) if isinstance(value, int | float) else None

    return {
        "train": number("train_loss"),
        "valid": number("valid_loss"),
        "best": best[0],
        "best_epoch": best[1],
        "accuracy": number("valid_accuracy"),
    }
