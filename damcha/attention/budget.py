"""Budgeted heads: each input decides how many heads it needs, and which; the others are skipped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damcha.attention.auxiliary import add_auxiliary, collecting
from damcha.attention.base import Cache, Call, Heads, split_heads
from damcha.attention.context import RunningSums, pooled_context, prefix_contexts
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
      neither their keys nor their values (in causal use a later query may need those: two of the
      four projections, so the time cannot fall below about half).
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
                state = cache.extra.setdefault("context", RunningSums())
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

    def project(self, call: Call) -> Heads:
        """As MHA, with the gates."""
        self._check_lengths(call.query, call.key, call.causal)
        gates = self.gates(call.key, call.padding, call.causal, call.cache)
        return replace(super().project(call), routing=gates)

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
        """Only what is kept: by sets of heads, in causal use by positions, too."""
        self._check_lengths(call.query, call.key, call.causal)
        gates = self.gates(call.key, call.padding, call.causal, call.cache)  # [B, L|1, h]
        padding, keys = call.padding, None
        if call.causal or call.cache is not None:  # a later query may keep any head
            (wk, bk), (wv, bv) = self.projections[1:]
            k = self.turned(split_heads(F.linear(call.key, wk, bk), self.num_heads), call.seen)
            keys = Heads(k, k, split_heads(F.linear(call.value, wv, bv), self.num_heads))
            if call.cache is not None:
                keys, padding = call.cache.append(keys, padding)
        masks = self._masks(call, padding, call.seen + call.key.shape[1])
        if gates.shape[1] > 1:
            out = self._by_position(call, gates, keys, *masks)
        else:
            out = self._by_sets(call, gates[:, 0] > 0, gates, keys, *masks)
        if self.out_proj.bias is not None:
            out = out + self.out_proj.bias
        return out, None, self._dead_rows(masks[0])

    def _by_sets(
        self, call: Call, kept: Tensor, gates: Tensor, keys: Heads | None,
        allowed: Tensor | None, bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Examples that keep the same heads [B, h] go through one narrower MHA."""
        sets, group = kept.unique(dim=0, return_inverse=True)
        out = call.query.new_zeros(*call.query.shape[:2], self.embed_dim)
        for k, members in enumerate(sets):
            rows: Any = (group == k).nonzero()[:, 0]
            if len(rows) == len(group):  # an index would copy for nothing
                rows = slice(None)
            elif len(rows) == 1:
                rows = slice(int(rows), int(rows) + 1)
            heads = members.nonzero()[:, 0].tolist()
            if not heads:  # all are kept too seldom, or the input is not a number
                continue
            narrow = self._narrow(call, rows, heads, gates, keys, allowed, bias)
            out[rows] = narrow.to(out.dtype)  # autocast
        return out

    def _narrow(
        self, call: Call, rows: Any, kept: list[int], gates: Tensor, keys: Heads | None,
        allowed: Tensor | None, bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Some examples through some heads, weighed by their gates, and those heads' W_O."""
        heads: Any = kept
        channels: Any = slice(None)
        if len(kept) == self.num_heads:
            heads = channels
        else:
            every = torch.arange(self.embed_dim, device=gates.device)
            channels = every.unflatten(0, (-1, self.head_dim))[kept].flatten()

        def projected(x: Tensor, which: int) -> Tensor:
            weight, b = self.projections[which]
            y = F.linear(x[rows], weight[channels], None if b is None else b[channels])
            return split_heads(y, len(kept))

        q = self.turned(projected(call.query, 0), call.seen)
        if keys is not None:
            k, v = keys.k[rows][:, heads], keys.v[rows][:, heads]
        else:
            k = self.turned(projected(call.key, 1), call.seen)
            v = projected(call.value, 2)
        masks = []
        for mask in (allowed, bias):
            if mask is not None:
                mask = mask if mask.shape[0] == 1 else mask[rows]
                mask = mask if mask.shape[1] == 1 else mask[:, heads]
            masks.append(mask)
        o, _ = self._attend(
            Heads(q, k, v), masks[0], masks[1], call.is_causal and call.seen == 0, False
        )
        o = o * gates[rows][..., heads].transpose(1, 2)[..., None]
        return F.linear(o.transpose(1, 2).flatten(2), self.out_proj.weight[:, channels])

    def _by_position(
        self, call: Call, gates: Tensor, keys: Heads | None, allowed: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """A head that an example keeps at most positions is computed at all of them.

        Elsewhere only the positions that keep it are (gathering a token takes about as long as half
        of its work): without gaps for the projections, and for the attention, whose queries are
        only e wide, padded to the example with most of them.
        """
        assert keys is not None
        active = (gates > 0).transpose(1, 2)  # [B, h, L]
        counts = active.sum(-1)
        # … and one that the batch keeps at most positions, for the whole batch at once.
        most = active.shape[2] / 2
        often = (counts > most) | (counts.double().mean(0) > most)
        out = self._by_sets(call, often, gates, keys, allowed, bias)
        seldom = active & ~often[..., None]
        masks, length, e = (allowed, bias), active.shape[2], self.head_dim
        flat, tokens = out.flatten(0, 1), call.query.flatten(0, 1)
        weight, b = self.projections[0]
        for a in range(self.num_heads):
            examples = seldom[:, a].any(1).nonzero()[:, 0]
            if not len(examples):
                continue
            kept, of_head = seldom[examples, a], slice(a * e, (a + 1) * e)
            example, place = kept.nonzero(as_tuple=True)
            index = examples[example] * length + place
            q = F.linear(
                tokens.index_select(0, index), weight[of_head], None if b is None else b[of_head]
            )
            n = kept.sum(1)
            row = torch.arange(len(place), device=n.device) - (n.cumsum(0) - n)[example]
            where = place.new_zeros(len(examples), int(n.max())).index_put((example, row), place)
            packed = q.new_zeros(*where.shape, e).index_put((example, row), q)[:, None]
            if self.rotary:
                cos, sin = rotary_angles(length, e, call.seen, like=q)
                packed = rotate(packed, (cos[where][:, None], sin[where][:, None]))
            here, added = (self._pick(mask, a, examples, where) for mask in masks)
            if call.is_causal and here is None:
                n_keys = torch.arange(keys.k.shape[2], device=q.device)
                here = (where[..., None] + call.seen >= n_keys)[:, None]
            k, v = (x[examples, a][:, None] for x in (keys.k, keys.v))
            o, _ = self._attend(Heads(packed, k, v), here, added, False, False)
            o = o[example, 0, row] * gates[examples[example], place, a, None]
            flat.index_add_(0, index, F.linear(o, self.out_proj.weight[:, of_head]).to(flat.dtype))
        return out

    def _pick(
        self, mask: Tensor | None, head: int, examples: Tensor, where: Tensor
    ) -> Tensor | None:
        """A head's rows of a mask at positions [n, m] of some examples: [n, 1, m, keys]."""
        if mask is None:
            return None
        of_head = mask[:, head if mask.shape[1] > 1 else 0]
        of_head = of_head.expand(len(examples), -1, -1) if len(mask) == 1 else of_head[examples]
        rows = of_head.expand(-1, max(of_head.shape[1], int(where.max()) + 1), -1)
        return rows.gather(1, where[..., None].expand(-1, -1, rows.shape[-1]))[:, None]

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
