"""Multi-head attention (Vaswani et al. 2017), the baseline, on fused kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damcha.attention.base import Attention, Cache, split_heads


class MHA(Attention):
    """softmax(X W_Q,aᵀ (Y W_K,aᵀ)ᵀ/√e) Y W_V,aᵀ, heads concatenated, times W_Oᵀ.

    Parameters 4d²; 4Ld² + 2L²d multiply-adds. Parameter names are those of
    ``torch.nn.MultiheadAttention``, so a state dict of one loads into the other.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        d, like = self.embed_dim, self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        self.packed = self.kdim == d and self.vdim == d
        if self.packed:
            self.in_proj_weight = nn.Parameter(torch.empty(3 * d, d, **factory))
            nn.init.xavier_uniform_(self.in_proj_weight)
        else:
            self.q_proj_weight = nn.Parameter(torch.empty(d, d, **factory))
            self.k_proj_weight = nn.Parameter(torch.empty(d, self.kdim, **factory))
            self.v_proj_weight = nn.Parameter(torch.empty(d, self.vdim, **factory))
            for weight in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
                nn.init.xavier_uniform_(weight)
        if self.out_proj.bias is not None:
            self.in_proj_bias = nn.Parameter(torch.zeros(3 * d, **factory))

    def project(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        causal: bool,
        cache: Cache | None,
        **given: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project with W_Q, W_K, W_V; in self-attention by one matrix product."""
        if self.packed and query is key and key is value:
            q, k, v = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        else:
            if self.packed:
                weights = self.in_proj_weight.chunk(3)
            else:
                weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            bias = self.in_proj_bias
            biases = (None, None, None) if bias is None else bias.chunk(3)
            q, k, v = map(F.linear, (query, key, value), weights, biases)
        return tuple(split_heads(x, self.num_heads) for x in (q, k, v))  # type: ignore[return-value]
