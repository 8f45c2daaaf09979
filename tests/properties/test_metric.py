"""What the cross-head metric M and its RowSum must obey (design.md §2-3), in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from damcha.attention import Cache, DAMCHAttention, blocks, row_sum, unblocks
from damcha.attention.context import RunningSums, pooled_context, prefix_contexts
from damcha.attention.metric import CrossHeadMetric
from damcha.config import MetricConfig
from damcha.errors import ConfigError
from damcha.tap import tap

EXACT = {"rtol": 0, "atol": 1e-12}
D, H, E = 12, 3, 4
seeds = st.integers(0, 2**20)
scales = st.sampled_from([1.0, 0.0, -0.5, 2.0])


@st.composite
def configs(draw, **fixed):
    constraint = draw(st.sampled_from(["free", "symmetric", "psd", "low_rank"]))
    kinds = ["direct", "linear_combination", "separate"] if constraint == "free" else ["direct"]
    generator = draw(st.sampled_from(["mlp", "mlp", "static"]))
    settings = {
        "generator": generator,
        "hidden_dims": draw(st.sampled_from([(), (4,), (5, 3)])),
        "context": "causal",
        "context_stride": draw(st.integers(1, 5)) if generator == "mlp" else 1,
        "context_decays": draw(st.sampled_from([(), (0.5, 0.9)])) if generator == "mlp" else (),
        "context_first": draw(st.sampled_from([0, 2])) if generator == "mlp" else 0,
        "constraint": constraint,
        "rank": draw(st.integers(1, 5)) if constraint in ("psd", "low_rank") else None,
        "off_diagonal": draw(st.sampled_from(kinds)),
        "layer_bias_rank": draw(st.integers(0, 2)),
        "diagonal_scale": draw(scales),
        "off_diagonal_scale": draw(scales),
    }
    return MetricConfig(**{**settings, **fixed})


@pytest.fixture(scope="session")
def make_layer(randomise):
    def make(config, seed, **settings):
        layer = DAMCHAttention(D, H, batch_first=True, metric=config, **settings).double()
        return randomise(layer, seed)

    return make


# ---------------------------------------------------------------- blocks and RowSum


@given(seeds)
def test_blocks_are_the_slices_of_the_metric(normal, seed):
    metric = normal(2, D, D, seed=seed)
    parts = blocks(metric, H)
    for a in range(H):
        for b in range(H):
            slice_ = metric[:, a * E : (a + 1) * E, b * E : (b + 1) * E]
            assert torch.equal(parts[:, a, b], slice_)
    assert parts.data_ptr() == metric.data_ptr()
    assert torch.equal(unblocks(parts), metric)


@given(seeds)
def test_row_sum_adds_the_blocks_of_a_row(normal, seed):
    metric = normal(2, D, D, seed=seed)
    parts = blocks(metric, H)
    expected = sum(parts[:, :, b] for b in range(H))
    torch.testing.assert_close(row_sum(metric, H), expected, **EXACT)


@given(seeds, st.floats(-2, 2))
def test_row_sum_is_linear(normal, seed, factor):
    one, other = normal(2, D, D, seed=seed)
    both = row_sum(one + factor * other, H)
    torch.testing.assert_close(both, row_sum(one, H) + factor * row_sum(other, H), **EXACT)


@pytest.mark.parametrize("aggregation", ["rowsum", "bilinear"])
@given(configs(), seeds)
def test_diagonal_and_off_diagonal_scores_add_up(make_layer, normal, aggregation, config, seed):
    layer = make_layer(config.model_copy(update={"aggregation": aggregation}), seed)
    x = normal(2, 5, D, seed=seed)
    diagonal = torch.eye(H, dtype=x.dtype)[..., None, None]

    def scores(keep):
        with tap(
            layer, lambda metric, _: unblocks(blocks(metric, H) * keep), record=("scores",)
        ) as c:
            layer(x, x, x, is_causal=True)
        return c.scores[0]

    parts = scores(diagonal) + scores(1 - diagonal)
    torch.testing.assert_close(scores(torch.ones(1)), parts, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("aggregation", ["rowsum", "bilinear"])
@given(seeds, st.permutations(range(H)))
def test_renumbered_heads_give_the_same_output(make_layer, normal, aggregation, seed, order):
    config = MetricConfig(generator="static", aggregation=aggregation)
    layer, other = make_layer(config, seed), make_layer(config, seed)
    channels = torch.arange(D).view(H, E)[list(order)].flatten()
    metric = layer.metric.constant.data.view(D, D)[channels][:, channels]
    other.metric.constant.data.copy_(metric.flatten())
    value = layer.value_proj
    other.value_proj.weight.data.copy_(value.weight[channels][:, channels])
    other.value_proj.bias.data.copy_(value.bias[channels])
    other.out_proj.weight.data.copy_(layer.out_proj.weight[:, channels])
    x = normal(2, 5, D, seed=seed)
    y = x[..., channels]
    one, weights = layer(x, x, x, average_attn_weights=False)
    two, renumbered = other(y, y, y, average_attn_weights=False)
    torch.testing.assert_close(one, two, **EXACT)
    torch.testing.assert_close(weights[:, list(order)], renumbered, **EXACT)


# ---------------------------------------------------------------- fused RowSum


@given(configs(), st.integers(0, 1), seeds)
def test_fused_head_metrics_are_those_of_the_explicit_metric(
    randomise, normal, config, layer, seed
):
    metric = randomise(CrossHeadMetric(D, H, config, n_layers=2).double(), seed)
    x = normal(2, 7, D, seed=seed)
    pads = normal(2, 7, seed=seed + 1) > 1
    fused = metric(x, pads, causal=True, layer=layer)
    assert fused.full is None
    with tap(metric) as capture:
        explicit = metric(x, pads, causal=True, layer=layer)
    torch.testing.assert_close(fused.head_metrics, explicit.head_metrics, **EXACT)
    torch.testing.assert_close(row_sum(explicit.full, H), fused.head_metrics, **EXACT)
    assert capture.records[0].layer == layer


@given(configs(), seeds)
def test_fused_output_and_gradients_are_the_explicit_ones(make_layer, normal, config, seed):
    layer = make_layer(config, seed, rotary=bool(seed % 2))
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def outcome():
        x = normal(2, 7, D, seed=seed).requires_grad_()
        out, _ = layer(x, x, x, need_weights=False, is_causal=True)
        gradients = torch.autograd.grad(
            out.square().mean(), [x, *parameters], allow_unused=True, materialize_grads=True
        )
        return out, gradients

    out, gradients = outcome()
    with tap(layer):
        explicit, other_gradients = outcome()
    torch.testing.assert_close(out, explicit, **EXACT)
    for name, left, right in zip(("x", *names), gradients, other_gradients, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-12, msg=name)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (2.0, 2.0), (1.0, 0.5)])
def test_reductions_made_again_in_backward_change_nothing(make_layer, normal, monkeypatch, scales):
    on, off = scales
    config = MetricConfig(hidden_dims=(4,), diagonal_scale=on, off_diagonal_scale=off)
    layer = make_layer(config, 0)
    gradients = []
    for limit in (2**24, 0):
        monkeypatch.setattr("damcha.attention.metric.RECOMPUTED_WEIGHTS", limit)
        x = normal(2, 5, D).requires_grad_()
        out, _ = layer(x, x, x, need_weights=False)
        gradients.append(torch.autograd.grad(out.square().sum(), [x, *layer.parameters()]))
    for kept, again in zip(*gradients, strict=True):
        torch.testing.assert_close(kept, again, **EXACT)


# ---------------------------------------------------------------- constraints


@pytest.fixture(scope="session")
def captured(make_layer, normal):
    """M [2, P, d, d] of a layer of this configuration, without block scales or layer bias."""

    def capture_of(seed, **settings):
        config = MetricConfig(context="causal", hidden_dims=(5,), **settings)
        layer, x = make_layer(config, seed), normal(2, 4, D, seed=seed)
        with torch.no_grad(), tap(layer) as capture:
            layer(x, x, x, is_causal=True)
        return capture.records[0].metric

    return capture_of


@pytest.mark.parametrize("generator", ["mlp", "static"])
@given(seeds)
def test_symmetric_metric_is_symmetric(captured, generator, seed):
    metric = captured(seed, generator=generator, constraint="symmetric")
    assert torch.equal(metric, metric.transpose(-1, -2))


@pytest.mark.parametrize("generator", ["mlp", "static"])
@given(seeds, st.integers(1, D), st.sampled_from([1e-3, 0.5]))
def test_psd_metric_is_at_least_epsilon(captured, generator, seed, rank, epsilon):
    metric = captured(seed, generator=generator, constraint="psd", rank=rank, psd_epsilon=epsilon)
    torch.testing.assert_close(metric, metric.transpose(-1, -2), **EXACT)
    smallest = torch.linalg.eigvalsh(metric)[..., 0]
    size = torch.linalg.matrix_norm(metric, 2)
    assert (smallest >= epsilon - 1e-13 * size - 1e-13).all()
    if rank < D:
        torch.testing.assert_close(smallest, torch.full_like(smallest, epsilon), rtol=0, atol=1e-11)


@pytest.mark.parametrize("generator", ["mlp", "static"])
@given(seeds, st.integers(1, D))
def test_low_rank_metric_has_that_rank(captured, generator, seed, rank):
    metric = captured(seed, generator=generator, constraint="low_rank", rank=rank)
    values = torch.linalg.svdvals(metric)
    assert (values[..., rank:] <= 1e-13 * values[..., :1]).all()


@given(configs(diagonal_scale=0.0, layer_bias_rank=0), seeds)
def test_diagonal_scale_zero_empties_the_diagonal_blocks(make_layer, normal, config, seed):
    layer, x = make_layer(config, seed), normal(1, 4, D, seed=seed)
    with tap(layer) as capture:
        layer(x, x, x, is_causal=True)
    parts = blocks(capture.records[0].metric, H)
    assert all((parts[..., a, a, :, :] == 0).all() for a in range(H))


# ---------------------------------------------------------------- identifiability (design.md §3.1)


def gradient_blocks(layer, x):
    """∂F/∂M as [h, h, e, e], for a sum over queries of one shared M."""
    leaf = []

    def give_leaf(metric, _):
        leaf.append(metric.detach().requires_grad_())
        return leaf[0]

    with tap(layer, give_leaf):
        out, _ = layer(x, x, x, need_weights=False)
    (gradient,) = torch.autograd.grad((out**3).sum(), leaf)
    return blocks(gradient[0, 0], H)


@given(seeds)
def test_blocks_of_a_row_get_one_gradient_under_rowsum(make_layer, normal, seed):
    layer = make_layer(MetricConfig(hidden_dims=(4,)), seed)
    parts = gradient_blocks(layer, normal(1, 6, D, seed=seed))
    assert parts.abs().max() > 0
    for b in range(1, H):
        torch.testing.assert_close(parts[:, b], parts[:, 0], **EXACT)


@given(seeds)
def test_blocks_of_a_row_differ_in_gradient_under_bilinear(make_layer, normal, seed):
    layer = make_layer(MetricConfig(hidden_dims=(4,), aggregation="bilinear"), seed)
    parts = gradient_blocks(layer, normal(1, 6, D, seed=seed))
    for b in range(1, H):
        assert (parts[:, b] - parts[:, 0]).norm() > 0.1 * parts[:, 0].norm()


@given(seeds)
def test_rowsum_cannot_see_what_is_moved_within_a_block_row(make_layer, normal, seed):
    layer = make_layer(MetricConfig(generator="static"), seed)
    x, shift = normal(1, 6, D, seed=seed), normal(H, E, E, seed=seed + 1)

    def move(metric, _):
        parts = blocks(metric, H).clone()
        parts[..., :, 0, :, :] += shift
        parts[..., :, 2, :, :] -= shift
        return unblocks(parts)

    plain, _ = layer(x, x, x, need_weights=False)
    with tap(layer, move):
        moved, _ = layer(x, x, x, need_weights=False)
    torch.testing.assert_close(plain, moved, **EXACT)


# ---------------------------------------------------------------- contexts


@given(seeds, st.integers(1, 12), st.integers(1, 14), st.booleans())
def test_prefix_contexts_are_means_of_prefixes(normal, seed, length, stride, padded):
    x = normal(2, length, D, seed=seed)
    pads = normal(2, length, seed=seed + 1) > 0.5 if padded else None
    dirty = x if pads is None else x.masked_fill(pads[..., None], float("nan"))
    contexts = prefix_contexts(dirty, pads, stride)
    assert contexts.shape == (2, -(-length // stride), D)
    for example in range(2):
        for k in range(contexts.shape[1]):
            last = k * stride + 1
            real = torch.ones(last, dtype=torch.bool) if pads is None else ~pads[example, :last]
            tokens = x[example, :last][real]
            expected = tokens.mean(0) if len(tokens) else torch.zeros(D, dtype=x.dtype)
            torch.testing.assert_close(contexts[example, k], expected, **EXACT)
    if length and pads is not None:
        whole = pooled_context(dirty, pads)[:, 0]
        torch.testing.assert_close(whole, prefix_contexts(dirty, pads, 1)[:, -1], **EXACT)


wide = st.tuples(st.lists(st.sampled_from([0.3, 0.9, 0.99]), max_size=2), st.integers(0, 3))


@given(seeds, st.integers(1, 12), st.integers(1, 5), st.booleans(), wide)
def test_parts_of_a_context_are_what_they_are_called(normal, seed, length, stride, padded, parts):
    decays, first = parts
    x = normal(2, length, D, seed=seed)
    pads = normal(2, length, seed=seed + 1) > 0.5 if padded else None
    dirty = x if pads is None else x.masked_fill(pads[..., None], float("nan"))
    contexts = prefix_contexts(dirty, pads, stride, None, decays, first)
    assert contexts.shape == (2, -(-length // stride), D * (1 + len(decays) + first))
    zero = torch.zeros(D, dtype=x.dtype)
    for example in range(2):
        for k in range(contexts.shape[1]):
            real = ~pads[example] if pads is not None else torch.ones(length, dtype=torch.bool)
            tokens = list(x[example, : k * stride + 1][real[: k * stride + 1]])
            expected = [torch.stack(tokens).mean(0) if tokens else zero]
            for decay in decays:
                total, weights = zero, 0.0
                for token in tokens:  # one step at a time, oldest first
                    total, weights = decay * total + token, decay * weights + 1
                expected.append(total / max(weights, 1))
            expected += (tokens + [zero] * first)[:first]
            torch.testing.assert_close(contexts[example, k], torch.cat(expected), **EXACT)
    if not decays:
        whole = pooled_context(dirty, pads, first)[:, 0]
        last = prefix_contexts(dirty, pads, 1, None, (), first)[:, -1]
        torch.testing.assert_close(whole, last, **EXACT)


@given(seeds, st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 4), wide,
       st.booleans())  # fmt: skip
def test_a_context_goes_on_where_it_stopped(normal, seed, chunks, stride, parts, padded):
    x = normal(2, sum(chunks), D, seed=seed)
    pads = normal(2, sum(chunks), seed=seed + 1) > 0.5 if padded else None
    sums, found, begin = RunningSums(), [], 0
    for size in chunks:
        now = slice(begin, begin + size)
        own = None if pads is None else pads[:, now]
        found.append(prefix_contexts(x[:, now], own, stride, sums, *parts))
        begin += size
    whole = prefix_contexts(x, pads, stride, None, *parts)
    torch.testing.assert_close(torch.cat(found, 1), whole, **EXACT)
    assert sums.seen == begin


def test_no_tokens_have_a_context_of_zeros(normal):
    empty = normal(2, 0, D)
    assert torch.equal(pooled_context(empty, None, 2), torch.zeros(2, 1, 3 * D).to(empty))


@given(seeds, st.integers(1, 4))
def test_every_query_uses_the_metric_of_its_group(make_layer, normal, seed, stride):
    config = MetricConfig(hidden_dims=(4,), context="causal", context_stride=stride)
    layer, x = make_layer(config, seed), normal(1, 9, D, seed=seed)
    with tap(layer, record=("scores",)) as capture:
        layer(x, x, x, is_causal=True)
    heads = x[0].view(9, H, E)
    rows = capture.head_metrics[0].repeat_interleave(stride, 0)[:9]  # [L, h, e, e]
    expected = torch.einsum("lhi,lhij,mhj->hlm", heads, rows, heads) / E**0.5
    torch.testing.assert_close(capture.scores[0][0], expected, **EXACT)


# ---------------------------------------------------------------- leaks are refused


LEAK = "context: this metric pools the whole sequence .* would see the future"


def _future(*shape):
    return torch.ones(*shape, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(
    "masks",
    [
        {"is_causal": True},
        {"attn_mask": _future(5, 5)},
        {"attn_mask": torch.zeros(5, 5).masked_fill(_future(5, 5), float("-inf"))},
        {"attn_mask": _future(2 * H, 5, 5)},
        {"attn_mask": ~torch.eye(5, dtype=torch.bool)},
    ],
    ids=["is_causal", "bool mask", "float mask", "mask per head", "each token alone"],
)
@pytest.mark.parametrize("aggregation", ["rowsum", "bilinear"])
def test_pooling_everything_is_refused_where_the_future_is_hidden(aggregation, masks, normal):
    layer = DAMCHAttention(
        D, H, batch_first=True, metric=MetricConfig(aggregation=aggregation)
    ).double()
    x = normal(2, 5, D)
    with pytest.raises(ConfigError, match=LEAK):
        layer(x, x, x, **masks)


def test_pooling_everything_is_refused_in_cached_decoding(normal):
    layer = DAMCHAttention(D, H, batch_first=True).double()
    x = normal(2, 1, D)
    with pytest.raises(ConfigError, match=LEAK):
        layer(x, x, x, cache=Cache())


def test_a_metric_pooled_elsewhere_is_refused_too(normal):
    source = CrossHeadMetric(D, H, MetricConfig()).double()
    layer = DAMCHAttention(D, H, batch_first=True, metric=None).double()
    x = normal(2, 5, D)
    with pytest.raises(
        ConfigError, match="context: this metric was pooled over the whole sequence"
    ):
        layer(x, x, x, is_causal=True, metric=source(x))
    layer(x, x, x, metric=source(x))
