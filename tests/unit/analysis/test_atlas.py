import numpy as np
import pytest
import torch

from damcha import tap
from damcha.analysis import atlas as module
from damcha.analysis.atlas import embed, nearest, probes, survey
from damcha.analysis.epochs import adaptivity
from damcha.analysis.geometry import describe, head_metrics
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
    np.testing.assert_allclose(found.features["metric"], metrics.reshape(70, -1), atol=1e-5)
    heads = head_metrics(metrics, 2).reshape(70, -1)
    np.testing.assert_allclose(found.features["head_metrics"], heads, atol=1e-5)
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


def test_the_memory_is_bounded_and_distances_survive(model, found, monkeypatch):
    monkeypatch.setattr(module, "MOST", 70 * 96)
    small = finished(survey(model, held_out(), 0, -2))
    assert small.projected == ("head_metrics", "metric")
    assert small.features["metric"].shape == (70, 96)
    whole = np.linalg.norm(found.features["metric"][0] - found.features["metric"][1:], axis=1)
    kept = np.linalg.norm(small.features["metric"][0] - small.features["metric"][1:], axis=1)
    assert np.abs(kept / whole - 1).mean() < 0.15


def test_static_metrics_are_constant(task_model):
    model = task_model(generator="static", context_stride=1).float()
    found = finished(survey(model, held_out()))
    assert found.is_constant and found.adaptivity < 1e-15 and found.context is None
    for method in ("pca", "mds", "tsne"):
        with pytest.raises(InputError, match="every input has the same metric"):
            embed(found.features["metric"], method)


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
    with pytest.raises(InputError, match="'mha' has no cross-head metric to survey"):
        finished(survey(task_model(attention="mha").float(), held_out(3)))
    with pytest.raises(InputError, match="position: 9 is not one of 0 to 4"):
        finished(survey(model, held_out(3), 0, 9))
    with pytest.raises(InputError, match="layer: 1 is not one of 0 to 0"):
        finished(survey(model, held_out(3), 1))
