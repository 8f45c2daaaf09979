"""How published code computes each mechanism: yardsticks for our layers' speed.

Each function computes a layer's causal self-attention from the layer's own weights, with the
operations, in the order and layout, that the named public code uses (read as facts; only what it
computes per head or per pair of tokens matters for the time). BudgetFormer has no public code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from damcha.analysis.efficiency import Comparison, compare
from damcha.analysis.progress import Progress
from damcha.attention import ATTENTIONS, DCMHA, IHA, MMA, THA, Attention, ColMHA, MoA
from damcha.attention.composable import RANK
from damcha.attention.mha import MHA


def _qkv(layer: MHA, x: Tensor) -> list[Tensor]:
    """q, k, v [B, h, L, e] by three projections."""
    return [
        F.linear(x, w, b).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for w, b in layer.projections
    ]


def _future(x: Tensor) -> Tensor:
    length = x.shape[1]
    return torch.full((length, length), float("-inf"), dtype=x.dtype, device=x.device).triu(1)


def _merge(layer: Attention, out: Tensor) -> Tensor:
    return layer.out_proj(out.transpose(1, 2).flatten(2))


def talking_heads(layer: THA, x: Tensor) -> Tensor:
    """CaiT (facebookresearch/deit): mixing as a Linear over a permuted last axis."""
    q, k, v = _qkv(layer, x)
    scores = (q * layer.scale) @ k.transpose(-2, -1)
    scores = layer.mix_logits(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    weights = (scores + _future(x)).softmax(-1)
    weights = layer.mix_probabilities(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return _merge(layer, weights @ v)


def composable(layer: DCMHA, x: Tensor) -> Tensor:
    """DCFormer (Caiyun-AI): branches one by one, by einsum."""
    h = layer.num_heads
    q, k, v = _qkv(layer, x)
    hidden = F.gelu(torch.einsum("bld,cdk->blck", x, layer.dw1))
    w1, w2 = torch.einsum("blck,ckrh->blcrh", hidden, layer.qkw).split(RANK, dim=3)
    w1 = w1 * torch.rsqrt(w1.square().mean(-1, keepdim=True) + 1e-6)
    dd = torch.einsum("bld,cdh->blch", x, layer.dd).tanh()

    def compose(a: Tensor, of_query: int, of_key: int) -> Tensor:
        out = a
        for role, axis in ((of_query, "i"), (of_key, "j")):
            first = torch.einsum(f"bhij,b{axis}rh->brij", a, w1[:, :, role])
            out = out + torch.einsum(f"brij,b{axis}rh->bhij", first, w2[:, :, role])
        out = out + torch.einsum("bhij,bih->bhij", a, dd[:, :, of_query])
        return out + torch.einsum("bhij,bjh->bhij", a, dd[:, :, of_key])

    assert dd.shape[-1] == h
    scores = compose(q @ k.transpose(-2, -1) * layer.scale, 0, 1)
    weights = compose((scores + _future(x)).softmax(-1), 2, 3)
    return _merge(layer, weights @ v)


def collaborative(layer: ColMHA, x: Tensor) -> Tensor:
    """epfml/collaborative-attention: mixed queries against the key, which is broadcast to heads."""
    q, k = layer.query_proj(x), layer.key_proj(x)
    v = layer.value_proj(x).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
    mixed = q[:, None] * layer.mixing[:, None]
    scores = mixed @ k[:, None].transpose(-1, -2)
    scores = scores + layer.content_bias(x).transpose(-1, -2)[:, :, None]
    weights = (scores * layer.scale + _future(x)).softmax(-1)
    return _merge(layer, weights @ v)


def mixed_mask(layer: MMA, x: Tensor) -> Tensor:
    """erwinmsmith/DAMCHA: a mask a head, filled in a loop, then explicit probabilities."""
    q, k, v = _qkv(layer, x)
    length = x.shape[1]
    behind = torch.arange(length)[:, None] - torch.arange(length)
    masks = []
    for head in range(layer.num_heads):
        seen = behind >= 0
        if head % 4 == 1:
            seen = seen & (behind < layer.local_window)
        elif head % 4 == 3:
            seen = seen & (behind <= 0)
        masks.append(torch.zeros(length, length, dtype=x.dtype).masked_fill(~seen, float("-inf")))
    scores = q @ k.transpose(-2, -1) * layer.scale + torch.stack(masks).to(x.device)
    return _merge(layer, scores.softmax(-1) @ v)


def mixture(layer: MoA, x: Tensor) -> Tensor:
    """yikangshen/MoA: tokens sorted by expert, explicit probabilities of every chosen head."""
    gates, chosen = layer.gate(x).softmax(-1).topk(layer.top_k, dim=-1)
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    sizes = flat.bincount(minlength=layer.n_experts).tolist()
    rows = x.flatten(0, 1)[order // layer.top_k].split(sizes)
    q = torch.empty(len(flat), layer.head_dim, dtype=x.dtype, device=x.device)
    q[order] = torch.cat([part @ w for part, w in zip(rows, layer.query_experts, strict=True)])
    q = q.unflatten(0, chosen.shape)  # [B, L, k, e]
    k, v = layer.key_proj(x), layer.value_proj(x)
    scores = torch.einsum("bike,bje->bkij", q * layer.scale, k) + _future(x)
    out = torch.einsum("bkij,bje->bike", scores.softmax(-1), v)
    rows = out.flatten(0, 2)[order].split(sizes)
    experts = layer.out_proj.weight.split(layer.head_dim, dim=1)
    parts = torch.cat([part @ w.T for part, w in zip(rows, experts, strict=True)])
    parts = parts * gates.flatten()[order, None]
    y = torch.zeros_like(x.flatten(0, 1)).index_add(0, order // layer.top_k, parts)
    y = y.unflatten(0, x.shape[:2])
    return y if layer.out_proj.bias is None else y + layer.out_proj.bias


def interleaved(layer: IHA, x: Tensor) -> Tensor:
    """ArXiv 2602.21371 as its algorithm is written: einsum mixing, explicit probabilities."""
    p, length = layer.pseudo_heads, x.shape[1]
    q, k, v = (
        torch.einsum("bmle,mhp->bhlpe", part, alpha).flatten(2, 3)
        for part, alpha in zip(_qkv(layer, x), layer.alpha, strict=True)
    )
    scores = q @ k.transpose(-2, -1) * layer.scale
    token = torch.arange(length * p, device=x.device) // p
    scores = scores.masked_fill(token[:, None] < token, float("-inf"))
    out = (scores.softmax(-1) @ v).unflatten(2, (length, p))  # [B, h, L, P, e]
    return _merge(layer, torch.einsum("ihp,bhlpe->bile", layer.collapse.unflatten(1, (-1, p)), out))


PUBLISHED_CODE: dict[str, tuple[Callable[..., Tensor], str]] = {
    "tha": (talking_heads, "CaiT"),
    "dcmha": (composable, "DCFormer"),
    "colmha": (collaborative, "epfml"),
    "mma": (mixed_mask, "the DAMCHA repository"),
    "moa": (mixture, "yikangshen/MoA"),
    "iha": (interleaved, "its algorithm"),
}
"""Mechanism → how published code computes it, and whose."""


def against_published(
    *,
    d_model: int = 256,
    n_heads: int = 8,
    seq_len: int = 128,
    batch: int = 4,
    repeats: int = 9,
    device: str = "cpu",
    seed: int = 0,
) -> Iterator[Progress | tuple[Comparison, ...]]:
    """Our layers against published code's way, on the same weights and input; causal.

    Yields progress, and last of all the comparisons: forward, then forward and backward.
    """
    torch.manual_seed(seed)
    x = torch.randn(batch, seq_len, d_model, device=device)
    found: list[Comparison] = []
    total = 2 * len(PUBLISHED_CODE)
    for name, (written, whose) in PUBLISHED_CODE.items():
        layer = ATTENTIONS[name](d_model, n_heads, batch_first=True, device=device)

        def ours(layer: Attention = layer) -> Tensor:
            out: Tensor = layer(x, x, x, need_weights=False, is_causal=True)[0]
            return out

        def theirs(layer: Attention = layer, written: Callable[..., Tensor] = written) -> Tensor:
            return written(layer, x)

        def trained(work: Callable[[], Tensor], layer: Attention = layer) -> Callable[[], None]:
            def run() -> None:
                layer.zero_grad(set_to_none=True)
                work().sum().backward()

            return run

        forward = (torch.no_grad()(ours), torch.no_grad()(theirs))
        both = (trained(ours), trained(theirs))
        for what, (mine, other) in (("forward", forward), ("forward+backward", both)):
            yield Progress(len(found), total, f"{name}, {what}")
            found.append(compare(f"{name}, {what}", mine, whose, other, repeats, 1.0))
    yield tuple(found)
