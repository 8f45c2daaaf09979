"""Mixed multi-head attention: heads that see everything, a neighbourhood, the past, the future."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool
from torch import Tensor

from damcha.attention.mha import MHA


class MMA(MHA):
    """MHA whose head a has a hard mask before the softmax, by a mod 4.

    Cui et al. 2019 (D19-5622): 0 global, all keys; 1 local, |i − j| < `local_window`; 2 forward,
    j ≤ i; 3 backward, j ≥ i. Parameters and cost of MHA. A mask given from outside is always
    ANDed, so under a causal mask a backward head sees its own token only. The DAMCHA repository's
    first version did not AND it, and its backward heads read the future.

    All four masks are one boolean [h, L, L] (or [h, new, L] with a cache), so fused kernels serve.
    """

    LENS = (
        "Block (a, a) is head a's own W_Q,aᵀW_K,a; heads do not meet, so the other blocks are "
        "zero by construction. Which keys a head may see at all is no part of it."
    )
    OPTIONS = ("local_window",)

    def __init__(
        self, embed_dim: int, num_heads: int, *args: Any, local_window: int = 8, **kwargs: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        self.local_window = local_window

    def visible(self, queries: Tensor, keys: Tensor) -> Bool[Tensor, "one heads query key"]:
        """The masks of all heads at these positions."""
        behind = queries[:, None] - keys  # i − j
        kind = queries.new_tensor([a % 4 for a in range(self.num_heads)])[:, None, None]
        local = behind.abs() < self.local_window
        return (
            (kind == 0)
            | ((kind == 1) & local)
            | ((kind == 2) & (behind >= 0))
            | ((kind == 3) & (behind <= 0))
        )[None]
