"""DAMCHAttention: where its metric comes from, and what it refuses."""

import pytest
import torch

from damcha.attention import CrossHeadMetric, DAMCHAttention, row_sum, sharing
from damcha.config import MetricConfig
from damcha.errors import ConfigError
from damcha.tap import tap

EXACT = {"rtol": 0, "atol": 1e-12}
D, H, E = 12, 3, 4


@pytest.fixture(scope="module")
def layer(randomise):
    config = MetricConfig(hidden_dims=(5,))
    return randomise(DAMCHAttention(D, H, batch_first=True, metric=config).double())


def test_cross_attention_compares_queries_with_keys_by_the_metric_of_the_keys(layer, normal):
    query, key, value = normal(2, 5, D), normal(2, 4, D, seed=1), normal(2, 4, D, seed=2)
    with tap(layer, record=("scores",)) as capture:
        out, _ = layer(query, key, value)
    (record,) = capture.records
    torch.testing.assert_close(record.context[:, 0], key.mean(1), **EXACT)
    heads = row_sum(record.metric[:, 0], H)
    x, y = query.view(2, 5, H, E), key.view(2, 4, H, E)
    scores = torch.einsum("blhi,bhij,bmhj->bhlm", x, heads, y) / E**0.5
    torch.testing.assert_close(capture.scores[0], scores, **EXACT)
    values = layer.value_proj(value).view(2, 4, H, E)
    mixed = torch.einsum("bhlm,bmhj->blhj", scores.softmax(-1), values).flatten(2)
    torch.testing.assert_close(out, layer.out_proj(mixed), **EXACT)


def test_cross_attention_pools_over_the_real_keys_only(layer, normal):
    query, key = normal(2, 5, D), normal(2, 4, D, seed=1)
    pads = torch.tensor([[False, False, True, True], [False] * 4])
    dirty = key.masked_fill(pads[..., None], float("nan"))
    with tap(layer) as capture:
        out, _ = layer(query, dirty, dirty, key_padding_mask=pads)
    torch.testing.assert_close(capture.records[0].context[0, 0], key[0, :2].mean(0), **EXACT)
    short, _ = layer(query[:1], key[:1, :2], key[:1, :2])
    torch.testing.assert_close(out[:1], short, **EXACT)


def test_a_generator_can_be_shared(randomise, normal):
    source = randomise(CrossHeadMetric(D, H, MetricConfig()).double())
    one, two = (DAMCHAttention(D, H, batch_first=True, metric=source).double() for _ in "ab")
    assert one.metric is two.metric is source
    x = normal(1, 3, D)
    with tap(source) as capture:
        one(x, x, x)
        two(x, x, x)
    first, second = capture.records
    assert torch.equal(first.metric, second.metric)


def test_a_metric_can_be_given_to_forward(randomise, normal):
    source = randomise(CrossHeadMetric(D, H, MetricConfig(hidden_dims=(5,))).double())
    own = DAMCHAttention(D, H, batch_first=True, metric=source).double()
    given = DAMCHAttention(D, H, batch_first=True, metric=None).double()
    given.load_state_dict({k: v for k, v in own.state_dict().items() if "metric" not in k})
    x = normal(2, 4, D)
    expected, _ = own(x, x, x)
    out, _ = given(x, x, x, metric=source(x))
    torch.testing.assert_close(out, expected, **EXACT)


def test_sharing_replaces_the_metric_within_the_block_only(layer, normal):
    x, other = normal(1, 4, D), normal(1, 6, D, seed=1)
    plain, _ = layer(x, x, x)
    with tap(layer) as capture, sharing(layer.metric, layer.metric(other, shared=True)):
        shared, _ = layer(x, x, x)
    (record,) = capture.records
    torch.testing.assert_close(record.context[0, 0], other[0].mean(0), **EXACT)
    assert not torch.allclose(shared, plain)
    assert torch.equal(layer(x, x, x)[0], plain)


def options_layer(randomise, **settings):
    config = MetricConfig(hidden_dims=(5,), **settings)
    return randomise(DAMCHAttention(D, H, batch_first=True, metric=config).double())


def test_mixing_changes_the_channels_that_heads_compare(randomise, normal):
    layer = options_layer(randomise, mixing="layer")
    query, key = normal(2, 5, D), normal(2, 4, D, seed=1)
    with tap(layer, record=("scores",)) as capture:
        layer(query, key, key)
    rows = row_sum(capture.records[0].metric[:, 0], H)
    x, y = ((t @ layer.metric.mixing[0]).unflatten(-1, (H, E)) for t in (query, key))
    scores = torch.einsum("blhi,bhij,bmhj->bhlm", x, rows, y) / E**0.5
    torch.testing.assert_close(capture.scores[0], scores, **EXACT)


def test_norms_of_queries_and_keys(randomise, normal):
    layer = options_layer(randomise, query_norm="rms")
    query, key = normal(2, 5, D), normal(2, 4, D, seed=1)
    with tap(layer, record=("scores",)) as capture:
        layer(query, key, key)
    rows = row_sum(capture.records[0].metric[:, 0], H)
    q = torch.einsum("blhi,bhij->blhj", query.unflatten(-1, (H, E)), rows)
    q, k = (
        t / (t.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        for t in (q, key.unflatten(-1, (H, E)))
    )
    scores = torch.einsum("blhj,bmhj->bhlm", q * layer.metric.gain.view(H, E), k) / E**0.5
    torch.testing.assert_close(capture.scores[0], scores, **EXACT)


@pytest.mark.parametrize("aggregation", ["rowsum", "bilinear"])
def test_mixing_starts_as_the_paper_s_form(normal, aggregation):
    x, outputs = normal(2, 5, D), []
    for mixing in ("none", "shared", "layer"):
        torch.manual_seed(0)
        config = MetricConfig(mixing=mixing, aggregation=aggregation)
        outputs.append(DAMCHAttention(D, H, batch_first=True, metric=config).double()(x, x, x)[0])
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize(
    ("settings", "name", "n"),
    [
        ({"mixing": "shared"}, "mixing", 1),
        ({"mixing": "layer"}, "mixing", 3),
        ({"mixing": "layer", "sharing": "parameters"}, "mixing", 3),
        ({"mixing": "layer", "sharing": "none"}, "mixing", 1),
        ({"query_norm": "rms"}, "gain", 3),
        ({"query_norm": "rms", "sharing": "none"}, "gain", 1),
    ],
)
def test_a_layer_has_its_own_mixing_and_gain(randomise, normal, settings, name, n):
    source = CrossHeadMetric(D, H, MetricConfig(**settings), n_layers=3).double()
    source = randomise(source)
    own = getattr(source, name)
    assert len(own) == n
    shared = source(normal(1, 4, D), shared=True)
    for layer in range(3):
        found = getattr(source.for_layer(shared, layer), name)
        assert torch.equal(found, own[layer if n == 3 else 0])


def test_state_dict_names():
    config = MetricConfig(hidden_dims=(4, 3), layer_bias_rank=1, off_diagonal="linear_combination")
    names = list(DAMCHAttention(D, H, metric=config, add_bias_kv=True).state_dict())
    assert names == [
        "bias_k", "bias_v", "out_proj.weight", "out_proj.bias", "value_proj.weight",
        "value_proj.bias", "metric.alpha", "metric.bias_u", "metric.bias_v", "metric.bias_scales",
        "metric.hidden.0.weight", "metric.hidden.0.bias", "metric.hidden.2.weight",
        "metric.hidden.2.bias", "metric.output.weight", "metric.output.bias",
    ]  # fmt: skip
    static = DAMCHAttention(D, H, bias=False, metric=MetricConfig(generator="static"))
    assert list(static.state_dict()) == ["out_proj.weight", "value_proj.weight", "metric.constant"]


class TestErrors:
    def test_keys_of_another_width(self):
        message = "kdim: DAMCHA compares .* so kdim=5 must equal embed_dim=12; project the keys"
        with pytest.raises(ConfigError, match=message):
            DAMCHAttention(D, H, kdim=5)

    def test_a_generator_of_another_size(self):
        source = CrossHeadMetric(8, 2, MetricConfig())
        message = "metric: it was built for d=8, h=2, not for d=12, h=3"
        with pytest.raises(ConfigError, match=message):
            DAMCHAttention(D, H, metric=source)

    def test_no_metric_at_all(self, normal):
        x = normal(1, 3, D)
        layer = DAMCHAttention(D, H, metric=None).double()
        message = r"metric: this layer was built without one \(metric=None\); pass metric=… to forw"
        with pytest.raises(ConfigError, match=message):
            layer(x, x, x)

    def test_causal_context_in_cross_attention(self, normal):
        layer = DAMCHAttention(D, H, metric=MetricConfig(context="causal")).double()
        message = "context: .* there are 5 queries and 4 keys; use context='full' for cross-attent"
        with pytest.raises(ConfigError, match=message):
            layer(normal(5, 2, D), normal(4, 2, D), normal(4, 2, D))

    def test_heads_that_do_not_divide(self):
        with pytest.raises(ConfigError, match="n_heads: d_model=7 is not divisible by n_heads=2"):
            CrossHeadMetric(7, 2, MetricConfig())
