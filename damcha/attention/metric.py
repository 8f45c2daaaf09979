"""The cross-head metric M(x) = f_θ(context(x)), and what the scores need of it (design.md §2-4).

Legend: B batch, L tokens, d width, h heads, e = d/h, P positions (how often the metric is refreshed
along the sequence), w the last hidden width of f_θ, r a rank. M is [d, d], row-major; its block
M_ab is rows of head a (query), columns of head b (key). R_a = Σ_b M_ab.

=============== ============================ ====================================================
construction    f_θ's output                 M
=============== ============================ ====================================================
free            N [d, d]                     N
symmetric       N [d, d]                     (N + Nᵀ)/2
psd             A [d, r]                     A Aᵀ/√r + εI
low_rank        U, V [d, r]                  U Vᵀ/√r
linear_comb.    N_kk [h, e, e]               diagonal N_aa, off-diagonal Σ_k α_abk N_kk
separate        N_kk [h, e, e]               diagonal N_aa, off-diagonal B_ab (free parameters)
=============== ============================ ====================================================

then blocks are scaled (``diagonal_scale``, ``off_diagonal_scale``), and in layer ℓ the low-rank
bias (U_β diag(s_ℓ)) V_βᵀ is added. ``static`` replaces f_θ's output by a learned constant. With
``mixing``, M compares the channels of XP and YP instead of those of X and Y. What f_θ is given:
:mod:`damcha.attention.context`.

Fused RowSum: for free and symmetric metrics, RowSum is linear in f_θ's output and so commutes with
its last affine map: R = RowSum(W) hidden + RowSum(bias), at w·d²/h instead of w·d² and without M.
The factored forms need only Σ_b V_b. M itself is built when somebody looks (:mod:`damcha.tap`) or
when aggregation is bilinear.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from damcha.attention.context import RunningSums, pooled_context, prefix_contexts
from damcha.attention.fused import HeadQueries, RowSumLinear, head_sum
from damcha.config import MetricConfig
from damcha.errors import ConfigError
from damcha.tap import MetricRecord, edit_metric, listening, report_metric, wants_per_layer

RECOMPUTED_WEIGHTS = 2**24
"""Above this many weights in f_θ's last layer, their reduction is not kept for the backward pass
but made again there: it would be as large as the metrics themselves (33 MB at d = 512, w = 256)."""


def blocks(metric: Float[Tensor, "*batch d d"], n_heads: int) -> Tensor:
    """[…, d, d] → […, h, h, e, e], a view: block (a, b) compares query head a with key head b."""
    e = metric.shape[-1] // n_heads
    return metric.unflatten(-1, (n_heads, e)).unflatten(-3, (n_heads, e)).transpose(-3, -2)


def unblocks(parts: Tensor) -> Tensor:
    """[…, h, h, e, e] → […, d, d], the inverse of :func:`blocks`."""
    return parts.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def row_sum(metric: Float[Tensor, "*batch d d"], n_heads: int) -> Tensor:
    """R_a = Σ_b M_ab: […, d, d] → […, h, e, e] (paper, RowSum)."""
    e = metric.shape[-1] // n_heads
    return metric.unflatten(-2, (n_heads, e)).unflatten(-1, (n_heads, e)).sum(-2)


@dataclass(frozen=True, eq=False)
class Metric:
    """The metric of a batch, as the attention layers use it."""

    head_metrics: Float[Tensor, "batch positions heads e e"] | None
    """R; None where only M is used (bilinear aggregation)."""
    full: Float[Tensor, "batch positions d d"] | None
    """M; None on the fused path."""
    context: Float[Tensor, "batch positions c"] | None
    """What f_θ was given; c = d, or a multiple where it sees more than the mean."""
    batch: int
    """Examples it was made for; a static metric has one row for all of them."""
    stride: int
    """Position k serves queries k·stride … (k+1)·stride-1; 0: one metric serves all queries."""
    lag: int = 0
    """Queries of position 0 that came before this call (cached decoding)."""
    sees_all: bool = False
    """Computed from the whole sequence, hence not fit for causal use."""
    mixing: Float[Tensor, "d d"] | None = None
    """P; queries and keys are cut into heads after it."""
    gain: Float[Tensor, " d"] | None = None
    """Gain of normalised queries; None where queries and keys are used as they are."""

    def mixed(self, x: Float[Tensor, "batch tokens d"]) -> Tensor:
        """XP, or X where there is no P."""
        return x if self.mixing is None else x @ self.mixing

    def queries(self, x: Float[Tensor, "batch tokens d"], n_heads: int) -> Tensor:
        """Return X_a R_a [B, h, L, e], or X_a M_a,: [B, h, L, d] for bilinear aggregation."""
        if self.head_metrics is not None:
            form = self.head_metrics
        else:
            assert self.full is not None  # one of the two is always there
            form = self.full.unflatten(-2, (n_heads, -1))  # [B, P, h, e, d]
        if self.stride == 0:
            return x.unflatten(-1, (n_heads, -1)).transpose(1, 2) @ form[:, 0]
        length = x.shape[1]
        behind = -(self.lag + length) % self.stride
        if self.lag or behind:
            x = nn.functional.pad(x, (0, 0, self.lag, behind))
        q = HeadQueries.apply(x.unflatten(1, (-1, self.stride)), form).flatten(1, 2)
        if self.lag or behind:  # a slice of everything would still cost a copy of its gradient
            q = q[:, self.lag : self.lag + length]
        return q.transpose(1, 2)


@dataclass(eq=False)
class ContextState:
    """A causal context so far and the metric in force; owned by the caller's cache."""

    sums: RunningSums = field(default_factory=RunningSums)
    current: Metric | None = None

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Go on with these examples of the batch, in this order, some more than once."""
        self.sums.select(rows)
        now = self.current
        if now is None:
            return

        def selected(x: Tensor | None) -> Tensor | None:
            # A static metric has one row for the whole batch.
            return x if x is None or len(x) < now.batch else x[rows]

        self.current = replace(
            now,
            head_metrics=selected(now.head_metrics),
            full=selected(now.full),
            context=selected(now.context),
            batch=len(rows),
        )


class CrossHeadMetric(nn.Module):
    """f_θ with everything around it: context in, :class:`Metric` out.

    Initialisation
    --------------
    ============================ ==================================================================
    hidden layers                PyTorch's default for Linear
    output weight                normal, std 0.3/√(d·w): input-dependent scores start near ±0.1
    output bias, static constant E[M] = I: identity, or random factors with E[A Aᵀ/√r] = I
    α, B                         normal, std 0.02
    layer bias U_β, V_β, s       normal std 0.02; s = 1
    mixing P, gain of queries    P = I; gain = 1
    ============================ ==================================================================

    ``metric_init="random"`` leaves the output layer at PyTorch's default, as the authors do; a
    static constant then starts as the bias of that layer would, uniform in ±1/√w.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        config: MetricConfig,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ConfigError(f"n_heads: d_model={d_model} is not divisible by n_heads={n_heads}")
        self.d_model, self.n_heads, self.config = d_model, n_heads, config
        self.d_head = d_model // n_heads
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        rank, h, e = config.rank or 0, n_heads, self.d_head
        if config.constraint == "psd":
            n_out = d_model * rank
        elif config.constraint == "low_rank":
            n_out = 2 * d_model * rank
        elif config.off_diagonal != "direct":
            n_out = h * e * e
        else:
            n_out = d_model * d_model
        if config.generator == "static":
            self.constant = nn.Parameter(torch.empty(n_out, **factory))
        else:
            layers: list[nn.Module] = []
            width = d_model * config.context_parts
            for next_width in config.hidden_dims:
                layers += [nn.Linear(width, next_width, **factory), nn.GELU()]
                if config.generator_dropout:
                    layers.append(nn.Dropout(config.generator_dropout))
                width = next_width
            self.hidden = nn.Sequential(*layers)
            self.output = nn.Linear(width, n_out, **factory)
        if config.off_diagonal == "linear_combination":
            self.alpha = nn.Parameter(torch.empty(h, h, h, **factory))
        elif config.off_diagonal == "separate":
            self.separate = nn.Parameter(torch.empty(h, e, d_model, **factory))
        if config.layer_bias_rank:
            self.bias_u = nn.Parameter(torch.empty(d_model, config.layer_bias_rank, **factory))
            self.bias_v = nn.Parameter(torch.empty(d_model, config.layer_bias_rank, **factory))
            self.bias_scales = nn.Parameter(torch.ones(n_layers, config.layer_bias_rank, **factory))
        own = 1 if config.sharing == "none" else n_layers  # layers that the generator serves
        if config.mixing != "none":
            n = own if config.mixing == "layer" else 1
            self.mixing = nn.Parameter(torch.empty(n, d_model, d_model, **factory))
        if config.query_norm != "none":
            self.gain = nn.Parameter(torch.ones(own, d_model, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise by the table in the class docstring."""
        config, d = self.config, self.d_model
        start = self.constant if config.generator == "static" else self.output.bias
        if config.generator == "static" and config.metric_init == "random":
            bound = (config.hidden_dims or (d,))[-1] ** -0.5
            nn.init.uniform_(start, -bound, bound)
        elif config.metric_init == "identity":
            if config.constraint in ("psd", "low_rank"):
                factor = torch.randn(d, config.rank or 0) * (config.rank or 1) ** -0.25
                factors = factor if config.constraint == "psd" else torch.stack((factor, factor))
                start.copy_(factors.flatten())
            elif config.off_diagonal != "direct":
                start.copy_(torch.eye(self.d_head).expand(self.n_heads, -1, -1).flatten())
            else:
                start.copy_(torch.eye(d).flatten())
        if config.generator == "mlp" and config.metric_init == "identity":
            nn.init.normal_(self.output.weight, std=0.3 / math.sqrt(d * self.output.in_features))
        for name in ("alpha", "separate", "bias_u", "bias_v"):
            if hasattr(self, name):
                nn.init.normal_(getattr(self, name), std=0.02)
        if config.mixing != "none":
            self.mixing.copy_(torch.eye(d))
        if config.query_norm != "none":
            nn.init.ones_(self.gain)

    # ---------------------------------------------------------------- construction of M and R

    def _scale(self, parts: Tensor) -> Tensor:
        """Scale the diagonal and the off-diagonal blocks of [..., h, h, e, e]."""
        config = self.config
        if config.diagonal_scale == config.off_diagonal_scale == 1:
            return parts
        eye = torch.eye(self.n_heads, dtype=parts.dtype, device=parts.device)[..., None, None]
        return parts * (config.off_diagonal_scale * (1 - eye) + config.diagonal_scale * eye)

    def _factors(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """U and V, [..., d, r] each, with M = U Vᵀ/√r (+ εI for psd)."""
        rank = self.config.rank or 0
        if self.config.constraint == "psd":
            factor = raw.unflatten(-1, (self.d_model, rank))
            return factor, factor
        u, v = raw.unflatten(-1, (2, self.d_model, rank)).unbind(-3)
        return u, v

    def _full(self, raw: Float[Tensor, "*batch out"]) -> Float[Tensor, "*batch d d"]:
        """M from f_θ's output, block scales included."""
        config, d, h, e = self.config, self.d_model, self.n_heads, self.d_head
        if config.constraint in ("psd", "low_rank"):
            u, v = self._factors(raw)
            metric = u @ v.transpose(-1, -2) / math.sqrt(config.rank or 1)
            if config.constraint == "psd":
                metric = metric + config.psd_epsilon * torch.eye(
                    d, dtype=raw.dtype, device=raw.device
                )
        elif config.off_diagonal != "direct":
            own = raw.unflatten(-1, (h, e, e))
            if config.off_diagonal == "linear_combination":
                others = torch.einsum("abk,...kij->...abij", self.alpha, own)
            else:
                others = self.separate.unflatten(-1, (h, e)).transpose(1, 2)  # [h, h, e, e]
                others = others.expand(*own.shape[:-3], h, h, e, e)
            eye = torch.eye(h, dtype=torch.bool, device=raw.device)[..., None, None]
            metric = unblocks(torch.where(eye, own.unsqueeze(-3), others))
        else:
            metric = raw.unflatten(-1, (d, d))
            if config.constraint == "symmetric":
                metric = (metric + metric.transpose(-1, -2)) / 2
        return unblocks(self._scale(blocks(metric, h)))

    @property
    def _is_linear(self) -> bool:
        """Whether M is linear in f_θ's output, so that RowSum commutes with its last layer."""
        return self.config.constraint in ("free", "symmetric") and (
            self.config.off_diagonal == "direct"
        )

    def _linear_rows(self, raw: Float[Tensor, "d_squared ..."]) -> Iterator[Tensor]:
        """Yield R_a [e, e, …] of a linear construction along the *first* axis, head by head.

        The first axis, so that the sum runs over long contiguous rows (17 times faster for f_θ's
        weights than over their transpose: d = 512, w = 256, one CPU thread); head by head, so that
        the reduced weights of one head at a time are in memory; unbind, because the gradient of an
        index would be as large as the weights for every head.
        """
        h, e = self.n_heads, self.d_head
        scales = self.config.diagonal_scale, self.config.off_diagonal_scale
        parts = raw.unflatten(0, (h, e, h, e))  # (a, i, b, j, …)
        columns = parts.unbind(2) if self.config.constraint == "symmetric" else ()
        for a, part in enumerate(parts.unbind(0)):  # (i, b, j, …)
            rows = head_sum(part, a, *scales)
            if columns:  # with Σ_b N_baᵀ
                turned = head_sum(columns[a].transpose(0, 1), a, *scales).transpose(0, 1)
                rows = (rows + turned) / 2
            yield rows

    def _rows(self, raw: Float[Tensor, "*batch out"]) -> Float[Tensor, "*batch h e e"]:
        """R from the output of a factored or combined construction, without forming M."""
        config, h, e = self.config, self.n_heads, self.d_head
        on, off = config.diagonal_scale, config.off_diagonal_scale
        if config.constraint in ("psd", "low_rank"):
            u, v = (x.unflatten(-2, (h, e)) for x in self._factors(raw))  # [..., h, e, r]
            others = off * v.sum(-3, keepdim=True)
            keys = others if on == off else others + (on - off) * v
            rows = u @ keys.transpose(-1, -2) / math.sqrt(config.rank or 1)
            if config.constraint == "psd":
                eye = torch.eye(e, dtype=raw.dtype, device=raw.device)
                rows = rows + on * config.psd_epsilon * eye
            return rows
        own = raw.unflatten(-1, (h, e, e))
        apart = 1 - torch.eye(h, dtype=raw.dtype, device=raw.device)  # a ≠ b
        if config.off_diagonal == "linear_combination":
            mix = torch.einsum("abk,ab->ak", self.alpha, apart)
            others = torch.einsum("ak,...kij->...aij", mix, own)
        else:
            others = torch.einsum("aibj,ab->aij", self.separate.unflatten(-1, (h, e)), apart)
        return on * own + off * others

    def _raw(self, context: Tensor | None) -> Tensor:
        if context is None:
            return self.constant[None, None]
        return self.output(self.hidden(context))

    def _fused_rows(self, context: Tensor | None) -> Float[Tensor, "batch positions h e e"]:
        if not self._is_linear:
            return self._rows(self._raw(context))
        if context is None:
            return torch.stack(list(self._linear_rows(self.constant)))[None, None]
        hidden, weight, bias = self.hidden(context), self.output.weight, self.output.bias
        if self.config.constraint == "free" and weight.numel() > RECOMPUTED_WEIGHTS:
            scales = self.config.diagonal_scale, self.config.off_diagonal_scale
            rows = RowSumLinear.apply(hidden, weight, bias, self.n_heads, *scales)
            return rows.movedim(0, 2)
        e = self.d_head
        heads = [
            nn.functional.linear(hidden, w.flatten(0, 1), b.flatten()).unflatten(-1, (e, e))
            for w, b in zip(self._linear_rows(weight), self._linear_rows(bias), strict=True)
        ]
        # Head by head in memory, as the layers read them and write their gradients.
        return torch.stack(heads).movedim(0, 2)

    # ---------------------------------------------------------------- public

    def forward(
        self,
        x: Float[Tensor, "batch tokens d"],
        padding: Tensor | None = None,
        *,
        causal: bool = False,
        state: ContextState | None = None,
        shared: bool = False,
        layer: int = 0,
    ) -> Metric:
        """Compute the metric of x; `padding` is True at pads.

        `shared` says that several layers will use it, each through :meth:`for_layer`; otherwise it
        is the metric of `layer`. `state` continues a sequence (cached decoding).

        Raises
        ------
        ConfigError
            If the use is causal, or cached, and the context pools the whole sequence.
        """
        config = self.config
        if config.generator == "static":
            metric = Metric(None, None, None, len(x), stride=0)
        elif config.context == "full":
            if causal or state is not None:
                raise ConfigError(
                    "context: this metric pools the whole sequence (context='full'), so causal "
                    "attention with it would see the future; use context='causal' or "
                    "generator='static'"
                )
            pooled = pooled_context(x, padding, config.context_first)
            metric = Metric(None, None, pooled, len(x), stride=0, sees_all=True)
        else:
            stride = config.context_stride
            sums = None if state is None else state.sums
            lag = 0 if sums is None else sums.seen % stride
            contexts = prefix_contexts(
                x, padding, stride, sums, config.context_decays, config.context_first
            )
            metric = Metric(None, None, contexts, len(x), stride=stride, lag=lag)
        old = None if state is None or not metric.lag else state.current
        metric = self._build(metric, old)
        if state is not None:
            state.current = metric
        if not shared:
            return self._projected(self._finish(metric, layer), layer)
        return metric if self._finishes_per_layer else self._finish(metric, None)

    def for_layer(self, metric: Metric, layer: int) -> Metric:
        """A shared metric as layer `layer` uses it: with its own bias, mixing and gain, if any."""
        if self._finishes_per_layer:
            metric = self._finish(metric, layer)
        return self._projected(metric, layer)

    @property
    def _finishes_per_layer(self) -> bool:
        return self.config.differs_by_layer or wants_per_layer(self)

    def _projected(self, metric: Metric, layer: int) -> Metric:
        """Add what the layer does to queries and keys themselves."""
        mixing = gain = None
        if self.config.mixing != "none":
            mixing = self.mixing[layer % len(self.mixing)]
        if self.config.query_norm != "none":
            gain = self.gain[layer % len(self.gain)]
        return replace(metric, mixing=mixing, gain=gain)

    def _build(self, metric: Metric, old: Metric | None) -> Metric:
        """Fill in M or R; position 0 is taken over from `old` where its queries continue."""
        explicit = self.config.aggregation == "bilinear" or listening(self)
        context = metric.context

        def build(context: Tensor | None) -> Tensor:
            return self._full(self._raw(context)) if explicit else self._fused_rows(context)

        if old is None:
            values = build(context)
        else:
            assert old.context is not None and context is not None  # only causal contexts continue
            last = old.context[:, -1:]
            kept = old.full if explicit else old.head_metrics
            # Not kept in this form where a tap was opened or closed since the last step.
            values = build(last) if kept is None else kept[:, -1:]
            if context.shape[1]:
                values = torch.cat((values, build(context)), 1)
            context = torch.cat((last, context), 1)
        full, rows = (values, None) if explicit else (None, values)
        return replace(metric, full=full, head_metrics=rows, context=context)

    def _finish(self, metric: Metric, layer: int | None) -> Metric:
        """Add the layer's bias, apply edits, report to taps, and reduce to what scores need."""
        config = self.config
        full, rows = metric.full, metric.head_metrics
        if config.layer_bias_rank:
            u = self.bias_u * self.bias_scales[(layer or 0) % len(self.bias_scales)]
            if full is not None:
                full = full + u @ self.bias_v.T
            if rows is not None:
                keys = self.bias_v.unflatten(0, (self.n_heads, -1)).sum(0)  # Σ_b V_b
                rows = rows + u.unflatten(0, (self.n_heads, -1)) @ keys.T
        if listening(self):
            assert full is not None
            full = edit_metric(self, full, layer, metric.batch)
            rows = row_sum(full, self.n_heads)
            record = MetricRecord(layer, full, rows, metric.context, metric.stride)
            report_metric(self, record)
        if config.aggregation == "bilinear":
            rows = None
        return replace(metric, full=full, head_metrics=rows)
