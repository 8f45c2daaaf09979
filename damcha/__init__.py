"""damcha: attention with one cross-head metric M(x), and tools to see what it learned.

>>> import damcha
>>> run = damcha.open_run("checkpoints/fashion-damcha")
>>> model = run.load(epoch=49)
>>> example = run.prepare("photo.jpg")
>>> with damcha.tap(model) as capture:
...     output = model(example.inputs)
>>> capture.metric.shape  # [positions, d, d]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Eager, because importing the module `damcha.tap` later would take the function's name.
from damcha.tap import tap

__version__ = "0.1.0"

_WHERE = {
    "MHA": "damcha.attention",
    "CrossHeadMetric": "damcha.attention",
    "DAMCHAttention": "damcha.attention",
    "replace_attention": "damcha.attention",
    "MetricConfig": "damcha.config",
    "RunConfig": "damcha.config",
    "build_model": "damcha.model",
    "inspect": "damcha.analysis.inspection",
    "list_runs": "damcha.checkpoint",
    "open_run": "damcha.checkpoint",
    "train": "damcha.training",
}
__all__ = ["tap", *sorted(_WHERE)]

if TYPE_CHECKING:
    from damcha.analysis.inspection import inspect
    from damcha.attention import MHA, CrossHeadMetric, DAMCHAttention, replace_attention
    from damcha.checkpoint import list_runs, open_run
    from damcha.config import MetricConfig, RunConfig
    from damcha.model import build_model
    from damcha.training import train


def __getattr__(name: str) -> Any:
    # Loaded on first use: `import damcha.figures` must not wait for torch.
    if name not in _WHERE:
        raise AttributeError(f"module 'damcha' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
