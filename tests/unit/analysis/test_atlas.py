import numpy as np
import pytest
import torch

from damcha import tap
from damcha.analysis import atlas as module
from damcha.analysis.atlas import (
    components,
    embed,
    nearest,
    project,
    rank_correlation,
    survey,
)
from damcha.analysis.epochs import adaptivity
from damcha.analysis.geometry import describe, head_metrics
from damcha.analysis.probes import probes
from damcha.analysis.progress import Progress, finished
from damcha.data.datasets import ImageData
from damcha.data.evaluation import EvaluationSet
from damcha.errors import InputError


def held_out(n=70, classes=3):
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    images = rng.integers(0, 60, (n, 12, 12, 1), np.uint8) + (labels * 90)[:, None, None, None]
    data = ImageData(images.astype(np.uint8), labels, ("a", "b", "c"), "", "")
    return EvaluationSet("noise", data, np.arange(n), 9, "digest")


@pytest.fixture(scope="module")
def model(task_model):
    return task_model().float()


@pytest.fixture(scope="module")
def found(model):
    return finished(survey(model, held_out(), 0, -2))


def test_everything_is_what_one_pass_gives(model, found):
    inputs, targets = next(held_out().batches(70))
    with torch.no_grad(), tap(model) as capture:
        loss = model.score(inputs, targets)["loss"]
    metrics = capture.records[0].metric[:, -2].numpy()
    heads = head_metrics(metrics, 2).reshape(70, -1)
    for name, whole in (("metric", metrics.reshape(70, -1)), ("head_metrics", heads)):
        coordinates, basis = found.features[name], found.basis[name]
        np.testing.assert_allclose(coordinates @ basis, whole, atol=1e-5)
        np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-6)
        assert coordinates.shape == (70, 9)  # w = 8, and the bias
        assert found.lost[name] < 1e-10
    for k in (0, 69):
        one = describe(metrics[k], 2)
        np.testing.assert_allclose(
            found.features["blocks"][k], one.block_coupling.ravel(), rtol=1e-4
        )
        for name in ("norm", "diagonal_share", "effective_rank"):
            assert found.statistics[name][k] == pytest.approx(getattr(one, name), rel=1e-4)
    np.testing.assert_allclose(found.statistics["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(found.mean, metrics.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.variance, metrics.var(0), atol=1e-7)
    assert found.adaptivity == pytest.approx(adaptivity(model, inputs, 0, -2), rel=1e-5)
    np.testing.assert_allclose(found.context, capture.records[0].context[:, -2], atol=1e-6)


def test_progress_is_told(model):
    steps = [step for step in survey(model, held_out()) if isinstance(step, Progress)]
    assert steps[0].done == 0 and steps[-1].done < steps[-1].total == 70


def test_a_basis_grows_over_batches(model, found, monkeypatch):
    monkeypatch.setattr(module, "MOST_NUMBERS", 4 * 8 * 16 * 16)  # batches of 4
    slow = finished(survey(model, held_out(), 0, -2))
    gaps = [np.linalg.norm(x.features["metric"][1:] - x.features["metric"][0], axis=1)
            for x in (slow, found)]  # fmt: skip
    np.testing.assert_allclose(*gaps, rtol=1e-4)
    assert slow.features["metric"].shape == (70, 9)


def test_the_memory_is_bounded_and_what_is_lost_is_said(model, found, monkeypatch):
    monkeypatch.setattr(module, "MOST", 0)
    monkeypatch.setattr(module, "FEWEST_DIMENSIONS", 4)
    small = finished(survey(model, held_out(), 0, -2))
    assert small.features["metric"].shape == (70, 4)
    whole = found.features["metric"] @ found.basis["metric"]
    kept = small.features["metric"] @ small.basis["metric"]
    lost = ((whole - kept) ** 2).sum() / (whole**2).sum()
    assert 0 < small.lost["metric"] == pytest.approx(lost, rel=1e-3)


def test_wide_metrics_and_long_streams_have_a_small_basis():
    for size, n in ((512**2, 2000), (64**2, 10**6), (128**2, 10**4)):
        most = module._Basis(size, n).most
        assert 64 <= most and most * size <= 2**24 and most * n <= 2**26


def test_components_are_those_of_the_metrics(model, found):
    metrics = (found.features["metric"] @ found.basis["metric"]).astype(np.float64)
    centred = metrics - metrics.mean(0)
    _, sigma, rows = np.linalg.svd(centred, full_matrices=False)
    parts = components(found)
    np.testing.assert_allclose(parts.shares[:8], sigma[:8] ** 2 / (sigma**2).sum(), rtol=1e-3)
    assert parts.metrics.shape == (3, 16, 16)
    along = np.abs((parts.metrics.reshape(3, -1) * rows[:3]).sum(1))
    np.testing.assert_allclose(along, 1, atol=1e-4)
    with pytest.raises(InputError, match="at least 3 inputs, not 2"):
        components(finished(survey(model, held_out(2))))


@pytest.mark.parametrize("feature", ["metric", "head_metrics", "blocks"])
def test_one_more_metric_in_the_same_coordinates(found, feature):
    metric = (found.features["metric"][7] @ found.basis["metric"]).reshape(16, 16)
    own = project(found, feature, metric, 2)
    np.testing.assert_allclose(own, found.features[feature][7], atol=1e-5)


def test_rank_correlation():
    x = np.arange(40.0)
    rho, low, high = rank_correlation(x, x**3)
    assert rho == pytest.approx(1) and low > 0.99 and high <= 1
    rng = np.random.default_rng(0)
    rho, low, high = rank_correlation(rng.normal(size=400), rng.normal(size=400))
    width = np.arctanh(high) - np.arctanh(low)
    assert low < rho < high
    assert width == pytest.approx(2 * 1.96 * ((1 + rho**2 / 2) / 397) ** 0.5)
    # Ties take average ranks, as a table of ranks by hand gives: 1, 2.5, 2.5, 4.
    rho, *_ = rank_correlation(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4]))
    assert rho == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1])
    assert rank_correlation(x[:3], x[:3]) is None
    assert rank_correlation(x, np.ones(40)) is None


def test_static_metrics_are_constant(task_model):
    model = task_model(generator="static", context_stride=1).float()
    found = finished(survey(model, held_out()))
    assert found.is_constant and found.adaptivity < 1e-15 and found.context is None
    for method in ("pca", "mds", "tsne"):
        with pytest.raises(InputError, match="every input has the same metric"):
            embed(found.features["metric"], method)
    with pytest.raises(InputError, match="every input has the same metric"):
        components(found)
    assert found.features["metric"].shape == (70, 1)


@pytest.mark.parametrize("method", ["pca", "mds", "tsne"])
def test_rows_that_differ_by_rounding_only_make_no_map(method):
    rows = 3 + 1e-7 * np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    with pytest.raises(InputError, match="every input has the same metric"):
        embed(rows, method)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_very_few_inputs(model, n):
    found = finished(survey(model, held_out(n)))
    assert found.features["metric"].shape == (n, n) and np.isfinite(found.adaptivity)


@pytest.mark.parametrize("method", ["pca", "mds", "tsne"])
def test_maps_keep_likes_together(found, method):
    places, note = embed(found.features["metric"], method)
    assert places.shape == (70, 2) and np.isfinite(places).all() and note
    again, _ = embed(found.features["metric"], method)
    np.testing.assert_allclose(places, again, atol=1e-5)
    labels = np.arange(70) % 3
    gaps = np.linalg.norm(places[:, None] - places[None], axis=-1) + 1e9 * np.eye(70)
    assert (labels[gaps.argmin(1)] == labels).mean() > 0.8


def test_few_inputs(found):
    few = found.features["metric"][:5]
    _, note = embed(few, "tsne")
    assert "perplexity 1.33 (capped: there are few inputs)" in note
    assert embed(few[:3], "pca")[0].shape == (3, 2)
    with pytest.raises(InputError, match="at least 3 inputs, not 2"):
        embed(few[:2], "pca")
    with pytest.raises(InputError, match="map: 'umap' is not one of pca, mds, tsne"):
        embed(few, "umap")
    with pytest.raises(InputError, match="MDS takes at most 1000 inputs, not 1001"):
        embed(np.random.default_rng(0).random((1001, 3)), "mds")


def test_probes(found):
    rows, note = probes(found, "head_metrics")
    by_name = {row.name: row for row in rows}
    assert by_name["Chance"].accuracy == pytest.approx(1 / 3, abs=0.05)
    assert by_name["linear, metric"].accuracy > 0.9 and by_name["k-NN, context"].accuracy > 0.9
    assert note.startswith("5-fold stratified")


def test_probes_of_odd_sets(model, task_model):
    data = held_out(10)
    data.data.labels[0] = 7
    _, note = probes(finished(survey(model, data)), "blocks")
    assert "Classes with one input are left out" in note
    with pytest.raises(InputError, match="at least two classes"):
        probes(finished(survey(model, held_out(6, classes=1))), "blocks")


def test_neighbours(found):
    order, gaps = nearest(found.features["metric"], found.features["metric"][4], 3)
    assert order[0] == 4 and gaps[0] == 0 and (np.diff(gaps) >= 0).all()


def test_what_cannot_be_surveyed(task_model, model):
    with pytest.raises(InputError, match="'moa' has no cross-head metric to survey"):
        finished(survey(task_model(attention="moa").float(), held_out(3)))
    sick = task_model().float()
    next(sick.parameters()).data.fill_(float("nan"))
    with pytest.raises(InputError, match="NaN or infinite values; choose another epoch"):
        finished(survey(sick, held_out(3)))
    with pytest.raises(InputError, match="position: 9 is not one of 0 to 4"):
        finished(survey(model, held_out(3), 0, 9))
    with pytest.raises(InputError, match="layer: 1 is not one of 0 to 0"):
        finished(survey(model, held_out(3), 1))
