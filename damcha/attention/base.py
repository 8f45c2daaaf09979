"""The contract of every attention mechanism: the interface of ``torch.nn.MultiheadAttention``.

:class:`Attention` does what all mechanisms share: layouts, masks, padding, rotary positions, the
cache, fused or explicit probabilities. A mechanism says in :meth:`Attention.project` what its
queries, keys and values are, and overrides of the rest only what it does differently:

=================== =======================================================================
visible             which keys a head may see at all (a hard mask of its own)
key_bias            a number added to all scores of a key
mix_scores          scores before masks and softmax   (then ``explicit = True``: not fused)
mix_weights         probabilities after softmax
combine             what becomes of the heads' outputs
=================== =======================================================================

Conventions
-----------
* A query whose keys are all masked gives a zero output row and zero gradients.
* In self-attention a padded token is nothing: its input is replaced by zeros (it may hold NaN),
  and its output row is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from damcha.attention.implied import Implied
from damcha.attention.metric import row_sum
from damcha.attention.positions import rotary_angles, rotate
from damcha.errors import CaptureError, ConfigError, InputError
from damcha.tap import MetricRecord, edit_metric, listening, report, report_metric, wants


def mix_heads(weight: Float[Tensor, "new old"], x: Float[Tensor, "batch old *rest"]) -> Tensor:
    """Σ_a weight[g, a] x[:, a].

    One product of expanded matrices: a broadcast ``weight @ x`` copies x transposed first, which
    takes 5 times as long (8 heads, 49 to 128 tokens, one CPU thread).
    """
    mixed = torch.bmm(weight.expand(len(x), -1, -1), x.flatten(2))
    return mixed.unflatten(2, x.shape[2:])


@dataclass(frozen=True, eq=False)
class Heads:
    """What a mechanism makes of the inputs of one call.

    Scores are q·kᵀ/√e whatever the number of channels.
    """

    q: Float[Tensor, "batch heads query channels"]
    k: Float[Tensor, "batch heads_or_1 key channels"]
    v: Float[Tensor, "batch heads_or_1 key value_channels"]
    of_queries: Float[Tensor, "batch query n"] | None = None
    """What else the mechanism needs of each query token."""
    of_keys: Float[Tensor, "batch key n"] | None = None
    """… and of each key token; kept in the cache beside the keys."""
    change: Float[Tensor, "batch heads query width"] | None = None
    """Queries that an edit of the implied metric adds, against all heads' keys side by side."""
    routing: Any = None
    """Anything else that a mechanism hands from :meth:`Attention.project` to its later steps."""


@dataclass(eq=False)
class Cache:
    """What one attention layer keeps of the tokens it has seen; owned by the caller."""

    keys: Tensor | None = None
    values: Tensor | None = None
    of_keys: Tensor | None = None
    padding: Tensor | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """State of the mechanism itself, e.g. the running context of a DAMCHA generator; each has a
    method `select` like the cache's."""

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, heads: Heads, padding: Tensor | None) -> tuple[Heads, Tensor | None]:
        """Add new tokens; return the heads with the keys of everything seen, and its padding."""
        if padding is not None or self.padding is not None:
            batch, seen, new = heads.k.shape[0], self.length, heads.k.shape[2]
            old = self.padding
            if old is None:
                old = torch.zeros(batch, seen, dtype=torch.bool, device=heads.k.device)
            if padding is None:
                padding = torch.zeros(batch, new, dtype=torch.bool, device=heads.k.device)
            self.padding = torch.cat((old, padding), dim=1)
        self.keys = heads.k if self.keys is None else torch.cat((self.keys, heads.k), dim=2)
        self.values = heads.v if self.values is None else torch.cat((self.values, heads.v), dim=2)
        if heads.of_keys is not None:
            of_keys = [heads.of_keys] if self.of_keys is None else [self.of_keys, heads.of_keys]
            self.of_keys = torch.cat(of_keys, dim=1)
        return replace(heads, k=self.keys, v=self.values, of_keys=self.of_keys), self.padding

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Go on with these examples of the batch, in this order, some more than once."""
        for name in ("keys", "values", "of_keys", "padding"):
            kept = getattr(self, name)
            if kept is not None:
                setattr(self, name, kept[rows])
        for state in self.extra.values():
            state.select(rows)


def split_heads(x: Float[Tensor, "batch tokens d"], n_heads: int) -> Tensor:
    """[batch, tokens, d] → [batch, heads, tokens, e]; head a holds channels [a·e, (a+1)·e)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer, its layout settled (batch first) and its pads emptied."""

    query: Float[Tensor, "batch query d"]
    key: Float[Tensor, "batch key kdim"]
    value: Float[Tensor, "batch key vdim"]
    padding: Bool[Tensor, "batch key"] | None
    """True at pads, whose input is zero already."""
    key_bias: Float[Tensor, "batch key"] | None
    attn_mask: Tensor | None
    is_causal: bool
    """The future is to be masked."""
    causal: bool
    """The future is hidden, by `is_causal` or by `attn_mask`."""
    seen: int
    """Tokens in the cache."""
    cache: Cache | None
    need_weights: bool
    given: dict[str, Any]
    """What else the caller handed to `forward`, e.g. a shared metric."""


class Attention(nn.Module):
    """Base of all mechanisms; constructor and forward as in ``torch.nn.MultiheadAttention``."""

    # torch.nn.TransformerEncoderLayer reads this to decide on its C++ fast path, which would
    # compute plain MHA from the weights and bypass any other mechanism without a word.
    _qkv_same_embed_dim = False
    layer = 0
    """Index in the stack, under which captures are filed."""
    explicit: ClassVar[bool] = False
    """Whether the probabilities must be formed, so that no fused kernel can be used."""
    LENS: ClassVar[str] = ""
    """What the blocks of the implied metric are, in a sentence; "" where there is none."""
    heads_meet: ClassVar[bool] = False
    """Whether the implied metric has blocks off its diagonal, so that a sum over a row of blocks
    adds forms in different bases."""
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """The fields of MechanismConfig that are keyword arguments of this mechanism."""

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
        head_dim: int | None = None,
        k_width: int | None = None,
        v_width: int | None = None,
    ) -> None:
        """As in ``torch.nn.MultiheadAttention``; the last three are for subclasses.

        `head_dim` is the e of the scale 1/√e (embed_dim/num_heads), `k_width` and `v_width` the
        channels of all keys and of all values of a token (embed_dim).
        """
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or (head_dim is None and embed_dim % num_heads):
            raise ConfigError(
                f"num_heads: embed_dim={embed_dim} is not divisible by num_heads={num_heads}"
            )
        self.head_dim = head_dim or embed_dim // num_heads
        if rotary and self.head_dim % 2:
            raise ConfigError(
                f"rotary: head width {self.head_dim} is odd, and rotary positions turn "
                "pairs of channels; use an even embed_dim/num_heads"
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        k_width, v_width = k_width or embed_dim, v_width or embed_dim
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.batch_first, self.rotary, self.add_zero_attn = batch_first, rotary, add_zero_attn
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        # Read by torch.nn.TransformerEncoderLayer, which expects the name on any attention.
        self.register_parameter("in_proj_bias", None)
        self.out_proj = nn.Linear(v_width, embed_dim, bias, **factory)
        if add_bias_kv:
            self.bias_k = nn.Parameter(torch.empty(1, 1, k_width, **factory))
            self.bias_v = nn.Parameter(torch.empty(1, 1, v_width, **factory))
            nn.init.xavier_normal_(self.bias_k)
            nn.init.xavier_normal_(self.bias_v)
        else:
            self.register_parameter("bias_k", None)
            self.register_parameter("bias_v", None)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def project(self, call: Call) -> Heads:
        """Queries, keys and values of the new tokens.

        Where ``call.causal``, none may depend on later tokens. With a cache the inputs continue the
        tokens it has seen; what it must remember beside the keys goes to ``call.cache.extra``.
        """
        raise NotImplementedError

    @property
    def scale(self) -> float:
        """What scores are multiplied by: 1/√e."""
        return float(self.head_dim**-0.5)

    def split_bias(self, bias_k: Tensor, bias_v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned extra key and value (``add_bias_kv``) in the layout of :meth:`project`."""
        return split_heads(bias_k, self.num_heads), split_heads(bias_v, self.num_heads)

    def visible(self, queries: Tensor, keys: Tensor) -> Bool[Tensor, "one heads query key"] | None:
        """Which keys a head may see, given the positions of queries and keys; None for all."""
        return None

    def key_bias(self, heads: Heads) -> Float[Tensor, "batch heads one key"] | None:
        """Numbers added to the scores of each key; None for none."""
        return None

    def mix_scores(self, scores: Tensor, heads: Heads) -> Tensor:
        """Change the scores before masks and softmax, [B, h, query, key] (where `explicit`)."""
        return scores

    def mix_weights(self, weights: Tensor, heads: Heads, allowed: Tensor | None) -> Tensor:
        """Change the probabilities, [B, h, query, key] (where `explicit`)."""
        return weights

    def implied(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Implied | None:
        """The cross-head metric that the mechanism implies (:mod:`damcha.attention.implied`).

        `heads` has queries before rotary positions, and what is known of all keys seen so far.
        Which of them a query sees: `allowed` [B|1, h|1, query, key]; where that is None, all, or
        with `causal` those up to its own. None where there is no such metric.
        """
        return None

    def of_bias(self) -> Float[Tensor, "one one n"] | None:
        """What the learned extra key brings beside itself (:attr:`Heads.of_keys`); None for 0."""
        return None

    def side_by_side(self, heads: Heads) -> Float[Tensor, "batch key width"]:
        """All heads' keys side by side, as edits of the implied metric meet them."""
        return heads.k.transpose(1, 2).flatten(2)

    def per_token(self, values: Tensor, what: Literal["scores", "attention"]) -> Tensor:
        """Scores or probabilities as they are shown: one row a query token, one column a key."""
        return values

    def combine(self, out: Tensor, heads: Heads) -> Float[Tensor, "batch query d"]:
        """Make the heads' outputs [B, h, query, channels] the output of the layer."""
        return self.out_proj(out.transpose(1, 2).flatten(2))

    @classmethod
    def parameter_count(cls, d_model: int, n_heads: int, **options: Any) -> int:
        """Parameters of a layer without biases, by formula: nothing is allocated.

        A configuration's size is bounded by it; 4d² where a mechanism says nothing.
        """
        return 4 * d_model**2

    @classmethod
    def multiply_adds(cls, d_model: int, n_heads: int, seq_len: int, **options: Any) -> int:
        """Multiply-adds of a forward pass over one sequence, by formula (matrix products only).

        Raises
        ------
        ConfigError
            Where a mechanism has none.
        """
        raise ConfigError(
            f"attention: {cls.__name__} has no formula for its multiply-adds; override "
            "Attention.multiply_adds to measure it"
        )

    def take_over(self, old: nn.MultiheadAttention) -> None:
        """Copy from a layer of torch's own what has a counterpart here: here the output."""
        with torch.no_grad():
            if old.out_proj.weight.shape == self.out_proj.weight.shape:
                self.out_proj.load_state_dict(old.out_proj.state_dict())

    def set_progress(self, progress: float) -> None:
        """Told before each training step: the share of the training that is done, 0 to 1."""

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
        out, weights, dead = self._run(Call(
            query, key, value, padding, key_bias, attn_mask, is_causal, causal, seen, cache,
            need_weights, given,
        ))  # fmt: skip
        if dead is not None:
            out = out.masked_fill(dead.all(1), 0)
        if padding is not None and is_self:
            out = out.masked_fill(padding[..., None], 0)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out[0], None if weights is None else weights[0]
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _run(self, call: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """From clean inputs to output [B, L, d], probabilities, and the queries without a key."""
        heads = self.project(call)
        heads, padding = replace(heads, k=self.turned(heads.k, call.seen)), call.padding
        if call.cache is not None:
            heads, padding = call.cache.append(heads, padding)
        allowed, bias = self._masks(call, padding, heads.k.shape[2], self.key_bias(heads))
        fused_causal = call.is_causal and call.seen == 0
        if listening(self):
            heads = self._lens(heads, allowed, fused_causal)
        change = None if heads.change is None else self.turned(heads.change, call.seen)
        heads = replace(heads, q=self.turned(heads.q, call.seen), change=change)
        heads, allowed, bias = self._extra_keys(heads, allowed, bias)
        out, weights = self._attend(heads, allowed, bias, fused_causal, call.need_weights)
        return self.combine(out, heads), weights, self._dead_rows(allowed)

    def turned(self, x: Tensor, seen: int) -> Tensor:
        """Rotary positions, where this layer has them, after `seen` tokens."""
        if not self.rotary:
            return x
        return rotate(x, rotary_angles(x.shape[2], self.head_dim, seen, like=x))

    def _lens(self, heads: Heads, allowed: Tensor | None, causal: bool) -> Heads:
        """Report the implied metric to the open taps; where one edits it, note the change."""
        found = self.implied(heads, allowed, causal)
        if found is None:
            return heads
        metric = edit_metric(self, found.metric, self.layer, len(heads.q))
        rows = row_sum(metric, self.num_heads)
        report_metric(self, MetricRecord(self.layer, metric, rows, None, found.stride))
        if metric is found.metric:
            return heads
        unknown = 0 if heads.of_keys is None else heads.k.shape[2] - heads.of_keys.shape[1]
        if unknown:
            raise CaptureError(
                f"cache: {unknown} of its tokens came before this tap was opened, so their own "
                "keys are not known; fill an empty one within the tap"
            )
        return replace(heads, change=found.scores_of(metric - found.metric))

    def looked_at(self, need_weights: bool) -> bool:
        """Whether somebody wants to see scores or probabilities of this call."""
        return need_weights or wants(self, "attention") or wants(self, "scores")

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
        self, call: Call, padding: Tensor | None, n_keys: int, bias: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Merge all masks: True-is-allowed and an additive bias, each [B|1, h|1, query, key].

        A purely causal mask stays None: the fused kernels know it.
        """
        attn_mask, key_bias, seen = call.attn_mask, call.key_bias, call.seen
        batch, n_queries = call.query.shape[:2]
        keys = torch.arange(n_keys, device=call.query.device)
        queries = torch.arange(seen, seen + n_queries, device=keys.device)
        allowed = self.visible(queries, keys)
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
                allowed = _both(allowed, ~attn_mask)
            elif attn_mask.is_floating_point():
                finite = attn_mask != float("-inf")
                allowed = _both(allowed, finite)
                bias = _total(bias, attn_mask.masked_fill(~finite, 0).to(call.query.dtype))
            else:
                raise InputError(f"attn_mask must be bool or float, not {attn_mask.dtype}")
        if padding is not None:
            allowed = _both(allowed, ~padding[:, None, None, :])
        if key_bias is not None:
            bias = _total(bias, key_bias[:, None, None, :])
        extra = self.bias_k is not None or self.add_zero_attn
        needs_causal = call.is_causal and n_keys > seen + 1
        if needs_causal and (seen or allowed is not None or bias is not None or extra):
            allowed = _both(allowed, (queries[:, None] >= keys)[None, None])
        if allowed is not None:
            allowed = allowed.expand(-1, -1, n_queries, -1)
        return allowed, bias

    def _extra_keys(
        self, heads: Heads, allowed: Tensor | None, bias: Tensor | None
    ) -> tuple[Heads, Tensor | None, Tensor | None]:
        """Append the learned key (``add_bias_kv``) and the zero key (``add_zero_attn``)."""
        batch, k, v = heads.k.shape[0], heads.k, heads.v
        new_k, new_v = [k], [v]
        if self.bias_k is not None and self.bias_v is not None:
            for one, new in zip(
                self.split_bias(self.bias_k, self.bias_v), (new_k, new_v), strict=True
            ):
                new.append(one.expand(batch, -1, -1, -1))
        if self.add_zero_attn:
            new_k.append(k.new_zeros(*k.shape[:2], 1, k.shape[3]))
            new_v.append(v.new_zeros(*v.shape[:2], 1, v.shape[3]))
        added = len(new_k) - 1
        if not added:
            return heads, allowed, bias
        if allowed is not None:
            allowed = F.pad(allowed, (0, added), value=True)
        if bias is not None:
            bias = F.pad(bias, (0, added))
        of_keys = heads.of_keys
        if of_keys is not None:
            learned = self.of_bias()
            if learned is not None:
                of_keys = torch.cat((of_keys, learned.expand(batch, -1, -1)), 1)
            of_keys = F.pad(of_keys, (0, 0, 0, added - (learned is not None)))
        heads = replace(heads, k=torch.cat(new_k, 2), v=torch.cat(new_v, 2), of_keys=of_keys)
        return heads, allowed, bias

    @staticmethod
    def _dead_rows(allowed: Tensor | None) -> Tensor | None:
        """Queries without a key, [B|1, h|1, query, 1], or None where no mask can empty a row."""
        return None if allowed is None else ~allowed.any(-1, keepdim=True)

    # ---------------------------------------------------------------- probabilities

    def _attend(
        self,
        heads: Heads,
        allowed: Tensor | None,
        bias: Tensor | None,
        fused_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """softmax(q kᵀ/√e + masks) v, fused unless somebody must see the probabilities."""
        q, k, v = heads.q, heads.k, heads.v
        scale = self.scale
        dropout = self.dropout if self.training else 0.0
        dead = self._dead_rows(allowed)
        if allowed is not None and dead is not None:
            # An empty row is NaN in softmax and in its gradient: open it, then zero the result.
            allowed = allowed | dead
        fused_causal = fused_causal and allowed is None and bias is None and k.shape[2] > 1

        # One key for all heads of another width than the values: fused kernels do not take it.
        one_key = k.shape[1] != q.shape[1]
        explicit = (
            self.explicit
            or heads.change is not None
            or self.looked_at(need_weights)
            or (one_key and q.shape[-1] != v.shape[-1])
        )
        if not explicit:
            if one_key:
                k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
            mask = allowed
            if bias is not None:
                mask = bias if allowed is None else torch.where(allowed, bias, float("-inf"))
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=fused_causal, scale=scale
            )
            return (out if dead is None else out.masked_fill(dead, 0)), None

        # Passes over [B, h, L, L] are what this path costs: keys are scaled, not scores; masks are
        # added where they are small, not merged first, and added rather than filled in.
        keys = (k * scale).transpose(-2, -1)
        if one_key:  # all heads' queries in one product: broadcasting would copy the key h times
            scores = (q.flatten(1, 2) @ keys[:, 0]).unflatten(1, (q.shape[1], -1))
        else:
            scores = q @ keys
        scores = self.mix_scores(scores, heads)
        if heads.change is not None:
            added = heads.change.flatten(1, 2) @ self.side_by_side(heads).transpose(1, 2) * scale
            scores = scores + added.unflatten(1, (-1, heads.change.shape[2]))
        report(self, "scores", self.layer, self.per_token(scores, "scores"))
        if fused_causal:
            allowed = torch.ones_like(scores[:1, :1], dtype=torch.bool).tril()
        if bias is not None:
            scores = scores + bias
        if allowed is not None:
            hidden = torch.zeros_like(allowed, dtype=scores.dtype)
            scores = scores + hidden.masked_fill(~allowed, float("-inf"))
        weights = scores.softmax(-1)
        if dead is not None:
            weights = weights.masked_fill(dead, 0)
            allowed = None if allowed is None else allowed & ~dead
        weights = self.mix_weights(weights, heads, allowed)
        report(self, "attention", self.layer, self.per_token(weights, "attention"))
        weights = F.dropout(weights, dropout)
        return weights @ v, (self.per_token(weights, "attention") if need_weights else None)


def _both(mask: Tensor | None, other: Tensor) -> Tensor:
    return other if mask is None else mask & other


def _total(bias: Tensor | None, other: Tensor) -> Tensor:
    return other if bias is None else bias + other
