"""Collaborative multi-head attention: one query and one key space shared by all heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from damcha.attention.base import Attention, Call, Heads, split_heads
from damcha.attention.implied import Implied, implied
from damcha.errors import ConfigError


class ColMHA(Attention):
    """S_a = ((X W_Qᵀ ∘ m_a)(Y W_Kᵀ)ᵀ + (Y W_cᵀ)_a) / √(D̃/h); values and output as in MHA.

    Cordonnier et al. 2020 (arXiv 2006.16362, eq. 6-8). W_Q, W_K [D̃, d] are without bias and shared
    by all heads; the mixing m [h, D̃] says which shared dimensions head a uses; the content bias
    W_c [h, d] stands for the query bias of MHA, which reaches the scores through the keys only.
    Parameters 2dD̃ + hD̃ + dh + 2d²; 2LdD̃ + 2Ld² + L²hD̃ + L²d multiply-adds, and Ldh for W_c.

    With D̃ = d and block-indicator m it is MHA (:meth:`take_over`). Fused kernels ask for queries as
    wide as the values, D̃ = e; for any other D̃ all heads' scores are one product against the one
    shared key, whose cache is D̃ wide. D̃ need not be divisible by h.

    Published code (epfml) divides by √(D̃/h) also the content bias, as here.
    """

    LENS = (
        "Block (a, b) is how head a weighs the b-th slice of the query and key dimensions "
        "that all heads share."
    )
    heads_meet = True
    OPTIONS = ("shared_width",)

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        shared_width: int | None = None,
        rotary: bool = False,
        **kwargs: Any,
    ) -> None:
        if rotary:
            width, e = shared_width or embed_dim, embed_dim // num_heads
            if width % max(e, 1):
                raise ConfigError(
                    f"shared_width: rotary positions turn slices of {e} channels, which do not "
                    f"fill {width}; use a multiple or other positions"
                )
        self.shared_width = shared_width or embed_dim
        super().__init__(
            embed_dim, num_heads, *args, k_width=self.shared_width, rotary=rotary, **kwargs
        )
        d, width, like = self.embed_dim, self.shared_width, self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        bias = self.out_proj.bias is not None
        self.query_proj = nn.Linear(d, width, bias=False, **factory)
        self.key_proj = nn.Linear(self.kdim, width, bias=False, **factory)
        self.content_bias = nn.Linear(self.kdim, num_heads, bias=False, **factory)
        self.value_proj = nn.Linear(self.vdim, d, bias=bias, **factory)
        self.mixing = nn.Parameter(torch.empty(num_heads, width, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Projections Xavier uniform, W_c zero, m the blocks of MHA plus noise of std 0.1."""
        for linear in (self.query_proj, self.key_proj, self.value_proj):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.content_bias.weight)
        if self.value_proj.bias is not None:
            nn.init.zeros_(self.value_proj.bias)
        self.mixing.copy_(self._indicator())
        self.mixing.add_(torch.randn_like(self.mixing), alpha=0.1)

    def _indicator(self) -> Tensor:
        """Head a uses its share of the dimensions, [h, D̃]."""
        h, width = self.num_heads, self.shared_width
        owner = torch.arange(width, device=self.mixing.device) * h // width
        return (owner == torch.arange(h, device=owner.device)[:, None]).to(self.mixing.dtype)

    @property
    def scale(self) -> float:
        """1/√(D̃/h)."""
        return (self.num_heads / self.shared_width) ** 0.5

    def project(self, call: Call) -> Heads:
        """Queries of head a: X W_Qᵀ ∘ m_a, [B, h, L, D̃]; one key; the content bias by key."""
        shared = self.query_proj(call.query)
        q = shared[:, None] * self.mixing[:, None]
        k = self.key_proj(call.key)[:, None]
        v = split_heads(self.value_proj(call.value), self.num_heads)
        return Heads(q, k, v, of_keys=self.content_bias(call.key), routing=shared)

    def key_bias(self, heads: Heads) -> Tensor:
        """(Y W_cᵀ)_a / √(D̃/h)."""
        assert heads.of_keys is not None
        return heads.of_keys.transpose(1, 2)[:, :, None] * self.scale

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """Blocks (a, b) say how head a weighs the b-th slice of the shared dimensions.

        None where D̃ is not divisible by h.
        """
        h = self.num_heads
        if self.shared_width % h:
            return None
        mixing = self.mixing.unflatten(1, (h, -1))[None, None]
        wq, wk = (x.weight.unflatten(0, (h, -1)) for x in (self.query_proj, self.key_proj))
        return implied(mixing, wq, wk, split_heads(heads.routing, h))

    def split_bias(self, bias_k: Tensor, bias_v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned extra key is one for all heads."""
        return bias_k[:, None], split_heads(bias_v, self.num_heads)

    def take_over(self, old: nn.MultiheadAttention) -> None:
        """Become exactly that MHA (where D̃ = d): the query bias folds into the content bias.

        (X W_Q,aᵀ + b_Q,a)(Y W_K,aᵀ + b_K,a)ᵀ = X W_Q,aᵀ (Y W_K,aᵀ)ᵀ + (Y W_K,aᵀ) b_Q,a + …, where
        the rest is the same for all keys of a query and vanishes in the softmax.
        """
        super().take_over(old)
        packed = old._qkv_same_embed_dim
        weights = (
            old.in_proj_weight.chunk(3)
            if packed
            else (old.q_proj_weight, old.k_proj_weight, old.v_proj_weight)
        )
        with torch.no_grad():
            self.value_proj.weight.copy_(weights[2])
            if old.in_proj_bias is not None:
                self.value_proj.bias.copy_(old.in_proj_bias.chunk(3)[2])
            if old.bias_v is not None and self.bias_v is not None:
                self.bias_v.copy_(old.bias_v)
            if self.shared_width != self.embed_dim:
                return
            self.query_proj.weight.copy_(weights[0])
            self.key_proj.weight.copy_(weights[1])
            self.mixing.copy_(self._indicator())
            if old.in_proj_bias is not None:
                bias = old.in_proj_bias.chunk(3)[0].unflatten(0, (self.num_heads, -1))
                by_head = weights[1].unflatten(0, (self.num_heads, -1))  # [h, e, d]
                self.content_bias.weight.copy_((bias[:, None] @ by_head)[:, 0])

    @classmethod
    def parameter_count(
        cls, d_model: int, n_heads: int, *, shared_width: int | None = None, **options: Any
    ) -> int:
        """2dD̃ + hD̃ + dh + 2d²."""
        d, h, width = d_model, n_heads, shared_width or d_model
        return 2 * d * width + h * width + d * h + 2 * d * d

    @classmethod
    def multiply_adds(
        cls,
        d_model: int,
        n_heads: int,
        seq_len: int,
        *,
        shared_width: int | None = None,
        **options: Any,
    ) -> int:
        """2LdD̃ + 2Ld² + Ldh + L²hD̃ + L²d."""
        d, h, length, width = d_model, n_heads, seq_len, shared_width or d_model
        linear = length * d * (2 * width + 2 * d + h)
        return linear + length**2 * (h * width + d)
