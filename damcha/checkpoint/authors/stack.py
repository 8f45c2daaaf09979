"""Their decoder's weights under our names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from damcha.attention.authors import RANK
from damcha.config import MetricConfig, ModelConfig
from damcha.errors import CheckpointError


class Tensors:
    """Their tensors by name; each is taken once, and none may be left."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.name, self.left = name, dict(tensors)

    def take(self, name: str, *shape: int) -> Tensor:
        """Remove a tensor and return it.

        Raises
        ------
        CheckpointError
            If it is missing, of another shape, or not finite.
        """
        if name not in self.left:
            raise CheckpointError(f"{self.name} lacks '{name}', which its config asks for")
        tensor = self.left.pop(name)
        if tensor.shape != shape:
            raise CheckpointError(
                f"{self.name}: '{name}' has shape {list(tensor.shape)}, but its config asks for "
                f"{list(shape)}"
            )
        bad = int((~tensor.isfinite()).sum())
        if bad:
            raise CheckpointError(
                f"{self.name} has non-finite weights: {bad:,} of the {tensor.numel():,} numbers of "
                f"'{name}' are NaN or infinite; import another epoch"
            )
        return tensor

    def linear(self, theirs: str, ours: str, n_in: int, n_out: int) -> dict[str, Tensor]:
        """Take a linear layer's weight [n_out, n_in] and bias, under our name."""
        return {
            f"{ours}.weight": self.take(f"{theirs}.weight", n_out, n_in),
            f"{ours}.bias": self.take(f"{theirs}.bias", n_out),
        }

    def drop(self, *endings: str) -> None:
        """Remove what no function reads."""
        for name in [name for name in self.left if name.rpartition(".")[2] in endings]:
            del self.left[name]

    def finish(self) -> None:
        """Refuse a file with tensors that were not taken: they might do something."""
        if self.left:
            shown = ", ".join(f"'{name[:80]}'" for name in list(self.left)[:3])
            more = f" and {len(self.left) - 3} more" if len(self.left) > 3 else ""
            raise CheckpointError(
                f"{self.name} holds {shown}{more}, which no model of its config has"
            )


def generator_state(
    tensors: Tensors, model: ModelConfig, prefix: str = "", bias_rank: int = 0
) -> dict[str, Tensor]:
    """Their generator under the names of :class:`damcha.attention.CrossHeadMetric`.

    Parameters
    ----------
    tensors
        Holds ``{prefix}mlp.{0,3,…}.weight`` and so on, or the constant ``{prefix}M0``.
    model
        The translated configuration.
    bias_rank
        Their rank r of the layer bias; ours is larger where scales were moved into it.
    """
    d, h, metric = model.d_model, model.n_heads, model.metric
    e = d // h
    if metric.generator == "static":
        return {"constant": tensors.take(f"{prefix}M0", d, d).flatten()}
    state: dict[str, Tensor] = {}
    n_out = 2 * d * metric.rank if metric.rank else d * d
    widths = (d, *metric.hidden_dims, n_out)
    step = 3 if metric.generator_dropout else 2  # ours: Linear, GELU, and Dropout if there is any
    for place in range(len(widths) - 1):
        name = "output" if place == len(widths) - 2 else f"hidden.{step * place}"
        theirs = f"{prefix}mlp.{3 * place}"
        state |= tensors.linear(theirs, name, widths[place], widths[place + 1])
    if metric.off_diagonal != "direct":
        for kind in ("weight", "bias"):
            rows = state[f"output.{kind}"].unflatten(0, (h, e, h, e))
            state[f"output.{kind}"] = torch.stack([rows[a, :, a] for a in range(h)]).flatten(0, 2)
    if metric.off_diagonal == "linear_combination":
        state["alpha"] = tensors.take(f"{prefix}off_diag_alpha", h, h, h)
    elif metric.off_diagonal == "separate":
        state["separate"] = tensors.take(f"{prefix}B", h, e, d)
    if metric.layer_bias_rank:
        state |= _layer_bias(
            tensors.take(f"{prefix}layer_bias_U", d, bias_rank),
            tensors.take(f"{prefix}layer_bias_V", d, bias_rank),
            tensors.take(f"{prefix}layer_scales", model.n_layers, bias_rank),
            metric, h,
        )  # fmt: skip
    for name, diagonal in (("diag_mask", True), ("off_diag_mask", False)):
        stored = tensors.left.pop(f"{prefix}{name}", None)
        mask = torch.block_diag(*[torch.ones(e, e)] * h)
        if stored is not None and not torch.equal(stored.float(), mask if diagonal else 1 - mask):
            raise CheckpointError(f"{tensors.name}: '{prefix}{name}' is not the mask of {h} heads")
    return state


def _layer_bias(
    u: Tensor, v: Tensor, scales: Tensor, metric: MetricConfig, h: int
) -> dict[str, Tensor]:
    """Their bias, scaled with M's blocks, as ours, which is added after the scales.

    (U s) Vᵀ with diagonal blocks times α and the others times β is β (U s) Vᵀ + (α−β) Σ_a (U_a s)
    V_aᵀ, where U_a is U with all rows but head a's zero: factors side by side, of rank r(h + 1).
    """
    on, off = metric.diagonal_scale, metric.off_diagonal_scale
    if on == off:
        return {"bias_u": u, "bias_v": v, "bias_scales": scales * on}

    def apart(factor: Tensor) -> Tensor:  # [d, r] → [d, h·r]
        return torch.block_diag(*factor.unflatten(0, (h, -1)).unbind(0))

    return {
        "bias_u": torch.cat((u, apart(u)), 1),
        "bias_v": torch.cat((v, apart(v)), 1),
        "bias_scales": torch.cat((scales * off, (scales * (on - off)).repeat(1, h)), 1),
    }


def stack_state(
    tensors: Tensors,
    model: ModelConfig,
    prefix: str = "",
    bias_rank: int = 0,
    baseline: str | None = None,
) -> dict[str, Tensor]:
    """Their decoder (``{prefix}layers.0.self_attn.…``) under the names of our Stack."""
    d = model.d_model
    shared: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}
    sharing = model.metric.sharing if model.attention == "damcha" else "none"
    if sharing != "none":
        theirs = f"{prefix}shared_mlp_module."
        _drop_copies(tensors, theirs, prefix, model.n_layers)
        shared = generator_state(tensors, model, theirs, bias_rank)
        if sharing == "stack":
            state |= {f"metric.{name}": value for name, value in shared.items()}
    for i in range(model.n_layers):
        old, new = f"{prefix}layers.{i}.", f"layers.{i}."
        attention = f"{old}self_attn."
        state |= tensors.linear(f"{attention}out_proj", f"{new}attention.out_proj", d, d)
        for place in (1, 2):
            for kind in ("weight", "bias"):
                state[f"{new}norm{place}.{kind}"] = tensors.take(f"{old}ln{place}.{kind}", d)
        state |= tensors.linear(f"{old}ff.net.0", f"{new}ff.0", d, model.d_ff)
        state |= tensors.linear(f"{old}ff.net.3", f"{new}ff.3", model.d_ff, d)
        if model.attention != "damcha":
            found = projections(tensors, model, attention, baseline)
            state |= {f"{new}attention.{name}": value for name, value in found.items()}
            continue
        state |= tensors.linear(f"{attention}W_v", f"{new}attention.value_proj", d, d)
        own = shared
        if sharing == "none":
            inner = "" if model.metric.generator == "static" else "_own_mlp."
            own = generator_state(tensors, model, attention + inner, bias_rank)
        if sharing != "stack":
            state |= {f"{new}attention.metric.{name}": value for name, value in own.items()}
    return state


def _drop_copies(tensors: Tensors, theirs: str, prefix: str, n_layers: int) -> None:
    """A shared generator is also stored under each layer: the copies must be copies."""
    for name in [name for name in tensors.left if name.startswith(theirs)]:
        for i in range(n_layers):
            copy = f"{prefix}layers.{i}.self_attn._shared_mlp.{name.removeprefix(theirs)}"
            tensor = tensors.left.pop(copy, None)
            if tensor is not None and not torch.equal(tensor, tensors.left[name]):
                raise CheckpointError(
                    f"{tensors.name}: '{copy}' differs from '{name}', though they are one generator"
                )


def projections(
    tensors: Tensors, model: ModelConfig, theirs: str, baseline: str | None
) -> dict[str, Tensor]:
    """W_Q, W_K, W_V stacked, and what the mechanism has besides."""
    d, h = model.d_model, model.n_heads
    if baseline == "moa":  # 2h experts, x @ W
        experts = [tensors.take(f"{theirs}W_{kind}", 2 * h, d, d // h) for kind in "qkv"]
        stacked = torch.cat([weight.transpose(1, 2).flatten(0, 1) for weight in experts])
        return {"in_proj_weight": stacked} | tensors.linear(f"{theirs}router", "router", d, 2 * h)
    shared = "shared_" if baseline == "colmha" else ""
    names = [f"{theirs}W_{shared}q", f"{theirs}W_{shared}k", f"{theirs}W_v"]
    weights = [tensors.take(f"{name}.weight", d, d) for name in names]
    biases = [
        torch.zeros_like(weight[:, 0])
        if shared and name != names[-1]  # theirs has none there
        else tensors.take(f"{name}.bias", d)
        for name, weight in zip(names, weights, strict=True)
    ]
    state = {"in_proj_weight": torch.cat(weights), "in_proj_bias": torch.cat(biases)}
    if baseline == "tha":
        for old, new in (("pre_proj", "mix_logits"), ("post_proj", "mix_probabilities")):
            state[f"{new}.weight"] = tensors.take(f"{theirs}{old}.weight", h, h)
    elif baseline == "colmha":
        state |= {name: tensors.take(theirs + name, h, h) for name in ("combine_q", "combine_k")}
    elif baseline == "dcmha":
        if h // 2 > RANK:
            raise CheckpointError(
                f"{tensors.name}: their 'dcmha' of {h} heads has a router of rank {h // 2}, and "
                f"damcha's has rank {RANK}; up to {2 * RANK + 1} heads can be imported"
            )
        state |= tensors.linear(f"{theirs}router.0", "router.0", d, RANK)
        state |= tensors.linear(f"{theirs}router.2", "router.2", RANK, h * h)
        state |= tensors.linear(f"{theirs}gate_proj", "gate", d, h)
    return state
