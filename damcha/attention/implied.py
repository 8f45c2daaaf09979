"""The cross-head metric that a mechanism with W_Q and W_K implies, and edits of it.

DAMCHA compares slices of the input by blocks M_ab. A mechanism with projections does so too, once
each head's queries and keys are written in an orthonormal basis. For a head's query projection
W [e, d], let P = (W Wᵀ)^½ (symmetric); then the rows of P⁺W are orthonormal and x̂ = x Wᵀ P⁺ are the
coordinates of x in that basis, the one nearest to the head's own channels. So q = x̂ P_Q, k = ŷ P_K,
and q diag(g) kᵀ = x̂ (P_Q diag(g) P_K) ŷᵀ: a block of a metric with the singular values of
W_Qᵀ diag(g) W_K. What differs between mechanisms is which blocks there are:

========== ====================================== ================================== ==========
mechanism  score of head a, times √e              block M_ab                         pairing
========== ====================================== ================================== ==========
MHA        q_a·k_a                                δ_ab P_Q,a P_K,a                   block
MMA        as MHA (its masks are no part of it)   δ_ab P_Q,a P_K,a                   block
BudgetF.   as MHA (gates weigh outputs)           δ_ab P_Q,a P_K,a                   block
THA        Σ_b P_ℓ[a,b] q_b·k_b                   P_ℓ[a,b] P_Q,b P_K,b               block
DCMHA      Σ_b W(i,j)[a,b] q_b·k_b                W̄(i)[a,b] P_Q,b P_K,b              block
ColMHA     Σ_b (q_b ∘ m_a,b)·k_b                  P_Q,b diag(m_a,b) P_K,b            block
IHA        Σ_b α^K_ba q'_a·k_b                    α^K_ba P_Q',a P_K,b                row
========== ====================================== ================================== ==========

"block" pairing: S_a = Σ_b x̂_b M_ab ŷ_bᵀ; "row": S_a = Σ_b x̂_a M_ab ŷ_bᵀ, as in DAMCHA's bilinear
form (its RowSum form is Σ_b X_a M_ab Y_aᵀ). ColMHA's heads b are the h slices of its shared width.
IHA's scores are those of a token, the mean over its pseudo-heads: α are means over pseudo-heads and
q'_a = Σ_m α^Q_ma q_m. DCMHA's mixing W(i, j) = I + W_q(i) + W_k(j) is of a pair of tokens: shown is
the mean over the keys that query i sees, before the softmax; what it does after is no metric.
MoA's experts share one key head: there is no second head to meet, and no such metric.

Not in M: biases (they move the origin of x̂ and ŷ), rotary positions (they turn q and k; M is the
metric at distance 0), masks, ColMHA's content bias.

An edit M → M' adds Σ_b q P_Q⁺ (M' − M)_ab P_K⁺ k_bᵀ to the scores: exact, with rotary positions and
caches, and where DCMHA's mixing varies with the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Pairing = Literal["block", "row"]


@dataclass(frozen=True, eq=False)
class Implied:
    """A mechanism's cross-head metric for one call, and what an edit of it needs."""

    metric: Float[Tensor, "batch positions width width"]
    stride: int
    """Queries that one position serves; 0: one metric serves all."""
    pairing: Pairing
    queries: Float[Tensor, "batch heads query e"]
    """q_b of every block column (pairing "block") or row ("row")."""
    query_inverse: Float[Tensor, "heads e e"]
    """P_Q⁺ of each of them."""
    key_inverse: Float[Tensor, "heads e e"]
    """P_K⁺ of every block column."""

    def scores_of(self, change: Tensor) -> Float[Tensor, "batch heads query width"]:
        """Queries whose product with all heads' keys side by side is the scores of a change of M.

        Σ_b q P_Q⁺ ΔM_ab P_K⁺ for each score head a, its b side by side.
        """
        n_heads, e = self.queries.shape[1], self.queries.shape[-1]
        parts = change.unflatten(-1, (n_heads, e)).unflatten(-3, (n_heads, e))  # a i b j
        parts = torch.einsum("zpaibj,bjk->zpaibk", parts, self.key_inverse)
        coordinates = torch.einsum("zhli,hij->zhlj", self.queries, self.query_inverse)
        every = "p" if self.stride == 0 else "l"  # one metric for all queries, or one for each
        of_query = "zali" if self.pairing == "row" else "zbli"
        parts = parts if self.stride else parts.squeeze(1)
        place = every if self.stride else ""
        return torch.einsum(f"{of_query},z{place}aibk->zalbk", coordinates, parts).flatten(3)


def roots(weight: Float[Tensor, "heads e d"]) -> tuple[Tensor, Tensor]:
    """P = (W Wᵀ)^½ of each head, and its pseudo-inverse, [heads, e, e]."""
    values, vectors = torch.linalg.eigh((weight @ weight.transpose(1, 2)).double())
    values = values.clamp(min=0).sqrt()
    # Directions that W does not reach (to the precision of its type) have no coordinate.
    floor = values.amax(-1, keepdim=True) * torch.finfo(weight.dtype).eps * weight.shape[-1]
    inverse = torch.where(values > floor, 1 / values.clamp(min=1e-300), 0.0)
    root, pseudo = ((vectors * v[:, None]) @ vectors.transpose(1, 2) for v in (values, inverse))
    return root.to(weight), pseudo.to(weight)


def implied(
    mixing: Float[Tensor, "batch positions score_heads heads channels"],
    query_weight: Float[Tensor, "heads e d"],
    key_weight: Float[Tensor, "heads e d"],
    queries: Float[Tensor, "batch heads query e"],
    pairing: Pairing = "block",
    stride: int = 0,
) -> Implied:
    """M_ab = P_Q diag(mixing_ab) P_K, with P_Q of head b ("block") or a ("row").

    `mixing` has one channel where it weighs whole heads, e where it weighs their channels.
    """
    (p_query, q_inverse), (p_key, k_inverse) = roots(query_weight), roots(key_weight)
    e = p_key.shape[-1]
    mixing = mixing.expand(*mixing.shape[:-1], e)
    query = "aij" if pairing == "row" else "bij"
    blocks = torch.einsum(f"{query},zpabj,bjk->zpaibk", p_query, mixing, p_key)
    metric = blocks.flatten(-2).flatten(-3, -2)
    return Implied(metric, stride, pairing, queries, q_inverse, k_inverse)
