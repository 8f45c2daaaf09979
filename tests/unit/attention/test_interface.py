"""Every mechanism is a drop-in for ``torch.nn.MultiheadAttention``.

Compared number by number where it computes the same function: MHA always, DAMCHA with a static
metric (RowSum: W_Q = R, W_K = I; bilinear: W_Q = I, W_K = M).
"""

import inspect
import warnings

import pytest
import torch
from torch import nn

from damcha.attention import ATTENTIONS, MHA, Attention, Cache, DAMCHAttention, Heads, row_sum
from damcha.config import MetricConfig
from damcha.errors import ConfigError, InputError

EXACT = {"rtol": 0, "atol": 1e-12}
D, H, B, L, S = 8, 2, 3, 5, 4
INF = float("-inf")


def mha(theirs, options):
    ours = MHA(D, H, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours


def damcha(theirs, options, aggregation):
    """A DAMCHA layer, and its function written into the weights of torch's."""
    config = MetricConfig(generator="static", aggregation=aggregation)
    ours = DAMCHAttention(D, H, dtype=torch.float64, metric=config, **options)
    metric = torch.randn(D, D, dtype=torch.float64)
    ours.metric.constant.data.copy_(metric.flatten())
    if theirs._qkv_same_embed_dim:
        q, k, v = theirs.in_proj_weight.data.chunk(3)
    else:
        q, k, v = (getattr(theirs, f"{name}_proj_weight").data for name in "qkv")
    rowsum = aggregation == "rowsum"
    q.copy_(torch.block_diag(*row_sum(metric, H)).T if rowsum else torch.eye(D))
    k.copy_(torch.eye(D) if rowsum else metric)
    ours.value_proj.weight.data.copy_(v)
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    if theirs.in_proj_bias is not None:
        theirs.in_proj_bias.data[: 2 * D] = 0
        ours.value_proj.bias.data.copy_(theirs.in_proj_bias[2 * D :])
    if theirs.bias_k is not None:
        ours.bias_k.data.copy_(theirs.bias_k)
        ours.bias_v.data.copy_(theirs.bias_v)
        if not rowsum:  # ours is a raw key, theirs a projected one
            theirs.bias_k.data.copy_(theirs.bias_k @ metric.T)
    return ours


MECHANISMS = {
    "mha": mha,
    "damcha rowsum": lambda theirs, options: damcha(theirs, options, "rowsum"),
    "damcha bilinear": lambda theirs, options: damcha(theirs, options, "bilinear"),
}
OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "bias_kv and zero_attn": {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
    "vdim": {"vdim": 6},
    "kdim": {"kdim": 5},
    "kdim and vdim": {"kdim": 5, "vdim": 6, "bias": False},
}


def masks(kind, queries, keys, batch, heads=H):
    """Masks of one kind; every query keeps a key. Without a batch, `batch` is None."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    rows = heads if batch is None else batch * heads
    two, three = random(queries, keys) > 0.6, random(rows, queries, keys) > 0.6
    two[:, 0] = three[..., 0] = False
    pads = random(*(() if batch is None else (batch,)), keys) > 0.5
    pads[..., 0] = False

    def as_float(mask):
        return torch.randn(mask.shape, generator=generator, dtype=torch.float64).masked_fill(
            mask, INF
        )

    return {
        "none": {},
        "bool": {"attn_mask": two},
        "float": {"attn_mask": as_float(two)},
        "bool per head": {"attn_mask": three},
        "float per head": {"attn_mask": as_float(three)},
        "pads": {"key_padding_mask": pads},
        "float pads": {"key_padding_mask": as_float(pads)},
        "bool and pads": {"attn_mask": two, "key_padding_mask": pads},
        "float and float pads": {"attn_mask": as_float(three), "key_padding_mask": as_float(pads)},
    }[kind]


KINDS = [
    "none", "bool", "float", "bool per head", "float per head", "pads", "float pads",
    "bool and pads", "float and float pads",
]  # fmt: skip


@pytest.fixture(scope="session")
def pair(randomise):
    """``pair(mechanism, **options)``: torch's layer and ours, of the same function."""

    def make(mechanism, **options):
        torch.manual_seed(0)
        theirs = randomise(nn.MultiheadAttention(D, H, dtype=torch.float64, **options))
        return theirs, MECHANISMS[mechanism](theirs, options).eval()

    return make


def compare(theirs, ours, *inputs, rows=None, **masks):
    for need_weights, average in ((False, True), (True, True), (True, False)):
        settings = {"need_weights": need_weights, "average_attn_weights": average, **masks}
        expected, expected_weights = theirs(*inputs, **settings)
        out, weights = ours(*inputs, **settings)
        assert out.shape == expected.shape
        if rows is not None:
            out, expected = out[rows], expected[rows]
        torch.testing.assert_close(out, expected, **EXACT)
        if not need_weights:
            assert weights is None and expected_weights is None
            continue
        if rows is not None:
            rows_of = rows if average else rows[:, None].expand(-1, H, -1)
            weights, expected_weights = weights[rows_of], expected_weights[rows_of]
        torch.testing.assert_close(weights, expected_weights, **EXACT)


@pytest.mark.parametrize("layout", ["batch first", "batch second", "no batch"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_cross_attention(pair, normal, mechanism, options, kind, layout):
    options = dict(OPTIONS[options])
    if "kdim" in options and mechanism != "mha":
        options.pop("kdim")  # the metric compares queries and keys of one width
    batch = None if layout == "no batch" else B
    shapes = ((L, D), (S, options.get("kdim", D)), (S, options.get("vdim", D)))
    if batch is None:
        inputs = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    else:
        inputs = [normal(B, *shape, seed=i) for i, shape in enumerate(shapes)]
        options["batch_first"] = layout == "batch first"
        if layout == "batch second":
            inputs = [x.transpose(0, 1).contiguous() for x in inputs]
    theirs, ours = pair(mechanism, **options)
    compare(theirs, ours, *inputs, **masks(kind, L, S, batch))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", ["plain", "no bias", "bias_kv and zero_attn"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_self_attention(pair, normal, mechanism, options, kind):
    theirs, ours = pair(mechanism, batch_first=True, **OPTIONS[options])
    x, given = normal(B, L, D), masks(kind, L, L, B)
    pads = given.get("key_padding_mask")
    rows = None
    if pads is not None:
        # Here a padded token's own output is zero; torch computes one from what the pad holds.
        rows = ~pads if pads.dtype == torch.bool else pads != INF
    compare(theirs, ours, x, x, x, rows=rows, **given)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_causal_masks(pair, normal, mechanism, kind):
    theirs, ours = pair(mechanism, batch_first=True)
    x = normal(B, L, D)
    mask = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    mask = mask if kind == "float" else mask == INF
    compare(theirs, ours, x, x, x, attn_mask=mask, is_causal=True)
    compare(theirs, ours, x, x, x, attn_mask=mask)
    expected, _ = theirs(x, x, x, attn_mask=mask)
    for need_weights in (False, True):
        # The hint alone is enough here; torch wants the mask as well.
        out, _ = ours(x, x, x, need_weights=need_weights, is_causal=True)
        torch.testing.assert_close(out, expected, **EXACT)


@pytest.mark.parametrize("n_queries", [1, 2, 5])
@pytest.mark.parametrize("n_keys", [1, 2, 4])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_is_causal_with_other_keys_hides_those_to_the_right(
    pair, normal, mechanism, n_queries, n_keys
):
    theirs, ours = pair(mechanism, batch_first=True)
    query, key = normal(B, n_queries, D), normal(B, n_keys, D, seed=1)
    mask = torch.ones(n_queries, n_keys, dtype=torch.bool).triu(1)
    expected, _ = theirs(query, key, key, attn_mask=mask)
    for need_weights in (False, True):
        out, _ = ours(query, key, key, need_weights=need_weights, is_causal=True)
        torch.testing.assert_close(out, expected, **EXACT)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_gradients_are_those_of_torch(pair, normal, mechanism):
    theirs, ours = pair(mechanism, batch_first=True)
    gradients = []
    for layer in (theirs, ours):
        x = normal(B, L, D).requires_grad_()
        out, _ = layer(x, x, x, **masks("float", L, L, B))
        (out**2).sum().backward()
        gradients.append((x.grad, layer.out_proj.weight.grad, layer.out_proj.bias.grad))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_inside_a_transformer_encoder_layer(pair, normal, mechanism, norm_first):
    """In eval mode without gradients torch takes a C++ path; it must not bypass the mechanism."""
    theirs, ours = pair(mechanism, batch_first=True)
    layer = nn.TransformerEncoderLayer(
        D, H, 16, batch_first=True, dtype=torch.float64, norm_first=norm_first
    ).eval()
    layer.self_attn.load_state_dict(theirs.state_dict())
    x, pads = normal(B, L, D), masks("pads", L, L, B)["key_padding_mask"]
    with torch.no_grad():
        expected = layer(x, src_key_padding_mask=pads)
        layer.self_attn = ours
        out = layer(x, src_key_padding_mask=pads)
        torch.testing.assert_close(out[~pads], expected[~pads], **EXACT)
        ours.out_proj.weight.zero_()
        assert not torch.allclose(layer(x, src_key_padding_mask=pads), out)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_dropout_is_active_in_training_only(pair, normal, mechanism, need_weights):
    _, ours = pair(mechanism, batch_first=True, dropout=0.5)
    x = normal(B, L, D)
    quiet = [ours(x, x, x, need_weights=need_weights)[0] for _ in range(2)]
    assert torch.equal(*quiet)
    ours.train()
    noisy = [ours(x, x, x, need_weights=need_weights)[0] for _ in range(2)]
    assert not torch.equal(*noisy)
    if need_weights:
        weights = ours(x, x, x, average_attn_weights=False)[1]
        assert 0 < (weights == 0).sum() < weights.numel()


# ---------------------------------------------------------------- the contract of all mechanisms


NAMES = sorted(ATTENTIONS)


def build(name, **options):
    return ATTENTIONS[name](D, H, **{"batch_first": True, "dtype": torch.float64, **options})


@pytest.mark.parametrize("name", NAMES)
def test_constructor_and_forward_take_what_torch_takes(name):
    for method in ("__init__", "forward"):
        theirs = inspect.signature(getattr(nn.MultiheadAttention, method)).parameters
        own = getattr(ATTENTIONS[name], method)
        ours = inspect.signature(own).parameters
        if any(p.kind is p.VAR_POSITIONAL for p in ours.values()):
            ours = inspect.signature(getattr(Attention, method)).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        for parameter in theirs:
            assert ours[parameter].default == theirs[parameter].default, parameter


@pytest.mark.parametrize("name", NAMES)
class TestErrors:
    def refused(self, name, message, query=None, key=None, value=None, **masks):
        x = torch.zeros(B, L, D, dtype=torch.float64)
        query = x if query is None else query
        key = query if key is None else key
        value = key if value is None else value
        with pytest.raises(InputError, match=message):
            build(name)(query, key, value, **masks)

    def test_heads_that_do_not_divide(self, name):
        with pytest.raises(ConfigError, match="num_heads: embed_dim=8 is not divisible by num_h"):
            ATTENTIONS[name](8, 3)
        with pytest.raises(ConfigError, match=r"num_heads: embed_dim=8 is not divisible by .*=0"):
            ATTENTIONS[name](8, 0)

    def test_rotary_with_odd_heads(self, name):
        with pytest.raises(ConfigError, match=r"rotary: head width 3 is odd, .* use an even"):
            ATTENTIONS[name](6, 2, rotary=True)

    def test_nested(self, name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once that they are a prototype
            nested = torch.nested.nested_tensor([torch.zeros(2, D), torch.zeros(3, D)])
        self.refused(name, "query: nested tensors are not supported; pad and pass a mask", nested)

    def test_axes(self, name):
        x = torch.zeros(B, L, D)
        self.refused(name, r"must all have 3 axes .*; got \(3, 5, 8\), \(5, 8\), \(5, 8\)", x, x[0])
        self.refused(name, "must all have 3 axes", torch.zeros(D))

    def test_widths(self, name):
        self.refused(
            name, r"widths of query, key, value are \(7, 7, 7\); this layer was built for \(8, 8",
            torch.zeros(B, L, 7),
        )  # fmt: skip

    def test_shapes_that_do_not_belong_together(self, name):
        query, key = torch.zeros(B, L, D), torch.zeros(B + 1, S, D)
        self.refused(name, r"do not belong together: \(3, 5, 8\), \(4, 4, 8\)", query, key)
        self.refused(name, "do not belong together", query, torch.zeros(B, S, D), query)

    def test_padding_mask_shape(self, name):
        pads = torch.zeros(B, L + 1, dtype=torch.bool)
        message = r"key_padding_mask has shape \(3, 6\); expected \(3, 5\) \(batch, keys\)"
        self.refused(name, message, key_padding_mask=pads)

    def test_padding_mask_type(self, name):
        pads = torch.zeros(B, L, dtype=torch.int64)
        message = "key_padding_mask must be bool or float, not torch.int64"
        self.refused(name, message, key_padding_mask=pads)

    def test_attention_mask_rows(self, name):
        mask = torch.zeros(B, L, L, dtype=torch.bool)
        rows = B * build(name).num_heads
        message = (
            rf"attn_mask has shape \(3, 5, 5\); a 3-axis mask needs batch · heads = {rows} rows"
        )
        self.refused(name, message, attn_mask=mask)

    @pytest.mark.parametrize("shape", [(L, L + 1), (L,), (1, 1, 1, L, L)])
    def test_attention_mask_shape(self, name, shape):
        mask = torch.zeros(shape, dtype=torch.bool)
        self.refused(name, r"attn_mask has shape .*; expected \(..., 5, 5\)", attn_mask=mask)

    def test_attention_mask_type(self, name):
        mask = torch.zeros(L, L, dtype=torch.int32)
        self.refused(name, "attn_mask must be bool or float, not torch.int32", attn_mask=mask)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_masks_are_left_as_they_were(name, normal):
    layer, x = build(name), normal(B, L, D)
    given = {**masks("float", L, L, B), **masks("float pads", L, L, B)}
    copies = {key: value.clone() for key, value in given.items()}
    before = x.clone()
    layer(x, x, x, **given)
    assert torch.equal(x, before)
    assert all(torch.equal(given[key], copies[key]) for key in given)


def test_cache_grows_and_remembers_padding():
    cache = Cache()
    assert cache.length == 0
    k, pads = torch.zeros(2, H, 3, 4), torch.tensor([[True, False], [False, False]])

    def heads(n):
        return Heads(k[:, :, :n], k[:, :, :n], k[:, :, :n], of_keys=torch.full((2, n, 1), n))

    cache.append(heads(3), None)
    seen, padding = cache.append(heads(2), pads)
    assert seen.k.shape == seen.v.shape == (2, H, 5, 4)
    assert seen.of_keys[0, :, 0].tolist() == [3, 3, 3, 2, 2]
    assert padding.tolist() == [[False] * 3 + [True, False], [False] * 5]
    _, padding = cache.append(heads(1), None)
    assert padding.shape == (2, 6) and cache.length == 6
