"""The other mechanisms against outputs of their own code (data/README.md), in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch

from damcha.attention import (
    DCMHA,
    IHA,
    MMA,
    THA,
    AttentionResidual,
    BlockColMHA,
    Cache,
    ColMHA,
    MoA,
    RankMoA,
    RouterDCMHA,
    auxiliary_losses,
)  # fmt: skip
from damcha.attention.base import Call

DATA = Path(__file__).parent / "data"
TOLERANCE = {"rtol": 0, "atol": 1e-10}
FLOAT32 = {"rtol": 0, "atol": 1e-4}
D, H, L = 32, 4, 7


def oracle(name):
    """The arrays of a file, and its weights without their ``w.``."""
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as file:
        data = {key: torch.from_numpy(np.asarray(file[key])) for key in file.files}
    return data, {key[2:]: value for key, value in data.items() if key.startswith("w.")}


def run(layer, x, **masks):
    return layer(x, x, x, need_weights=False, **masks)[0]


def loaded(layer, state):
    layer = layer.double().eval()
    layer.load_state_dict({name: value.double() for name, value in state.items()})
    return layer


def step_by_step(layer, x):
    cache = Cache()
    steps = [run(layer, x[:, t : t + 1], is_causal=True, cache=cache) for t in range(x.shape[1])]
    return torch.cat(steps, dim=1)


# ---------------------------------------------------------------- talking heads


@pytest.mark.parametrize("name", ["square_causal", "square_noncausal", "rect_noncausal"])
def test_tha_is_mesh_tensorflow(name):
    data, w = oracle(f"tha_mtf_{name}")
    w = {key.removeprefix("att/").removesuffix("/kernel"): v.double() for key, v in w.items()}
    hk, h, hv, e = (int(data[key]) for key in ("h_k", "h", "h_v", "d_k"))
    layer = THA(D, h, bias=False, batch_first=True, key_heads=hk, value_heads=hv, head_dim=e)
    qkv = torch.cat([w[key].flatten(1).T for key in ("q", "k", "v")])
    layer = loaded(layer, {
        "in_proj_weight": qkv,
        "mix_logits.weight": w["logits"].T * e**0.5,  # theirs has no 1/√e
        "mix_probabilities.weight": w["weights"].T,
        "out_proj.weight": w["y"].flatten(0, 1).T,
    })  # fmt: skip
    x = data["x"].double()
    causal = bool(data["causal"])
    out = run(layer, x, is_causal=causal)
    torch.testing.assert_close(out, data["out_ref_float64"], **TOLERANCE)
    torch.testing.assert_close(out.float(), data["out_mtf_float32"], **FLOAT32)
    if causal:
        torch.testing.assert_close(step_by_step(layer, x), out, **TOLERANCE)


def test_tha_with_biases_is_cait():
    data, w = oracle("tha_cait")
    layer = loaded(THA(D, H, batch_first=True, mix_bias=True), {
        "in_proj_weight": w["qkv.weight"],
        "in_proj_bias": w["qkv.bias"],
        "mix_logits.weight": w["proj_l.weight"],
        "mix_logits.bias": w["proj_l.bias"],
        "mix_probabilities.weight": w["proj_w.weight"],
        "mix_probabilities.bias": w["proj_w.bias"],
        "out_proj.weight": w["proj.weight"],
        "out_proj.bias": w["proj.bias"],
    })  # fmt: skip
    torch.testing.assert_close(run(layer, data["x"]), data["out_noncausal"], **TOLERANCE)


# ---------------------------------------------------------------- DCMHA


@pytest.mark.parametrize("qk_norm", [False, True])
def test_dcmha_is_dcformer(qk_norm):
    data, w = oracle(f"dcmha_dcformer_qknorm{int(qk_norm)}_rope0")
    state = {
        "in_proj_weight": w["wqkv.weight"],
        "out_proj.weight": w["wo.weight"],
        "dw1": w["dyn_w_proj.dw1"][:, 0].transpose(0, 1),
        "qkw": w["dyn_w_proj.qkw"][0],
        "dd": w["dyn_w_proj.dd"][:, 0].unflatten(1, (4, H)).transpose(0, 1),
    }
    if qk_norm:
        state |= {f"{x}_norm.weight": w[f"{x}_norm.scale"] for x in "qk"}
    layer = loaded(DCMHA(D, H, bias=False, batch_first=True, qk_norm=qk_norm), state)
    x = data["x"]
    torch.testing.assert_close(run(layer, x), data["out_noncausal"], **TOLERANCE)
    torch.testing.assert_close(run(layer, x, is_causal=True), data["out_causal"], **TOLERANCE)
    torch.testing.assert_close(step_by_step(layer, x), data["out_causal_decode"], **TOLERANCE)


# ---------------------------------------------------------------- collaborative


def collaborative(name):
    data, w = oracle(f"colmha_epfml_{name}")
    layer = ColMHA(D, H, batch_first=True, shared_width=len(w["query.weight"]))
    return data, loaded(layer, {
        "query_proj.weight": w["query.weight"],
        "key_proj.weight": w["key.weight"],
        "content_bias.weight": w["content_bias.weight"],
        "mixing": w["mixing"],
        "value_proj.weight": w["value.weight"],
        "value_proj.bias": w["value.bias"],
        "out_proj.weight": w["dense.weight"],
        "out_proj.bias": w["dense.bias"],
    })  # fmt: skip


def test_colmha_is_epfml():
    data, layer = collaborative("dk32")
    x, other = data["x"], data["encoder_hidden_states"]
    out, weights = layer(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(out, data["out_noncausal"], **TOLERANCE)
    torch.testing.assert_close(weights, data["attn_noncausal"], **TOLERANCE)
    out, weights = layer(x, x, x, average_attn_weights=False, is_causal=True)
    torch.testing.assert_close(out, data["out_causal"], **TOLERANCE)
    torch.testing.assert_close(weights, data["attn_causal"], **TOLERANCE)
    torch.testing.assert_close(run(layer, x, is_causal=True), data["out_causal"], **TOLERANCE)
    torch.testing.assert_close(step_by_step(layer, x), data["out_causal"], **TOLERANCE)
    cross = layer(x, other, other, need_weights=False)[0]
    torch.testing.assert_close(cross, data["out_cross"], **TOLERANCE)
    real = data["padding_mask"]
    padded = run(layer, x, key_padding_mask=~real)
    torch.testing.assert_close(padded[real], data["out_pad"][real], **TOLERANCE)


def test_colmha_of_an_mha_is_that_mha():
    data, layer = collaborative("reparam")
    mha = torch.nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    mha.load_state_dict({
        "in_proj_weight": torch.cat([data[f"mha_W{x}"] for x in "QKV"]),
        "in_proj_bias": torch.cat([data[f"mha_b{x}"] for x in "QKV"]),
        "out_proj.weight": data["mha_WO"],
        "out_proj.bias": data["mha_bO"],
    })  # fmt: skip
    ours = ColMHA(D, H, batch_first=True, dtype=torch.float64)
    ours.take_over(mha)
    for one in (layer, ours):
        torch.testing.assert_close(run(one, data["x"]), data["out_noncausal"], **TOLERANCE)
        out = run(one, data["x"], is_causal=True)
        torch.testing.assert_close(out, data["out_causal"], **TOLERANCE)


# ---------------------------------------------------------------- mixed masks


def test_mma_is_the_damcha_repository_s():
    data, w = oracle("damcharepo_mma")
    layer = loaded(MMA(D, H, batch_first=True, local_window=int(data["local_window"])), {
        "in_proj_weight": torch.cat([w[f"W_{x}.weight"] for x in "qkv"]),
        "in_proj_bias": torch.cat([w[f"W_{x}.bias"] for x in "qkv"]),
        "out_proj.weight": w["out_proj.weight"],
        "out_proj.bias": w["out_proj.bias"],
    })  # fmt: skip
    x = data["x"]
    torch.testing.assert_close(run(layer, x, is_causal=True), data["out_causal"], **TOLERANCE)
    torch.testing.assert_close(step_by_step(layer, x), data["out_causal"], **TOLERANCE)
    # Without a mask from outside, theirs keeps the global and the local heads causal.
    future = torch.ones(L, L, dtype=torch.bool).triu(1)
    mask = torch.stack([future, future, future, torch.zeros_like(future)]).repeat(2, 1, 1)
    out = run(layer, x, attn_mask=mask)
    torch.testing.assert_close(out, data["out_no_mask_arg"], **TOLERANCE)


# ---------------------------------------------------------------- mixture of heads


def mixture():
    data, w = oracle("moa_yikangshen")
    layer = MoA(
        D, H, bias=False, batch_first=True, n_experts=6, top_k=3, importance_loss=0.3,
        switch_loss=0.5, z_loss=0.2,
    )  # fmt: skip
    return data, loaded(layer, {
        "key_proj.weight": w["k_proj.weight"],
        "value_proj.weight": w["v_proj.weight"],
        "gate.weight": w["q_proj.w_gate"].T,
        "query_experts": w["q_proj.experts.w"],
        "out_proj.weight": w["q_proj.output_experts.w"].flatten(0, 1).T,
    })  # fmt: skip


@pytest.mark.parametrize("mode", ["noncausal", "causal", "noncausal_pad", "causal_pad"])
def test_moa_is_yikangshen_s(mode):
    data, layer = mixture()
    x, masks = data["x"], {"is_causal": mode.startswith("causal")}
    pads = None
    if mode.endswith("pad"):
        pads = masks["key_padding_mask"] = data["padding_mask_true_is_pad"]
    with auxiliary_losses() as terms:
        out, weights = layer(x, x, x, average_attn_weights=False, **masks)
    torch.testing.assert_close(out, data[f"out_{mode}"], **TOLERANCE)
    real = slice(None) if pads is None else ~pads
    theirs = data[f"attn_{mode}"].transpose(1, 2)
    torch.testing.assert_close(weights.transpose(1, 2)[real], theirs[real], **TOLERANCE)
    aux = sum(terms.values())
    if pads is not None:  # their z loss counts padded tokens, ours does not
        aux = aux - terms["z"] + 0.2 * data["aux_only_z"]
    torch.testing.assert_close(aux.float(), data[f"aux_{mode}"], rtol=0, atol=2e-6)
    torch.testing.assert_close(run(layer, x, **masks), data[f"out_{mode}"], **TOLERANCE)
    if mode == "causal":
        torch.testing.assert_close(step_by_step(layer, x), data["out_causal"], **TOLERANCE)


def test_moa_s_losses_one_by_one():
    data, layer = mixture()
    layer.losses = dict.fromkeys(layer.losses, 1.0)
    with auxiliary_losses() as terms:
        run(layer, data["x"])
    for ours, theirs in (("importance", "cv"), ("switch", "switch"), ("z", "z")):
        value = data[f"aux_only_{theirs}"]
        torch.testing.assert_close(terms[ours].float(), value, rtol=0, atol=2e-6)


def test_moa_s_gradients():
    data, layer = mixture()
    x = data["x"].clone().requires_grad_()
    with auxiliary_losses() as terms:
        loss = (run(layer, x) ** 2).sum()
    (loss + sum(terms.values())).backward()
    name = "grad_x_noncausal_sumsq_plus_aux"
    # Their auxiliary losses are float32, and so is that part of their gradients.
    tolerance = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(x.grad, data[name], **tolerance)
    for ours, theirs in (
        (layer.key_proj.weight, "k_proj.weight"),
        (layer.value_proj.weight, "v_proj.weight"),
        (layer.query_experts, "q_proj.experts.w"),
    ):
        torch.testing.assert_close(ours.grad, data[f"gradw.{theirs}"], **tolerance)
    gate = data["gradw.q_proj.w_gate"].T
    torch.testing.assert_close(layer.gate.weight.grad, gate, **tolerance)
    experts = data["gradw.q_proj.output_experts.w"].flatten(0, 1).T
    torch.testing.assert_close(layer.out_proj.weight.grad, experts, **tolerance)


# ---------------------------------------------------------------- interleaved heads


@pytest.mark.parametrize("collapse", ["global", "perhead"])
@pytest.mark.parametrize("mask", ["none", "token"])
def test_iha_is_the_reference(mask, collapse):
    """The reference's flat mask and its rotary positions by pseudo-token are other functions."""
    data, w = oracle("iha_reference")
    p = int(data["P"])
    own = torch.zeros(H, H * p, dtype=torch.float64)
    for a in range(H):
        own[a, a * p : (a + 1) * p] = data["R_perhead"][a]
    layer = loaded(IHA(D, H, bias=False, batch_first=True, pseudo_heads=p), {
        "in_proj_weight": torch.cat([w[f"W{x}"] for x in "QKV"]),
        "out_proj.weight": w["WO"],
        "alpha": torch.stack([w[f"alpha_{x}"] for x in "qkv"]),
        "collapse": data["R_global"] if collapse == "global" else own,
    })  # fmt: skip
    x, expected = data["x"], data[f"out_{mask}_rope0_{collapse}"]
    torch.testing.assert_close(run(layer, x, is_causal=mask == "token"), expected, **TOLERANCE)
    out, _ = layer(x, x, x, is_causal=mask == "token")
    torch.testing.assert_close(out, expected, **TOLERANCE)
    if mask == "token":
        torch.testing.assert_close(step_by_step(layer, x), expected, **TOLERANCE)


# ---------------------------------------------------------------- attention residuals


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 32])
def test_route_kernel(heads):
    data, _ = oracle("mhar_route_kernel")
    site = loaded(
        AttentionResidual(D, heads), {"query": data["query"], "norm.weight": data["norm_weight"]}
    )
    sources = data["sources"].clone().requires_grad_()
    out = site(sources.unbind())
    torch.testing.assert_close(out, data[f"out_H{heads}"], **TOLERANCE)
    torch.testing.assert_close(
        site.weights(sources.unbind()), data[f"weights_H{heads}"], **TOLERANCE
    )
    null = data["null_source"].expand_as(data["partial"])
    delta = data["partial"] + site([null, *sources.unbind()])
    torch.testing.assert_close(delta, data[f"delta_out_H{heads}"], **TOLERANCE)
    if heads == 4:
        (out**2).sum().backward()
        torch.testing.assert_close(sources.grad, data["grad_V_H4"], **TOLERANCE)
        torch.testing.assert_close(site.query.grad, data["grad_q_H4"], **TOLERANCE)
        torch.testing.assert_close(site.norm.weight.grad, data["grad_norm_H4"], **TOLERANCE)


def test_stack_of_routed_sublayers():
    """Their three blocks with toy sublayers tanh(RMSNorm(u) Wᵀ)."""
    data, w = oracle("mhar_stack_full_H1")

    def site(name):
        state = {"query": w[f"{name}_query"], "norm.weight": w[f"{name}_norm.weight"]}
        return loaded(AttentionResidual(D, int(data["H"])), state)

    def normed(x, gain):
        return torch.nn.functional.rms_norm(x, (D,), gain, eps=1e-6)

    sources = [data["x"]]
    for i in range(int(data["n_blocks"])):
        for sub, norm in (("attn", "in_norm"), ("mlp", "post_norm")):
            u = site(f"layers.{i}.{sub}_res")(sources)
            u = normed(u, w[f"layers.{i}.{norm}.weight"])
            sources.append(torch.tanh(u @ w[f"layers.{i}.{sub}.weight"].T))
    out = normed(site("final_res")(sources), w["norm.weight"])
    torch.testing.assert_close(out, data["out"], **TOLERANCE)


# ---------------------------------------------------------------- the DAMCHA repository's baselines


def in_proj(w, bias=True):
    state = {"in_proj_weight": torch.cat([w[f"W_{x}.weight"] for x in "qkv"])}
    if bias:
        state["in_proj_bias"] = torch.cat([w[f"W_{x}.bias"] for x in "qkv"])
    return state | {f"out_proj.{x}": w[f"out_proj.{x}"] for x in ("weight", "bias")}


def both_modes(layer, data):
    x = data["x"]
    torch.testing.assert_close(run(layer, x), data["out_noncausal"], **TOLERANCE)
    torch.testing.assert_close(run(layer, x, is_causal=True), data["out_causal"], **TOLERANCE)
    torch.testing.assert_close(step_by_step(layer, x), data["out_causal"], **TOLERANCE)


def test_the_damcha_repository_s_tha_is_ours():
    data, w = oracle("damcharepo_tha")
    mixes = {"mix_logits.weight": "pre_proj.weight", "mix_probabilities.weight": "post_proj.weight"}
    state = in_proj(w) | {ours: w[theirs] for ours, theirs in mixes.items()}
    both_modes(loaded(THA(D, H, batch_first=True), state), data)


def test_the_damcha_repository_s_dcmha():
    data, w = oracle("damcharepo_dcmha")
    state = in_proj(w)
    for kind in ("weight", "bias"):
        state |= {f"router.{i}.{kind}": w[f"router.{i}.{kind}"] for i in (0, 2)}
        state[f"gate.{kind}"] = w[f"gate_proj.{kind}"]
    both_modes(loaded(RouterDCMHA(D, H, batch_first=True), state), data)


def test_the_damcha_repository_s_colmha():
    data, w = oracle("damcharepo_colmha")
    qk = torch.cat([w["W_shared_q.weight"], w["W_shared_k.weight"], w["W_v.weight"]])
    none = torch.zeros(2 * D, dtype=torch.float64)  # theirs has no bias in W_Q and W_K
    state = {"in_proj_weight": qk, "in_proj_bias": torch.cat([none, w["W_v.bias"]])}
    state |= {f"out_proj.{x}": w[f"out_proj.{x}"] for x in ("weight", "bias")}
    state |= {name: w[name] for name in ("combine_q", "combine_k")}
    both_modes(loaded(BlockColMHA(D, H, batch_first=True), state), data)


def test_the_damcha_repository_s_moa():
    data, w = oracle("damcharepo_moa")
    experts = [w[f"W_{x}"].transpose(1, 2).flatten(0, 1) for x in "qkv"]
    state = {"in_proj_weight": torch.cat(experts)}
    state |= {f"out_proj.{x}": w[f"out_proj.{x}"] for x in ("weight", "bias")}
    state |= {f"router.{x}": w[f"router.{x}"] for x in ("weight", "bias")}
    layer = loaded(RankMoA(D, H, batch_first=True), state)
    x = data["x"]  # theirs is causal with or without a mask
    torch.testing.assert_close(run(layer, x, is_causal=True), data["out_causal"], **TOLERANCE)
    torch.testing.assert_close(step_by_step(layer, x), data["out_causal"], **TOLERANCE)
    call = Call(x, x, x, None, None, None, True, True, 0, None, False, {})
    gates, chosen = layer.project(call).routing
    assert torch.equal(chosen, data["top_idx"])
    torch.testing.assert_close(gates, data["gate_w"], **TOLERANCE)
