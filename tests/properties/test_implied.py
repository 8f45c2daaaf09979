"""The metric that a mechanism implies gives the mechanism's own scores, and edits of it hold."""

import copy

import pytest
import torch

from damcha.attention import ATTENTIONS, MHA, Cache, blocks
from damcha.attention.implied import roots
from damcha.errors import CaptureError
from damcha.tap import tap

EXACT = {"rtol": 0, "atol": 1e-11}
D, H, L = 24, 3, 6
# name → (options, pairing)
IMPLYING = {
    "mha": ({}, "block"),
    "mma": ({"local_window": 2}, "block"),
    "budgetformer": ({}, "block"),
    "tha": ({}, "block"),
    "dcmha": ({}, "block"),
    "dcmha normed": ({"qk_norm": True}, "block"),
    "colmha": ({}, "block"),
    "colmha narrow": ({"shared_width": 12}, "block"),
    "iha": ({"pseudo_heads": 2}, "row"),
    "authors-dcmha": ({}, "block"),
    "authors-colmha": ({}, "row"),
}


def build(randomise, name, rotary=False):
    options, pairing = IMPLYING[name]
    if rotary and name == "colmha narrow":
        options = {"shared_width": 16}
    kind = ATTENTIONS[name.split()[0]]
    layer = randomise(kind(D, H, batch_first=True, rotary=rotary, **options).double())
    if rotary and name == "colmha narrow":
        pairing = None  # 16 dimensions are no three slices
    return layer, pairing


def run(layer, x, **masks):
    return layer(x, x, x, need_weights=False, **masks)[0]


def projections(layer, x):
    """q and k of every block [B, h, L, e] with their weights, biases included in q and k."""
    if hasattr(layer, "query_proj"):
        wq, wk = layer.query_proj.weight, layer.key_proj.weight
        bq = bk = torch.zeros(len(wq), dtype=x.dtype)
    else:
        (wq, bq), (wk, bk), _ = layer.projections
    q, k = (x @ w.T + b for w, b in ((wq, bq), (wk, bk)))
    q, k = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in (q, k))
    wq, wk = (w.unflatten(0, (H, -1)) for w in (wq, wk))
    if getattr(layer, "qk_norm", False):
        q, k = layer.q_norm(q), layer.k_norm(k)
        wq, wk = wq * layer.q_norm.weight[:, None], wk * layer.k_norm.weight[:, None]
    if hasattr(layer, "alpha"):
        alpha = layer.alpha[0].mean(-1)
        q, wq = torch.einsum("zmle,ma->zale", q, alpha), torch.einsum("med,ma->aed", wq, alpha)
    if hasattr(layer, "combine_q"):
        table = layer.combine_q.T
        q, wq = torch.einsum("zmle,ma->zale", q, table), torch.einsum("med,ma->aed", wq, table)
    return q, k, wq, wk


def from_metric(metric, layer, x, pairing):
    """Σ_b x̂ M_ab ŷ_bᵀ: scores of all heads from a metric [B|1, P, w, w], by plain loops."""
    q, k, wq, wk = projections(layer, x)

    # Coordinates by another way than the library's: W = P V with V orthonormal rows, from the SVD.
    def coordinates(raw, weight):
        parts = []
        for head in range(H):
            u, s, _ = torch.linalg.svd(weight[head], full_matrices=False)
            root = u @ torch.diag(s) @ u.T
            parts.append(raw[:, head] @ torch.linalg.inv(root))
        return torch.stack(parts, 1)

    xq, yk = coordinates(q, wq), coordinates(k, wk)
    out = torch.zeros(len(x), H, L, L, dtype=x.dtype)
    for a in range(H):
        for b in range(H):
            block = blocks(metric, H)[:, :, a, b]  # [B|1, P, e, e]
            side = xq[:, a if pairing == "row" else b]
            if block.shape[1] == 1:
                turned = side @ block[:, 0]
            else:
                turned = torch.einsum("zli,zlij->zlj", side, block.expand(len(x), -1, -1, -1))
            out[:, a] += turned @ yk[:, b].transpose(-1, -2)
    return out * layer.scale


def scores(layer, x, edit=None, **masks):
    with tap(layer, edit, record=("scores",)) as capture:
        out = run(layer, x, **masks)
    return capture.scores[0], capture.records, out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name in IMPLYING if name.split()[0] != "dcmha"])
def test_scores_from_the_implied_metric_are_the_mechanism_s(name, causal, randomise, normal):
    layer, pairing = build(randomise, name)
    x = normal(2, L, D)
    found, (record,), out = scores(layer, x, is_causal=causal)
    assert record.stride == (name == "authors-dcmha")
    torch.testing.assert_close(from_metric(record.metric, layer, x, pairing), found, **EXACT)
    torch.testing.assert_close(out, run(layer, x, is_causal=causal), **EXACT)


@pytest.mark.parametrize("mask", ["none", "causal", "window", "window of each head"])
@pytest.mark.parametrize("name", ["dcmha", "dcmha normed"])
def test_a_metric_for_every_query_and_its_deviation_by_key(name, mask, randomise, normal):
    layer, pairing = build(randomise, name)
    x = normal(2, L, D)
    pads = torch.zeros(2, L, dtype=torch.bool)
    pads[1, 4:] = True
    places = torch.arange(L)
    distance = places[:, None] - places
    masks = {"is_causal": mask == "causal", "key_padding_mask": pads}
    allowed = torch.ones(H, L, L, dtype=torch.bool) if mask != "causal" else (distance >= 0)[None]
    if mask == "window":
        allowed = (distance.abs() < 2)[None]
        masks["attn_mask"] = ~allowed[0]
    elif mask == "window of each head":
        allowed = torch.stack([distance.abs() <= a + 1 for a in range(H)])
        masks["attn_mask"] = ~allowed.repeat(2, 1, 1)
    allowed = allowed.expand(H, L, L)
    found, (record,), _ = scores(layer, x, **masks)
    assert record.stride == 1 and record.metric.shape[:2] == (2, L)
    x = x.masked_fill(pads[..., None], 0)
    q, k, *_ = projections(layer, x)
    own = q @ k.transpose(-1, -2) * layer.scale
    of_key = layer._matrices(layer._weights(x, 1), 0)
    for b in range(2):
        for i in range(L):
            seen = allowed[:, i] & ~pads[b]  # [H, L]
            # Row a of the mixing, averaged over the keys that head a sees.
            count = seen.sum(1, keepdim=True).clamp(min=1)
            mean = torch.stack([of_key[b, seen[a], a].sum(0) for a in range(H)]) / count
            for j in range(L):
                deviation = (of_key[b, j] - mean) @ own[b, :, i, j]
                metric = from_metric(record.metric[b : b + 1], layer, x[b : b + 1], pairing)
                expected = metric[0, :, i, j] + deviation
                torch.testing.assert_close(found[b, :, i, j], expected, **EXACT)


@pytest.mark.parametrize("name", IMPLYING)
def test_an_edit_changes_scores_as_the_metric_says(name, randomise, normal):
    layer, pairing = build(randomise, name)
    x, noise = normal(2, L, D), None

    def edit(metric, layer_index):
        nonlocal noise
        noise = normal(*metric.shape[-2:], seed=5)
        return metric * 0.3 + noise

    before, (plain,), _ = scores(layer, x)
    after, (edited,), _ = scores(layer, x, edit)
    torch.testing.assert_close(edited.metric, plain.metric * 0.3 + noise, **EXACT)
    change = from_metric((edited.metric - plain.metric), layer, x, pairing)
    torch.testing.assert_close(after - before, change, **EXACT)


@pytest.mark.parametrize("name", ["mha", "tha", "iha", "authors-colmha"])
def test_a_learned_extra_key_is_edited_like_any_other(name, randomise, normal):
    """Its scores are those of a token that projects to it; elsewhere no token gives all parts."""
    kind, (options, _) = ATTENTIONS[name], IMPLYING[name]
    layer = randomise(kind(D, H, add_bias_kv=True, batch_first=True, **options).double())
    plain = kind(D, H, batch_first=True, **options).double()
    plain.load_state_dict({k: w for k, w in layer.state_dict().items() if k[:5] != "bias_"})
    (_, _), (wk, bk), _ = layer.projections
    token = torch.linalg.solve(wk, (layer.bias_k - bk)[0, 0])
    x = normal(2, L, D)
    longer = torch.cat((x, token.expand(2, 1, D)), 1)

    def edit(metric, _):
        return metric * 0.3 + normal(*metric.shape[-2:], seed=5)

    for change in (None, edit):
        found, _, _ = scores(layer, x, change)
        expected, _, _ = scores(plain, longer, change)
        # Reported are the scores before the softmax; the extra key's stand last.
        torch.testing.assert_close(found, expected[:, :, :L], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["iha", "authors-colmha"])
def test_an_edit_of_a_cache_filled_before_it_is_refused(name, randomise, normal):
    layer, _ = build(randomise, name)
    x, cache = normal(2, L, D), Cache()
    run(layer, x[:, :2], is_causal=True, cache=cache)
    with (
        pytest.raises(CaptureError, match="cache: 2 of its tokens came before this tap was opened"),
        tap(layer, lambda metric, _: metric * 2),
    ):
        run(layer, x[:, 2:], is_causal=True, cache=cache)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("name", IMPLYING)
def test_decoding_under_an_edit_is_the_full_forward_under_it(name, rotary, randomise, normal):
    layer, pairing = build(randomise, name, rotary)
    x = normal(2, L, D)
    keep = (normal(D, D, seed=3) > 0).double()

    def edit(metric, layer_index):
        width = metric.shape[-1]
        return metric * keep[:width, :width]

    with tap(layer, edit):
        full, cache = run(layer, x, is_causal=True), Cache()
        steps = [run(layer, x[:, t : t + 1], is_causal=True, cache=cache) for t in range(L)]
    torch.testing.assert_close(torch.cat(steps, 1), full, **EXACT)
    if pairing is not None:
        assert not torch.allclose(full, run(layer, x, is_causal=True))


@pytest.mark.parametrize("rotary", [False, True])
def test_a_scaled_block_scales_the_scores_of_its_head(rotary, randomise, normal):
    layer = randomise(MHA(D, H, batch_first=True, rotary=rotary).double())
    x = normal(2, L, D)

    def edit(metric, layer_index):
        parts = blocks(metric.clone(), H)
        parts[..., 1, 1, :, :] *= 3
        return parts.transpose(-3, -2).flatten(-2).flatten(-3, -2)

    before, _, _ = scores(layer, x, is_causal=True)
    after, _, _ = scores(layer, x, edit, is_causal=True)
    torch.testing.assert_close(after[:, 1], 3 * before[:, 1], **EXACT)
    torch.testing.assert_close(after[:, [0, 2]], before[:, [0, 2]], **EXACT)


@pytest.mark.parametrize("name", ["mha", "mma", "budgetformer"])
def test_mha_s_metric_is_block_diagonal_with_the_products_spectra(name, randomise, normal):
    layer, _ = build(randomise, name)
    _, (record,), _ = scores(layer, normal(2, L, D))
    parts = blocks(record.metric[0, 0], H)
    (wq, _), (wk, _), _ = layer.projections
    wq, wk = (w.unflatten(0, (H, -1)) for w in (wq, wk))
    for a in range(H):
        assert all((parts[a, b] == 0).all() for b in range(H) if a != b)
        values = torch.linalg.svdvals(wq[a].T @ wk[a])[: D // H]
        torch.testing.assert_close(torch.linalg.svdvals(parts[a, a]), values, **EXACT)


def test_talking_heads_are_the_off_diagonal_blocks(randomise, normal):
    layer, _ = build(randomise, "tha")
    _, (record,), _ = scores(layer, normal(2, L, D))
    parts, mix = blocks(record.metric[0, 0], H), layer.mix_logits.weight
    for a in range(H):
        for b in range(H):
            scaled = parts[b, b] * mix[a, b] / mix[b, b]
            torch.testing.assert_close(parts[a, b], scaled, **EXACT)


def test_experts_of_one_key_head_imply_no_metric(randomise, normal):
    layer = randomise(ATTENTIONS["moa"](D, H, batch_first=True).double())
    _, records, _ = scores(layer, normal(2, L, D))
    assert records == []


def test_directions_that_a_projection_does_not_reach_have_no_coordinate(normal):
    weight = normal(2, 4, 6)
    weight[0, 3] = weight[0, 2]
    root, inverse = roots(weight)
    product = weight @ weight.transpose(1, 2)
    torch.testing.assert_close(root @ root, product, **EXACT)
    torch.testing.assert_close(root @ inverse @ root, root, rtol=0, atol=1e-8)
    assert inverse.isfinite().all()
    for one in roots(torch.zeros(1, 3, 3)):
        assert (one == 0).all()


def test_two_threads_worth_of_edits_leave_the_layer_alone(randomise, normal):
    layer, _ = build(randomise, "iha")
    before, x = copy.deepcopy(layer.state_dict()), normal(2, L, D)
    plain = run(layer, x)
    with tap(layer, lambda metric, index: 0 * metric):
        run(layer, x)
    assert torch.equal(run(layer, x), plain)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())
