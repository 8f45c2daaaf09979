"""What is particular to one mechanism; what all share is in tests/properties."""

import threading

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from damcha.attention import (
    ATTENTIONS,
    THA,
    Attention,
    AttentionResidual,
    BudgetFormer,
    ColMHA,
    MoA,
    auxiliary_losses,
)
from damcha.attention.auxiliary import add_auxiliary, collecting
from damcha.config import ModelConfig, RunConfig
from damcha.errors import ConfigError
from damcha.model import Stack, build_model

EXACT = {"rtol": 0, "atol": 1e-12}
D, H = 16, 4


def run(layer, x, **options):
    return layer(x, x, x, need_weights=False, **options)[0]


# ---------------------------------------------------------------- BudgetFormer


@pytest.fixture
def budgeted(randomise):
    """``budgeted(s)``: a layer whose budget is s for every input."""

    def make(share, **options):
        layer = randomise(BudgetFormer(D, H, batch_first=True, **options).double())
        with torch.no_grad():
            layer.budget[2].weight.zero_()
            layer.budget[2].bias.fill_(torch.logit(torch.tensor(share, dtype=torch.float64)))
        return layer

    return make


@pytest.mark.parametrize(("share", "kept"), [(0.01, 1), (0.3, 2), (0.5, 2), (0.74, 3), (0.99, 4)])
def test_evaluation_keeps_the_most_relevant_heads(budgeted, normal, share, kept):
    layer, x = budgeted(share), normal(3, 5, D)
    gates = layer.gates(x, None, False, None)
    assert gates.shape == (3, 1, H)
    assert ((gates > 0).sum(-1) == kept).all()
    torch.testing.assert_close(
        gates.sum(-1), torch.full((3, 1), H * share, dtype=torch.float64), **EXACT
    )
    relevance = layer.relevance(x.mean(1))
    best = relevance.topk(kept).indices.sort().values
    assert torch.equal(gates[:, 0].topk(kept).indices.sort().values, best)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_skipping_computes_the_gated_sum(budgeted, normal, share, causal):
    layer, x = budgeted(share, rotary=True), normal(3, 9, D)
    weighed, weights = layer(x, x, x, is_causal=causal)
    assert weights.shape == (3, 9, 9)
    torch.testing.assert_close(run(layer, x, is_causal=causal), weighed, **EXACT)


@pytest.mark.parametrize(("share", "kept"), [(0.2, 1), (0.5, 2), (0.7, 3), (0.95, 4)])
def test_work_falls_with_the_budget(budgeted, normal, share, kept):
    layer, x = budgeted(share, bias=False), normal(2, 40, D)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run(layer, x)  # torch does not count its fused kernel for CPUs
    formula = BudgetFormer.multiply_adds(D, H, 40, kept=kept)
    assert counter.get_total_flops() == 2 * 2 * formula


def test_training_explores_early_and_is_sharp_late(budgeted, normal):
    layer, x = budgeted(0.5).train(), normal(2, 6, D)
    assert (layer.gates(x, None, False, None) > 0).all()
    first, second = (layer.gates(x, None, False, None) for _ in range(2))
    assert torch.equal(first, second)  # training is over unless a loop says otherwise
    sharp = (layer.relevance(x.mean(1, keepdim=True)) / 0.5).softmax(-1)
    torch.testing.assert_close(first, H * 0.5 * sharp, **EXACT)
    layer.set_progress(0.0)
    first, second = (layer.gates(x, None, False, None) for _ in range(2))
    assert not torch.equal(first, second)
    torch.testing.assert_close(first.sum(-1), torch.full((2, 1), H * 0.5).double(), **EXACT)


def test_budget_and_entropy_losses(budgeted, normal):
    x = normal(2, 6, D)
    pads = torch.zeros(2, 6, dtype=torch.bool)
    pads[1, 3:] = True
    for share, expected in ((0.04, 0.06), (0.5, 0.0), (0.97, 0.07)):
        layer = budgeted(share, budget_loss=1.0, entropy_loss=0.0).train()
        for causal in (False, True):
            with auxiliary_losses() as terms:
                run(layer, x, is_causal=causal, key_padding_mask=pads)
            torch.testing.assert_close(float(terms["budget"].detach()), expected, rtol=0, atol=1e-9)
            assert "entropy" not in terms
    layer = budgeted(0.5, entropy_loss=1.0).train()
    layer.relevance.weight.data.zero_()
    with auxiliary_losses() as terms:
        run(layer, x)
    torch.testing.assert_close(terms["entropy"], torch.tensor(H).double().log(), **EXACT)


def test_a_causal_budget_needs_a_key_for_each_query(budgeted, normal):
    layer = budgeted(0.5)
    for mode in (layer.train(), layer.eval()):
        with pytest.raises(ConfigError, match="3 queries and 5 keys"):
            mode(normal(1, 3, D), *[normal(1, 5, D)] * 2, need_weights=False, is_causal=True)


# ---------------------------------------------------------------- options that are refused


def test_more_experts_chosen_than_there_are():
    with pytest.raises(ConfigError, match="top_k: 5 experts cannot be chosen from n_experts=3"):
        MoA(D, H, n_experts=3, top_k=5)


def test_a_shared_width_that_rotary_positions_cannot_turn():
    with pytest.raises(ConfigError, match=r"slices of 4 channels, which do not fill 22"):
        ColMHA(D, H, shared_width=22, rotary=True)


def test_mixing_of_unequal_head_counts(normal):
    layer = THA(D, H, batch_first=True, key_heads=2, value_heads=3).double()
    out, weights = layer(*[normal(2, 5, D)] * 3, average_attn_weights=False)
    assert out.shape == (2, 5, D)
    assert weights.shape == (2, 3, 5, 5)
    count = sum(p.numel() for n, p in layer.named_parameters() if not n.endswith("bias"))
    assert THA.parameter_count(D, H, key_heads=2, value_heads=3) == count


def test_an_unknown_attention_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="attention: 'mamba' is not known; choose from damcha, "):
        build_model(RunConfig(model={"attention": "mamba"}))


def test_too_many_weights_are_refused_before_they_are_made():
    config = ModelConfig(attention="moa", d_model=4096, n_heads=1, mechanism={"n_experts": 4096})
    with pytest.raises(ConfigError, match="attention: this model would have about"):
        Stack(config)


def test_residuals_read_raw_outputs():
    with pytest.raises(ConfigError, match=r"residual: 'mhar' .*norm='pre'"):
        ModelConfig(residual="mhar", norm="post")
    with pytest.raises(ConfigError, match="residual_heads: d_model=20 is not divisible"):
        ModelConfig(residual="mhar", d_model=20, n_heads=4, residual_heads=8)


# ---------------------------------------------------------------- auxiliary losses


def test_auxiliary_losses_are_summed_over_layers_and_belong_to_their_thread(normal):
    stack = Stack(ModelConfig(attention="moa", d_model=D, n_heads=H, n_layers=3)).double()
    x = normal(2, 5, D)
    seen = {}

    def other():
        stack(x)
        seen["collecting"] = collecting()

    with auxiliary_losses() as terms:
        stack(x)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        once = dict(terms)
        stack(x)
    assert seen == {"collecting": False}
    assert set(terms) == {"switch", "z"}
    for name, value in terms.items():
        torch.testing.assert_close(value, 2 * once[name], **EXACT)
    assert not collecting()
    add_auxiliary("nobody", x.sum())


@pytest.mark.parametrize("attention", ["moa", "budgetformer"])
def test_auxiliary_losses_reach_what_is_minimised(task_model, attention):
    model = task_model("language_modelling", attention=attention).train()
    model.set_progress(1.0)
    x = torch.arange(20).view(2, 10)
    plain = model.score(x, x)["loss"].mean()
    with auxiliary_losses() as terms:
        model(x)
    assert terms
    torch.testing.assert_close(model.loss(x, x), plain + sum(terms.values()), **EXACT)


# ---------------------------------------------------------------- attention residuals


def test_reading_starts_as_the_mean_of_all_sources(normal):
    sources = [normal(2, 3, D, seed=i) for i in range(4)]
    out = AttentionResidual(D, 4).double()(sources)
    torch.testing.assert_close(out, torch.stack(sources).mean(0), **EXACT)


def test_a_stack_with_residuals_has_two_more_vectors_at_each_site():
    def count(residual):
        config = ModelConfig(d_model=D, n_heads=H, n_layers=3, attention="mha", residual=residual)
        return sum(p.numel() for p in Stack(config).parameters())

    assert count("mhar") - count("standard") == 7 * 2 * D == count("attention") - count("standard")


def test_the_zeroth_head_of_many_is_not_the_whole(normal, randomise):
    sources = [normal(2, 3, D, seed=i) for i in range(4)]
    one, many = (randomise(AttentionResidual(D, heads).double()) for heads in (1, 4))
    assert not torch.allclose(one(sources), many(sources))
    # Each slice reads by its own weights.
    weights = many.weights(sources)
    slices = torch.stack(sources).unflatten(-1, (4, -1))
    for head in range(4):
        mixed = torch.einsum("nbt,nbtc->btc", weights[..., head], slices[..., head, :])
        torch.testing.assert_close(many(sources)[..., head * 4 : head * 4 + 4], mixed, **EXACT)


# ---------------------------------------------------------------- formulas


@pytest.mark.parametrize("name", sorted(set(ATTENTIONS) - {"damcha"}))
@pytest.mark.parametrize(("d", "h", "length"), [(16, 4, 10), (24, 2, 33), (32, 8, 7)])
def test_multiply_adds_are_those_that_torch_counts(name, d, h, length, normal):
    layer = ATTENTIONS[name](d, h, batch_first=True, bias=False).double().train()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run(layer, normal(2, length, d))
    formula = ATTENTIONS[name].multiply_adds(d, h, length)
    assert counter.get_total_flops() == 2 * 2 * formula


def test_a_mechanism_without_formulas_is_built_and_not_measured():
    class Bare(Attention):
        """Says nothing of its cost."""

    assert Bare.parameter_count(16, 4) == 4 * 16**2
    with pytest.raises(ConfigError, match="Bare has no formula for its multiply-adds"):
        Bare.multiply_adds(16, 4, 8)
