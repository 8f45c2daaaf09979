"""Dynamically composable multi-head attention: heads are mixed by weights made from the tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from damcha.attention.base import Call, Heads
from damcha.attention.implied import Implied, implied
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

    Parameters 4d² + 4dK + 16Kh + 4dh; multiply-adds of MHA, L(4dK + 16Kh + 4dh + 8h²) for the
    weights and 4L²h² for both compositions (20L²h branch by branch, but slower for few heads).

    Published code (DCFormer, PyTorch) casts to float32 and bfloat16 on the way and cuts what is
    longer than its mask; here the dtype is kept and any length is whole.
    """

    explicit = True
    LENS = (
        "Block (a, b) is what head b's form gives to the scores of head a for the queries of "
        "this position, averaged over the keys they see. What is mixed after the softmax is "
        "no part of it."
    )
    heads_meet = True
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

    def project(self, call: Call) -> Heads:
        """As MHA, with the mixing weights that queries and keys bring."""
        heads = super().project(call)
        q, k = heads.q, heads.k
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return Heads(q, k, heads.v, self._weights(call.query, 0), self._weights(call.key, 1))

    def _weights(self, x: Tensor, side: int) -> Tensor:
        """w1, w2 (rank 2 each) and dd of both compositions, [B, L, 2·5·h]; side 0 query, 1 key."""
        roles = slice(side, None, 2)
        hidden = F.gelu(torch.einsum("bld,cdk->blck", x, self.dw1[roles]))
        w = torch.einsum("blck,ckrh->blcrh", hidden, self.qkw[roles])
        w1, w2 = w.split(RANK, dim=3)
        w1 = w1 * torch.rsqrt(w1.square().mean(-1, keepdim=True) + 1e-6)
        dd = torch.einsum("bld,cdh->blch", x, self.dd[roles]).tanh()
        return torch.cat((w1, w2, dd[:, :, :, None]), dim=3).flatten(2)

    def _matrices(self, weights: Tensor, stage: int) -> Float[Tensor, "batch tokens new old"]:
        """The mixing that tokens bring, without the identity; stage 0 scores, 1 probabilities."""
        each = weights.unflatten(2, (2, 2 * RANK + 1, self.num_heads))[:, :, stage]
        w1, w2, dd = each.split((RANK, RANK, 1), dim=2)
        return w2.transpose(2, 3) @ w1 + torch.diag_embed(dd[:, :, 0])

    def _compose(self, a: Tensor, heads: Heads, stage: int) -> Tensor:
        """Compose(A); stage 0 before, 1 after the softmax.

        The identity, dd and the low-rank part of a token are one [h, h] matrix: with few heads one
        product of small matrices passes over A half as often as the branches one by one.
        """
        assert heads.of_queries is not None and heads.of_keys is not None

        eye = torch.eye(self.num_heads, dtype=a.dtype, device=a.device)
        by_query = (self._matrices(heads.of_queries, stage) + eye) @ a.transpose(
            1, 2
        )  # [B, i, h, j]
        by_key = self._matrices(heads.of_keys, stage) @ a.permute(0, 3, 1, 2)  # [B, j, h, i]
        return by_query.transpose(1, 2) + by_key.permute(0, 2, 3, 1)

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """Block (a, b) for query i: I + W_q(i) + the mean of W_k(j) over the keys it sees.

        Another metric for every query, made of this input alone.
        """
        assert heads.of_queries is not None and heads.of_keys is not None
        by_key = self._matrices(heads.of_keys, 0)
        if allowed is not None:  # a row of each head's own where a mask tells heads apart
            seen = allowed.to(by_key)
            share = seen / seen.sum(-1, keepdim=True).clamp(min=1)
            mean = torch.einsum("zaqk,zkab->zqab", share.expand(-1, self.num_heads, -1, -1), by_key)
        elif causal:
            count = torch.arange(1, by_key.shape[1] + 1, device=by_key.device)
            mean = by_key.cumsum(1) / count[:, None, None]
        else:
            mean = by_key.mean(1, keepdim=True).expand(-1, heads.q.shape[2], -1, -1)
        eye = torch.eye(self.num_heads, dtype=mean.dtype, device=mean.device)
        mixing = (eye + self._matrices(heads.of_queries, 0) + mean)[..., None]
        (wq, _), (wk, _), _ = self.projections
        wq, wk = (w.unflatten(0, (self.num_heads, -1)) for w in (wq, wk))
        if self.qk_norm:  # q = W x ∘ gain / rms: the gain belongs to W, the rms to the coordinates
            wq, wk = wq * self.q_norm.weight[:, None], wk * self.k_norm.weight[:, None]
        return implied(mixing, wq, wk, heads.q, stride=1)

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
        """4Ld² + 2L²d + L(4dK + 16Kh + 4dh + 8h²) + 4L²h²."""
        d, h, length = d_model, n_heads, seq_len
        mixing = length * (4 * d * 4 * h + 16 * 4 * h * h + 4 * d * h + 8 * h * h)
        return 4 * length * d * d + 2 * length**2 * d + mixing + 4 * length**2 * h * h
