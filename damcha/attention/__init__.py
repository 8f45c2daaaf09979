"""Attention mechanisms with the interface of ``torch.nn.MultiheadAttention``.

A new mechanism is one file with a subclass of :class:`Attention` and one line in ATTENTIONS.
"""

from damcha.attention.authors import BlockColMHA, RankMoA, RouterDCMHA
from damcha.attention.auxiliary import auxiliary_losses
from damcha.attention.base import Attention, Cache, Heads
from damcha.attention.budget import BudgetFormer
from damcha.attention.collaborative import ColMHA
from damcha.attention.composable import DCMHA
from damcha.attention.damcha import DAMCHAttention, sharing
from damcha.attention.interleaved import IHA
from damcha.attention.metric import CrossHeadMetric, Metric, blocks, row_sum, unblocks
from damcha.attention.mha import MHA
from damcha.attention.mixed_mask import MMA
from damcha.attention.mixture import MoA
from damcha.attention.replace import replace_attention
from damcha.attention.residuals import AttentionResidual
from damcha.attention.talking_heads import THA

ATTENTIONS: dict[str, type[Attention]] = {
    "damcha": DAMCHAttention,
    "mha": MHA,
    "tha": THA,
    "dcmha": DCMHA,
    "colmha": ColMHA,
    "mma": MMA,
    "moa": MoA,
    "budgetformer": BudgetFormer,
    "iha": IHA,
    "authors-dcmha": RouterDCMHA,
    "authors-colmha": BlockColMHA,
    "authors-moa": RankMoA,
}

__all__ = [
    "ATTENTIONS", "DCMHA", "IHA", "MHA", "MMA", "THA", "Attention", "AttentionResidual",
    "BlockColMHA", "BudgetFormer", "Cache", "ColMHA", "CrossHeadMetric", "DAMCHAttention", "Heads",
    "Metric", "MoA", "RankMoA", "RouterDCMHA", "auxiliary_losses", "blocks", "replace_attention",
    "row_sum", "sharing", "unblocks",
]  # fmt: skip
