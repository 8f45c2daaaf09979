"""The DAMCHA authors' own checkpoints: read, translated exactly, and written as a run of ours.

Nothing else knows their format (design.md §7). A file is a ``torch.save`` dictionary. Legend: d
width, h heads, e = d/h, r rank, theirs → ours.

==============================  ===================================================================
theirs                          ours
==============================  ===================================================================
epoch n, counted from 1         epoch n − 1
share_mlp                       sharing "stack"; with use_layer_bias "parameters", since their
                                layers then run the shared generator on their own inputs
not share_mlp                   sharing "none"
use_mlp false                   generator "static", a constant per layer; block scales do not act
use_M false                     attention "mha"; W_q, W_k, W_v stacked
generator rows off the diagonal left out where off_diag_mode reads the diagonal blocks only
off_diag_mode "bayesian"        "linear_combination" with the mean of α, as they evaluate
compact_rank r                  constraint "low_rank"
layer bias, scaled per block    our bias is added after the scales, so they move into its factors;
                                with unequal scales its rank becomes r(h + 1) (`_layer_bias`)
patches in (c, row, col) order  columns of the embedding and rows of the head are reordered
sinusoidal table                positions "sinusoidal" where ours agrees with it to 4·10⁻⁶, else the
                                stored table, exactly, as positions "learned"
baseline tha, mma               attention "tha", "mma"
baseline dcmha, colmha, moa     attention "authors-dcmha", "authors-colmha", "authors-moa"
==============================  ===================================================================

Dropout (0.1 everywhere) is not in their files but fixed in their code; it acts in training only.
"""

from damcha.checkpoint.authors.old import OldMetrics, read_old_metrics, write_old_metrics
from damcha.checkpoint.authors.read import Checkpoint, open_stack, read_checkpoint
from damcha.checkpoint.authors.settings import BASELINES
from damcha.checkpoint.authors.stack import Tensors, generator_state, projections, stack_state
from damcha.checkpoint.authors.write import import_run

__all__ = [
    "BASELINES",
    "Checkpoint",
    "OldMetrics",
    "Tensors",
    "generator_state",
    "import_run",
    "open_stack",
    "projections",
    "read_checkpoint",
    "read_old_metrics",
    "stack_state",
    "write_old_metrics",
]
