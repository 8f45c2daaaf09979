import numpy as np
import pytest
import torch

from damcha import tap
from damcha.analysis.epochs import adaptivity, trajectory
from damcha.analysis.geometry import describe


def test_each_epoch_is_described():
    rng = np.random.default_rng(0)
    metrics = [rng.standard_normal((6, 6)) for _ in range(3)]
    found = trajectory((0, 2, 10), metrics, 2)
    for k, metric in enumerate(metrics):
        one = describe(metric, 2)
        assert found.norm[k] == one.norm and found.effective_rank[k] == one.effective_rank
        assert found.negative_share[k] == one.signature[2] / 6
        wanted = np.linalg.norm(metric - metrics[2]) / np.linalg.norm(metrics[2])
        assert found.distance[k] == pytest.approx(wanted, abs=1e-12)
    assert found.epochs.tolist() == [0, 2, 10] and not found.norm.flags.writeable


def test_adaptivity_is_the_share_of_the_variance(shared_model, normal):
    inputs = normal(7, 1, 12, 12)
    with tap(shared_model) as capture:
        shared_model(inputs)
    metrics = capture.records[0].metric[:, 1].double().numpy()
    variance = ((metrics - metrics.mean(0)) ** 2).sum((1, 2)).mean()
    wanted = variance / (metrics**2).sum((1, 2)).mean()
    assert adaptivity(shared_model, inputs, 0, 1) == pytest.approx(wanted, rel=1e-9)
    assert 0 < wanted < 1


def test_adaptivity_without_input_dependence(task_model, normal):
    inputs = normal(3, 1, 12, 12)
    static = task_model(generator="static", context_stride=1)
    assert adaptivity(static, inputs) == 0
    assert np.isnan(adaptivity(task_model(attention="moa"), inputs))
    assert adaptivity(task_model(), torch.stack([inputs[0]] * 3)) == pytest.approx(0, abs=1e-12)
