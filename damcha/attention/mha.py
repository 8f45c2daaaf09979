"""Multi-head attention (Vaswani et al. 2017), the baseline, on fused kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damcha.attention.base import Attention, Cache, Call, Heads, split_heads
from damcha.attention.implied import Implied, implied
from damcha.tap import listening


class MHA(Attention):
    """softmax(X W_Q,aᵀ (Y W_K,aᵀ)ᵀ/√e) Y W_V,aᵀ, heads concatenated, times W_Oᵀ.

    Parameters 4d²; 4Ld² + 2L²d multiply-adds. Parameter names are those of
    ``torch.nn.MultiheadAttention``, so a state dict of one loads into the other.

    Mechanisms with projections of their own number of heads set `qk_heads`, `v_heads` and
    `head_dim` (talking heads).
    """

    LENS = (
        "Block (a, a) is head a's own W_Q,aᵀW_K,a; heads do not meet, so the other blocks are "
        "zero by construction."
    )

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        qk_heads: int | None = None,
        v_heads: int | None = None,
        head_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        e = head_dim or embed_dim // max(num_heads, 1)
        self.qk_heads, self.v_heads = qk_heads or num_heads, v_heads or num_heads
        k_width, v_width = self.qk_heads * e, self.v_heads * e
        super().__init__(
            embed_dim, num_heads, *args, head_dim=head_dim, k_width=k_width, v_width=v_width,
            **kwargs,
        )  # fmt: skip
        d, like = self.embed_dim, self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        self.widths = (k_width, k_width, v_width)
        self.packed = self.kdim == d and self.vdim == d
        if self.packed:
            self.in_proj_weight = nn.Parameter(torch.empty(sum(self.widths), d, **factory))
            nn.init.xavier_uniform_(self.in_proj_weight)
        else:
            self.q_proj_weight = nn.Parameter(torch.empty(k_width, d, **factory))
            self.k_proj_weight = nn.Parameter(torch.empty(k_width, self.kdim, **factory))
            self.v_proj_weight = nn.Parameter(torch.empty(v_width, self.vdim, **factory))
            for weight in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
                nn.init.xavier_uniform_(weight)
        if self.out_proj.bias is not None:
            self.in_proj_bias = nn.Parameter(torch.zeros(sum(self.widths), **factory))

    @property
    def projections(self) -> tuple[tuple[Tensor, Tensor | None], ...]:
        """Weight and bias of W_Q, W_K and W_V."""
        if self.packed:
            weights = self.in_proj_weight.split(self.widths)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        bias = self.in_proj_bias
        biases = (None, None, None) if bias is None else bias.split(self.widths)
        return tuple(zip(weights, biases, strict=True))

    def project(self, call: Call) -> Heads:
        """Project with W_Q, W_K, W_V; in self-attention by one matrix product."""
        query, key, value = call.query, call.key, call.value
        if self.packed and query is key and key is value:
            both = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            q, k, v = both.split(self.widths, dim=-1)
        else:
            (wq, bq), (wk, bk), (wv, bv) = self.projections
            q, k, v = F.linear(query, wq, bq), F.linear(key, wk, bk), F.linear(value, wv, bv)
        qk_heads, v_heads = self.qk_heads, self.v_heads
        return Heads(split_heads(q, qk_heads), split_heads(k, qk_heads), split_heads(v, v_heads))

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """Block-diagonal: q_a·k_a = x̂_a (P_Q,a P_K,a) ŷ_aᵀ. None where widths of inputs differ."""
        mixing = torch.eye(self.num_heads, dtype=heads.q.dtype, device=heads.q.device)
        return self.implied_by(mixing[None, None, ..., None], heads)

    def implied_by(self, mixing: Tensor, heads: Heads, stride: int = 0) -> Implied | None:
        """The metric whose block (a, b) is mixing_ab P_Q,b P_K,b."""
        if not self.packed or self.qk_heads != self.num_heads:
            return None
        (wq, _), (wk, _), _ = self.projections
        wq, wk = (w.unflatten(0, (self.qk_heads, -1)) for w in (wq, wk))
        return implied(mixing, wq, wk, heads.q, stride=stride)

    def raw_keys(self, heads: Heads, cache: Cache | None) -> Tensor | None:
        """The heads' own keys side by side, where a tap may edit a metric of them; [B, L, d]."""
        if not listening(self):
            return None
        seen = 0 if cache is None else cache.length
        return self.turned(heads.k, seen).transpose(1, 2).flatten(2)

    def split_bias(self, bias_k: Tensor, bias_v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned extra key and value, by heads."""
        return split_heads(bias_k, self.qk_heads), split_heads(bias_v, self.v_heads)

    def take_over(self, old: nn.MultiheadAttention) -> None:
        """Copy all projections of torch's own layer that are as large here."""
        own = self.state_dict()
        same = {
            name: value
            for name, value in old.state_dict().items()
            if name in own and own[name].shape == value.shape
        }
        self.load_state_dict(same, strict=False)

    @classmethod
    def multiply_adds(cls, d_model: int, n_heads: int, seq_len: int, **options: Any) -> int:
        """4Ld² + 2L²d."""
        return 4 * seq_len * d_model**2 + 2 * seq_len**2 * d_model
