"""Talking-heads attention: heads are mixed before and after the softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from damcha.attention.base import Heads, mix_heads
from damcha.attention.implied import Implied
from damcha.attention.mha import MHA


class THA(MHA):
    """J_g = Σ_a P_ℓ[g, a] Q_a K_aᵀ/√e, W = softmax(J + mask), O_c = (Σ_g P_w[c, g] W_g) V_c.

    Shazeer et al. 2020 (arXiv 2003.02436, §3). Queries and keys have `key_heads` heads, the softmax
    `num_heads`, the values `value_heads`. Masks come after the first mixing (before it, −inf times
    a weight of either sign is NaN). Parameters 4d² + h_k·h + h·h_v; 4Ld² + 2L²d + 2L²h²
    multiply-adds where all head counts are h. The mixing needs the probabilities: not fused.

    Published code: mesh-tensorflow has no 1/√e (it is in the initial values of W_Q); CaiT adds a
    bias in both mixings. The bias before the softmax is the same for all keys of a row and changes
    nothing; the one after it gives weight to every key, so with ``mix_bias=True`` it is given to
    unmasked keys only, which is CaiT's own function where nothing is masked.
    """

    explicit = True
    LENS = (
        "Block (a, b) is what head b's form gives to the scores of head a, P_ℓ[a, b] times "
        "it. The second mixing comes after the softmax and is no part of it."
    )
    heads_meet = True
    OPTIONS = ("key_heads", "value_heads", "mix_bias")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        key_heads: int | None = None,
        value_heads: int | None = None,
        mix_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            embed_dim, num_heads, *args, qk_heads=key_heads, v_heads=value_heads, **kwargs
        )
        like = self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        self.mix_logits = nn.Linear(self.qk_heads, num_heads, bias=mix_bias, **factory)
        self.mix_probabilities = nn.Linear(num_heads, self.v_heads, bias=mix_bias, **factory)
        self.reset_mixing()

    @torch.no_grad()
    def reset_mixing(self) -> None:
        """Identity plus normal noise of std 0.02: training starts at MHA."""
        for mix in (self.mix_logits, self.mix_probabilities):
            nn.init.eye_(mix.weight)
            mix.weight.add_(torch.randn_like(mix.weight), alpha=0.02)
            if mix.bias is not None:
                nn.init.zeros_(mix.bias)

    def mix_scores(self, scores: Tensor, heads: Heads) -> Tensor:
        """J = P_ℓ S."""
        return mix_heads(self.mix_logits.weight, scores)  # its bias is lost in the softmax

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """Block (a, b) is P_ℓ[a, b] times head b's own: off the diagonal, heads talk."""
        return self.implied_by(self.mix_logits.weight[None, None, ..., None], heads)

    def mix_weights(self, weights: Tensor, heads: Heads, allowed: Tensor | None) -> Tensor:
        """P_w W, with the bias on unmasked keys."""
        mixed = mix_heads(self.mix_probabilities.weight, weights)
        bias = self.mix_probabilities.bias
        if bias is None:
            return mixed
        added = bias[:, None, None].expand_as(mixed)
        return mixed + (added if allowed is None else added.masked_fill(~allowed.any(1, True), 0))

    @classmethod
    def parameter_count(
        cls,
        d_model: int,
        n_heads: int,
        *,
        key_heads: int | None = None,
        value_heads: int | None = None,
        **options: Any,
    ) -> int:
        """4d² + h_k·h + h·h_v, and less or more projections where head counts differ."""
        hk, hv, e = key_heads or n_heads, value_heads or n_heads, d_model // n_heads
        return 2 * d_model * e * (hk + hv) + n_heads * (hk + hv)

    @classmethod
    def multiply_adds(
        cls,
        d_model: int,
        n_heads: int,
        seq_len: int,
        *,
        key_heads: int | None = None,
        value_heads: int | None = None,
        **options: Any,
    ) -> int:
        """4Ld² + 2L²d + 2L²h² where all head counts are h."""
        hk, hv, e = key_heads or n_heads, value_heads or n_heads, d_model // n_heads
        projections = 2 * seq_len * d_model * e * (hk + hv)
        return projections + seq_len**2 * (hk + hv) * (e + n_heads)
