"""Mixture of attention heads: each token chooses its query heads from a pool of experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from damcha.attention.auxiliary import add_auxiliary, collecting
from damcha.attention.base import Attention, Call, Heads
from damcha.attention.implied import Implied
from damcha.errors import ConfigError


class MoA(Attention):
    """y_t = Σ_{r ≤ k} g_r softmax(x_t W_q,E(r) Kᵀ/√e) V W_o,E(r), E(1…k) the k likeliest experts.

    Zhang et al. 2022 (arXiv 2210.05144, §3). One key head and one value head serve all; `n_experts`
    experts have W_q [d, e] and W_o [e, d]; g = softmax(x W_gate) over all experts, of which a token
    uses the `top_k` largest (divided by their sum with ``normalize_gates=True``). e = embed_dim /
    num_heads. Parameters 2de + 2E·de + dE; 2Lde + 2kLde + 2kL²e + LdE multiply-adds: tokens are
    sorted by expert, so only chosen experts are computed, and fused kernels attend.

    Auxiliary losses (:mod:`damcha.attention.auxiliary`), padded tokens apart: ``importance``, the
    squared coefficient of variation of the summed gates; ``switch``, E·Σ_e f_e P_e with the shares
    of choices and of probability; ``z``, the mean squared logsumexp of the gate's logits.

    Published code (yikangshen/MoA) does not normalise the gates, as by default here; its z loss
    counts padded tokens, ours does not.
    """

    OPTIONS = (
        "n_experts", "top_k", "normalize_gates", "importance_loss", "switch_loss", "z_loss",
    )  # fmt: skip

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        n_experts: int | None = None,
        top_k: int | None = None,
        normalize_gates: bool = False,
        importance_loss: float = 0.0,
        switch_loss: float = 0.01,
        z_loss: float = 0.001,
        **kwargs: Any,
    ) -> None:
        e = embed_dim // max(num_heads, 1)
        self.n_experts = n_experts or 2 * num_heads
        self.top_k = top_k or num_heads
        if self.top_k > self.n_experts:
            raise ConfigError(
                f"top_k: {self.top_k} experts cannot be chosen from n_experts={self.n_experts}"
            )
        super().__init__(
            embed_dim, num_heads, *args, k_width=e, v_width=self.n_experts * e, **kwargs
        )
        self.num_heads = self.top_k  # heads that a token has; masks and maps count these
        self.normalize_gates = normalize_gates
        self.losses = {"importance": importance_loss, "switch": switch_loss, "z": z_loss}
        like = self.out_proj.weight
        factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        bias = self.out_proj.bias is not None
        self.key_proj = nn.Linear(self.kdim, e, bias, **factory)
        self.value_proj = nn.Linear(self.vdim, e, bias, **factory)
        self.gate = nn.Linear(embed_dim, self.n_experts, bias=False, **factory)
        self.query_experts = nn.Parameter(torch.empty(self.n_experts, embed_dim, e, **factory))
        if self.bias_v is not None:
            self.bias_v = nn.Parameter(self.bias_v.detach()[..., :e].clone())
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Keys, values, each expert's W_q and W_o Xavier uniform; gate normal, std 0.02."""
        nn.init.xavier_uniform_(self.key_proj.weight)
        nn.init.xavier_uniform_(self.value_proj.weight)
        for expert in self.query_experts:
            nn.init.xavier_uniform_(expert)
        for expert in self.out_proj.weight.split(self.head_dim, dim=1):
            nn.init.xavier_uniform_(expert)
        nn.init.normal_(self.gate.weight, std=0.02)
        for linear in (self.key_proj, self.value_proj):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def project(self, call: Call) -> Heads:
        """Queries of each token's experts [B, k, L, e], best first; one key and one value head."""
        query, padding = call.query, call.padding
        logits = self.gate(query)
        probabilities = logits.softmax(-1)
        gates, chosen = probabilities.topk(self.top_k, dim=-1)  # [B, L, k]
        if collecting():
            real = None if padding is None or padding.shape != query.shape[:2] else ~padding
            self._losses(logits, probabilities, gates, chosen, real)
        if self.normalize_gates:
            gates = gates / gates.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self.n_experts).tolist()
        rows = query.flatten(0, 1)[order // self.top_k].split(counts)
        sorted_q = torch.cat([x @ w for x, w in zip(rows, self.query_experts, strict=True)])
        places = torch.arange(len(order), device=order.device)
        back = torch.empty_like(order).scatter(0, order, places)
        q = sorted_q[back].unflatten(0, chosen.shape).transpose(1, 2)
        k, v = self.key_proj(call.key)[:, None], self.value_proj(call.value)[:, None]
        return Heads(q, k, v, routing=(gates, order, back, counts))

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """None: all experts share one key head, so there are no blocks between heads."""
        return None

    def split_bias(self, bias_k: Tensor, bias_v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned extra key and value are one for all heads."""
        return bias_k[:, None], bias_v[:, None]

    def combine(self, out: Tensor, heads: Heads) -> Tensor:
        """Σ_r g_r out_r W_o,E(r)."""
        gates, order, back, counts = heads.routing
        rows = (out.transpose(1, 2) * gates[..., None]).flatten(0, 2)[order].split(counts)
        experts = self.out_proj.weight.split(self.head_dim, dim=1)
        sorted_y = torch.cat([x @ w.T for x, w in zip(rows, experts, strict=True)])
        y = sorted_y[back].unflatten(0, gates.shape).sum(2)
        return y if self.out_proj.bias is None else y + self.out_proj.bias

    def _losses(
        self, logits: Tensor, probabilities: Tensor, gates: Tensor, chosen: Tensor,
        real: Tensor | None,
    ) -> None:  # fmt: skip
        everything = (logits, probabilities, gates, chosen)
        logits, probabilities, gates, chosen = (
            x.flatten(0, 1) if real is None else x[real] for x in everything
        )
        if not len(logits):
            return
        kept = torch.zeros_like(probabilities).scatter(1, chosen, gates).sum(0)
        kept = kept / kept.sum()
        share = probabilities.sum(0) / probabilities.sum()
        picked = chosen.flatten().bincount(minlength=self.n_experts).to(share) / chosen.numel()
        values = {
            "importance": kept.var() / kept.mean() ** 2 if self.n_experts > 1 else 0 * kept.sum(),
            "switch": self.n_experts * (share * picked).sum(),
            "z": logits.logsumexp(-1).square().mean(),
        }
        for name, value in values.items():
            if self.losses[name]:
                add_auxiliary(name, self.losses[name] * value)

    def take_over(self, old: nn.MultiheadAttention) -> None:
        """Nothing of MHA has a counterpart: there is one key head, and experts for queries."""

    @classmethod
    def parameter_count(
        cls, d_model: int, n_heads: int, *, n_experts: int | None = None, **options: Any
    ) -> int:
        """2de + 2E·de + dE."""
        e, experts = d_model // n_heads, n_experts or 2 * n_heads
        return 2 * d_model * e * (1 + experts) + d_model * experts

    @classmethod
    def multiply_adds(
        cls,
        d_model: int,
        n_heads: int,
        seq_len: int,
        *,
        n_experts: int | None = None,
        top_k: int | None = None,
        **options: Any,
    ) -> int:
        """2Lde + 2kLde + 2kL²e + LdE."""
        d, e, k, length = d_model, d_model // n_heads, top_k or n_heads, seq_len
        experts = n_experts or 2 * n_heads
        return 2 * length * d * e * (1 + k) + 2 * k * length**2 * e + length * d * experts
