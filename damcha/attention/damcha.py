"""DAMCHA: attention whose queries and keys are the input itself, compared by a metric M(x)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damcha.attention.base import Attention, Cache, Call, Heads, split_heads
from damcha.attention.metric import ContextState, CrossHeadMetric, Metric
from damcha.config import MetricConfig
from damcha.errors import ConfigError

_shared: ContextVar[dict[int, Metric]] = ContextVar("damcha_shared_metrics")


@contextmanager
def sharing(source: CrossHeadMetric, metric: Metric) -> Iterator[None]:
    """Within the block, every attention layer that owns `source` uses this metric of it."""
    token = _shared.set({**_shared.get({}), id(source): metric})
    try:
        yield
    finally:
        _shared.reset(token)


class DAMCHAttention(Attention):
    """S_a = X_a R_a Y_aᵀ/√e with R_a = Σ_b M_ab(Y); values and output as in MHA (paper §3).

    X_a and Y_a are head a's channels of the query and of the key input: there is no W_Q or W_K. The
    metric M is f_θ of the mean of the keys (:mod:`damcha.attention.metric`). With
    ``aggregation="bilinear"``, S_a = Σ_b X_a M_ab Y_bᵀ/√e. Rotary positions turn X_a R_a and Y_a.

    Parameters 2d² and the generator; 2Ld² + Ld²/h + 2L²d multiply-adds and the generator.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first
        As in ``torch.nn.MultiheadAttention``; `kdim` must equal `embed_dim`, since the metric
        compares queries and keys in one space.
    metric
        A configuration, for a generator of this layer's own; an existing
        :class:`CrossHeadMetric`, to share it; or None, if `forward` is always given a metric.
    """

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
        metric: MetricConfig | CrossHeadMetric | None = MetricConfig(),  # noqa: B008 (frozen)
        rotary: bool = False,
    ) -> None:
        if kdim not in (None, embed_dim):
            raise ConfigError(
                f"kdim: DAMCHA compares queries and keys by one d×d metric, so kdim={kdim} must "
                f"equal embed_dim={embed_dim}; project the keys first"
            )
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim,
            batch_first, device, dtype, rotary=rotary,
        )  # fmt: skip
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.value_proj = nn.Linear(self.vdim, embed_dim, bias, **factory)
        nn.init.xavier_uniform_(self.value_proj.weight)
        if bias:
            nn.init.zeros_(self.value_proj.bias)
        if isinstance(metric, MetricConfig):
            metric = CrossHeadMetric(embed_dim, num_heads, metric, **factory)
        elif metric is not None and (metric.d_model, metric.n_heads) != (embed_dim, num_heads):
            raise ConfigError(
                f"metric: it was built for d={metric.d_model}, h={metric.n_heads}, not for "
                f"d={embed_dim}, h={num_heads}"
            )
        self.metric = metric

    def project(self, call: Call) -> Heads:
        """Q = X_a R_a (or X_a M_a,:), k = the raw (or mixed) key channels, v = X W_V."""
        query, key = call.query, call.key
        metric: Metric | None = call.given.get("metric")
        if metric is None:
            metric = self._own_metric(key, call.padding, call.causal, call.cache)
        if metric.sees_all and call.causal:
            raise ConfigError(
                "context: this metric was pooled over the whole sequence, so causal attention "
                "with it would see the future; use context='causal' or generator='static'"
            )
        if metric.stride and query.shape[1] != key.shape[1]:
            raise ConfigError(
                f"context: a causal context gives query t the keys up to t, but there are "
                f"{query.shape[1]} queries and {key.shape[1]} keys; use context='full' for "
                "cross-attention"
            )
        mixed_key = metric.mixed(key)
        mixed_query = mixed_key if query is key else metric.mixed(query)
        q = metric.queries(mixed_query, self.num_heads)
        k = self._keys(mixed_key, bilinear=metric.head_metrics is None)
        if metric.gain is not None:
            gain = metric.gain.unflatten(0, (self.num_heads, 1, -1))
            q, k = (F.rms_norm(t, t.shape[-1:], eps=1e-6) for t in (q, k))
            q = q * gain
        return Heads(q, k, split_heads(self.value_proj(call.value), self.num_heads))

    def split_bias(self, bias_k: Tensor, bias_v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned extra key, in the layout of the keys, and value."""
        bilinear = self.metric is not None and self.metric.config.aggregation == "bilinear"
        return self._keys(bias_k, bilinear), split_heads(bias_v, self.num_heads)

    def take_over(self, old: nn.MultiheadAttention) -> None:
        """Copy values and output; W_Q and W_K have no counterpart."""
        super().take_over(old)
        with torch.no_grad():
            packed = old._qkv_same_embed_dim
            self.value_proj.weight.copy_(
                old.in_proj_weight.chunk(3)[2] if packed else old.v_proj_weight
            )
            if old.in_proj_bias is not None:
                self.value_proj.bias.copy_(old.in_proj_bias.chunk(3)[2])
            if old.bias_v is not None and self.bias_v is not None:
                self.bias_v.copy_(old.bias_v)

    @classmethod
    def parameter_count(
        cls, d_model: int, n_heads: int, *, metric: MetricConfig | None = None, **options: Any
    ) -> int:
        """2d², and the weights of the layer's own generator where it has one."""
        return 2 * d_model**2 + (0 if metric is None else metric.weights(d_model, n_heads))

    @classmethod
    def multiply_adds(
        cls,
        d_model: int,
        n_heads: int,
        seq_len: int,
        *,
        metric: MetricConfig | None = None,
        with_generator: bool = True,
        **options: Any,
    ) -> int:
        """2Ld² + L'd²/h + 2L²d and the generator, L' = L rounded up to whole strides.

        Bilinear: 2Ld² + L'd² + L²d(h + 1). Mixing adds Ld². The generator: P = ⌈L/s⌉ positions (1
        without causal context) through its hidden layers and a last one of w·d²/h, or w·d² where M
        is explicit; the sums over tokens of a context beyond the mean are not counted.

        Raises
        ------
        ConfigError
            For the constructions that build M from factors or other blocks: count those with torch.
        """
        metric = metric or MetricConfig()
        if metric.constraint not in ("free", "symmetric") or metric.off_diagonal != "direct":
            raise ConfigError(
                f"constraint: there is no formula for '{metric.constraint}' with off_diagonal="
                f"'{metric.off_diagonal}'; use torch.utils.flop_counter"
            )
        d, h, length = d_model, n_heads, seq_len
        causal = metric.generator == "mlp" and metric.context == "causal"
        positions = -(-length // metric.context_stride) if causal else 1
        padded = positions * metric.context_stride if causal else length
        if metric.aggregation == "bilinear":
            own = padded * d * d + length**2 * d * (h + 1)
        else:
            own = padded * d * d // h + 2 * length**2 * d
        if metric.mixing != "none":
            own += length * d * d
        generator = 0
        if metric.generator == "mlp" and with_generator:
            rows = h if metric.aggregation == "rowsum" else 1
            widths = (d * metric.context_parts, *metric.hidden_dims)
            hidden = sum(a * b for a, b in pairwise(widths))
            generator = positions * (hidden + widths[-1] * d * d // rows)
        return 2 * length * d * d + own + generator

    def _keys(self, key: Tensor, bilinear: bool) -> Tensor:
        # Bilinear aggregation compares each query head with the whole width: one key "head".
        return key[:, None] if bilinear else split_heads(key, self.num_heads)

    def _own_metric(
        self, key: Tensor, padding: Tensor | None, causal: bool, cache: Cache | None
    ) -> Metric:
        if self.metric is None:
            raise ConfigError(
                "metric: this layer was built without one (metric=None); pass metric=… to forward"
            )
        shared = _shared.get({}).get(id(self.metric))
        if shared is not None:
            return self.metric.for_layer(shared, self.layer)
        state = None
        if cache is not None:
            state = cache.extra.setdefault("context", ContextState())
        return self.metric(key, padding, causal=causal, state=state, layer=self.layer)
