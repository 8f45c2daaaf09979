"""The generator f_θ: its start, its sizes, its precision (algebra: properties/test_metric.py)."""

import pytest
import torch

from damcha.attention.context import RunningSums, prefix_contexts
from damcha.attention.metric import CrossHeadMetric
from damcha.config import MetricConfig
from damcha.tap import tap

D, H = 16, 4


def build(**settings):
    torch.manual_seed(0)
    return CrossHeadMetric(D, H, MetricConfig(**{"hidden_dims": (8,), **settings}))


class TestStart:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"generator": "static"},
            {"constraint": "symmetric"},
            {"off_diagonal": "linear_combination"},
            {"off_diagonal": "separate"},
            {"layer_bias_rank": 2},
        ],
        ids=str,
    )
    def test_head_metrics_start_near_the_identity(self, settings):
        metric = build(**settings)
        x = torch.randn(2, 5, D)
        rows = metric(x).head_metrics.detach()
        eye = torch.eye(D // H)
        assert (rows - eye).abs().max() < 0.25
        if settings.get("generator") == "static":
            assert torch.equal(rows, eye.expand_as(rows))

    @pytest.mark.parametrize("constraint", ["psd", "low_rank"])
    def test_factored_metrics_start_at_the_identity_on_average(self, constraint):
        # The mean over r products leaves a deviation of 1/sqrt(r) = 1/64 in each entry.
        config = MetricConfig(constraint=constraint, rank=4096, generator="static")
        torch.manual_seed(0)
        source = CrossHeadMetric(D, H, config)
        with tap(source) as capture:
            source(torch.randn(1, 3, D))
        (record,) = capture.records
        assert (record.metric[0, 0] - torch.eye(D)).abs().max() < 6 / 64

    def test_metric_depends_on_the_input_from_the_start(self):
        metric = build()
        one, two = (metric(torch.randn(1, 5, D)).head_metrics for _ in "ab")
        assert not torch.allclose(one, two)

    def test_a_random_constant_starts_as_the_bias_of_the_last_layer(self):
        constant = build(generator="static", metric_init="random").constant
        bound = 8**-0.5
        assert constant.abs().max() <= bound
        assert abs(constant.mean()) < 0.1 * bound and abs(constant.std() - bound / 3**0.5) < 0.02

    def test_random_start_is_pytorchs_own(self):
        metric = build(metric_init="random")
        bound = 8**-0.5
        for parameter in (metric.output.weight, metric.output.bias):
            assert parameter.abs().max() <= bound
            assert parameter.std() > 0.4 * bound


class TestSizes:
    @pytest.mark.parametrize(
        ("settings", "outputs"),
        [
            ({}, D * D),
            ({"constraint": "psd", "rank": 3}, D * 3),
            ({"constraint": "low_rank", "rank": 3}, 2 * D * 3),
            ({"off_diagonal": "separate"}, D * D // H),
            ({"off_diagonal": "linear_combination"}, D * D // H),
        ],
        ids=str,
    )
    def test_outputs_of_the_generator(self, settings, outputs):
        assert build(**settings).output.out_features == outputs
        assert build(**settings, generator="static").constant.numel() == outputs

    def test_hidden_layers(self):
        metric = build(hidden_dims=(8, 6, 7), generator_dropout=0.1)
        kinds = [type(module).__name__ for module in metric.hidden]
        assert kinds == ["Linear", "GELU", "Dropout"] * 3
        widths = [module.out_features for module in metric.hidden if hasattr(module, "weight")]
        assert widths == [8, 6, 7]


def test_generator_dropout_is_active_in_training_only():
    metric = build(generator_dropout=0.5)
    x = torch.randn(1, 4, D)
    assert not torch.equal(metric(x).head_metrics, metric(x).head_metrics)
    metric.eval()
    assert torch.equal(metric(x).head_metrics, metric(x).head_metrics)


@pytest.mark.parametrize("stride", [1, 7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_running_means_of_half_precision_round_once(normal, stride, dtype):
    x = (1 + normal(1, 3000, 4)).to(dtype)
    contexts = prefix_contexts(x, None, stride)
    assert contexts.dtype == dtype
    exact = prefix_contexts(x.double(), None, stride).to(dtype)
    assert (contexts == exact).double().mean() > 0.99


def test_context_state_continues_the_sums():
    x = torch.arange(12.0).view(1, 6, 2)
    state = RunningSums()
    pieces = [prefix_contexts(x[:, a:b], None, 2, state) for a, b in ((0, 1), (1, 2), (2, 6))]
    assert [piece.shape[1] for piece in pieces] == [1, 0, 2]
    assert torch.equal(torch.cat(pieces, 1), prefix_contexts(x, None, 2))
    assert state.seen == 6


def test_fused_path_never_forms_the_metric():
    metric = build()
    result = metric(torch.randn(1, 3, D))
    assert result.full is None
    assert result.head_metrics.shape == (1, 1, H, D // H, D // H)
    assert build(aggregation="bilinear")(torch.randn(1, 3, D)).full.shape == (1, 1, D, D)
