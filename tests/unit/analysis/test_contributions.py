import numpy as np
import pytest
import torch

from damcha import tap
from damcha.analysis.contributions import Target, as_function, contributions
from damcha.checkpoint.run import Example
from damcha.errors import InputError


def example(inputs):
    return Example(inputs, (), (), (), "x", "x", None)  # type: ignore[arg-type]


@pytest.fixture
def image(normal):
    return normal(1, 1, 12, 12)


KINDS = [{}, {"aggregation": "bilinear"}, {"sharing": "none"}, {"sharing": "parameters"},
         {"generator": "static", "context_stride": 1}]  # fmt: skip


def by_hand(model, inputs):
    """M ⊙ dF/dM of each layer by plain autograd: one layer at a time, the others fixed."""
    with torch.no_grad(), tap(model, per_layer=True) as capture:
        model(inputs)
    metrics = [record.metric for record in capture.records]
    found = []
    for k in range(len(metrics)):
        leaf = metrics[k].clone().requires_grad_()

        def edit(metric, layer, k=k, leaf=leaf):
            return leaf if layer == k else metrics[layer]

        with tap(model, edit, per_layer=True):
            loss = model.score(inputs, torch.zeros(1, dtype=torch.long))["loss"]
        (grad,) = torch.autograd.grad(loss.sum(), leaf)
        found.append((leaf * grad)[0].sum(0).detach().numpy())
    return np.stack(found)


@pytest.mark.parametrize("settings", KINDS)
def test_one_backward_pass_gives_what_each_layer_gives_alone(task_model, image, settings):
    model = task_model(**settings)
    found = contributions(model, example(image))
    np.testing.assert_allclose(found.layers, by_hand(model, image), atol=1e-12)


@pytest.mark.parametrize("aggregation", ["rowsum", "bilinear"])
def test_layers_sum_to_the_shared_metrics_contribution(task_model, image, aggregation):
    model = task_model(aggregation=aggregation)
    leaf = None

    def edit(metric, layer):
        nonlocal leaf
        leaf = metric.detach().clone().requires_grad_()
        return leaf

    with tap(model, edit):
        loss = model.score(image, torch.zeros(1, dtype=torch.long))["loss"].sum()
    (grad,) = torch.autograd.grad(loss, leaf)
    wanted = (leaf * grad)[0].sum(0).detach().numpy()
    np.testing.assert_allclose(contributions(model, example(image)).total, wanted, atol=1e-10)


@pytest.mark.parametrize("settings", KINDS)
def test_integrated_gradients_are_complete(task_model, image, settings):
    model = task_model(**settings)
    found = contributions(model, example(image), method="integrated_gradients", steps=64)
    assert found.completeness_error == pytest.approx(0, abs=1e-8)
    assert found.layers.sum() == pytest.approx(found.value - found.baseline_value, abs=1e-8)
    rough = contributions(model, example(image), method="integrated_gradients", steps=2)
    assert abs(rough.completeness_error) > abs(found.completeness_error)


def test_the_data_set_mean_as_baseline(shared_model, image):
    with torch.no_grad(), tap(shared_model) as capture:
        shared_model(image)
    mean = capture.records[0].metric.numpy() * 0.5
    found = contributions(shared_model, example(image), method="integrated_gradients",
                          baseline="mean", mean=mean, steps=48)  # fmt: skip
    assert found.completeness_error == pytest.approx(0, abs=1e-8)
    with torch.no_grad(), tap(shared_model, lambda m, layer: m * 0.5):
        wanted = shared_model.score(image, torch.zeros(1, dtype=torch.long))["loss"]
    assert found.baseline_value == pytest.approx(float(wanted), abs=1e-10)
    with pytest.raises(InputError, match="no data-set mean"):
        contributions(shared_model, example(image), baseline="mean")


def test_gradients_are_constant_along_block_rows_under_row_sum(task_model, image):
    model = task_model()
    found = contributions(model, example(image), method="gradient").layers
    np.testing.assert_allclose(found[:, :, :8], found[:, :, 8:], atol=1e-14)
    free = contributions(task_model(aggregation="bilinear"), example(image), method="gradient")
    assert np.abs(free.layers[:, :, :8] - free.layers[:, :, 8:]).max() > 1e-6


def test_positions_add_up(shared_model, image):
    whole = contributions(shared_model, example(image)).layers
    parts = [contributions(shared_model, example(image), position=k).layers for k in range(5)]
    np.testing.assert_allclose(sum(parts), whole, atol=1e-14)
    with pytest.raises(InputError, match="position: 5 is not one of 0 to 4"):
        contributions(shared_model, example(image), position=5)


def test_targets(task_model, image):
    model = task_model()
    with torch.no_grad():
        error = (model(image) - model.patches(image)).square().mean(-1)[0]
    assert contributions(model, example(image), Target("patch", 3)).value == pytest.approx(
        float(error[3])
    )
    text = torch.tensor([[84, 104, 101]])
    model = task_model("language_modelling")
    with torch.no_grad():
        log_p = model(text).log_softmax(-1)[0, 1, 104]
    found = contributions(model, example(text), Target("token", 1))
    assert found.value == pytest.approx(float(log_p))
    model = task_model("image_classification", causal=False, context="full", context_stride=1)
    with torch.no_grad():
        log_p = model(image).log_softmax(-1)[0, 7]
    found = contributions(model, example(image), Target("class", 7))
    assert found.value == pytest.approx(float(log_p))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target("class", 1), "target: 'class' does not fit a model of task 'image_autoregression'"),
        (Target("patch", 9), "there is no patch 9; choose 0 to 8"),
    ],
)
def test_targets_that_do_not_fit(shared_model, image, target, message):
    with pytest.raises(InputError, match=message):
        contributions(shared_model, example(image), target)


def test_wrong_arguments(shared_model, task_model, image):
    with pytest.raises(InputError, match="method: 'magic' is not one of"):
        contributions(shared_model, example(image), method="magic")
    with pytest.raises(InputError, match="steps: 0 is not between"):
        contributions(shared_model, example(image), steps=0)
    with pytest.raises(InputError, match="'moa' has no cross-head metric to attribute to"):
        contributions(task_model(attention="moa"), example(image))


def test_other_methods_of_captum_take_the_function(shared_model, image):
    from captum.attr import FeatureAblation

    with torch.no_grad(), tap(shared_model, per_layer=True) as capture:
        shared_model(image)
    leaves = tuple(record.metric for record in capture.records)
    function = as_function(shared_model, image, Target())
    masks = tuple(torch.full_like(leaf, k, dtype=torch.long) for k, leaf in enumerate(leaves))
    with torch.no_grad():
        found = FeatureAblation(function).attribute(leaves, feature_mask=masks)
        without = function(torch.zeros_like(leaves[0]), leaves[1])
        assert float(found[0].flatten()[0]) == pytest.approx(float(function(*leaves) - without))


def test_nothing_is_left_behind(task_model, image):
    model = task_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    contributions(model, example(image), method="integrated_gradients", steps=4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
