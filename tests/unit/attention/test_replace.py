"""replace_attention: DAMCHA in models that are not ours."""

import copy

import pytest
import torch
from torch import nn

from damcha import replace_attention
from damcha.attention import ATTENTIONS, IHA, MMA, DAMCHAttention
from damcha.config import MetricConfig
from damcha.errors import ConfigError
from damcha.tap import tap

D, H = 8, 2
CAUSAL = MetricConfig(hidden_dims=(4,), context="causal")
FULL = MetricConfig(hidden_dims=(4,))


@pytest.fixture(scope="module")
def encoder(randomise):
    layer = nn.TransformerEncoderLayer(D, H, 16, batch_first=True, dtype=torch.float64)
    return randomise(nn.TransformerEncoder(layer, 3))


def count(model, kind):
    return sum(isinstance(module, kind) for module in model.modules())


def test_every_attention_is_replaced_and_the_model_left_alone(encoder):
    before = copy.deepcopy(encoder.state_dict())
    model = replace_attention(encoder, FULL)
    assert count(model, nn.MultiheadAttention) == 0
    assert count(model, DAMCHAttention) == 3
    assert count(encoder, nn.MultiheadAttention) == 3
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


def test_value_and_output_projections_are_taken_over(encoder):
    model = replace_attention(encoder, FULL, sharing="none")
    old, new = encoder.layers[1].self_attn, model.layers[1].self_attn
    assert torch.equal(new.value_proj.weight, old.in_proj_weight[2 * D :])
    assert torch.equal(new.value_proj.bias, old.in_proj_bias[2 * D :])
    assert torch.equal(new.out_proj.weight, old.out_proj.weight)


@pytest.mark.parametrize(("sharing", "layers"), [("stack", [None]), ("none", [0, 1, 2])])
def test_metric_per_stack_or_per_layer(encoder, normal, sharing, layers):
    model, x = replace_attention(encoder, FULL, sharing=sharing), normal(2, 5, D)
    with torch.no_grad(), tap(model, per_layer=False) as capture:
        out = model(x)
    assert [record.layer for record in capture.records] == layers
    torch.testing.assert_close(capture.records[0].context[:, 0], x.mean(1))
    torch.testing.assert_close(model(x).detach(), out, rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("sharing", ["stack", "none"])
def test_the_fast_path_does_not_bypass_it(randomise, normal, sharing, batch_first):
    layer = nn.TransformerEncoderLayer(D, H, 16, batch_first=batch_first, dtype=torch.float64)
    model = randomise(
        replace_attention(
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), FULL, sharing=sharing
        )
    )
    x = normal(3, 5, D)
    pads = torch.tensor([[False] * (5 - n) + [True] * n for n in (0, 2, 1)])
    x = x.masked_fill(pads[..., None], 0)
    x = x if batch_first else x.transpose(0, 1)
    slow = model(x, src_key_padding_mask=pads)
    with torch.no_grad():
        fast = model(x, src_key_padding_mask=pads)
    torch.testing.assert_close(slow.detach(), fast, rtol=0, atol=1e-12)
    zeroed = copy.deepcopy(model)
    for module in zeroed.modules():
        if isinstance(module, DAMCHAttention):
            module.out_proj.weight.data.zero_()
    with torch.no_grad():
        assert not torch.allclose(zeroed(x, src_key_padding_mask=pads), fast)


@pytest.mark.parametrize("sharing", ["stack", "none"])
def test_causal_encoder(encoder, normal, sharing):
    model, x = replace_attention(encoder, CAUSAL, sharing=sharing), normal(2, 6, D)
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    out = model(x, mask=mask, is_causal=True)
    changed = torch.cat((x[:, :4], -x[:, 4:]), 1)
    again = model(changed, mask=mask, is_causal=True)
    torch.testing.assert_close(out[:, :4], again[:, :4], rtol=0, atol=1e-12)
    leaky = replace_attention(encoder, FULL, sharing=sharing)
    with pytest.raises(ConfigError, match=r"pool.* whole sequence"):
        leaky(x, mask=mask)


@pytest.mark.parametrize("sharing", ["stack", "none"])
def test_whole_transformer(randomise, normal, sharing):
    whole = nn.Transformer(D, H, 2, 2, 16, batch_first=True, dtype=torch.float64)
    with pytest.raises(ConfigError, match=r"pool.* whole sequence"):
        replace_attention(whole, FULL, sharing=sharing)(
            normal(1, 4, D), normal(1, 3, D), tgt_mask=whole.generate_square_subsequent_mask(3)
        )
    model = randomise(replace_attention(whole, CAUSAL, sharing=sharing))
    source, target = normal(2, 4, D), normal(2, 3, D, seed=1)
    mask = whole.generate_square_subsequent_mask(3, dtype=torch.float64)
    out = model(source, target, tgt_mask=mask)
    changed = torch.cat((target[:, :2], -target[:, 2:]), 1)
    torch.testing.assert_close(
        model(source, changed, tgt_mask=mask)[:, :2], out[:, :2], rtol=0, atol=1e-12
    )
    with tap(model) as capture:
        model(source, target, tgt_mask=mask)
    # encoder, decoder, and cross-attention over the memory
    assert len(capture.records) == (3 if sharing == "stack" else 6)


def test_a_context_of_more_than_the_mean(randomise, normal):
    whole = nn.Transformer(D, H, 1, 1, 16, batch_first=True, dtype=torch.float64)
    wide = CAUSAL.model_copy(update={"context_decays": (0.5, 0.9), "context_first": 1})
    model = randomise(replace_attention(whole, wide))
    source, target = normal(2, 4, D), normal(2, 3, D, seed=1)
    with tap(model) as capture:
        model(source, target, tgt_mask=whole.generate_square_subsequent_mask(3))
    # The memory is no prefix: no running means in cross-attention.
    assert [record.context.shape[-1] for record in capture.records] == [4 * D, 4 * D, 2 * D]


def test_a_single_layer_is_converted(normal):
    theirs = nn.MultiheadAttention(D, H, batch_first=True, vdim=6, dtype=torch.float64)
    ours = replace_attention(theirs, FULL)
    assert isinstance(ours, DAMCHAttention)
    assert torch.equal(ours.value_proj.weight, theirs.v_proj_weight)
    ours(normal(1, 3, D), normal(1, 3, D), normal(1, 3, 6))


def test_a_layer_used_under_two_names_stays_one_layer():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.MultiheadAttention(D, H)
            self.b = self.a

    mine = replace_attention(Mine(), FULL)
    assert isinstance(mine.a, DAMCHAttention)
    assert mine.a is mine.b


def test_a_stack_used_under_two_names_stays_one_stack():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(D, H, 8)
            self.a = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.b = self.a

    mine = replace_attention(Mine(), FULL)
    assert mine.a is mine.b
    assert not isinstance(mine.b, nn.TransformerEncoder)


def test_a_stack_without_attention_is_left_as_it_is():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = nn.TransformerEncoder(nn.Linear(D, D), 2, enable_nested_tensor=False)
            self.attention = nn.MultiheadAttention(D, H)

    mine = replace_attention(Mine(), FULL)
    assert isinstance(mine.mixer, nn.TransformerEncoder)
    assert isinstance(mine.attention, DAMCHAttention)


class TestErrors:
    @pytest.mark.parametrize("hidden", [float("-inf"), -1e9, torch.finfo(torch.float32).min])
    def test_a_mask_that_hides_the_future_and_a_metric_that_sees_it(self, normal, hidden):
        layer = DAMCHAttention(D, H, batch_first=True, metric=FULL).double()
        x, mask = normal(1, 5, D), torch.full((5, 5), hidden).triu(1)
        with pytest.raises(ConfigError, match="would see the future"):
            layer(x, x, x, attn_mask=mask)

    def test_nothing_to_replace(self):
        with pytest.raises(ConfigError, match=r"model: it has no nn.MultiheadAttention to replace"):
            replace_attention(nn.Linear(2, 2))

    def test_sharing(self, encoder):
        message = "sharing: 'parameters' is not possible in a foreign model; use 'stack' or 'none'"
        with pytest.raises(ConfigError, match=message):
            replace_attention(encoder, FULL, sharing="parameters")

    def test_keys_of_another_width(self):
        with pytest.raises(ConfigError, match="kdim=5 must equal embed_dim=8"):
            replace_attention(nn.MultiheadAttention(D, H, kdim=5))


OTHERS = sorted(set(ATTENTIONS) - {"damcha"})


@pytest.mark.parametrize("name", OTHERS)
def test_any_mechanism_can_be_put_in_a_model(encoder, normal, name):
    kind, x = ATTENTIONS[name], normal(2, 5, D)
    model = replace_attention(encoder, attention=kind)
    assert count(model, nn.MultiheadAttention) == 0 and count(model, kind) == 3
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    before = model(x, mask=mask, is_causal=True)
    x[:, 3:] += 1
    after = model(x, mask=mask, is_causal=True)
    torch.testing.assert_close(after[:, :3], before[:, :3], rtol=0, atol=1e-12)
    assert not torch.allclose(after, before)


def test_what_has_a_counterpart_is_kept(encoder, normal):
    x = normal(2, 5, D)
    same = replace_attention(encoder, attention=MMA, local_window=5)  # two heads that see all
    torch.testing.assert_close(same(x), encoder(x), rtol=0, atol=1e-12)
    collaborative = replace_attention(encoder, attention=ATTENTIONS["colmha"])
    torch.testing.assert_close(collaborative(x), encoder(x), rtol=0, atol=1e-12)


def test_a_metric_is_damcha_s_alone(encoder):
    with pytest.raises(ConfigError, match="IHA has no metric"):
        replace_attention(encoder, FULL, attention=IHA)
