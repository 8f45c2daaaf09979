"""Budgeted heads: each input decides how many heads it needs, and which; the others are skipped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damcha.attention.auxiliary import add_auxiliary, collecting
from damcha.attention.base import Cache, Call, Heads, split_heads
from damcha.attention.metric import ContextState, pooled_context, prefix_contexts
from damcha.attention.mha import MHA
from damcha.attention.positions import rotary_angles, rotate
from damcha.errors import ConfigError
from damcha.tap import listening

LEAST, MOST = 0.1, 0.9
"""The hinge keeps the budget between these (attention-variants.md)."""


class BudgetFormer(MHA):
    """y = Σ_a g_a head_a W_O,a with a budget s(x̄) ∈ (0, 1) and gates g(x̄) made from the mean input.

    After arXiv 2604.22583, of which neither code nor full text is public: the gates below are ours.

    * x̄ is the mean of the real tokens; in causal use, of those up to the query, so every position
      has its own budget and gates. Cross-attention pools the keys.
    * s = σ(W₂ GELU(W₁ x̄)), relevance r = W_r x̄, w = softmax(r/τ) over heads.
    * In training all heads are computed, g_a = h·s·w_a. τ falls from 2 to ½ and noise on r, of std
      1 − progress, vanishes as the training loop tells the progress (:meth:`set_progress`).
    * In evaluation the k = ⌈s·h⌉ ≥ 1 most relevant heads are kept, g_a = h·s·w_a / Σ_kept w, and
      the others are not computed: neither queries, scores nor outputs, and without causality
      neither their keys nor their values (in causal use a later query may need those).
    * Auxiliary losses: hinge max(0, 0.1 − s) + max(0, s − 0.9), and the entropy of w.

    Equal relevance and s = 1 is MHA. Parameters 4d² + d·r + r + dh, r = `budget_hidden`; in
    evaluation about k/h of MHA's 4Ld² + 2L²d multiply-adds.
    """

    LENS = (
        "Block (a, a) is head a's own W_Q,aᵀW_K,a; heads do not meet, so the other blocks are "
        "zero by construction. The gates weigh outputs and are no part of it."
    )
    OPTIONS = ("budget_hidden", "budget_loss", "entropy_loss")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        budget_hidden: int = 16,
        budget_loss: float = 0.1,
        entropy_loss: float = 0.01,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        like = self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        share = nn.Linear(budget_hidden, 1, **factory)
        self.budget = nn.Sequential(
            nn.Linear(self.kdim, budget_hidden, **factory), nn.GELU(), share
        )
        self.relevance = nn.Linear(self.kdim, num_heads, bias=False, **factory)
        self.losses = {"budget": budget_loss, "entropy": entropy_loss}
        self.progress = 1.0
        with torch.no_grad():  # starts with nearly all heads, alike
            nn.init.constant_(share.bias, 2.0)
            nn.init.normal_(self.relevance.weight, std=0.02)

    def set_progress(self, progress: float) -> None:
        """Share of the training that is done; without a training loop it is over (1)."""
        self.progress = progress

    def gates(
        self, key: Tensor, padding: Tensor | None, causal: bool, cache: Cache | None
    ) -> Tensor:
        """g, [B, L, h] in causal use, else [B, 1, h]; 0 for heads that are skipped."""
        if causal:
            state = None
            if cache is not None:
                state = cache.extra.setdefault("context", ContextState())
            pooled = prefix_contexts(key, padding, 1, state)
        else:
            pooled = pooled_context(key, padding)
        share = self.budget(pooled).sigmoid()  # [B, L|1, 1]
        relevance = self.relevance(pooled)
        temperature = 1.0
        if self.training:
            temperature = 2 * 0.25**self.progress
            if self.progress < 1:
                relevance = relevance + (1 - self.progress) * torch.randn_like(relevance)
        else:
            temperature = 0.5
        weights = (relevance / temperature).softmax(-1)
        if collecting():
            self._losses(share, weights, padding)
        budget = self.num_heads * share
        if self.training:
            return budget * weights
        # Half-precision sigmoids may round up to 1 + ulp times h; the count is at most h.
        kept = budget.detach().ceil().clamp(1, self.num_heads)
        rank = weights.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        weights = weights.masked_fill(rank >= kept, 0)
        return budget * weights / weights.sum(-1, keepdim=True)

    def _losses(self, share: Tensor, weights: Tensor, padding: Tensor | None) -> None:
        hinge = (LEAST - share).clamp(min=0) + (share - MOST).clamp(min=0)
        entropy = -torch.special.xlogy(weights, weights).sum(-1, keepdim=True)
        for name, value in (("budget", hinge), ("entropy", entropy)):
            if padding is not None and value.shape[1] > 1:
                value = value[~padding]
            if self.losses[name] and value.numel():
                add_auxiliary(name, self.losses[name] * value.mean())

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
        """As MHA, with the gates."""
        self._check_lengths(query, key, causal)
        heads = super().project(query, key, value, padding, causal, cache, **given)
        return replace(heads, routing=self.gates(key, padding, causal, cache))

    def combine(self, out: Tensor, heads: Heads) -> Tensor:
        """Weight the heads by their gates, then W_O."""
        return super().combine(out * heads.routing.transpose(1, 2)[..., None], heads)

    def _run(self, call: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """In evaluation compute only the heads that are kept, unless somebody looks at all."""
        extra = self.bias_k is not None or self.add_zero_attn
        looked_at = self.looked_at(call.need_weights) or listening(self)
        if self.training or extra or looked_at:
            return super()._run(call)
        return self._skip(call)

    def _skip(self, call: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """One head at a time, for the examples and positions that keep it."""
        self._check_lengths(call.query, call.key, call.causal)
        query, e, seen = call.query, self.head_dim, call.seen
        gates = self.gates(call.key, call.padding, call.causal, call.cache)  # [B, L|1, h]
        (wq, bq), (wk, bk), (wv, bv) = self.projections
        padding, keys = call.padding, None
        if call.causal or call.cache is not None:  # a later query may keep any head
            k = self._turn(split_heads(F.linear(call.key, wk, bk), self.num_heads), seen)
            keys = Heads(k, k, split_heads(F.linear(call.value, wv, bv), self.num_heads))
            if call.cache is not None:
                keys, padding = call.cache.append(keys, padding)
        n_keys = seen + call.key.shape[1]
        allowed, bias = self._masks(call, padding, n_keys)
        everybody = (gates > 0).flatten(0, 1).all(0)
        common = everybody.nonzero()[:, 0].tolist()
        out = query.new_zeros(*query.shape[:2], self.embed_dim)
        if common:
            out = self._common(call, common, keys, gates, allowed, bias)
        for a in range(self.num_heads):
            if a in common:
                continue
            of_head = slice(a * e, (a + 1) * e)
            gate = gates[..., a]
            active = gate > 0
            rows = active.any(1).nonzero()[:, 0]
            if not len(rows):
                continue
            gate, active = gate[rows], active[rows]
            # The positions that keep the head, first; those behind them have gate 0.
            place = active.to(torch.int8).argsort(dim=1, descending=True, stable=True)
            place = place[:, : int(active.sum(1).max())]
            if gate.shape[1] == 1 or place.shape[1] == query.shape[1]:
                place = torch.arange(query.shape[1], device=rows.device).expand(len(rows), -1)
            whole = place.shape[1] == query.shape[1]
            at = (rows[:, None], place)
            q = F.linear(query[at], wq[of_head], None if bq is None else bq[of_head])[:, None]
            q = self._turn(q, seen, place)
            if keys is not None:
                k, v = keys.k[rows, a][:, None], keys.v[rows, a][:, None]
            else:
                k, v = (
                    F.linear(x[rows], w[of_head], None if b is None else b[of_head])[:, None]
                    for x, w, b in ((call.key, wk, bk), (call.value, wv, bv))
                )
                k = self._turn(k, seen)

            def pick(mask: Tensor | None, a: int = a, at: tuple[Tensor, Tensor] = at) -> Any:
                if mask is None:
                    return None
                mask = mask.expand(len(query), self.num_heads, query.shape[1], -1)
                return mask[at[0], a, at[1]][:, None]  # [rows, 1, positions, keys]

            here = pick(allowed)
            if call.is_causal and here is None and not whole:
                here = (place[..., None] + seen >= torch.arange(n_keys, device=place.device))[
                    :, None
                ]
            o, _ = self._attend(
                Heads(q, k, v), here, pick(bias), call.is_causal and seen == 0, False
            )
            y = F.linear(o[:, 0], self.out_proj.weight[:, of_head])
            weight = gate if gate.shape[1] == 1 else gate.gather(1, place)
            out.index_put_(at, y * weight[..., None], accumulate=True)
        if self.out_proj.bias is not None:
            out = out + self.out_proj.bias
        return out, None, self._dead_rows(allowed)

    def _common(
        self,
        call: Call,
        common: list[int],
        keys: Heads | None,
        gates: Tensor,
        allowed: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """The heads that every example and position keeps: a narrower MHA."""
        channels = torch.arange(self.embed_dim, device=gates.device).unflatten(
            0, (-1, self.head_dim)
        )
        channels = channels[common].flatten()

        def projected(x: Tensor, which: int) -> Tensor:
            weight, b = self.projections[which]
            return split_heads(
                F.linear(x, weight[channels], None if b is None else b[channels]), len(common)
            )

        q = self._turn(projected(call.query, 0), call.seen)
        if keys is not None:
            k, v = keys.k[:, common], keys.v[:, common]
        else:
            k = self._turn(projected(call.key, 1), call.seen)
            v = projected(call.value, 2)
        allowed, bias = (
            m if m is None or m.shape[1] == 1 else m[:, common] for m in (allowed, bias)
        )
        fused_causal = call.is_causal and call.seen == 0
        o, _ = self._attend(Heads(q, k, v), allowed, bias, fused_causal, False)
        o = o * gates[..., common].transpose(1, 2)[..., None]
        return F.linear(o.transpose(1, 2).flatten(2), self.out_proj.weight[:, channels])

    def _turn(self, x: Tensor, seen: int, place: Tensor | None = None) -> Tensor:
        """Rotary positions, of all tokens or of those at `place` [rows, positions]."""
        if not self.rotary:
            return x
        length = x.shape[2] if place is None else int(place.max()) + 1
        cos, sin = rotary_angles(length, self.head_dim, seen, like=x)
        if place is None:
            return rotate(x, (cos, sin))
        return rotate(x, (cos[place][:, None], sin[place][:, None]))

    @staticmethod
    def _check_lengths(query: Tensor, key: Tensor, causal: bool) -> None:
        if causal and query.shape[1] != key.shape[1]:
            raise ConfigError(
                f"causal: the budget of query t is made of the keys up to t, but there are "
                f"{query.shape[1]} queries and {key.shape[1]} keys"
            )

    @classmethod
    def parameter_count(
        cls, d_model: int, n_heads: int, *, budget_hidden: int = 16, **options: Any
    ) -> int:
        """4d² + d·r + r + dh."""
        return 4 * d_model**2 + d_model * budget_hidden + budget_hidden + d_model * n_heads

    @classmethod
    def multiply_adds(
        cls,
        d_model: int,
        n_heads: int,
        seq_len: int,
        *,
        budget_hidden: int = 16,
        kept: int | None = None,
        causal: bool = False,
        **options: Any,
    ) -> int:
        """(4Ld² + 2L²d)·k/h where `kept` = k heads are computed, and dr + r + dh for the gates.

        In causal use, keys and values are computed for all heads, and gates for each token.
        """
        d, length = d_model, seq_len
        gates = d * budget_hidden + budget_hidden + d * n_heads
        of_head, all_heads = 4 * length * d * d + 2 * length**2 * d, 0
        if causal:
            gates, all_heads = gates * length, 2 * length * d * d
        return (of_head - all_heads) * (kept or n_heads) // n_heads + all_heads + gates
