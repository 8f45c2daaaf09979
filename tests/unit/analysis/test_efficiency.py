import time

import pytest
import torch

from damcha.analysis.efficiency import (
    Comparison,
    Report,
    compare,
    direct_evaluation,
    layer_benchmark,
    peak_memory,
)
from damcha.attention import DAMCHAttention
from damcha.config import MetricConfig


def test_a_promise_is_about_the_median():
    def ratio(middle, limit):
        return Comparison("a", "b", (0.1, middle, 9.0), 1.0, 1.0, limit)

    assert ratio(0.8, 0.8).holds
    assert ratio(0.81, 0.8).holds is False
    assert ratio(0.81, None).holds is None


def test_ratios_are_of_the_first_to_the_second():
    found = compare(
        "slow", lambda: time.sleep(0.004), "quick", lambda: time.sleep(0.001), 3, None
    )  # fmt: skip
    low, middle, high = found.ratio
    assert 1 < low <= middle <= high
    assert found.seconds > found.baseline_seconds


def test_peak_memory_counts_what_is_held_at_once():
    megabyte = 2**18  # float32

    def one_after_the_other():
        for _ in range(4):
            torch.zeros(megabyte)

    def together():
        return [torch.zeros(megabyte) for _ in range(4)]

    assert peak_memory(one_after_the_other) == pytest.approx(1, abs=0.01)
    assert peak_memory(together) == pytest.approx(4, abs=0.01)


def test_work_on_the_cpu_is_measured_there_on_a_machine_with_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert peak_memory(lambda: torch.zeros(2**18), "cpu") == pytest.approx(1, abs=0.01)


def test_the_yardstick_is_the_attention(randomise, normal):
    config = MetricConfig(hidden_dims=(8,), context="causal", context_stride=1)
    layer = randomise(DAMCHAttention(8, 2, batch_first=True, metric=config).double())
    x = normal(2, 5, 8)
    wanted = layer(x, x, x, need_weights=False, is_causal=True)[0]
    torch.testing.assert_close(direct_evaluation(layer, x, layer.metric), wanted)


def test_a_small_benchmark_from_start_to_end():
    steps = list(layer_benchmark(
        d_model=16, n_heads=8, seq_len=16, batch=1, n_layers=2, width=8, depth=2, stride=4,
        repeats=3,
    ))  # fmt: skip
    *said, report = steps
    assert said[:3] == ["forward", "forward and backward", "memory"]
    assert isinstance(report, Report)
    assert [row.limit for row in report.comparisons[:3]] == [0.8, 0.85, 1.0]
    assert all(row.seconds > 0 for row in report.comparisons)
    assert all(use.forward > 0 and use.training > 0 for use in report.memory)
    assert max(report.differences.values()) < 1e-4
