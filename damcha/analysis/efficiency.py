"""Time and memory of attention layers, measured side by side on the same work.

Machines are noisy, so everything is a ratio within one run: contestants take turns, and the median
of the paired ratios is reported with its quartiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from damcha.attention import MHA, CrossHeadMetric, DAMCHAttention, row_sum
from damcha.attention.base import split_heads
from damcha.config import MetricConfig
from damcha.tap import tap

Work = Callable[[], object]


@dataclass(frozen=True)
class Comparison:
    """One contestant against a baseline that does the same work."""

    name: str
    baseline: str
    ratio: tuple[float, float, float]
    """Lower quartile, median and upper quartile of time / baseline time, paired."""
    seconds: float
    """Median time of the contestant."""
    baseline_seconds: float
    limit: float | None = None
    """The most that the median ratio may be, where we promise one."""

    @property
    def holds(self) -> bool | None:
        """Whether the promise is kept; None where there is none."""
        return None if self.limit is None else self.ratio[1] <= self.limit


@dataclass(frozen=True)
class Memory:
    """Peak memory above the start of a piece of work, in MiB."""

    name: str
    forward: float
    """Forward pass without gradients."""
    training: float
    """Forward pass with gradients: what is kept for the backward pass, and the peak on the way."""


@dataclass(frozen=True)
class Report:
    """What one benchmark measured."""

    settings: Mapping[str, int | str]
    comparisons: tuple[Comparison, ...]
    memory: tuple[Memory, ...]
    differences: Mapping[str, float]
    """Largest absolute differences between paths that must agree."""


def compare(
    name: str, work: Work, baseline_name: str, baseline: Work, repeats: int, limit: float | None
) -> Comparison:
    """Time two pieces of work in turns, after a warm-up of each."""
    work(), baseline()
    times = np.empty((repeats, 2))
    for k in range(repeats):
        order = ((0, work), (1, baseline)) if k % 2 == 0 else ((1, baseline), (0, work))
        for column, run in order:
            began = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times[k, column] = time.perf_counter() - began
    low, middle, high = np.quantile(times[:, 0] / times[:, 1], (0.25, 0.5, 0.75))
    mine, theirs = np.median(times, axis=0)
    ratio = (float(low), float(middle), float(high))
    return Comparison(name, baseline_name, ratio, float(mine), float(theirs), limit)


def peak_memory(work: Work, device: str = "cpu") -> float:
    """Peak of the memory that a piece of work allocates on its device, in MiB."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - start) / 2**20
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held = np.cumsum([event.nbytes() for event in events])
    return float(held.max(initial=0)) / 2**20


def direct_evaluation(layer: DAMCHAttention, x: Tensor, source: CrossHeadMetric) -> Tensor:
    """The definition as it is written (design.md §2), causal with stride 1: a yardstick.

    M for every query from its own prefix mean, RowSum over blocks, scores, masked softmax.
    """
    length = x.shape[1]
    h = layer.num_heads
    count = torch.arange(1, length + 1, dtype=x.dtype, device=x.device)[:, None]
    context = x.cumsum(1) / count
    metric = source.output(source.hidden(context)).unflatten(-1, (x.shape[-1], -1))
    rows = row_sum(metric, h)  # [B, L, h, e, e]
    heads = x.unflatten(-1, (h, -1))  # [B, L, h, e]
    queries = torch.einsum("blhi,blhij->bhlj", heads, rows)
    scores = queries @ split_heads(x, h).transpose(-1, -2) / layer.head_dim**0.5
    future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    out = weights @ split_heads(layer.value_proj(x), h)
    return layer.out_proj(out.transpose(1, 2).flatten(2))


def layer_benchmark(
    *,
    d_model: int = 512,
    n_heads: int = 8,
    seq_len: int = 256,
    batch: int = 8,
    n_layers: int = 10,
    width: int = 256,
    depth: int = 9,
    stride: int = 16,
    repeats: int = 7,
    device: str = "cpu",
    seed: int = 0,
) -> Iterator[str | Report]:
    """DAMCHA with its share of f_θ against fused MHA, causal; yields what it does, then a Report.

    A stack of `n_layers` attention layers is timed with the one generator that serves it (`depth`
    layers of `width`), so a layer carries its share of f_θ. Then: fused against explicit RowSum;
    stride 1 against the definition evaluated as written.
    """
    torch.manual_seed(seed)
    hidden = (width,) * (depth - 1)
    config = MetricConfig(hidden_dims=hidden, context="causal", context_stride=stride)
    source = CrossHeadMetric(d_model, n_heads, config, device=device)
    ours = nn.ModuleList(
        DAMCHAttention(d_model, n_heads, batch_first=True, metric=None, device=device)
        for _ in range(n_layers)
    )
    theirs = nn.ModuleList(
        MHA(d_model, n_heads, batch_first=True, device=device) for _ in range(n_layers)
    )
    x = torch.randn(batch, seq_len, d_model, device=device)

    def damcha() -> Tensor:
        metric, y = source(x, causal=True, shared=True), x
        for layer in ours:
            y = layer(y, y, y, need_weights=False, is_causal=True, metric=metric)[0]
        return y

    def mha() -> Tensor:
        y = x
        for layer in theirs:
            y = layer(y, y, y, need_weights=False, is_causal=True)[0]
        return y

    def plain(work: Callable[[], Tensor]) -> Work:
        return torch.no_grad()(work)

    def trained(work: Callable[[], Tensor], *modules: nn.Module) -> Work:
        def run() -> None:
            for module in modules:
                module.zero_grad(set_to_none=True)
            work().sum().backward()

        return run

    comparisons = []
    yield "forward"
    comparisons.append(compare(
        "DAMCHA layer with its share of f_θ, forward", plain(damcha),
        "MHA", plain(mha), repeats, 0.80,
    ))  # fmt: skip
    yield "forward and backward"
    comparisons.append(compare(
        "DAMCHA layer with its share of f_θ, forward+backward", trained(damcha, source, ours),
        "MHA", trained(mha, theirs), repeats, 0.85,
    ))  # fmt: skip
    yield "memory"
    for module in (source, ours, theirs):
        module.zero_grad(set_to_none=True)
    with torch.no_grad():
        shared = source(x, causal=True, shared=True)

        def one() -> object:
            return ours[0](x, x, x, need_weights=False, is_causal=True, metric=shared)

        def generator() -> object:
            return source(x, causal=True, shared=True)

        alone, once = peak_memory(one, device), peak_memory(generator, device)
        one_mha = peak_memory(
            lambda: theirs[0](x, x, x, need_weights=False, is_causal=True), device
        )
    memory = [
        Memory("MHA layer", one_mha, peak_memory(mha, device) / n_layers),
        Memory(
            f"DAMCHA layer with 1/{n_layers} of f_θ", alone + once / n_layers,
            peak_memory(damcha, device) / n_layers,
        ),
    ]  # fmt: skip
    yield "fused against explicit RowSum"

    def fused() -> Tensor:
        return source(x, causal=True).head_metrics

    def explicit() -> Tensor:
        with tap(source):
            return source(x, causal=True).head_metrics

    comparisons.append(
        compare("fused RowSum", plain(fused), "explicit M", plain(explicit), repeats, 1.0)
    )
    with torch.no_grad():
        differences = {"fused RowSum and explicit M": float((fused() - explicit()).abs().max())}
    for d, length in ((64, 64), (64, 256), (256, 64), (256, 128)):
        yield f"stride 1 at d={d}, L={length}"
        every = MetricConfig(hidden_dims=(64, 64), context="causal", context_stride=1)
        small = DAMCHAttention(d, n_heads, batch_first=True, metric=every, device=device)
        z = torch.randn(2, length, d, device=device)
        assert small.metric is not None

        def ours_small(layer: DAMCHAttention = small, z: Tensor = z) -> Tensor:
            return layer(z, z, z, need_weights=False, is_causal=True)[0]

        def written(layer: DAMCHAttention = small, z: Tensor = z) -> Tensor:
            assert layer.metric is not None
            return direct_evaluation(layer, z, layer.metric)

        comparisons.append(compare(
            f"stride 1, d={d}, L={length}, forward", plain(ours_small),
            "the definition as written", plain(written), repeats, 1.0,
        ))  # fmt: skip
        with torch.no_grad():
            gap = float((ours_small() - written()).abs().max())
        differences[f"stride 1 and the definition, d={d}, L={length}"] = gap
    yield Report(
        settings={
            "d_model": d_model, "n_heads": n_heads, "seq_len": seq_len, "batch": batch,
            "n_layers": n_layers, "generator": f"{depth} layers of width {width}",
            "stride": stride, "repeats": repeats, "threads": torch.get_num_threads(),
            "device": device, "torch": torch.__version__,
        },
        comparisons=tuple(comparisons),
        memory=tuple(memory),
        differences=differences,
    )  # fmt: skip
