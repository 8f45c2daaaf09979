"""The DAMCHA authors' own, simpler baselines, which their checkpoints and their Table 2 rest on.

Their THA is :class:`THA` and their MMA is :class:`MMA`; the other three differ from the
mechanisms of the same name (erwinmsmith/DAMCHA at ffa9980, models/baselines.py, read as facts).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from damcha.attention.base import Attention, Call, Heads, mix_heads
from damcha.attention.implied import Implied, implied
from damcha.attention.mha import MHA
from damcha.errors import ConfigError

RANK = 4
"""Width of the router's hidden layer."""


class RouterDCMHA(MHA):
    """S'_t = g_t(i) Σ_s a_st(i) S_s + (1 − g_t(i)) S_t before the mask, made from query i alone.

    a = softmax over source heads s of W₂ tanh(W₁ x) [h, h], g = σ(W_g x) [h]. The authors' baseline
    of the name "DCMHA". Parameters 4d² + dr + rh² + dh, r = 4; 4Ld² + 2L²d + Ldr + Lrh² + Ldh +
    L²h² multiply-adds.
    """

    explicit = True
    LENS = "Block (a, b) is what head b's form gives to the scores of head a for one query."
    heads_meet = True

    def __init__(self, embed_dim: int, num_heads: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        like = self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        self.router = nn.Sequential(
            nn.Linear(embed_dim, RANK, **factory),
            nn.Tanh(),
            nn.Linear(RANK, num_heads**2, **factory),
        )
        self.gate = nn.Linear(embed_dim, num_heads, **factory)

    def project(self, call: Call) -> Heads:
        """As MHA, with each query's mixing [h, h], target by source."""
        heads = super().project(call)
        share = self.router(call.query).unflatten(-1, (self.num_heads, -1)).softmax(2)
        gate = self.gate(call.query).sigmoid()
        mixing = gate[..., None] * share.transpose(2, 3) + torch.diag_embed(1 - gate)
        return replace(heads, of_queries=mixing.flatten(2))

    def _mixing(self, heads: Heads) -> Tensor:
        assert heads.of_queries is not None
        return heads.of_queries.unflatten(-1, (self.num_heads, -1))

    def mix_scores(self, scores: Tensor, heads: Heads) -> Tensor:
        """Σ_s mixing(i)[t, s] S_s(i, ·)."""
        return (self._mixing(heads) @ scores.transpose(1, 2)).transpose(1, 2)

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """One metric a query: its mixing of the heads' own forms."""
        return self.implied_by(self._mixing(heads)[..., None], heads, stride=1)

    @classmethod
    def parameter_count(cls, d_model: int, n_heads: int, **options: Any) -> int:
        """4d² + dr + rh² + dh."""
        d, h = d_model, n_heads
        return 4 * d * d + d * RANK + RANK * h * h + d * h

    @classmethod
    def multiply_adds(cls, d_model: int, n_heads: int, seq_len: int, **options: Any) -> int:
        """4Ld² + 2L²d + Ldr + Lrh² + Ldh + L²h²."""
        d, h, length = d_model, n_heads, seq_len
        mixing = length * (d * RANK + RANK * h * h + d * h) + length**2 * h * h
        return 4 * length * d * d + 2 * length**2 * d + mixing


class BlockColMHA(MHA):
    """Q'_a = Σ_i C^Q_ai Q_i, K'_a = Σ_j C^K_aj K_j: queries and keys mixed by two h × h tables.

    The authors' baseline of the name "ColMHA"; theirs has no bias in W_Q and W_K. Parameters
    4d² + 2h²; 4Ld² + 2L²d + 2Lhd multiply-adds. The attention itself runs on fused kernels.
    """

    LENS = "Block (a, b) compares head a's mixed query with head b's key."
    heads_meet = True

    def __init__(self, embed_dim: int, num_heads: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        like = self.out_proj.weight
        self.combine_q, self.combine_k = (
            nn.Parameter(torch.empty(num_heads, num_heads, device=like.device, dtype=like.dtype))
            for _ in range(2)
        )
        self.reset_mixing()

    @torch.no_grad()
    def reset_mixing(self) -> None:
        """Identity plus normal noise of std 0.02: training starts at MHA."""
        for table in (self.combine_q, self.combine_k):
            nn.init.eye_(table)
            table.add_(torch.randn_like(table), alpha=0.02)

    def project(self, call: Call) -> Heads:
        """As MHA, then both mixings; the heads' own keys are kept for edits of the metric."""
        heads = super().project(call)
        q, k = mix_heads(self.combine_q, heads.q), mix_heads(self.combine_k, heads.k)
        return replace(heads, q=q, k=k, of_keys=self.raw_keys(heads, call.cache))

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """Block (a, b) is C^K_ab P_Q',a P_K,b, with Q'_a the mixed query."""
        if not self.packed:
            return None
        (wq, _), (wk, _), _ = self.projections
        wq, wk = (w.unflatten(0, (self.num_heads, -1)) for w in (wq, wk))
        mixed = mix_heads(self.combine_q, wq[None])[0]
        return implied(self.combine_k[None, None, ..., None], mixed, wk, heads.q, "row")

    def side_by_side(self, heads: Heads) -> Tensor:
        """The heads' own keys, before they were mixed."""
        assert heads.of_keys is not None
        return heads.of_keys

    def split_bias(self, bias_k: Tensor, bias_v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned extra key is mixed like any token's."""
        k, v = super().split_bias(bias_k, bias_v)
        return mix_heads(self.combine_k, k), v

    def of_bias(self) -> Tensor | None:
        """The learned extra key before it is mixed."""
        return self.bias_k

    @classmethod
    def parameter_count(cls, d_model: int, n_heads: int, **options: Any) -> int:
        """4d² + 2h²."""
        return 4 * d_model**2 + 2 * n_heads**2

    @classmethod
    def multiply_adds(cls, d_model: int, n_heads: int, seq_len: int, **options: Any) -> int:
        """4Ld² + 2L²d + 2Lhd, which is 2Lh²e for the mixings."""
        d, length = d_model, seq_len
        return 4 * length * d * d + 2 * length**2 * d + 2 * length * n_heads * d


class RankMoA(MHA):
    """2h experts with W_q, W_k, W_v of their own; a token's h best, gated, side by side by rank.

    out = [g_1 head_E(1), …, g_h head_E(h)] W_O, with E(1…h) the experts of largest router logit and
    g their softmax. The authors' baseline of the name "MoA". Parameters 7d² + 2dh; all experts
    attend, so 7Ld² + 4L²d + 2Ldh multiply-adds, on fused kernels.
    """

    def __init__(self, embed_dim: int, num_heads: int, *args: Any, **kwargs: Any) -> None:
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ConfigError(
                f"num_heads: embed_dim={embed_dim} is not divisible by num_heads={num_heads}"
            )
        n, e = 2 * num_heads, embed_dim // num_heads
        super().__init__(embed_dim, num_heads, *args, qk_heads=n, v_heads=n, head_dim=e, **kwargs)
        like = self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        bias = self.out_proj.bias is not None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias, **factory)
        self.register_parameter("in_proj_bias", None)
        self.router = nn.Linear(embed_dim, n, **factory)
        self.num_heads = n  # all experts attend; masks and maps count these

    def project(self, call: Call) -> Heads:
        """All experts' queries, keys and values, and which of them each token keeps."""
        heads = super().project(call)
        best, chosen = self.router(call.query).topk(self.num_heads // 2, dim=-1)  # [B, L, h]
        return replace(heads, routing=(best.softmax(-1), chosen))

    def combine(self, out: Tensor, heads: Heads) -> Tensor:
        """The chosen experts' outputs, gated, side by side by rank, then W_O."""
        gates, chosen = heads.routing
        of_token = out.transpose(1, 2)  # [B, L, experts, e]
        kept = of_token.gather(2, chosen[..., None].expand(-1, -1, -1, of_token.shape[-1]))
        return self.out_proj((kept * gates[..., None]).flatten(2))

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """None: its 2h experts are no h heads of the width."""
        return None

    def take_over(self, old: nn.MultiheadAttention) -> None:
        """The output only: there are twice as many experts as heads."""
        Attention.take_over(self, old)

    @classmethod
    def parameter_count(cls, d_model: int, n_heads: int, **options: Any) -> int:
        """7d² + 2dh."""
        return 7 * d_model**2 + 2 * d_model * n_heads

    @classmethod
    def multiply_adds(cls, d_model: int, n_heads: int, seq_len: int, **options: Any) -> int:
        """7Ld² + 4L²d + 2Ldh."""
        d, length = d_model, seq_len
        return 7 * length * d * d + 4 * length**2 * d + 2 * length * d * n_heads
