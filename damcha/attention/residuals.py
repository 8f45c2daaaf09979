"""Attention residuals: each sublayer reads a learned mixture of all earlier outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


class AttentionResidual(nn.Module):
    """read_[H] = Σ_i α_i^(H) s_i,[H],  α^(H) = softmax_i(q_H · (RMSNorm(s_i) ∘ g)_[H]).

    Multi-head attention residuals (arXiv 2607.27230, §3) replace the running sum x + Σ sublayers:
    the sources s_0 (the embedding), s_1, … are the raw outputs of all sublayers so far; at each
    site a query q [d], zero at first (so reading starts as the mean), and a gain g [d] mix them in
    `heads` slices of the width, each by its own weights. One head is Attention Residuals. RMSNorm
    runs over the full width, then slices; the sources themselves are not normalised; there is no
    1/√d. 2d parameters and O(N·L·d) work a site with N sources. Tokens do not meet, so causality
    and caches are those of the attention.
    """

    def __init__(self, d_model: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.zeros(d_model))
        self.norm = nn.RMSNorm(d_model, eps=1e-6)

    def weights(self, sources: Sequence[Tensor]) -> Float[Tensor, "n batch tokens heads"]:
        """α of every source [batch, tokens, d], by slice of the width."""
        # (s/rms(s) ∘ g)·q by slices is one product of s with q ∘ g laid out by slice [d, heads].
        direction = torch.block_diag(
            *(self.query * self.norm.weight).unflatten(0, (self.heads, -1)).unbind()
        ).T
        eps = self.norm.eps or 0.0
        logits = [
            (source @ direction) * (source.square().mean(-1, keepdim=True) + eps).rsqrt()
            for source in sources
        ]
        return torch.stack(logits).softmax(0)

    def forward(self, sources: Sequence[Tensor]) -> Float[Tensor, "batch tokens d"]:
        """The mixture of sources [batch, tokens, d]."""
        out = torch.zeros_like(sources[0]).unflatten(-1, (self.heads, -1))
        for weight, source in zip(self.weights(sources), sources, strict=True):
            out = torch.addcmul(out, weight[..., None], source.unflatten(-1, (self.heads, -1)))
        return out.flatten(-2)
