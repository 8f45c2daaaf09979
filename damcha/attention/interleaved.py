"""Interleaved head attention: pseudo-heads mixed from all heads attend in one longer sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from damcha.attention.base import Call, Heads, mix_heads
from damcha.attention.implied import Implied, implied
from damcha.attention.mha import MHA


class IHA(MHA):
    """q_{h,p} = Σ_m α^Q_{m,h,p} q_m, keys and values likewise; P pseudo-heads a head, interleaved.

    arXiv 2602.21371. Each head attends over L·P pseudo-tokens (token-major: n·P + p) under the mask
    of their tokens, ⌊j/P⌋ ≤ ⌊i/P⌋ when causal; then head i's output is Σ R_{i,(h,p)} O_{h,p}, and
    W_O as usual. Pseudo-heads p, r of head h score Σ_{m,n} α^Q_{mhp} α^K_{nhr} q_m k_nᵀ/√e: any
    query head meets any key head. Parameters 4d² + 4h²P; 4Ld² + 4Ld·hP + 2P²L²d multiply-adds.
    Fused kernels attend, with a mask where causal. Rotary positions turn by token. The cache holds
    mixed keys and values, P for each token.

    α = identity and R averaging a head's own pseudo-heads is MHA. No code of the authors is known;
    a causal mask on the interleaved axis (a third-party version) hides a token's later pseudo-heads
    from its earlier ones, which is another function.
    """

    LENS = (
        "Block (a, b) compares head a's mixed query with head b's key, averaged over pseudo- heads."
    )
    heads_meet = True
    OPTIONS = ("pseudo_heads",)

    def __init__(
        self, embed_dim: int, num_heads: int, *args: Any, pseudo_heads: int = 2, **kwargs: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        self.pseudo_heads, h = pseudo_heads, num_heads
        like = self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        # [source head m, target head h, pseudo-head p], for queries, keys, values
        self.alpha = nn.Parameter(torch.empty(3, h, h, pseudo_heads, **factory))
        self.collapse = nn.Parameter(torch.empty(h, h * pseudo_heads, **factory))
        self.reset_mixing()

    @torch.no_grad()
    def reset_mixing(self) -> None:
        """α identity plus normal noise of std 0.1 (or pseudo-heads would stay equal); R 1/P."""
        h, p = self.num_heads, self.pseudo_heads
        eye = torch.eye(h, dtype=self.alpha.dtype, device=self.alpha.device)
        self.alpha.copy_(eye[..., None].expand(3, h, h, p))
        self.alpha.add_(torch.randn_like(self.alpha), alpha=0.1)
        self.collapse.copy_(eye.repeat_interleave(p, dim=1) / p)

    def project(self, call: Call) -> Heads:
        """Pseudo-queries, -keys and -values, the P of a token side by side: [B, h, L, P·e]."""
        heads = super().project(call)
        q, k, v = (
            self._mix(x, alpha)
            for x, alpha in zip((heads.q, heads.k, heads.v), self.alpha, strict=True)
        )
        return Heads(q, k, v, of_keys=self.raw_keys(heads, call.cache), routing=heads.q)

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """Block (a, b) is α^K_ba P_Q',a P_K,b, with q'_a = Σ_m α^Q_ma q_m; α are means over p."""
        if not self.packed:
            return None
        h, (of_query, of_key) = self.num_heads, self.alpha[:2].mean(-1)  # [source, target]
        (wq, _), (wk, _), _ = self.projections
        wq, wk = (w.unflatten(0, (h, -1)) for w in (wq, wk))
        queries = mix_heads(of_query.T, heads.routing)
        mixed = mix_heads(of_query.T, wq[None])[0]
        return implied(of_key.T[None, None, ..., None], mixed, wk, queries, "row")

    def side_by_side(self, heads: Heads) -> Tensor:
        """The heads' own keys, before they were mixed."""
        assert heads.of_keys is not None
        return heads.of_keys

    def of_bias(self) -> Tensor | None:
        """The learned extra key before it is mixed."""
        return self.bias_k

    def _mix(self, x: Tensor, alpha: Tensor) -> Tensor:
        """[B, h, L, e] → [B, h, L, P·e]: Σ_m α_{mhp} x_m, one matrix product."""
        mixed = mix_heads(alpha.flatten(1).T, x).unflatten(1, alpha.shape[1:])  # [B, h, P, L, e]
        return mixed.transpose(2, 3).flatten(3)

    def split_bias(self, bias_k: Tensor, bias_v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned extra key and value, mixed like any token's."""
        k, v = super().split_bias(bias_k, bias_v)
        return self._mix(k, self.alpha[1]), self._mix(v, self.alpha[2])

    def _attend(
        self,
        heads: Heads,
        allowed: Tensor | None,
        bias: Tensor | None,
        fused_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend between pseudo-tokens under the masks of their tokens."""
        p = self.pseudo_heads
        if fused_causal and allowed is None and bias is None:
            length, keys = heads.q.shape[2], heads.k.shape[2]
            allowed = torch.ones(1, 1, length, keys, dtype=torch.bool, device=heads.q.device).tril()
        if allowed is not None:
            allowed = allowed.repeat_interleave(p, 2).repeat_interleave(p, 3)
        if bias is not None:
            bias = bias.expand(-1, -1, heads.q.shape[2], -1)
            bias = bias.repeat_interleave(p, 2).repeat_interleave(p, 3)
        pseudo = (
            x.unflatten(3, (p, -1)).flatten(2, 3) for x in (heads.q, heads.k, heads.v)
        )  # [B, h, L·P, e]
        q, k, v = pseudo
        heads = replace(heads, q=q, k=k, v=v)
        if heads.change is not None:  # a change of a token's score, to each of its pseudo-heads'
            assert heads.of_keys is not None
            change = heads.change.repeat_interleave(p, 2)
            heads = replace(heads, change=change, of_keys=heads.of_keys.repeat_interleave(p, 1))
        return super()._attend(heads, allowed, bias, False, need_weights)

    def per_token(self, values: Tensor, what: Literal["scores", "attention"]) -> Tensor:
        """Mean over a token's pseudo-queries; of its pseudo-keys the sum, of scores the mean."""
        p = self.pseudo_heads
        split = values.unflatten(3, (-1, p)).unflatten(2, (-1, p)).mean(3)
        return split.mean(4) if what == "scores" else split.sum(4)

    def combine(self, out: Tensor, heads: Heads) -> Tensor:
        """Collapse pseudo-heads by R, then W_O."""
        pseudo = out.unflatten(2, (-1, self.pseudo_heads)).transpose(2, 3)  # [B, h, P, L, e]
        return super().combine(mix_heads(self.collapse, pseudo.flatten(1, 2)), heads)

    @classmethod
    def parameter_count(
        cls, d_model: int, n_heads: int, *, pseudo_heads: int = 2, **options: Any
    ) -> int:
        """4d² + 4h²P."""
        return 4 * d_model**2 + 4 * n_heads**2 * pseudo_heads

    @classmethod
    def multiply_adds(
        cls, d_model: int, n_heads: int, seq_len: int, *, pseudo_heads: int = 2, **options: Any
    ) -> int:
        """4Ld² + 4Ld·hP + 2P²L²d."""
        d, length, p = d_model, seq_len, pseudo_heads
        return 4 * length * d * (d + n_heads * p) + 2 * p**2 * length**2 * d
