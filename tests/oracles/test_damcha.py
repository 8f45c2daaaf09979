"""DAMCHA against outputs of the authors' modules (data/README.md), to 1e-10 in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch

from damcha.attention import ATTENTIONS, Cache, DAMCHAttention, blocks, unblocks
from damcha.attention.positions import sinusoidal
from damcha.checkpoint import authors
from damcha.config import MetricConfig, ModelConfig
from damcha.model import Stack
from damcha.tap import tap

DATA = Path(__file__).parent / "data"
D, H, L = 32, 4, 7
TOLERANCE = {"rtol": 0, "atol": 1e-10}

# Oracle file → the metric that it is an oracle of, but for the context.
VARIANTS = {
    "damcha_attention": {"hidden_dims": (24, 40)},
    "damcha_attention_linear_comb": {
        "hidden_dims": (20,),
        "off_diagonal": "linear_combination",
    },
    "damcha_attention_separate_B": {"hidden_dims": (20,), "off_diagonal": "separate"},
    "damcha_attention_compact_rank3": {
        "hidden_dims": (20,),
        "constraint": "low_rank",
        "rank": 3,
    },
    "damcha_static_metric": {"generator": "static"},
}


def oracle(name):
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def generator_state(weights, config):
    """The authors' generator weights, ``mlp.{0,3,…}.…`` and the like, under our names."""
    model = ModelConfig(d_model=D, n_heads=H, causal=False, metric=config)
    return authors.generator_state(authors.Tensors("the oracle", weights), model)


def attention(name, context):
    """The layer of an oracle file, and the file."""
    data = oracle(name)
    config = MetricConfig(**VARIANTS[name], context=context)
    layer = DAMCHAttention(D, H, batch_first=True, dtype=torch.float64, metric=config).eval()
    theirs = {key[2:]: value for key, value in data.items() if key.startswith("w.")}
    generator = {key.removeprefix("_own_mlp."): value for key, value in theirs.items()}
    state = {f"metric.{key}": v for key, v in generator_state(generator, config).items()}
    for ours, their in (("value_proj", "W_v"), ("out_proj", "out_proj")):
        for kind in ("weight", "bias"):
            state[f"{ours}.{kind}"] = theirs[f"{their}.{kind}"]
    layer.load_state_dict(state)
    return layer, data


def mode_of(suffix):
    causal = suffix == "causal"
    return ("causal" if causal else "full"), causal


@pytest.mark.parametrize("mode", ["noncausal", "causal"])
@pytest.mark.parametrize("name", VARIANTS)
class TestLayer:
    def test_output_on_the_fused_path(self, name, mode):
        context, causal = mode_of(mode)
        layer, data = attention(name, context)
        x = data["x"]
        out, weights = layer(x, x, x, need_weights=False, is_causal=causal)
        assert weights is None
        torch.testing.assert_close(out, data[f"out_{mode}"], **TOLERANCE)

    def test_output_with_the_metric_and_probabilities_explicit(self, name, mode):
        context, causal = mode_of(mode)
        layer, data = attention(name, context)
        x = data["x"]
        with tap(layer):
            out, _ = layer(x, x, x, is_causal=causal)
        torch.testing.assert_close(out, data[f"out_{mode}"], **TOLERANCE)


@pytest.mark.parametrize("name", VARIANTS)
def test_output_step_by_step(name):
    layer, data = attention(name, "causal")
    x, cache, steps = data["x"], Cache(), []
    for t in range(L):
        new = x[:, t : t + 1]
        steps.append(layer(new, new, new, need_weights=False, is_causal=True, cache=cache)[0])
    torch.testing.assert_close(torch.cat(steps, 1), data["out_causal"], **TOLERANCE)


@pytest.mark.parametrize("name", [name for name in VARIANTS if "static" not in name])
def test_captured_metric_is_theirs(name):
    layer, data = attention(name, "full")
    with tap(layer) as capture:
        layer(data["x"], data["x"], data["x"])
    (record,) = capture.records
    torch.testing.assert_close(record.metric[:, 0], data["full_M_noncausal"], **TOLERANCE)
    torch.testing.assert_close(record.context[:, 0], data["x"].mean(1), **TOLERANCE)


def test_captured_causal_metric_is_theirs():
    layer, data = attention("damcha_attention", "causal")
    with tap(layer) as capture:
        layer(data["x"], data["x"], data["x"], is_causal=True)
    (record,) = capture.records
    torch.testing.assert_close(record.metric[:1], data["full_M_causal"], **TOLERANCE)
    torch.testing.assert_close(record.head_metrics, data["head_metrics_causal"], **TOLERANCE)


@pytest.mark.parametrize("mode", ["noncausal", "causal"])
@pytest.mark.parametrize("pad", ["", "_pad"])
def test_probabilities_and_head_metrics(mode, pad):
    context, causal = mode_of(mode)
    layer, data = attention("damcha_attention", context)
    x, real = data["x"], data["padding_mask"]
    if not pad:
        real = torch.ones_like(real)
    with tap(layer) as capture:
        _, weights = layer(
            x, x, x, key_padding_mask=~real, average_attn_weights=False, is_causal=causal
        )
    theirs = data[f"attn_{mode}{pad}"]
    # Probabilities of a padded query are nobody's business: its output is zero.
    seen = real[:, None, :, None].expand_as(theirs)
    torch.testing.assert_close(weights[seen], theirs[seen], **TOLERANCE)
    head_metrics = capture.records[0].head_metrics
    expected = data[f"head_metrics_{mode}{pad}"]
    torch.testing.assert_close(
        head_metrics if causal else head_metrics[:, 0], expected, **TOLERANCE
    )


@pytest.mark.parametrize("mode", ["noncausal", "causal"])
@pytest.mark.parametrize("filling", [0.0, 1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("need_weights", [False, True])
def test_padded_output_whatever_the_pads_hold(mode, filling, need_weights):
    context, causal = mode_of(mode)
    layer, data = attention("damcha_attention", context)
    pads = ~data["padding_mask"]
    x = data["x"].masked_fill(pads[..., None], filling)
    out, _ = layer(x, x, x, key_padding_mask=pads, need_weights=need_weights, is_causal=causal)
    torch.testing.assert_close(out, data[f"out_{mode}_pad"], **TOLERANCE)


@pytest.mark.parametrize("mode", ["noncausal", "causal"])
@pytest.mark.parametrize("kept", ["diag", "off"])
def test_ablations_by_editing_the_metric(mode, kept):
    context, causal = mode_of(mode)
    layer, data = attention("damcha_attention", context)
    diagonal = torch.eye(H, dtype=torch.float64)[..., None, None]
    keep = diagonal if kept == "diag" else 1 - diagonal
    x = data["x"]
    with tap(layer, edit=lambda metric, _: unblocks(blocks(metric, H) * keep)):
        out, _ = layer(x, x, x, is_causal=causal)
    torch.testing.assert_close(out, data[f"out_{mode}_{kept}_only"], **TOLERANCE)


@pytest.mark.parametrize("kept", ["diag", "off"])
def test_ablations_by_block_scales(kept):
    layer, data = attention("damcha_attention", "full")
    scales = {"diagonal_scale": float(kept == "diag"), "off_diagonal_scale": float(kept == "off")}
    scaled = DAMCHAttention(
        D, H, batch_first=True, dtype=torch.float64,
        metric=MetricConfig(**VARIANTS["damcha_attention"], **scales),
    )  # fmt: skip
    scaled.load_state_dict(layer.state_dict())
    out, _ = scaled(data["x"], data["x"], data["x"], need_weights=False)
    torch.testing.assert_close(out, data[f"out_noncausal_{kept}_only"], **TOLERANCE)


@pytest.mark.parametrize("path", ["fused", "explicit"])
def test_gradients(path):
    layer, data = attention("damcha_attention", "full")
    x = data["x"].clone().requires_grad_()
    if path == "fused":
        out, _ = layer(x, x, x, need_weights=False)
    else:
        with tap(layer):
            out, _ = layer(x, x, x, need_weights=True)
    (out**2).sum().backward()
    torch.testing.assert_close(x.grad, data["grad_x_noncausal_sumsq"], **TOLERANCE)
    theirs = {key[6:]: value for key, value in data.items() if key.startswith("gradw.")}
    generator = {key.removeprefix("_own_mlp."): value for key, value in theirs.items()}
    for name, value in generator_state(generator, layer.metric.config).items():
        torch.testing.assert_close(layer.metric.get_parameter(name).grad, value, **TOLERANCE)
    for ours, their in (("value_proj", "W_v"), ("out_proj", "out_proj")):
        for kind in ("weight", "bias"):
            gradient = layer.get_parameter(f"{ours}.{kind}").grad
            torch.testing.assert_close(gradient, theirs[f"{their}.{kind}"], **TOLERANCE)


# ---------------------------------------------------------------- the decoder stack


@pytest.fixture(scope="module")
def decoder():
    data = oracle("damcha_decoder_shared")
    config = ModelConfig(
        d_model=D, n_heads=H, n_layers=3, d_ff=48, positions="sinusoidal", norm="post",
        metric=MetricConfig(hidden_dims=(24,), context="causal", sharing="stack"),
    )  # fmt: skip
    stack = Stack(config).double().eval()
    tensors = authors.Tensors("the oracle", {k[2:]: v for k, v in data.items() if k[:2] == "w."})
    stack.load_state_dict(authors.stack_state(tensors, config))
    tensors.finish()
    return stack.requires_grad_(False), data


def test_sinusoidal_positions_are_theirs(decoder):
    _, data = decoder
    # The authors compute their table in float32.
    torch.testing.assert_close(sinusoidal(L, D, like=data["x"]), data["pe"], rtol=0, atol=1e-6)


def test_decoder(decoder):
    stack, data = decoder
    out = stack(data["x"] + data["pe"])
    torch.testing.assert_close(out, data["out"], **TOLERANCE)


def test_decoder_tapped_hands_one_metric_to_all_layers(decoder):
    stack, data = decoder
    with tap(stack) as capture:
        out = stack(data["x"] + data["pe"])
    assert [record.layer for record in capture.records] == [None]
    torch.testing.assert_close(out, data["out"], **TOLERANCE)


@pytest.mark.parametrize("filling", [0.0, float("nan")])
def test_padded_decoder(decoder, filling):
    stack, data = decoder
    real = data["padding_mask"]
    x = (data["x"] + data["pe"]).masked_fill(~real[..., None], filling)
    out = stack(x, padding=~real)
    torch.testing.assert_close(out[real], data["out_pad"][real], **TOLERANCE)
    assert out.isfinite().all()


def test_decoder_step_by_step(decoder):
    stack, data = decoder
    x, cache = data["x"] + data["pe"], stack.new_cache()
    steps = [stack(x[:, t : t + 1], cache=cache) for t in range(L)]
    torch.testing.assert_close(torch.cat(steps, 1), data["out"], **TOLERANCE)


# ---------------------------------------------------------------- their simplified baselines


@pytest.mark.parametrize("baseline", authors.BASELINES)
def test_simplified_baselines_as_they_are_imported(baseline):
    data = oracle(f"damcharepo_{baseline}")
    tensors = authors.Tensors("the oracle", {k[2:]: v for k, v in data.items() if k[:2] == "w."})
    kind = ATTENTIONS[authors.BASELINES[baseline]]  # the layers themselves: test_mechanisms.py
    options = {"local_window": int(data["local_window"])} if baseline == "mma" else {}
    layer = kind(D, H, batch_first=True, dtype=torch.float64, **options).eval()
    model = ModelConfig(attention=authors.BASELINES[baseline], d_model=D, n_heads=H)
    layer.load_state_dict(
        authors.projections(tensors, model, "", baseline)
        | tensors.linear("out_proj", "out_proj", D, D)
    )
    tensors.finish()
    x = data["x"]
    out, _ = layer(x, x, x, need_weights=False, is_causal=True)
    torch.testing.assert_close(out, data["out_causal"], **TOLERANCE)
