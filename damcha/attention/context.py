"""What f_θ sees of the tokens: their mean and, where configured, more (design.md §2).

Legend: B batch, L tokens, d width, P positions at which the metric is refreshed, F parts of the
context, each of width d: the mean, a running mean for each decay λ, the first tokens.

Part f at position t is a weighted mean over the real tokens i ≤ t,

    c_f(t) = Σ_i w_f(t, i) x_i / max(1, Σ_i w_f(t, i)),   w_f(t, i) = λ_f^(n_t − n_i) g_f(i),

n_i being how many real tokens there are up to i: λ = 1, g = 1 for the mean; λ < 1, g = 1 for a
running mean; λ = 1, g_f(i) = [n_i = j] for the j-th token. A pad ages nothing. Both sums carry over
from one chunk of a sequence to the next (:class:`RunningSums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(eq=False)
class RunningSums:
    """The sums of a causal context over the tokens seen so far."""

    total: Float[Tensor, "batch parts d"] | None = None
    """Σ_i w_f x_i"""
    count: Float[Tensor, "batch_or_1 parts 1"] | None = None
    """Σ_i w_f; one row where no example has pads."""
    seen: int = 0
    """Tokens, pads among them."""

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Go on with these examples of the batch, in this order, some more than once."""
        if self.total is None or self.count is None:
            return
        if len(self.count) == len(self.total):
            self.count = self.count[rows]
        self.total = self.total[rows]


def pooled_context(
    x: Float[Tensor, "batch tokens d"], padding: Tensor | None, first: int = 0
) -> Float[Tensor, "batch 1 c"]:
    """Mean of the real tokens, 0 where there is none, and the `first` tokens: c = (1 + first)d."""
    if first and x.shape[1]:
        return _parts(x, padding, torch.tensor([x.shape[1] - 1], device=x.device), (), first, None)
    if padding is None:
        mean = x.sum(1, keepdim=True) / max(1, x.shape[1])
    else:
        real = (~padding).sum(1).clamp(min=1)
        total = x.masked_fill(padding[..., None], 0).sum(1, keepdim=True)
        mean = total / real[:, None, None].to(x)
    return torch.nn.functional.pad(mean, (0, first * x.shape[2]))


def prefix_contexts(
    x: Float[Tensor, "batch tokens d"],
    padding: Tensor | None,
    stride: int,
    sums: RunningSums | None = None,
    decays: Sequence[float] = (),
    first: int = 0,
) -> Float[Tensor, "batch positions c"]:
    """Contexts of the prefixes up to and including k·stride: c = (1 + len(decays) + first)d.

    With `sums`, x continues the tokens seen before, and the sums move on.
    """
    begin = 0 if sums is None else -sums.seen % stride
    length = x.shape[1]
    if decays or first:
        ends = torch.arange(begin, length, stride, device=x.device)
        found = _parts(x, padding, ends, decays, first, sums)
        if sums is not None:
            sums.seen += length
        return found
    values = x if padding is None else x.masked_fill(padding[..., None], 0)
    # Half-precision running sums lose the small terms after a few hundred tokens.
    values = values.to(torch.promote_types(x.dtype, torch.float32))
    if padding is None:
        steps = torch.ones(length, dtype=values.dtype, device=x.device)[None, :, None]
    else:
        steps = (~padding)[..., None].to(values.dtype)
    if sums is None and length > stride > 1:
        # Whole groups at once: sum each group (k-1)·s+1 … k·s, then accumulate the groups.
        last = (length - 1) // stride * stride

        def grouped(t: Tensor) -> Tensor:
            later = t[:, 1 : last + 1].unflatten(1, (-1, stride)).sum(2)
            return torch.cat((t[:, :1], later), 1).cumsum(1)

        return (grouped(values) / grouped(steps).clamp(min=1)).to(x.dtype)
    total, count = values.cumsum(1), steps.cumsum(1)
    if sums is not None:
        if sums.total is not None and sums.count is not None:
            total, count = total + sums.total, count + sums.count
        sums.total, sums.count = total[:, -1:], count[:, -1:]
        sums.seen += length
    return (total[:, begin::stride] / count[:, begin::stride].clamp(min=1)).to(x.dtype)


def _parts(
    x: Float[Tensor, "batch tokens d"],
    padding: Tensor | None,
    ends: Int[Tensor, " positions"],
    decays: Sequence[float],
    first: int,
    sums: RunningSums | None,
) -> Float[Tensor, "batch positions c"]:
    """All parts of the contexts that end at these tokens, by the formula of the module."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    length, device = x.shape[1], x.device
    if sums is not None:
        ends = torch.cat((ends, torch.tensor([length - 1], device=device)))
    with torch.autocast(device.type, enabled=False):
        real = torch.ones(1, length, device=device) if padding is None else ~padding
        real = real.to(dtype)
        n = real.cumsum(1)
        before = 0 if sums is None or sums.count is None else sums.count[:, :1, 0]
        places = torch.arange(1, first + 1, device=device)[:, None]
        is_first = ((n + before)[:, None] == places) * real[:, None]  # [B|1, first, L]
        counted = torch.cat((real[:, None].expand(-1, 1 + len(decays), -1), is_first), 1)
        rate = torch.tensor([1.0, *decays, *[1.0] * first], dtype=dtype, device=device)[:, None]
        n_end = n[:, ends]
        age = (n_end[:, :, None] - n[:, None]).clamp(min=0)[:, :, None]  # [B|1, P, 1, L]
        past = torch.arange(length, device=device) <= ends[:, None, None]  # [P, 1, L]
        weight = rate**age * past * counted[:, None]  # [B|1, P, F, L]
        values = x if padding is None else x.masked_fill(padding[..., None], 0)
        total = torch.einsum("bpfl,bld->bpfd", weight.expand(len(x), -1, -1, -1), values.to(dtype))
        count = weight.sum(-1, keepdim=True)
        if sums is not None:
            if sums.total is not None and sums.count is not None:
                kept = rate ** n_end[:, :, None, None]  # [B|1, P, F, 1]
                total, count = (
                    total + kept * sums.total[:, None], count + kept * sums.count[:, None]
                )  # fmt: skip
            sums.total, sums.count = total[:, -1], count[:, -1]
            total, count = total[:, :-1], count[:, :-1]
        return (total / count.clamp(min=1)).flatten(2).to(x.dtype)
