"""Our attention in a user's own model: every ``nn.MultiheadAttention`` swapped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor, nn

from damcha.attention.base import Attention
from damcha.attention.damcha import DAMCHAttention, sharing
from damcha.attention.metric import CrossHeadMetric
from damcha.config import MetricConfig
from damcha.errors import ConfigError


class SharedMetricStack(nn.Module):
    """An ``nn.TransformerEncoder`` or ``Decoder`` whose layers use one metric per forward pass.

    The metric of self-attention comes from the stack's input, that of cross-attention from the
    memory. The stack itself is unchanged, under the name ``stack``.
    """

    def __init__(
        self,
        stack: nn.Module,
        self_metric: CrossHeadMetric,
        cross_metric: CrossHeadMetric | None,
    ) -> None:
        super().__init__()
        self.stack, self.self_metric, self.cross_metric = stack, self_metric, cross_metric

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the stack's own forward."""
        decoder = self.cross_metric is not None
        x = args[0] if args else kwargs["tgt" if decoder else "src"]
        padding = self._argument(args, kwargs, "key_padding_mask", decoder)
        causal = self._argument(args, kwargs, "mask", decoder)
        hint = kwargs.get("tgt_is_causal" if decoder else "is_causal")
        with ExitStack() as scope:
            is_causal = bool(hint) or Attention._is_causal(causal)
            scope.enter_context(self._share(self.self_metric, x, padding, is_causal))
            if self.cross_metric is not None:
                memory = args[1] if len(args) > 1 else kwargs["memory"]
                memory_padding = kwargs.get("memory_key_padding_mask")
                if memory_padding is None and len(args) > 5:
                    memory_padding = args[5]
                scope.enter_context(self._share(self.cross_metric, memory, memory_padding, False))
            return self.stack(*args, **kwargs)

    @staticmethod
    def _argument(
        args: tuple[Any, ...], kwargs: dict[str, Any], name: str, decoder: bool
    ) -> Tensor | None:
        """A mask of the target (decoder) or the source (encoder), given by place or by name."""
        place = (
            {"mask": 2, "key_padding_mask": 4} if decoder else {"mask": 1, "key_padding_mask": 2}
        )
        prefix = "tgt_" if decoder else ("src_" if name == "key_padding_mask" else "")
        found = args[place[name]] if len(args) > place[name] else kwargs.get(prefix + name)
        return found

    def _share(
        self, source: CrossHeadMetric, x: Tensor, padding: Tensor | None, causal: bool
    ) -> Any:
        if not self._batch_first and x.dim() == 3:
            x = x.transpose(0, 1)
        if x.dim() == 2:
            x = x.unsqueeze(0)
            padding = None if padding is None else padding.unsqueeze(0)
        if padding is not None and padding.dtype != torch.bool:
            padding = padding == float("-inf")
        if padding is not None:
            x = x.masked_fill(padding[..., None], 0)
        return sharing(source, source(x, padding, causal=causal, shared=True))

    @property
    def _batch_first(self) -> bool:
        return next(m.batch_first for m in self.stack.modules() if isinstance(m, Attention))


def replace_attention(
    model: nn.Module,
    metric: MetricConfig | None = None,
    *,
    sharing: Literal["stack", "none"] | None = None,
    cross_metric: MetricConfig | None = None,
    attention: type[Attention] = DAMCHAttention,
    **options: Any,
) -> nn.Module:
    """Return a copy of a model in which another attention stands for ``nn.MultiheadAttention``.

    What has a counterpart is taken over from the replaced layers (:meth:`Attention.take_over`): all
    projections where the mechanism has them. DAMCHA takes values and output; W_Q and W_K have no
    counterpart there and are dropped, so the copy needs training.

    Parameters
    ----------
    model
        Any module; it is left as it is.
    metric
        The metric's configuration. For causal stacks: ``MetricConfig(context="causal", …)``.
    sharing
        ``"stack"`` (default of the configuration): the layers of each ``nn.TransformerEncoder`` or
        ``nn.TransformerDecoder`` share one metric; attention outside of such stacks gets its own.
        ``"none"``: one metric per layer.
    cross_metric
        Configuration for the cross-attention of decoders; `metric` with ``context="full"`` by
        default, since a query may see the whole memory.
    attention, options
        Any other mechanism, e.g. ``attention=IHA, pseudo_heads=2``; `metric`, `sharing` and
        `cross_metric` are DAMCHA's alone.

    Raises
    ------
    ConfigError
        If there is nothing to replace, or a layer cannot be of that kind (keys of another width).
    """
    if attention is not DAMCHAttention:
        if metric is not None or cross_metric is not None or sharing is not None:
            raise ConfigError(f"metric: {attention.__name__} has no metric to configure or share")
        return _replaced(model, lambda old, is_cross: _converted(old, attention, **options))
    metric = metric or MetricConfig()
    how = sharing or metric.sharing
    if how not in ("stack", "none"):
        raise ConfigError(
            f"sharing: '{how}' is not possible in a foreign model; use 'stack' or 'none'"
        )
    if cross_metric is None:
        cross_metric = metric.model_copy(
            update={"context": "full", "context_stride": 1, "context_decays": ()}
        )

    def converted(old: nn.MultiheadAttention, is_cross: bool) -> Attention:
        return _converted(old, attention, metric=cross_metric if is_cross else metric, **options)

    model = _replaced(model, converted)
    if how == "none":
        return model
    wrapped: dict[nn.Module, nn.Module] = {stack: _share_in(stack) for stack in _stacks(model)}
    for parent in list(model.modules()):
        for leaf, child in parent._modules.items():
            if child is not None and child in wrapped:
                setattr(parent, leaf, wrapped[child])
    return wrapped.get(model, model)


def _replaced(
    model: nn.Module, convert: Callable[[nn.MultiheadAttention, bool], Attention]
) -> nn.Module:
    """A copy with every attention converted, told whether it is a decoder's cross-attention."""
    model = copy.deepcopy(model)
    if isinstance(model, nn.MultiheadAttention):
        return convert(model, False)
    found = [
        (parent, leaf, old)
        for parent in model.modules()
        for leaf, old in parent._modules.items()  # named_children skips a second name
        if isinstance(old, nn.MultiheadAttention)
    ]
    if not found:
        raise ConfigError(
            "model: it has no nn.MultiheadAttention to replace; build it with DAMCHAttention, "
            "which takes the same arguments"
        )
    converted: dict[nn.Module, Attention] = {}
    for parent, leaf, old in found:
        is_cross = isinstance(parent, nn.TransformerDecoderLayer) and leaf == "multihead_attn"
        if old not in converted:
            converted[old] = convert(old, is_cross)
        setattr(parent, leaf, converted[old])
        if isinstance(parent, nn.TransformerEncoderLayer):
            # The encoder layer's other gate to the C++ path looks at the activation only.
            parent.activation_relu_or_gelu = 0
    for stack in _stacks(model):
        if isinstance(stack, nn.TransformerEncoder):
            # Packing pads away needs kernels that only torch's own attention has.
            stack.use_nested_tensor = False
        _number(stack)
    return model


def _stacks(model: nn.Module) -> Iterator[nn.Module]:
    """Stacks with attention of ours; layers of a user's own may have none."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder) and any(
            isinstance(part, Attention) for part in module.modules()
        ):
            yield module


def _converted(old: nn.MultiheadAttention, attention: type[Attention], **options: Any) -> Attention:
    like = old.out_proj.weight
    new = attention(
        old.embed_dim, old.num_heads, old.dropout, old.in_proj_bias is not None,
        old.bias_k is not None, old.add_zero_attn, old.kdim, old.vdim, old.batch_first,
        like.device, like.dtype, **options,
    )  # fmt: skip
    new.take_over(old)
    return new.train(old.training)


def _number(stack: nn.Module) -> None:
    for index, layer in enumerate(stack.layers):  # type: ignore[arg-type]
        for module in layer.modules():
            if isinstance(module, Attention):
                module.layer = index


def _share_in(stack: nn.Module) -> SharedMetricStack:
    """Give all self-attentions of a stack one generator, and all cross-attentions another."""
    groups: dict[bool, list[DAMCHAttention]] = {False: [], True: []}
    for name, module in stack.named_modules():
        if isinstance(module, DAMCHAttention):
            groups[name.endswith("multihead_attn")].append(module)
    for members in groups.values():
        for member in members:
            member.metric = members[0].metric
    first, cross = groups[False][0].metric, groups[True]
    assert first is not None
    return SharedMetricStack(stack, first, cross[0].metric if cross else None)
