"""Mixed multi-head attention: heads that see everything, a neighbourhood, the past, the future."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from damcha.attention.base import Call, Heads
from damcha.attention.mha import MHA


class MMA(MHA):
    """MHA whose head a has a hard mask before the softmax, by a mod 4.

    Cui et al. 2019 (D19-5622): 0 global, all keys; 1 local, |i − j| < `local_window`; 2 forward,
    j ≤ i; 3 backward, j ≥ i. Parameters and cost of MHA. A mask given from outside is always
    ANDed, so under a causal mask a backward head sees its own token only. The DAMCHA repository's
    first version did not AND it, and its backward heads read the future.

    All four masks are one boolean [h, L, L] (or [h, new, L] with a cache), so fused kernels serve.
    Where the only other mask is a causal one, even heads (global, forward) need no mask but that,
    and a backward head's output is its value: a quarter of MHA's 2L²d is then not computed.
    """

    LENS = (
        "Block (a, a) is head a's own W_Q,aᵀW_K,a; heads do not meet, so the other blocks are "
        "zero by construction. Which keys a head may see at all is no part of it."
    )
    OPTIONS = ("local_window",)

    def __init__(
        self, embed_dim: int, num_heads: int, *args: Any, local_window: int = 8, **kwargs: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        self.local_window = local_window

    def visible(self, queries: Tensor, keys: Tensor) -> Bool[Tensor, "one heads query key"]:
        """The masks of all heads at these positions."""
        behind = queries[:, None] - keys  # i − j
        kind = queries.new_tensor([a % 4 for a in range(self.num_heads)])[:, None, None]
        local = behind.abs() < self.local_window
        return (
            (kind == 0)
            | ((kind == 1) & local)
            | ((kind == 2) & (behind >= 0))
            | ((kind == 3) & (behind <= 0))
        )[None]

    def _masks(
        self, call: Call, padding: Tensor | None, n_keys: int, bias: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """As ever; none where the only other mask is the causal one (see :meth:`_attend`)."""
        others = (call.attn_mask, padding, call.key_bias, bias, self.bias_k)
        plain = all(x is None for x in others) and not self.add_zero_attn
        if call.is_causal and call.seen == 0 and plain and call.query.shape[1] == n_keys:
            return None, None
        return super()._masks(call, padding, n_keys, bias)

    def _attend(
        self,
        heads: Heads,
        allowed: Tensor | None,
        bias: Tensor | None,
        fused_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Each kind of head by itself where all is causal, else under the masks."""
        if allowed is None and bias is None and fused_causal:
            looked_at = self.looked_at(need_weights) or heads.change is not None
            places = torch.arange(heads.q.shape[2], device=heads.q.device)
            past = places[:, None] >= places
            if looked_at or (self.training and self.dropout):
                allowed = self.visible(places, places) & past
            else:
                near = past & (places[:, None] - places < self.local_window)
                return self._by_kind(heads, near), None
        return super()._attend(heads, allowed, bias, False, need_weights)

    def _by_kind(self, heads: Heads, near: Tensor) -> Tensor:
        out = torch.empty_like(heads.v)
        for kind, options in (
            (slice(0, None, 2), {"is_causal": heads.q.shape[2] > 1}),
            (slice(1, None, 4), {"attn_mask": near}),
        ):
            q, k, v = (x[:, kind] for x in (heads.q, heads.k, heads.v))
            if q.shape[1]:
                attended = F.scaled_dot_product_attention(q, k, v, scale=self.scale, **options)
                out[:, kind] = attended
        out[:, 3::4] = heads.v[:, 3::4]  # a backward head sees its own token only
        return out
