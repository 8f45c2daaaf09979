"""Dynamically composable multi-head attention: heads are mixed by weights made from the tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damcha.attention.base import Cache, Heads
from damcha.attention.mha import MHA
from damcha.errors import ConfigError

RANK = 2
"""Rank of each dynamic mixing (DCFormer's R)."""


class DCMHA(MHA):
    """MHA with Compose on the scores (before the mask) and, by other weights, on the probabilities.

    Xiao et al. 2024 (arXiv 2405.08553, §3), A being all heads' scores of query i and key j::

        Compose(A)_ij = A + Σ_r ⟨A, w1_r(i)⟩ w2_r(i) + Σ_r ⟨A, w1_r(j)⟩ w2_r(j)
                          + A ∘ tanh(dd(i)) + A ∘ tanh(dd(j)),     r ≤ 2

    where every branch reads the same A. For each of the four roles c (scores by query, scores by
    key, probabilities by query, probabilities by key): hidden = GELU(x dw1_c) with K = 4h channels;
    w1, w2 = hidden qkw_c, and w1 is RMS-normalised over the heads; dd = x dd_c. The weights of a
    key are kept in the cache. Zero qkw and dd is MHA exactly.

    Parameters 4d² + 4dK + 16Kh + 4dh; multiply-adds of MHA, L(4dK + 16Kh + 4dh) for the weights and
    20L²h elementwise for both compositions (the table's 20dh + 64h² a token is this with K = 4h).

    Published code (DCFormer, PyTorch) casts to float32 and bfloat16 on the way and cuts what is
    longer than its mask; here the dtype is kept and any length is whole.
    """

    explicit = True
    OPTIONS = ("qk_norm",)

    def __init__(self, embed_dim: int, num_heads: int, *args: Any, qk_norm: bool = False,
                 **kwargs: Any) -> None:  # fmt: skip
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        if self.kdim != embed_dim:
            raise ConfigError(
                f"kdim: DCMHA makes mixing weights of queries and keys by one network, so "
                f"kdim={self.kdim} must equal embed_dim={embed_dim}"
            )
        h, like = num_heads, self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        self.dw1 = nn.Parameter(torch.empty(4, embed_dim, 4 * h, **factory))
        self.qkw = nn.Parameter(torch.empty(4, 4 * h, 2 * RANK, h, **factory))
        self.dd = nn.Parameter(torch.empty(4, embed_dim, h, **factory))
        if qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=1e-6, **factory)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=1e-6, **factory)
        self.qk_norm = qk_norm
        self.reset_mixing()

    @torch.no_grad()
    def reset_mixing(self) -> None:
        """Normal: dw1 std √(2/(d+K)), qkw std 0.02, dd std 0.02/√d: starts near MHA."""
        d = self.embed_dim
        nn.init.normal_(self.dw1, std=(2 / (d + self.dw1.shape[2])) ** 0.5)
        nn.init.normal_(self.qkw, std=0.02)
        nn.init.normal_(self.dd, std=0.02 / d**0.5)

    def project(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        causal: bool,
        cache: Cache | None,
        **given: Any,
    ) -> Heads:
        """As MHA, with the mixing weights that queries and keys bring."""
        heads = super().project(query, key, value, padding, causal, cache, **given)
        q, k = heads.q, heads.k
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return Heads(q, k, heads.v, self._weights(query, 0), self._weights(key, 1))

    def _weights(self, x: Tensor, side: int) -> Tensor:
        """w1, w2 (rank 2 each) and dd of both compositions, [B, L, 2·5·h]; side 0 query, 1 key."""
        roles = slice(side, None, 2)
        hidden = F.gelu(torch.einsum("bld,cdk->blck", x, self.dw1[roles]))
        w = torch.einsum("blck,ckrh->blcrh", hidden, self.qkw[roles])
        w1, w2 = w.split(RANK, dim=3)
        w1 = w1 * torch.rsqrt(w1.square().mean(-1, keepdim=True) + 1e-6)
        dd = torch.einsum("bld,cdh->blch", x, self.dd[roles]).tanh()
        return torch.cat((w1, w2, dd[:, :, :, None]), dim=3).flatten(2)

    def _compose(self, a: Tensor, heads: Heads, stage: int) -> Tensor:
        """Compose(A); stage 0 before, 1 after the softmax."""
        assert heads.of_queries is not None and heads.of_keys is not None

        def parts(weights: Tensor, axis: int) -> Tensor:  # [5, B, h, L, 1] or [5, B, h, 1, L]
            each = weights.unflatten(2, (2, 2 * RANK + 1, self.num_heads))[:, :, stage]
            return each.permute(2, 0, 3, 1).unsqueeze(axis)

        of_query, of_key = parts(heads.of_queries, -1), parts(heads.of_keys, -2)
        out = a * (1 + of_query[-1] + of_key[-1])
        for side in (of_query, of_key):
            for r in range(RANK):
                out = out + (a * side[r]).sum(1, keepdim=True) * side[RANK + r]
        return out

    def mix_scores(self, scores: Tensor, heads: Heads) -> Tensor:
        """Compose on the scores."""
        return self._compose(scores, heads, 0)

    def mix_weights(self, weights: Tensor, heads: Heads, allowed: Tensor | None) -> Tensor:
        """Compose on the probabilities."""
        return self._compose(weights, heads, 1)

    @classmethod
    def parameter_count(cls, d_model: int, n_heads: int, **options: Any) -> int:
        """4d² + 4dK + 16Kh + 4dh, K = 4h."""
        d, h = d_model, n_heads
        return 4 * d * d + 4 * d * 4 * h + 16 * 4 * h * h + 4 * d * h

    @classmethod
    def multiply_adds(cls, d_model: int, n_heads: int, seq_len: int, **options: Any) -> int:
        """4Ld² + 2L²d + L(4dK + 16Kh + 4dh); the compositions are elementwise."""
        d, h, length = d_model, n_heads, seq_len
        mixing = length * (4 * d * 4 * h + 16 * 4 * h * h + 4 * d * h)
        return 4 * length * d * d + 2 * length**2 * d + mixing
