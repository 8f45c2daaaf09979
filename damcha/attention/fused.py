"""Two steps whose gradients autograd would compute with more memory or more copies.

HeadQueries
    Q_a = X_a R_a: the gradients of all R_a are written in place, where autograd would stack them.
RowSumLinear
    f_θ's last layer and RowSum, R_a = (Σ_b W_ab) hidden + Σ_b c_ab. Autograd would keep Σ_b W_ab,
    as large as the metrics themselves, and stack the gradient of W from its heads. Here the sums
    are made again in the backward pass, and the gradient is written once.

Both have a plain form, which gradients of gradients and torch.func.vmap use.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def _grads_of(
    plain: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor
) -> list[Tensor | None]:
    """Gradients that have gradients themselves."""
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(plain(*inputs), wanted, grad, create_graph=True))
    return [next(found) if x.requires_grad else None for x in inputs]


def _head_queries(x: Tensor, form: Tensor) -> Tensor:
    # Head by head: a view of x each, where one product over all heads would copy and keep x.
    # Stacked token by token: fused attention returns its queries' layout, so that merging the
    # heads afterwards is free.
    heads = zip(x.chunk(form.shape[2], dim=-1), form.movedim(2, 0).unbind(0), strict=True)
    return torch.stack([x_a @ form_a for x_a, form_a in heads], dim=-2)


class HeadQueries(torch.autograd.Function):
    """Q [B, P, s, h, f] of x [B, P, s, d] and R (or rows of M) [B, P, h, e, f]."""

    @staticmethod
    def forward(x: Tensor, form: Tensor) -> Tensor:
        """Multiply head by head."""
        return _head_queries(x, form)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the inputs, which other steps keep, too."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x and of R."""
        x, form = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():  # someone wants the gradient of this gradient
            return tuple(_grads_of(_head_queries, (x, form), grad))
        b, p, h, e, f = form.shape
        # Head by head, so that each product fills a part.
        of_form = _empty((h, b * p, e, f), grad)
        of_x = []
        heads = zip(x.chunk(h, dim=-1), form.movedim(2, 0).unbind(0), grad.unbind(-2), strict=True)
        for a, (x_a, form_a, g) in enumerate(heads):
            turned = x_a.to(g.dtype).flatten(0, 1).transpose(1, 2)
            torch.bmm(turned, g.flatten(0, 1), out=of_form[a])
            of_x.append(g @ form_a.to(g.dtype).transpose(-1, -2))
        whole_x = torch.stack(of_x, dim=-2).flatten(-2)
        return whole_x.to(x.dtype), of_form.unflatten(1, (b, p)).movedim(0, 2).to(form.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, form: Tensor) -> tuple[Tensor, int]:
        """The plain form over a further axis."""
        return torch.vmap(_head_queries, in_dims)(x, form), 0


def head_sum(
    part: Float[Tensor, "e heads e ..."],
    a: int,
    on: float,
    off: float,
    out: Float[Tensor, "e e ..."] | None = None,
) -> Tensor:
    """Σ_b s_ab N_ab of block row a, [e, e, ...], with s_aa = `on` and s_ab = `off` elsewhere."""
    rows = torch.sum(part, 1, out=out)
    if on != off:
        return off * rows + (on - off) * part[:, a]
    return rows if on == 1 else on * rows


def _row_sum_linear(
    hidden: Tensor, weight: Tensor, bias: Tensor, heads: int, on: float, off: float
) -> Tensor:
    e = math.isqrt(weight.shape[0]) // heads
    parts = (x.unflatten(0, (heads, e, heads, e)).unbind(0) for x in (weight, bias))
    rows = [
        torch.nn.functional.linear(
            hidden, head_sum(w, a, on, off).flatten(0, 1), head_sum(c, a, on, off).flatten()
        )
        for a, (w, c) in enumerate(zip(*parts, strict=True))
    ]
    return torch.stack(rows).unflatten(-1, (e, e))  # [h, B, P, e, e]


class RowSumLinear(torch.autograd.Function):
    """R [h, B, P, e, e] of hidden [B, P, w], weight [d², w] and bias [d²]; see the module."""

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, bias: Tensor, heads: int, on: float, off: float
    ) -> Tensor:
        """Reduce one head's weights at a time, into memory that all heads use."""
        if hidden.dtype != weight.dtype or torch.is_autocast_enabled(hidden.device.type):
            return _row_sum_linear(hidden, weight, bias, heads, on, off)
        e = math.isqrt(weight.shape[0]) // heads
        flat = hidden.flatten(0, -2)
        out = _empty((heads, len(flat), e * e), hidden)
        summed = _empty((e, e, weight.shape[1]), weight)
        parts = (x.unflatten(0, (heads, e, heads, e)).unbind(0) for x in (weight, bias))
        for a, (w, c) in enumerate(zip(*parts, strict=True)):
            rows = head_sum(w, a, on, off, summed).flatten(0, 1)
            torch.addmm(head_sum(c, a, on, off).flatten(), flat, rows.t(), out=out[a])
        return out.view(heads, *hidden.shape[:-1], e, e)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the inputs, which exist anyway."""
        ctx.save_for_backward(*inputs[:3])
        ctx.settings = inputs[3:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of hidden, weight and bias."""
        hidden, weight, bias = ctx.saved_tensors
        heads, on, off = ctx.settings
        (grad,) = grads
        if torch.is_grad_enabled():  # someone wants the gradient of this gradient
            plain = functools.partial(_row_sum_linear, heads=heads, on=on, off=off)
            return *_grads_of(plain, (hidden, weight, bias), grad), None, None, None
        e = grad.shape[-1]
        flat = hidden.flatten(0, -2)
        grad_hidden = torch.zeros_like(flat)
        grad_weight, grad_bias = _empty(weight.shape, weight), torch.empty_like(bias)
        shape = (heads, e, heads, e)
        parts = (x.unflatten(0, shape).unbind(0) for x in (weight, grad_weight, grad_bias))
        summed, of_w = (_empty((e, e, weight.shape[1]), like) for like in (weight, grad))
        for a, (w, grad_w, grad_c) in enumerate(zip(*parts, strict=True)):
            g = grad[a].flatten(-2).flatten(0, -2)  # [B·P, e·e]
            grad_hidden += g @ head_sum(w, a, on, off, summed).flatten(0, 1).to(g.dtype)
            torch.mm(g.T, flat.to(g.dtype), out=of_w.flatten(0, 1))
            of_c = g.sum(0).unflatten(0, (e, e))
            for target, row in ((grad_w, of_w), (grad_c, of_c)):
                target.copy_((off * row if off != 1 else row).unsqueeze(1).expand_as(target))
                if on != off:
                    target[:, a] += (on - off) * row
        return grad_hidden.view_as(hidden), grad_weight, grad_bias, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        """The plain form over a further axis."""
        plain = functools.partial(_row_sum_linear, heads=inputs[3], on=inputs[4], off=inputs[5])
        return torch.vmap(plain, in_dims[:3])(*inputs[:3]), 0


def _empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """Memory for a large result, of the dtype and device of `like`.

    NumPy asks the kernel for huge pages where torch does not: writing 268 MB for the first time
    takes 41 ms instead of 170 ms (one thread, Linux).
    """
    if like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64):
        kind = np.float32 if like.dtype == torch.float32 else np.float64
        return torch.from_numpy(np.empty(tuple(shape), kind))
    return like.new_empty(shape)
