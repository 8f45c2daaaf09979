import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from damcha.analysis import evaluation as ev
from damcha.analysis import fid
from damcha.analysis.progress import Progress, finished
from damcha.config import DataConfig
from damcha.data.datasets import ImageData, TextData
from damcha.data.evaluation import EvaluationSet, image_tensor
from damcha.errors import CheckpointError, InputError
from damcha.figures.evaluation import distributions_figure, evaluation_table
from damcha.model import patchify


def image_set(n=12, side=12, classes=3, seed=0, places=None):
    """Pictures whose brightness tells the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    images = rng.integers(0, 60, (n, side, side, 1)) + 60 * labels[:, None, None, None]
    data = ImageData(images.astype(np.uint8), labels, ("a", "b", "c"), "", "")
    places = np.arange(n) if places is None else places
    return EvaluationSet("pictures", data, places, 9, "digest", "/no/such/folder")


def text_set(n=7, length=10):
    data = TextData(np.random.default_rng(0).integers(0, 256, 400).astype(np.uint8), {}, "", "")
    return EvaluationSet("text", data, np.arange(n) * 20, length, "digest")


def network_of(name="eight means", digest="d" * 64, width=8):
    """Means of eighths of the picture: features that anyone can check."""

    def apply(pictures):
        return pictures.reshape(len(pictures), width, -1).mean(-1) / 255.0

    return fid.FeatureNetwork(name, digest, width, apply)


# The scores -----------------------------------------------------------------------------------


def test_pictures_are_scored_by_their_squared_error(task_model):
    model, data = task_model().float(), image_set()
    found = finished(ev.scores(model, data, size=5))
    images = image_tensor(data.data.images)
    expected = ((model(images) - patchify(images, 4)) ** 2).mean((1, 2))
    assert list(found) == ["mse"]
    np.testing.assert_allclose(found["mse"], expected.numpy(), rtol=1e-5)


def test_a_texts_numbers_are_functions_of_its_nats(task_model):
    model = task_model("language_modelling")
    data = text_set()
    report = finished(ev.evaluate(model, data))
    inputs, _ = next(data.batches())
    nats = -model(inputs).log_softmax(-1).gather(-1, inputs[..., None])[..., 0].mean(1).numpy()
    np.testing.assert_allclose(report.loss, nats, rtol=1e-12)
    by_name = {measure.name: measure for measure in report.measures}
    assert list(by_name) == ["nll", "bits_per_byte", "perplexity_per_byte"]
    assert by_name["nll"].mean == pytest.approx(nats.mean())
    assert by_name["bits_per_byte"].mean == pytest.approx(np.log2(np.exp(nats.mean())))
    assert by_name["perplexity_per_byte"].mean == pytest.approx(
        np.exp(nats).prod() ** (1 / len(nats))
    )
    assert by_name["perplexity_per_byte"].q25 == pytest.approx(math.exp(np.quantile(nats, 0.25)))


def test_the_class_is_among_the_likeliest_five(task_model):
    model = task_model("image_classification", causal=False, context="full", context_stride=1,
                       n_classes=8)  # fmt: skip
    data = image_set(40)
    order = model.float()(image_tensor(data.data.images)).argsort(1, descending=True).numpy()
    place = np.arange(40) % 8  # of the true class among the likeliest
    labels = order[np.arange(40), place]
    data = replace(data, data=replace(data.data, labels=labels))
    found = finished(ev.scores(model, data))
    assert list(found) == ["nll", "top1", "top5"]
    np.testing.assert_array_equal(found["top1"], place < 1)
    np.testing.assert_array_equal(found["top5"], place < 5)
    names = {measure.name: measure for measure in ev.measures(found)}
    assert names["top5"].mean == pytest.approx(5 / 8) and names["top5"].q25 is None


def test_five_of_three_classes_would_say_nothing(task_model):
    model = task_model("image_classification", causal=False, context="full", context_stride=1,
                       n_classes=3)  # fmt: skip
    assert list(finished(ev.scores(model.float(), image_set()))) == ["nll", "top1"]


def test_measures_by_hand():
    values = np.random.default_rng(0).permutation(np.arange(101.0))
    (found,) = ev.measures({"mse": values})
    assert (found.mean, found.q25, found.q75, found.top50) == (50, 25, 75, 24.5)
    low, high = found.interval
    half = 1.96 * values.std() / math.sqrt(101)
    assert low == pytest.approx(50 - half, abs=0.5) and high == pytest.approx(50 + half, abs=0.5)
    assert ev.measures({"mse": values}, seed=0) == (found,)
    with pytest.raises(InputError, match="mse: 1 of 3 examples are NaN"):
        ev.measures({"mse": np.array([1, np.nan, 2])})


# The distance ---------------------------------------------------------------------------------


def test_the_closed_form_where_covariances_commute():
    a, b = np.array([4.0, 1.0, 9.0]), np.array([1.0, 25.0, 4.0])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    mean = np.array([1.0, -2.0, 0.5])
    found = fid.frechet(mean, turn * a @ turn.T, 0 * mean, turn * b @ turn.T)
    expected = (mean**2).sum() + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_closed_form_of_two_dimensions_where_they_do_not():
    # In two dimensions tr (ΣS)^½ = √(tr ΣS + 2 √det ΣS).
    first, second = np.array([[2.0, 0.7], [0.7, 1.0]]), np.array([[1.0, -0.5], [-0.5, 3.0]])
    product = first @ second
    cross = math.sqrt(np.trace(product) + 2 * math.sqrt(np.linalg.det(product)))
    found = fid.frechet(np.zeros(2), first, np.zeros(2), second)
    assert found == pytest.approx(np.trace(first + second) - 2 * cross, rel=1e-12)


def test_equal_sets_are_at_no_distance_with_and_without_full_rank():
    rng = np.random.default_rng(0)
    for n, width in ((200, 16), (10, 64), (50, 300)):
        values = fid.Features(rng.normal(size=(n, width)) * 3 + 1, "a", "b")
        assert fid.distance(values, values) == pytest.approx(0, abs=1e-9 * width)


def test_without_full_rank_it_is_the_distance_within_the_span():
    # The trace of the root is the nuclear norm of the centred sets' product, of any rank.
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(6, 40)), rng.normal(size=(9, 40)) * 2 + 1
    x, y = (a - a.mean(0)) / math.sqrt(5), (b - b.mean(0)) / math.sqrt(8)
    expected = (
        ((a.mean(0) - b.mean(0)) ** 2).sum() + (x**2).sum() + (y**2).sum()
        - 2 * np.linalg.svd(x @ y.T, compute_uv=False).sum()
    )  # fmt: skip
    found = fid.distance(fid.Features(a, "a", "b"), fid.Features(b, "a", "b"))
    assert found == pytest.approx(expected, rel=1e-9)


def test_sets_without_spread_differ_by_their_means():
    first, second = (
        fid.Features(np.zeros((3, 4)), "a", "b"),
        fid.Features(np.ones((3, 4)), "a", "b"),
    )
    assert fid.distance(first, second) == 4


def test_features_of_different_networks_are_never_mixed():
    values = np.zeros((5, 8))
    first = fid.Features(values, "small CNN", "1" * 64)
    for other in (fid.Features(values, "Inception-v3", "1" * 64), replace(first, digest="2" * 64)):
        with pytest.raises(InputError, match="cannot be compared; use one network for both"):
            fid.distance(first, other)


def test_one_picture_has_no_covariance():
    one = fid.Features(np.zeros((1, 8)), "a", "b")
    with pytest.raises(InputError, match="needs 2 pictures or more, not 1"):
        fid.distance(one, one)


# Pictures of a model --------------------------------------------------------------------------


def test_predictions_are_what_the_loss_sees(task_model):
    model, data = task_model().float(), image_set(70)
    made = finished(ev.pictures(model, data))
    np.testing.assert_allclose(made.error, finished(ev.scores(model, data))["mse"], rtol=1e-5)
    assert made.outputs == "predictions" and made.made.dtype == np.uint8
    np.testing.assert_array_equal(made.originals, data.data.images)
    completed = finished(ev.pictures(model, data, "completion"))
    np.testing.assert_array_equal(completed.made[:, :8], data.data.images[:, :8])
    whole = model.generate(model.patches(image_tensor(data.data.images))[:, :6])
    error = ((whole - model.patches(image_tensor(data.data.images))) ** 2).mean((1, 2)).numpy()
    np.testing.assert_allclose(completed.error, error, rtol=1e-4)


def test_a_filled_picture_keeps_what_was_given(task_model):
    model = task_model("image_reconstruction", causal=False, context="full", context_stride=1)
    data = image_set()
    made = finished(ev.pictures(model.float(), data))
    assert made.outputs == "filled"
    np.testing.assert_array_equal(made.made[:, :8], data.data.images[:, :8])
    # A third of the patches is hidden, and only they are wrong.
    np.testing.assert_allclose(made.error, finished(ev.scores(model, data))["mse"] / 3, rtol=1e-5)


def test_what_makes_no_pictures_has_no_fid(task_model):
    with pytest.raises(InputError, match="'language_modelling' makes no pictures"):
        ev.outputs_of(task_model("language_modelling"))
    with pytest.raises(InputError, match="no 'filled'; choose predictions or completion"):
        ev.outputs_of(task_model(), "filled")


def test_the_top_50_are_those_of_lowest_error():
    rng = np.random.default_rng(0)
    originals = rng.integers(0, 256, (90, 8, 8, 1)).astype(np.uint8)
    error = rng.permutation(90).astype(float)
    bad = error >= 50
    made = np.where(bad[:, None, None, None], 255 - originals, originals).astype(np.uint8)
    found = finished(ev.fid(ev.Pictures(made, originals, error, "filled"), network_of()))
    assert found.fid_top == pytest.approx(0, abs=1e-9) and found.fid > 1e-4
    assert (found.n, found.top, found.network) == (90, 50, "eight means") and not found.notes
    few = finished(ev.fid(ev.Pictures(made[:8], originals[:8], error[:8], "filled"), network_of()))
    assert few.top == 8 and few.fid == pytest.approx(few.fid_top)
    assert any("rank 7 at most for 8 features" in note for note in few.notes)
    assert "there are only 8 pictures: Top-50 is all of them" in few.notes


# The network trained here ---------------------------------------------------------------------


def small(tmp_path=None, seed=0, steps=60):
    config = DataConfig(dataset="fashion_mnist", image_size=12, patch_size=4)
    data = image_set(300, places=np.arange(0, 300, 10))
    return list(fid.trained_network(data, config, "test", tmp_path, seed=seed, steps=steps))


def test_a_small_network_learns_what_is_not_evaluated_and_is_kept(tmp_path):
    *steps, first = small(tmp_path)
    assert steps and all(isinstance(step, Progress) for step in steps)
    assert first.accuracy > 0.6  # chance is a third
    assert first.name == (
        "small CNN trained on fashion_mnist, test without the evaluated pictures (seed 0, 60 steps)"
    )
    (again,) = small(tmp_path)  # nothing is trained
    assert (again.digest, again.accuracy) == (first.digest, first.accuracy)
    assert small()[-1].digest == first.digest != small(seed=1)[-1].digest
    assert len(list(tmp_path.glob("features-*.safetensors"))) == 1
    pictures = image_set(5).data.images
    assert first.apply(pictures).shape == (5, first.width)
    np.testing.assert_array_equal(first.apply(pictures), again.apply(pictures))


def test_too_little_to_learn_from():
    config = DataConfig(dataset="fashion_mnist", image_size=12, patch_size=4)
    with pytest.raises(InputError, match="0 pictures beside the evaluated ones, of 0 classes"):
        next(fid.trained_network(image_set(), config))
    with pytest.raises(InputError, match=r"300 pictures .* of 1 classes"):
        next(fid.trained_network(image_set(310, classes=1, places=np.arange(10)), config))
    with pytest.raises(InputError, match="text has no pictures"):
        next(fid.trained_network(text_set(), config))


# Inception ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "package"), [(1008, "torch-fidelity"), (1000, "torchvision")])
@pytest.mark.parametrize("archive", [True, False])
def test_inception_says_which_package_is_missing(tmp_path, monkeypatch, rows, package, archive):
    import sys

    for name in ("torch_fidelity", "torchvision"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "inception.pth"
    torch.save({"fc.weight": torch.zeros(rows, 2048)}, path, _use_new_zipfile_serialization=archive)
    with pytest.raises(InputError, match=f"pip install {package}'"):
        fid.inception(path)


def test_a_package_of_another_torch_is_one_sentence(tmp_path, monkeypatch):
    def fails(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(fid.importlib, "import_module", fails)
    torch.save({"fc.weight": torch.zeros(1000, 2048)}, tmp_path / "inception.pth")
    with pytest.raises(InputError, match="torchvision is installed but does not import"):
        fid.inception(tmp_path / "inception.pth")


def test_inception_refuses_other_files(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.pth is missing"):
        fid.inception(tmp_path / "none.pth")
    torch.save({"fc.weight": torch.zeros(10, 5)}, tmp_path / "other.pth")
    with pytest.raises(InputError, match=r"other\.pth is no Inception-v3"):
        fid.inception(tmp_path / "other.pth")
    for archive in (True, False):
        torch.save(DataConfig(), tmp_path / "code.pth", _use_new_zipfile_serialization=archive)
        with pytest.raises(CheckpointError, match=r"code\.pth .*run(ning)? code"):
            fid.inception(tmp_path / "code.pth")


def test_torch_fidelity_gets_tensors_alone(tmp_path, monkeypatch):
    """The package opens its file itself; what it is given is a copy that holds nothing else."""
    import sys
    import types

    class Network(torch.nn.Module):
        def __init__(self, name, features_list, feature_extractor_weights_path):
            super().__init__()
            assert (name, features_list) == ("inception-v3-compat", ["2048"])
            self.weights = torch.load(feature_extractor_weights_path, weights_only=True)  # noqa: TID251

        def forward(self, x):
            assert x.dtype == torch.uint8 and x.shape[1] == 3
            return (x.float().mean((2, 3)),)

    module = types.ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    module.FeatureExtractorInceptionV3 = Network
    monkeypatch.setitem(sys.modules, "torch_fidelity", types.ModuleType("torch_fidelity"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    path = tmp_path / "weights.pth"
    torch.save({"fc.weight": torch.ones(1008, 2048)}, path, _use_new_zipfile_serialization=False)
    network = fid.inception(path)
    assert network.name == "Inception-v3 of torch-fidelity" and len(network.digest) == 64
    grey = np.full((2, 4, 4, 1), 7, np.uint8)
    np.testing.assert_array_equal(network.apply(grey), np.full((2, 3), 7.0))


# The report -----------------------------------------------------------------------------------


def test_a_report_is_written_whole(tmp_path, task_model):
    model, data = task_model().float(), image_set(60)
    report = finished(
        ev.evaluate(model, data, network=network_of(), outputs=("predictions", "completion"),
                    seed=3, provenance={"run": "tiny", "epoch": 4})
    )  # fmt: skip
    facts, numbers = ev.write_report(report, tmp_path / "out")
    content = json.loads(facts.read_text())
    assert content["measures"][0]["mean"] == report.measures[0].mean
    assert [one["outputs"] for one in content["fid"]] == ["predictions", "completion"]
    assert {one["network"] for one in content["fid"]} == {"eight means"}
    made = content["provenance"]
    assert (made["run"], made["epoch"], made["n"], made["seed"]) == ("tiny", 4, 60, 3)
    assert made["data_digest"] == "digest" and made["versions"]["torch"] == torch.__version__
    with np.load(numbers) as arrays:
        np.testing.assert_array_equal(arrays["mse"], report.loss)
        np.testing.assert_array_equal(arrays["places"], data.places)


def test_runs_side_by_side_and_the_table_that_names_its_features(task_model):
    data = image_set(60)
    reports = {
        name: finished(ev.evaluate(task_model(seed=k).float(), data, network=network_of()))
        for k, name in enumerate(("first", "second"))
    }
    figure = distributions_figure(reports, "mean squared error")
    assert figure.panels[0].mark.labels == ("first", "second")
    np.testing.assert_array_equal(figure.arrays["loss.second"], reports["second"].loss)
    table = evaluation_table(reports["first"], "first")
    assert [row[0] for row in table.rows] == ["MSE", "FID, predictions"]
    assert table.rows[1][4] == reports["first"].fid[0].fid_top
    assert "FID: features of eight means." in table.caption
    other = finished(ev.evaluate(task_model().float(), replace(data, digest="other")))
    with pytest.raises(InputError, match="first, other: these results are of different examples"):
        distributions_figure({"first": reports["first"], "other": other}, "")
