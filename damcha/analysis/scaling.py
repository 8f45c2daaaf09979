"""What every mechanism costs, on the same work: by formula, by count, and by the clock.

A case is a mechanism at a sequence length L and a width d, as one attention layer or as a stack of
blocks with feed-forward, causal, in float32. Within a case's (L, d) all mechanisms take turns, so a
ratio to MHA is a median of paired ratios from one run (machines are noisy).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from damcha.analysis.efficiency import peak_memory
from damcha.analysis.progress import Progress
from damcha.attention import ATTENTIONS
from damcha.config import MetricConfig, ModelConfig, check_size
from damcha.errors import ConfigError
from damcha.model import Stack, mechanism

Kind = Literal["layer", "stack"]
Quartiles = tuple[float, float, float]
"""Lower quartile, median, upper quartile."""
PUBLISHED = tuple(name for name in ATTENTIONS if not name.startswith("authors-"))
"""The mechanisms themselves, without the DAMCHA authors' simplified baselines."""
MOST_SCORES = 2**28
"""Attention probabilities of one forward pass: batch · heads · L² (1 GB in float32)."""


@dataclass(frozen=True)
class Cost:
    """One mechanism at one length and width. Times are of the whole batch."""

    attention: str
    seq_len: int
    d_model: int
    parameters: int
    """Weights, biases included."""
    formula: int
    """Multiply-adds of a forward pass over one sequence, by the mechanism's formula."""
    counted: int
    """The same, as torch counts matrix products; exact where everything is one."""
    forward: Quartiles
    """Seconds, without gradients."""
    training: Quartiles
    """Seconds, forward and backward."""
    forward_ratio: Quartiles
    """Time over MHA's in the same round."""
    training_ratio: Quartiles
    memory: float
    """Peak MiB of a forward pass without gradients, weights apart."""
    training_memory: float
    """Peak MiB of a forward pass that keeps what the backward pass needs."""
    tokens_per_second: float
    """Of a forward pass, at its median time."""


@dataclass(frozen=True)
class Scaling:
    """What one measurement found."""

    kind: Kind
    costs: tuple[Cost, ...]
    n_heads: int
    batch: int
    n_layers: int
    repeats: int
    threads: int
    device: str
    torch: str


def configuration(
    attention: str, d_model: int, n_heads: int, n_layers: int = 1, stride: int = 16
) -> ModelConfig:
    """The stack in which a mechanism is measured: pre-norm, d_ff = 2d, no positions.

    DAMCHA has f_θ with two hidden layers of d/2, shared by the stack, refreshed every `stride`
    queries.
    """
    hidden = max(8, d_model // 2)
    return ModelConfig(
        attention=attention, d_model=d_model, n_heads=n_heads, n_layers=n_layers,
        d_ff=2 * d_model, positions="none",
        metric=MetricConfig(
            hidden_dims=(hidden, hidden), context="causal", context_stride=stride,
            sharing="stack" if n_layers > 1 else "none",
        ),
    )  # fmt: skip


def multiply_adds(config: ModelConfig, seq_len: int, kind: Kind) -> int:
    """By formula, for one sequence: attention of all layers, and feed-forward in a stack."""
    cls, options = mechanism(config)
    options["causal"] = config.causal
    size, shared = (config.d_model, config.n_heads, seq_len), 0
    if config.attention == "damcha":
        options["metric"] = config.metric
        if config.metric.sharing in ("stack", "groups"):  # not every layer runs a generator
            once = cls.multiply_adds(*size, **options)
            options["with_generator"] = False
            runs = config.metric.generators(config.n_layers)
            shared = runs * (once - cls.multiply_adds(*size, **options))
    attention = cls.multiply_adds(*size, **options)
    feed_forward = 2 * seq_len * config.d_model * config.d_ff if kind == "stack" else 0
    return config.n_layers * (attention + feed_forward) + shared


def build(config: ModelConfig, kind: Kind, device: str) -> nn.Module:
    """A stack, or its one attention layer."""
    stack = Stack(config).to(device)
    return stack if kind == "stack" else stack.layers[0].attention  # type: ignore[return-value]


def measure(
    attentions: Sequence[str] = PUBLISHED,
    seq_lens: Sequence[int] = (64, 128, 256),
    d_models: Sequence[int] = (128,),
    *,
    kind: Kind = "layer",
    n_heads: int = 8,
    batch: int = 8,
    n_layers: int = 4,
    repeats: int = 7,
    device: str = "cpu",
    seed: int = 0,
) -> Iterator[Progress | Scaling]:
    """Measure mechanisms × lengths × widths; yields progress and last of all the Scaling.

    MHA is always measured, since ratios are to it.

    Raises
    ------
    ConfigError
        If a mechanism is unknown, nothing is chosen, or a case is too large.
    """
    names = list(dict.fromkeys(("mha", *attentions)))
    for name in names:
        if name not in ATTENTIONS:
            raise ConfigError(
                f"attention: '{name}' is not known; choose from {', '.join(ATTENTIONS)}"
            )
    if not seq_lens or not d_models:
        raise ConfigError("seq_len, d_model: choose at least one of each")
    layers = n_layers if kind == "stack" else 1
    for length in seq_lens:
        if batch * n_heads * length**2 > MOST_SCORES:
            raise ConfigError(
                f"seq_len: batch {batch} · {n_heads} heads · {length}² scores are more than the "
                f"{MOST_SCORES:,} that are measured; lower seq_len or batch"
            )
    for d in d_models:
        for name in names:
            config = configuration(name, d, n_heads, layers)
            check_size(config.parameter_bound(), "d_model", "lower d_model")
    cells = [(d, length) for d in d_models for length in seq_lens]
    total, done = len(cells) * len(names) * (repeats + 2), 0
    costs = []
    for d, length in cells:
        torch.manual_seed(seed)
        x = torch.randn(batch, length, d, device=device)
        works: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {}
        static: dict[str, dict[str, Any]] = {}
        for name in names:
            what = f"{name}, L = {length}, d = {d}"
            config = configuration(name, d, n_heads, layers)
            # Modes as in use: BudgetFormer skips heads in evaluation only.
            module = build(config, kind, device)
            forward, training = _works(module, x, kind)
            static[name] = {
                "parameters": sum(p.numel() for p in module.parameters()),
                "formula": multiply_adds(config, length, kind),
                "counted": _counted(module, x[:1], kind),
                "memory": peak_memory(forward, device),
                "training_memory": peak_memory(_run_of(module.train(), x, kind), device),
            }
            works[name] = (forward, training)
            forward(), training()
            done += 2
            yield Progress(done, total, what)
        times = np.empty((len(names), 2, repeats))
        for k in range(repeats):
            order = range(len(names)) if k % 2 == 0 else reversed(range(len(names)))
            for i in order:
                for j, work in enumerate(works[names[i]]):
                    times[i, j, k] = _seconds(work, device)
                done += 1
                yield Progress(done, total, f"{names[i]}, L = {length}, d = {d}")
        for i, name in enumerate(names):
            forward_time = _quartiles(times[i, 0])
            costs.append(Cost(
                attention=name, seq_len=length, d_model=d, **static[name],
                forward=forward_time, training=_quartiles(times[i, 1]),
                forward_ratio=_quartiles(times[i, 0] / times[0, 0]),
                training_ratio=_quartiles(times[i, 1] / times[0, 1]),
                tokens_per_second=batch * length / forward_time[1],
            ))  # fmt: skip
    yield Scaling(
        kind=kind, costs=tuple(costs), n_heads=n_heads, batch=batch, n_layers=layers,
        repeats=repeats, threads=torch.get_num_threads(), device=device, torch=torch.__version__,
    )  # fmt: skip


def _run_of(module: nn.Module, x: Tensor, kind: Kind) -> Callable[[], Tensor]:
    def run() -> Tensor:
        if kind == "stack":
            out: Tensor = module(x)
        else:
            out = module(x, x, x, need_weights=False, is_causal=True)[0]
        return out

    return run


def _works(
    module: nn.Module, x: Tensor, kind: Kind
) -> tuple[Callable[[], object], Callable[[], object]]:
    run = _run_of(module, x, kind)

    def forward() -> object:
        module.eval()
        with torch.no_grad():
            return run()

    def training() -> None:
        module.train()
        module.zero_grad(set_to_none=True)
        run().sum().backward()

    return forward, training


def _counted(module: nn.Module, x: Tensor, kind: Kind) -> int:
    """Matrix products of one training-mode forward pass, in multiply-adds."""
    module.train()
    # torch does not count its fused attention for CPUs, so attention runs as plain products here.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        _run_of(module, x, kind)()
    return int(counter.get_total_flops()) // 2


def _seconds(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _quartiles(values: Any) -> Quartiles:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(low), float(middle), float(high)


# ---------------------------------------------------------------- the paper's table

TABLE2 = {"CIFAR": 64, "CommonGen": 128, "WMT": 256}
"""Data set → tokens T of the paper's Table 2; d = 128, h = 8, FF 256, 4 layers (design.md §8)."""
TABLE2_SYSTEMS = {
    "THA": "tha",
    "DCMHA": "authors-dcmha",
    "ColMHA": "authors-colmha",
    "MMA": "mma",
    "MoA": "authors-moa",
}
"""The table's names → the mechanisms that the authors' code has under them."""


def table2_gflops(system: str, tokens: int) -> float:
    """The paper's GFLOPs: 8 · multiply-adds / 10⁹ of 4 layers of attention and feed-forward.

    (A multiply-add is 2 operations; the further factor 4 is not explained in the paper.)
    """
    cls = ATTENTIONS[TABLE2_SYSTEMS[system]]
    layer = cls.multiply_adds(128, 8, tokens) + 2 * tokens * 128 * 256
    return 8 * 4 * layer / 1e9
