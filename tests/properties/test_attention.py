"""The properties that every attention mechanism passes (all of ATTENTIONS), in float64.

A new mechanism is picked up by its line in ATTENTIONS. It adds its count to PARAMETERS, its
configurations to SETTINGS, and its way of being plain MHA, if there is one, to IDENTITIES.
"""

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from damcha.attention import ATTENTIONS, MHA, Cache, DAMCHAttention, row_sum
from damcha.config import MetricConfig
from damcha.errors import ConfigError

EXACT = {"rtol": 0, "atol": 1e-12}
NAMES = sorted(ATTENTIONS)
seeds = st.integers(0, 2**20)


@st.composite
def metric_settings(draw, causal):
    """Every kind of cross-head metric that may be used causally, or that pools everything."""
    generator = draw(st.sampled_from(["mlp", "mlp", "static"]))
    constraint = draw(st.sampled_from(["free", "free", "symmetric", "psd", "low_rank"]))
    kinds = ["direct", "linear_combination", "separate"] if constraint == "free" else ["direct"]
    pools = generator == "mlp" and not causal
    aggregation = draw(st.sampled_from(["rowsum", "bilinear"]))
    norms = ["none", "rms"] if aggregation == "rowsum" else ["none"]
    return MetricConfig(
        generator=generator,
        hidden_dims=draw(st.sampled_from([(), (4,), (5, 3)])),
        context="full" if pools else "causal",
        context_stride=draw(st.sampled_from([1, 2, 3, 20])) if generator == "mlp" else 1,
        aggregation=aggregation,
        mixing=draw(st.sampled_from(["none", "shared", "layer"])),
        query_norm=draw(st.sampled_from(norms)),
        constraint=constraint,
        rank=draw(st.integers(1, 4)) if constraint in ("psd", "low_rank") else None,
        off_diagonal=draw(st.sampled_from(kinds)),
        layer_bias_rank=draw(st.integers(0, 2)),
        diagonal_scale=draw(st.sampled_from([1.0, 1.0, 0.0, -0.5])),
        off_diagonal_scale=draw(st.sampled_from([1.0, 1.0, 0.0, 2.0])),
    )


# name → strategy of further constructor arguments, given whether the use is causal
SETTINGS = {
    "damcha": lambda causal: metric_settings(causal).map(lambda config: {"metric": config}),
    "tha": lambda causal: st.fixed_dictionaries({"mix_bias": st.booleans()}),
    "dcmha": lambda causal: st.fixed_dictionaries({"qk_norm": st.booleans()}),
    "colmha": lambda causal: st.fixed_dictionaries(
        {"shared_width": st.sampled_from([None, 4, 8, 12])}
    ),
    "mma": lambda causal: st.fixed_dictionaries({"local_window": st.integers(1, 4)}),
    "moa": lambda causal: st.fixed_dictionaries(
        {"n_experts": st.sampled_from([None, 3, 5]), "normalize_gates": st.booleans()}
    ),
    "iha": lambda causal: st.fixed_dictionaries({"pseudo_heads": st.integers(1, 3)}),
}


@pytest.fixture(scope="session")
def make(randomise):
    """``make(data, name, causal)``: a layer with random weights, drawn from its configurations."""

    def build(data, name, causal=False, rotary=None, bias=None):
        heads = data.draw(st.integers(1, 3), label="heads")
        width = heads * data.draw(st.sampled_from([2, 4]), label="d_head")
        settings = SETTINGS.get(name, lambda causal: st.just({}))
        layer = ATTENTIONS[name](
            width,
            heads,
            bias=data.draw(st.booleans(), label="bias") if bias is None else bias,
            batch_first=True,
            rotary=data.draw(st.booleans(), label="rotary") if rotary is None else rotary,
            **data.draw(settings(causal), label="settings"),
        ).double()
        return randomise(layer, data.draw(seeds, label="weights"))

    return build


@pytest.fixture(scope="session")
def inputs(normal):
    """``inputs(data, layer)``: [2, L, d], L from 1 to past the width."""

    def build(data, layer, least=1):
        lengths = st.sampled_from([least, least + 1, 5, 8, layer.embed_dim + 1])
        length = max(least, data.draw(lengths, label="length"))
        return normal(2, length, layer.embed_dim, seed=data.draw(seeds, label="input"))

    return build


def run(layer, x, need_weights=False, **masks):
    return layer(x, x, x, need_weights=need_weights, **masks)[0]


def gradients(layer, x, loss_of, need_weights=False, **masks):
    """Gradients of a loss of the output, of the input first."""
    x = x.clone().requires_grad_()
    parameters = list(layer.parameters())
    loss = loss_of(run(layer, x, need_weights, **masks))
    return torch.autograd.grad(loss, [x, *parameters], allow_unused=True, materialize_grads=True)


# ---------------------------------------------------------------- plain MHA as a special case


def damcha_rowsum(mha):
    """A static M with R_a = I: then queries and keys are the input itself."""
    d, h = mha.embed_dim, mha.num_heads
    layer = DAMCHAttention(
        d, h, batch_first=True, rotary=mha.rotary, metric=MetricConfig(generator="static")
    ).double()
    metric = torch.randn(d, d, dtype=torch.float64)
    q, k, v = mha.in_proj_weight.data.chunk(3)
    q.copy_(torch.block_diag(*row_sum(metric, h)).T)
    k.copy_(torch.eye(d))
    layer.metric.constant.data.copy_(metric.flatten())
    layer.value_proj.weight.data.copy_(v)
    return layer


def damcha_bilinear(mha):
    """A static M is W_K, where W_Q = I: S_a = X_a (X M_a,:ᵀ)ᵀ."""
    d, h = mha.embed_dim, mha.num_heads
    config = MetricConfig(generator="static", aggregation="bilinear")
    layer = DAMCHAttention(d, h, batch_first=True, metric=config).double()
    q, k, v = mha.in_proj_weight.data.chunk(3)
    q.copy_(torch.eye(d))
    layer.metric.constant.data.copy_(k.flatten())
    layer.value_proj.weight.data.copy_(v)
    return layer


def like_mha(name, change, **options):
    """A layer of another mechanism that took over an MHA's projections, set to be neutral."""

    def build(mha):
        layer = ATTENTIONS[name](
            mha.embed_dim, mha.num_heads, batch_first=True, rotary=mha.rotary, **options
        ).double()
        torch_mha = torch.nn.MultiheadAttention(mha.embed_dim, mha.num_heads, dtype=torch.float64)
        torch_mha.load_state_dict(mha.state_dict())
        layer.take_over(torch_mha)
        with torch.no_grad():
            change(layer)
        return layer.eval()

    return build


def set_identity(*parameters):
    for parameter in parameters:
        torch.nn.init.eye_(parameter)


def talking_identity(layer):
    set_identity(layer.mix_logits.weight, layer.mix_probabilities.weight)


def tables_identity(layer):
    set_identity(layer.combine_q, layer.combine_k)


def no_composition(layer):
    layer.qkw.zero_()
    layer.dd.zero_()


def all_heads_alike(layer):
    layer.relevance.weight.zero_()
    layer.budget[2].bias.fill_(60.0)


def one_pseudo_head_alone(layer):
    """α is the identity and R reads a head's second pseudo-head."""
    h, p = layer.num_heads, layer.pseudo_heads
    layer.alpha.copy_(torch.eye(h)[..., None].expand(3, h, h, p))
    layer.collapse.zero_()
    for a in range(h):
        layer.collapse[a, a * p + 1] = 1


# setting → (a layer that equals a given MHA, whose W_Q and W_K it may set; with rotary positions)
IDENTITIES = {
    "damcha rowsum": (damcha_rowsum, False),
    "damcha rowsum rotary": (damcha_rowsum, True),
    "damcha bilinear": (damcha_bilinear, False),
    "tha": (like_mha("tha", talking_identity), True),
    "dcmha": (like_mha("dcmha", no_composition), True),
    "colmha": (like_mha("colmha", lambda layer: None), True),
    "mma": (like_mha("mma", lambda layer: None, local_window=100), True),
    "budgetformer": (like_mha("budgetformer", all_heads_alike), True),
    "authors-colmha": (like_mha("authors-colmha", tables_identity), True),
    "iha": (like_mha("iha", one_pseudo_head_alone, pseudo_heads=3), True),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("setting", IDENTITIES)
def test_identity_setting_is_mha(setting, causal, randomise, normal):
    identity, rotary = IDENTITIES[setting]
    mha = randomise(MHA(8, 2, batch_first=True, rotary=rotary).double())
    mha.in_proj_bias.data.zero_()
    layer = identity(mha)
    layer.out_proj.load_state_dict(mha.out_proj.state_dict())
    x = normal(2, 9, 8)
    torch.testing.assert_close(
        run(layer, x, is_causal=causal), run(mha, x, is_causal=causal), **EXACT
    )


# ---------------------------------------------------------------- causality


@pytest.mark.parametrize("mask", ["is_causal", "bool", "float"])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_future_never_reaches_the_past(name, mask, make, inputs, data):
    layer = make(data, name, causal=True)
    x = inputs(data, layer, least=2)
    length = x.shape[1]
    cut = data.draw(st.integers(1, length - 1), label="cut")
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    masks = {
        "is_causal": {"is_causal": True},
        "bool": {"attn_mask": future},
        "float": {"attn_mask": torch.zeros(length, length).masked_fill(future, float("-inf"))},
    }[mask]
    other = torch.cat((x[:, :cut], 3 - 2 * x[:, cut:]), dim=1)
    for need_weights in (False, True):
        before = run(layer, x, need_weights, **masks)[:, :cut]
        after = run(layer, other, need_weights, **masks)[:, :cut]
        torch.testing.assert_close(before, after, **EXACT)
    into_x, *_ = gradients(layer, x, lambda out: (out[:, :cut] ** 2).sum(), **masks)
    assert (into_x[:, cut:] == 0).all()


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_output_on_a_prefix_is_the_prefix_of_the_output(name, make, inputs, data):
    layer = make(data, name, causal=True)
    x = inputs(data, layer, least=2)
    cut = data.draw(st.integers(1, x.shape[1]), label="cut")
    whole = run(layer, x, is_causal=True)
    torch.testing.assert_close(run(layer, x[:, :cut], is_causal=True), whole[:, :cut], **EXACT)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_cached_decoding_in_any_pieces_is_the_full_forward(name, make, inputs, data):
    layer = make(data, name, causal=True)
    x = inputs(data, layer)
    length = x.shape[1]
    pads = None
    if data.draw(st.booleans(), label="padded"):
        pads = torch.tensor(
            data.draw(st.lists(st.booleans(), min_size=2 * length, max_size=2 * length))
        ).view(2, length)
        x = x.masked_fill(pads[..., None], float("nan"))
    cuts = data.draw(st.sets(st.integers(1, length)), label="cuts")
    edges = sorted({0, length, *cuts})
    cache, pieces = Cache(), []
    for start, stop in pairwise(edges):
        mask = None if pads is None else pads[:, start:stop]
        piece = x[:, start:stop]
        pieces.append(run(layer, piece, key_padding_mask=mask, is_causal=True, cache=cache))
    assert cache.length == length
    full = run(layer, x, key_padding_mask=pads, is_causal=True)
    torch.testing.assert_close(torch.cat(pieces, dim=1), full, **EXACT)


# ---------------------------------------------------------------- masks and padding


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_pads_change_nothing(name, causal, make, inputs, data):
    layer = make(data, name, causal)
    x = inputs(data, layer)
    length = x.shape[1]
    pads = torch.tensor(
        data.draw(st.lists(st.booleans(), min_size=2 * length, max_size=2 * length), label="pads")
    ).view(2, length)
    filled = x.masked_fill(pads[..., None], float("nan"))
    masks = {"key_padding_mask": pads, "is_causal": causal}
    for need_weights in (False, True):
        one, other = (run(layer, version, need_weights, **masks) for version in (x, filled))
        torch.testing.assert_close(one, other, **EXACT)
        assert (other[pads] == 0).all()
    one, other = (
        gradients(layer, version, lambda out: (out**2).sum(), **masks) for version in (x, filled)
    )
    for left, right in zip(one, other, strict=True):
        assert right.isfinite().all()
        torch.testing.assert_close(left, right, **EXACT)
    assert (other[0][pads] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_padded_at_the_end_is_the_shorter_sequence(name, causal, make, inputs, data):
    layer = make(data, name, causal)
    x = inputs(data, layer)
    length = data.draw(st.integers(1, x.shape[1]), label="real tokens")
    pads = (torch.arange(x.shape[1]) >= length).expand(2, -1)
    filled = x.masked_fill(pads[..., None], float("nan"))
    short = run(layer, x[:, :length], is_causal=causal)
    padded = run(layer, filled, key_padding_mask=pads, is_causal=causal)
    torch.testing.assert_close(padded[:, :length], short, **EXACT)
    as_float = torch.zeros(pads.shape, dtype=x.dtype).masked_fill(pads, float("-inf"))
    padded = run(layer, filled, key_padding_mask=as_float, is_causal=causal)
    torch.testing.assert_close(padded[:, :length], short, **EXACT)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_fully_masked_rows_are_zero_with_finite_gradients(name, kind, make, inputs, data):
    layer = make(data, name)
    # With two tokens, a dead first row hides the whole future: such a mask is a causal one.
    x = inputs(data, layer, least=3)
    length = x.shape[1]
    dead = data.draw(st.integers(0, length - 1), label="dead row")
    mask = torch.zeros(length, length, dtype=torch.bool)
    mask[dead] = True
    if kind == "float":
        mask = torch.zeros(length, length).masked_fill(mask, float("-inf"))
    for need_weights in (False, True):
        out = run(layer, x, need_weights, attn_mask=mask)
        assert (out[:, dead] == 0).all()
        assert out.isfinite().all()
        into = gradients(layer, x, lambda out: (out**2).sum(), need_weights, attn_mask=mask)
        assert all(gradient.isfinite().all() for gradient in into)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_everything_padded_gives_zeros(name, make, inputs, data):
    layer = make(data, name)
    x = inputs(data, layer)
    pads = torch.ones(x.shape[:2], dtype=torch.bool)
    assert (run(layer, x, key_padding_mask=pads) == 0).all()
    for gradient in gradients(layer, x, lambda out: out.sum(), key_padding_mask=pads):
        assert gradient.isfinite().all()


# ---------------------------------------------------------------- symmetries


# MMA is left out: its masks are positions.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "mma"])
@given(data=st.data())
def test_permuted_tokens_give_permuted_outputs(name, make, inputs, data):
    layer = make(data, name, rotary=False)
    x = inputs(data, layer)
    order = data.draw(st.permutations(range(x.shape[1])), label="order")
    torch.testing.assert_close(run(layer, x[:, order]), run(layer, x)[:, order], **EXACT)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_examples_of_a_batch_do_not_meet(name, causal, make, inputs, data):
    layer = make(data, name, causal)
    x = inputs(data, layer)
    together = run(layer, x, is_causal=causal)
    torch.testing.assert_close(together[:1], run(layer, x[:1], is_causal=causal), **EXACT)
    x[1] = float("nan")
    torch.testing.assert_close(run(layer, x, is_causal=causal)[0], together[0], **EXACT)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_fused_and_explicit_probabilities_agree(name, causal, make, inputs, data):
    layer = make(data, name, causal)
    x = inputs(data, layer)
    out, weights = layer(x, x, x, average_attn_weights=False, is_causal=causal)
    torch.testing.assert_close(run(layer, x, is_causal=causal), out, **EXACT)
    assert weights.shape == (2, layer.num_heads, x.shape[1], x.shape[1])
    if causal:
        assert (weights.triu(1) == 0).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_layouts_are_transposes_of_each_other(name, causal, make, inputs, data):
    layer = make(data, name, causal)
    x = inputs(data, layer)
    out = run(layer, x, is_causal=causal)
    other = copy.deepcopy(layer)
    other.batch_first = False
    y = x.transpose(0, 1)
    torch.testing.assert_close(run(other, y, is_causal=causal).transpose(0, 1), out, **EXACT)
    for one in (layer, other):
        torch.testing.assert_close(run(one, x[0], is_causal=causal), out[0], **EXACT)


# ---------------------------------------------------------------- ordinary module manners


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_state_dict_round_trip(name, causal, make, inputs, data, randomise):
    layer = make(data, name, causal)
    other = randomise(copy.deepcopy(layer), seed=99)
    x = inputs(data, layer)
    other.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(run(other, x, is_causal=causal), run(layer, x, is_causal=causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_dtype_is_kept(name, dtype, causal, make, inputs, data):
    layer = make(data, name, causal).to(dtype)
    x = inputs(data, layer).to(dtype).requires_grad_()
    pads = torch.zeros(x.shape[:2], dtype=torch.bool)
    pads[0, -1] = True
    for masks in ({}, {"key_padding_mask": pads}, {"attn_mask": torch.zeros(2 * (x.shape[1],))}):
        out, weights = layer(x, x, x, is_causal=causal, **masks)
        assert out.dtype == weights.dtype == dtype
        assert run(layer, x, is_causal=causal, **masks).dtype == dtype
    out.sum().backward()
    assert x.grad.dtype == dtype
    assert x.grad.isfinite().all()


def run_with(layer, query, key, **masks):
    return layer(query, key, key, need_weights=False, **masks)[0]


# A causal context gives DAMCHA's query t the keys up to t, so it needs as many keys as queries.
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "damcha"])
@given(data=st.data())
def test_more_queries_than_keys(name, causal, make, inputs, data):
    """Query i of the rest sees every key; the first queries are what they are without the rest."""
    layer = make(data, name, causal)
    x = inputs(data, layer, least=2)
    if causal and name == "budgetformer":
        with pytest.raises(ConfigError, match="2 queries and 1 keys"):
            run_with(layer, x[:, :2], x[:, :1], is_causal=True)
        return
    keys = x[:, : data.draw(st.integers(1, x.shape[1] - 1), label="keys")]
    n = data.draw(st.integers(1, x.shape[1]), label="queries")
    whole = run_with(layer, x, keys, is_causal=causal)
    part = run_with(layer, x[:, :n], keys, is_causal=causal)
    looked_at, weights = layer(x, keys, keys, is_causal=causal)
    assert weights.shape == (2, x.shape[1], keys.shape[1])
    torch.testing.assert_close(whole, looked_at, **EXACT)
    torch.testing.assert_close(part, whole[:, :n], **EXACT)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_evaluation_under_autocast(name, causal, randomise, normal):
    settings = {"damcha": {"metric": MetricConfig(hidden_dims=(5,), context="causal")}}
    layer = randomise(ATTENTIONS[name](16, 4, batch_first=True, **settings.get(name, {})), 3, 0.1)
    layer.eval()
    x = normal(2, 7, 16).float()
    plain = run(layer, x, is_causal=causal)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        mixed = run(layer, x, is_causal=causal)
    # Rounded relevance and budgets choose other heads.
    atol = 0.2 if name == "budgetformer" else 0.03
    torch.testing.assert_close(mixed.float(), plain, rtol=0.1, atol=atol)


@pytest.mark.parametrize("name", NAMES)
def test_the_zero_key_is_there_without_other_keys(name, randomise, normal):
    layer = ATTENTIONS[name](16, 4, batch_first=True, add_zero_attn=True).double()
    layer = randomise(layer).eval()
    query, nothing = normal(2, 3, 16), normal(2, 0, 16)
    for need_weights in (False, True):
        out, weights = layer(query, nothing, nothing, need_weights=need_weights)
        assert out.isfinite().all()
        assert weights is None or weights.shape == (2, 3, 1)


# name → parameters of a layer without biases (attention-variants.md), d=16, h=4
PARAMETERS = {
    "mha": 4 * 16**2,
    # 2d² and the generator, here 16 → 5 → d² with the generator's own biases
    "damcha": 2 * 16**2 + (16 * 5 + 5) + (5 * 16**2 + 16**2),
    "tha": 4 * 16**2 + 4 * 4 + 4 * 4,
    "dcmha": 4 * 16**2 + 4 * 16 * 16 + 16 * 16 * 4 + 4 * 16 * 4,
    "colmha": 2 * 16 * 16 + 4 * 16 + 16 * 4 + 2 * 16**2,
    "mma": 4 * 16**2,
    "moa": 2 * 16 * 4 + 2 * 8 * 16 * 4 + 16 * 8,
    # 4d² and the gates, here 16 → 16 → 1 with biases, and 16 → h without
    "budgetformer": 4 * 16**2 + (16 * 16 + 16) + (16 + 1) + 16 * 4,
    "iha": 4 * 16**2 + 4 * 4**2 * 2,
    # with the biases of the router's two layers and of the gate
    "authors-dcmha": 4 * 16**2 + (16 * 4 + 4) + (4 * 16 + 16) + (16 * 4 + 4),
    "authors-colmha": 4 * 16**2 + 2 * 4**2,
    # 8 experts with three projections, W_O, and the router with its biases
    "authors-moa": 8 * 3 * 16 * 4 + 16**2 + (16 * 8 + 8),
}


@pytest.mark.parametrize("name", NAMES)
def test_parameter_count(name):
    settings = {"damcha": {"metric": MetricConfig(hidden_dims=(5,))}}.get(name, {})
    layer = ATTENTIONS[name](16, 4, bias=False, **settings)
    assert sum(parameter.numel() for parameter in layer.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", NAMES)
def test_formula_of_the_parameter_count_is_what_is_allocated(name):
    config = MetricConfig(generator="static")
    settings = {"damcha": {"metric": config}}.get(name, {})
    layer = ATTENTIONS[name](16, 4, bias=False, **settings)
    weights = [p.numel() for n, p in layer.named_parameters() if not n.endswith("bias")]
    assert ATTENTIONS[name].parameter_count(16, 4, **settings) == sum(weights)
