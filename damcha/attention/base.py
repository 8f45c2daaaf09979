"""The contract of every attention mechanism: the interface of ``torch.nn.MultiheadAttention``.

:class:`Attention` does what all mechanisms share: layouts, masks, padding, rotary positions, the
cache, fused or explicit probabilities. A mechanism says in :meth:`Attention.project` what its
queries, keys and values are.

Conventions
-----------
* A query whose keys are all masked gives a zero output row and zero gradients.
* In self-attention a padded token is nothing: its input is replaced by zeros (it may hold NaN),
  and its output row is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from damcha.attention.positions import rotary_angles, rotate
from damcha.errors import ConfigError, InputError
from damcha.tap import report, wants


@dataclass(eq=False)
class Cache:
    """What one attention layer keeps of the tokens it has seen; owned by the caller."""

    keys: Tensor | None = None
    values: Tensor | None = None
    padding: Tensor | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """State of the mechanism itself, e.g. the running context of a DAMCHA generator."""

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        return 0 if self.keys is None else self.keys.shape[2]

    def append(
        self, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add new tokens and return everything seen: keys, values, padding."""
        if padding is not None or self.padding is not None:
            batch, seen, new = keys.shape[0], self.length, keys.shape[2]
            old = self.padding
            if old is None:
                old = torch.zeros(batch, seen, dtype=torch.bool, device=keys.device)
            if padding is None:
                padding = torch.zeros(batch, new, dtype=torch.bool, device=keys.device)
            self.padding = torch.cat((old, padding), dim=1)
        self.keys = keys if self.keys is None else torch.cat((self.keys, keys), dim=2)
        self.values = values if self.values is None else torch.cat((self.values, values), dim=2)
        return self.keys, self.values, self.padding


def split_heads(x: Float[Tensor, "batch tokens d"], n_heads: int) -> Tensor:
    """[batch, tokens, d] → [batch, heads, tokens, e]; head a holds channels [a·e, (a+1)·e)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Base of all mechanisms; constructor and forward as in ``torch.nn.MultiheadAttention``."""

    # torch.nn.TransformerEncoderLayer reads this to decide on its C++ fast path, which would
    # compute plain MHA from the weights and bypass any other mechanism without a word.
    _qkv_same_embed_dim = False
    layer = 0
    """Index in the stack, under which captures are filed."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ConfigError(
                f"num_heads: embed_dim={embed_dim} is not divisible by num_heads={num_heads}"
            )
        if rotary and embed_dim // num_heads % 2:
            raise ConfigError(
                f"rotary: head width {embed_dim // num_heads} is odd, and rotary positions turn "
                "pairs of channels; use an even embed_dim/num_heads"
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.head_dim = embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.batch_first, self.rotary, self.add_zero_attn = batch_first, rotary, add_zero_attn
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        # Read by torch.nn.TransformerEncoderLayer, which expects the name on any attention.
        self.register_parameter("in_proj_bias", None)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias, **factory)
        if add_bias_kv:
            self.bias_k = nn.Parameter(torch.empty(1, 1, embed_dim, **factory))
            self.bias_v = nn.Parameter(torch.empty(1, 1, embed_dim, **factory))
            nn.init.xavier_normal_(self.bias_k)
            nn.init.xavier_normal_(self.bias_v)
        else:
            self.register_parameter("bias_k", None)
            self.register_parameter("bias_v", None)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def project(
        self,
        query: Float[Tensor, "batch query d"],
        key: Float[Tensor, "batch key kdim"],
        value: Float[Tensor, "batch key vdim"],
        padding: Tensor | None,
        causal: bool,
        cache: Cache | None,
        **given: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [batch, heads, tokens, channels]; keys may have 1 head.

        Scores are q·kᵀ/√e whatever the number of channels.
        """
        raise NotImplementedError

    def split_bias_k(self, bias_k: Tensor) -> Tensor:
        """The learned extra key (``add_bias_kv``) in the layout of :meth:`project`'s keys."""
        return split_heads(bias_k, self.num_heads)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: Cache | None = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, with shapes, masks and defaults as in ``torch.nn.MultiheadAttention``.

        ``is_causal`` masks the future by itself, whether or not ``attn_mask`` says so too. With a
        `cache`, `query`, `key` and `value` are the new tokens only and attend to all seen ones.

        Raises
        ------
        InputError
            If shapes or mask types do not fit.
        ConfigError
            If the mechanism cannot be causal as it is configured.
        """
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.is_nested:
                raise InputError(f"{name}: nested tensors are not supported; pad and pass a mask")
        same_kv, is_self = value is key, key is query
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        self._check_shapes(query, key, value, key_padding_mask)
        n_new, n_keys = query.shape[1], key.shape[1]

        padding, key_bias = self._padding(key_padding_mask, query.dtype)
        if padding is not None:
            # NaN in a pad would survive any mask (0 · NaN), so pads are emptied first.
            key = key.masked_fill(padding[..., None], 0)
            value = value if same_kv else value.masked_fill(padding[..., None], 0)
        # One tensor again where one was given: a mechanism may project it in one product.
        value = key if same_kv else value
        query = key if is_self else query
        if wants(self, "inputs"):
            report(self, "inputs", self.layer, query)

        seen = cache.length if cache is not None else 0
        causal = is_causal or self._is_causal(attn_mask)
        q, k, v = self.project(query, key, value, padding, causal, cache, **given)
        if self.rotary:
            q = rotate(q, rotary_angles(n_new, self.head_dim, seen, like=q))
            k = rotate(k, rotary_angles(n_keys, self.head_dim, seen, like=k))
        all_padding = padding
        if cache is not None:
            k, v, all_padding = cache.append(k, v, padding)

        allowed, bias = self._masks(attn_mask, all_padding, key_bias, is_causal, seen, q, k)
        k, v, allowed, bias = self._extra_keys(k, v, allowed, bias)
        out, weights = self._attend(q, k, v, allowed, bias, is_causal and seen == 0, need_weights)

        out = out.transpose(1, 2).flatten(2)  # [B, L, d]
        out = self.out_proj(out)
        dead = self._dead_rows(allowed)
        if dead is not None:
            out = out.masked_fill(dead.all(1), 0)
        if padding is not None and is_self:
            out = out.masked_fill(padding[..., None], 0)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out[0], None if weights is None else weights[0]
        return (out if self.batch_first else out.transpose(0, 1)), weights

    # ---------------------------------------------------------------- masks

    def _check_shapes(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None
    ) -> None:
        if query.dim() != 3 or key.dim() != 3 or value.dim() != 3:
            raise InputError(
                "query, key and value must all have 3 axes (or all 2, without a batch); got "
                f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
            )
        widths = (query.shape[2], key.shape[2], value.shape[2])
        if widths != (self.embed_dim, self.kdim, self.vdim):
            raise InputError(
                f"widths of query, key, value are {widths}; this layer was built for "
                f"{(self.embed_dim, self.kdim, self.vdim)}"
            )
        if key.shape[:2] != value.shape[:2] or key.shape[0] != query.shape[0]:
            raise InputError(
                f"query, key, value do not belong together: {tuple(query.shape)}, "
                f"{tuple(key.shape)}, {tuple(value.shape)} (batch first)"
            )
        if key_padding_mask is not None and key_padding_mask.shape != key.shape[:2]:
            raise InputError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}; "
                f"expected {tuple(key.shape[:2])} (batch, keys)"
            )

    def _padding(
        self, mask: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None]:
        """Split a key padding mask into True-is-pad and an additive rest (float masks)."""
        if mask is None:
            return None, None
        if mask.dtype == torch.bool:
            return mask, None
        if not mask.is_floating_point():
            raise InputError(f"key_padding_mask must be bool or float, not {mask.dtype}")
        padding = mask == float("-inf")
        return padding, mask.masked_fill(padding, 0).to(dtype)

    @staticmethod
    def _is_causal(attn_mask: Tensor | None) -> bool:
        """Whether a mask hides every future key: then the mechanism must not look there either."""
        if attn_mask is None or attn_mask.dim() < 2 or not attn_mask.numel():
            return False
        if attn_mask.shape[-1] != attn_mask.shape[-2]:
            return False
        # Many write a large finite number for -inf; e^-10000 is 0 in every floating-point type.
        hidden = attn_mask if attn_mask.dtype == torch.bool else attn_mask <= -1e4
        length = attn_mask.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
        return length > 1 and bool((hidden | ~future).all())

    def _masks(
        self,
        attn_mask: Tensor | None,
        padding: Tensor | None,
        key_bias: Tensor | None,
        is_causal: bool,
        seen: int,
        q: Tensor,
        k: Tensor,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Merge all masks: True-is-allowed and an additive bias, each [B|1, h|1, query, key].

        A purely causal mask stays None: the fused kernels know it.
        """
        batch, n_queries, n_keys = q.shape[0], q.shape[2], k.shape[2]
        allowed = bias = None
        if attn_mask is not None:
            if attn_mask.dim() == 3:
                if attn_mask.shape[0] != batch * self.num_heads:
                    raise InputError(
                        f"attn_mask has shape {tuple(attn_mask.shape)}; a 3-axis mask needs "
                        f"batch · heads = {batch * self.num_heads} rows"
                    )
                attn_mask = attn_mask.unflatten(0, (batch, self.num_heads))
            elif attn_mask.dim() == 2:
                attn_mask = attn_mask[None, None]
            if attn_mask.dim() != 4 or attn_mask.shape[-2:] != (n_queries, n_keys):
                raise InputError(
                    f"attn_mask has shape {tuple(attn_mask.shape)}; "
                    f"expected (..., {n_queries}, {n_keys})"
                )
            if attn_mask.dtype == torch.bool:
                allowed = ~attn_mask
            elif attn_mask.is_floating_point():
                allowed = attn_mask != float("-inf")
                bias = attn_mask.masked_fill(~allowed, 0).to(q.dtype)
            else:
                raise InputError(f"attn_mask must be bool or float, not {attn_mask.dtype}")
        if padding is not None:
            real = ~padding[:, None, None, :]
            allowed = real if allowed is None else allowed & real
        if key_bias is not None:
            row = key_bias[:, None, None, :]
            bias = row if bias is None else bias + row
        extra = self.bias_k is not None or self.add_zero_attn
        needs_causal = is_causal and n_keys > seen + 1
        if needs_causal and (seen or allowed is not None or bias is not None or extra):
            past = torch.ones(1, 1, n_queries, n_keys, dtype=torch.bool, device=q.device).tril(seen)
            allowed = past if allowed is None else allowed & past
        if allowed is not None:
            allowed = allowed.expand(-1, -1, n_queries, -1)
        return allowed, bias

    def _extra_keys(
        self, k: Tensor, v: Tensor, allowed: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Append the learned key (``add_bias_kv``) and the zero key (``add_zero_attn``)."""
        batch = k.shape[0]
        new_k, new_v = [k], [v]
        if self.bias_k is not None and self.bias_v is not None:
            new_k.append(self.split_bias_k(self.bias_k).expand(batch, k.shape[1], -1, -1))
            new_v.append(split_heads(self.bias_v, self.num_heads).expand(batch, -1, -1, -1))
        if self.add_zero_attn:
            new_k.append(torch.zeros_like(k[:, :, :1]))
            new_v.append(torch.zeros_like(v[:, :, :1]))
        added = len(new_k) - 1
        if not added:
            return k, v, allowed, bias
        if allowed is not None:
            allowed = F.pad(allowed, (0, added), value=True)
        if bias is not None:
            bias = F.pad(bias, (0, added))
        return torch.cat(new_k, 2), torch.cat(new_v, 2), allowed, bias

    @staticmethod
    def _dead_rows(allowed: Tensor | None) -> Tensor | None:
        """Queries without a key, [B|1, h|1, query, 1], or None where no mask can empty a row."""
        return None if allowed is None else ~allowed.any(-1, keepdim=True)

    # ---------------------------------------------------------------- probabilities

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Tensor | None,
        bias: Tensor | None,
        fused_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """softmax(q kᵀ/√e + masks) v, fused unless somebody wants to see the probabilities."""
        scale = self.head_dim**-0.5
        dropout = self.dropout if self.training else 0.0
        dead = self._dead_rows(allowed)
        if allowed is not None and dead is not None:
            # An empty row is NaN in softmax and in its gradient: open it, then zero the result.
            allowed = allowed | dead
        mask = allowed
        if bias is not None:
            mask = bias if allowed is None else torch.where(allowed, bias, float("-inf"))
        fused_causal = fused_causal and mask is None and k.shape[2] > 1

        # One key for all heads of another width than the values: fused kernels do not take it.
        one_key = k.shape[1] != q.shape[1]
        explicit = need_weights or wants(self, "attention") or wants(self, "scores")
        if not explicit and not one_key:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=fused_causal, scale=scale
            )
            return (out if dead is None else out.masked_fill(dead, 0)), None

        if one_key:  # all heads' queries in one product: broadcasting would copy the key h times
            scores = q.flatten(1, 2) @ k[:, 0].transpose(-2, -1) * scale
            scores = scores.unflatten(1, (q.shape[1], -1))
        else:
            scores = q @ k.transpose(-2, -1) * scale
        report(self, "scores", self.layer, scores)
        if fused_causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            if mask.dtype == torch.bool:
                scores = scores.masked_fill(~mask, float("-inf"))
            else:
                scores = scores + mask
        weights = scores.softmax(-1)
        if dead is not None:
            weights = weights.masked_fill(dead, 0)
        report(self, "attention", self.layer, weights)
        weights = F.dropout(weights, dropout)
        return weights @ v, (weights if need_weights else None)
