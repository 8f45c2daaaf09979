"""Attention mechanisms with the interface of ``torch.nn.MultiheadAttention``.

A new mechanism is one file with a subclass of :class:`Attention` and one line in ATTENTIONS.
"""

from damcha.attention.base import Attention, Cache
from damcha.attention.damcha import DAMCHAttention, sharing
from damcha.attention.metric import CrossHeadMetric, Metric, blocks, row_sum, unblocks
from damcha.attention.mha import MHA
from damcha.attention.replace import replace_attention

ATTENTIONS: dict[str, type[Attention]] = {"damcha": DAMCHAttention, "mha": MHA}

__all__ = [
    "ATTENTIONS", "MHA", "Attention", "Cache", "CrossHeadMetric", "DAMCHAttention", "Metric",
    "blocks", "replace_attention", "row_sum", "sharing", "unblocks",
]  # fmt: skip
