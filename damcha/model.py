"""The transformer stack and the models that are trained with it.

TaskModel
├── ImageAutoregressor    predicts each patch from the patches before it (MSE)
├── ImageReconstructor    fills in hidden rows of patches (MSE), as the authors train
├── ByteLM                predicts each byte of a text from those before it (cross-entropy)
│   └── PairLM            … and each symbol of a target from its source and those before
└── ImageClassifier       a ViT with mean pooling (cross-entropy)

Images are float [B, C, H, W] in [-1, 1]; text is int64 symbols [B, L]; a model moves its inputs to
its own device. A patch is a vector in (row, column, channel) order, patches go row by row from the
top left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from damcha.attention import (
    ATTENTIONS,
    Attention,
    AttentionResidual,
    Cache,
    CrossHeadMetric,
    DAMCHAttention,
    Metric,
    auxiliary_losses,
)  # fmt: skip
from damcha.attention.metric import ContextState
from damcha.attention.positions import Positions
from damcha.config import ModelConfig, RunConfig, check_size
from damcha.errors import ConfigError, InputError
from damcha.symbols import Bytes, Marks, Tokenizer


@dataclass(eq=False)
class StackCache:
    """What a stack keeps while it decodes step by step; owned by the caller."""

    layers: list[Cache]
    contexts: list[ContextState] = field(default_factory=list)
    """One for each metric that layers share."""

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Go on with these examples of the batch, in this order, some more than once."""
        for layer in self.layers:
            layer.select(rows)
        for context in self.contexts:
            context.select(rows)


def mechanism(config: ModelConfig) -> tuple[type[Attention], dict[str, Any]]:
    """The class of a configuration's attention, and its keyword arguments.

    Raises
    ------
    ConfigError
        If there is no such mechanism, or the stack would have too many weights.
    """
    kind = ATTENTIONS.get(config.attention)
    if kind is None:
        raise ConfigError(
            f"attention: '{config.attention}' is not known; choose from {', '.join(ATTENTIONS)}"
        )
    options = {name: getattr(config.mechanism, name) for name in kind.OPTIONS}
    layer = kind.parameter_count(config.d_model, config.n_heads, **options)
    check_size(config.n_layers * layer, "attention", "lower d_model, n_layers or its options")
    return kind, options


def make_attention(config: ModelConfig, metric: CrossHeadMetric | None) -> Attention:
    """One attention layer; `metric` is a generator that layers share, if they do."""
    kind, options = mechanism(config)
    if kind is DAMCHAttention:
        options["metric"] = metric if config.metric.sharing == "parameters" else None
        if config.metric.sharing == "none":
            options["metric"] = _generator(config, config.n_layers)
        # With "stack" and "groups", the stack hands each layer its metric.
    return kind(
        config.d_model, config.n_heads, config.dropout, batch_first=True,
        rotary=config.positions == "rotary", **options,
    )  # fmt: skip


def _generator(config: ModelConfig, n_layers: int) -> CrossHeadMetric:
    return CrossHeadMetric(config.d_model, config.n_heads, config.metric, n_layers=n_layers)


class Block(nn.Module):
    """Attention and feed-forward with residuals, normalised before (pre) or after (post)."""

    def __init__(self, config: ModelConfig, metric: CrossHeadMetric | None, layer: int) -> None:
        super().__init__()
        self.pre, self.causal = config.norm == "pre", config.causal
        self.attention = make_attention(config, metric)
        self.attention.layer = layer
        self.norm1, self.norm2 = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        self.ff = nn.Sequential(
            nn.Linear(config.d_model, config.d_ff),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.d_ff, config.d_model),
        )
        self.dropout = nn.Dropout(config.dropout)
        if config.residual != "standard":
            heads = config.residual_heads if config.residual == "mhar" else 1
            self.read1 = AttentionResidual(config.d_model, heads)
            self.read2 = AttentionResidual(config.d_model, heads)

    def attend(
        self, x: Tensor, padding: Tensor | None, cache: Cache | None, **given: object
    ) -> Tensor:
        """The attention sublayer, [B, L, d] → [B, L, d]; `given` may hold a shared metric."""
        y, _ = self.attention(
            x, x, x, key_padding_mask=padding, need_weights=False, is_causal=self.causal,
            cache=cache, **given,
        )  # fmt: skip
        return self.dropout(y)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The feed-forward sublayer, [B, L, d] → [B, L, d]."""
        return self.dropout(self.ff(x))

    def forward(
        self, x: Tensor, padding: Tensor | None, cache: Cache | None, **given: object
    ) -> Tensor:
        """[B, L, d] → [B, L, d], with standard residuals."""
        if self.pre:
            x = x + self.attend(self.norm1(x), padding, cache, **given)
            return x + self.feed_forward(self.norm2(x))
        x = self.norm1(x + self.attend(x, padding, cache, **given))
        return self.norm2(x + self.feed_forward(x))

    def extend(
        self, sources: list[Tensor], padding: Tensor | None, cache: Cache | None, **given: object
    ) -> None:
        """Attention residuals: read mixtures of all earlier outputs, append both sublayers'."""
        sources.append(self.attend(self.norm1(self.read1(sources)), padding, cache, **given))
        sources.append(self.feed_forward(self.norm2(self.read2(sources))))


class Stack(nn.Module):
    """`n_layers` blocks.

    With ``sharing="stack"`` one metric, made of the stack's input, serves all of them; with
    ``"groups"`` one serves each group of blocks, made of what the group's first block reads.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        metric, self.metric, groups = None, None, 0
        if config.attention == "damcha":
            how = config.metric.sharing
            if how in ("stack", "parameters"):
                metric = _generator(config, config.n_layers)
            self.metric = metric if how == "stack" else None
            groups = config.metric.generators(config.n_layers) if how == "groups" else 0
        self.layers = nn.ModuleList(Block(config, metric, i) for i in range(config.n_layers))
        self.groups = nn.ModuleList(
            _generator(config, config.n_layers // groups) for _ in range(groups)
        )
        # A post-norm block ends normalised; the authors add no further norm.
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
        if config.residual != "standard":
            heads = config.residual_heads if config.residual == "mhar" else 1
            self.read = AttentionResidual(config.d_model, heads)

    @property
    def _shared(self) -> list[CrossHeadMetric]:
        """The generators whose metrics equal numbers of successive blocks share."""
        return list(self.groups) if self.metric is None else [self.metric]  # type: ignore[arg-type]

    def new_cache(self) -> StackCache:
        """An empty cache for step-by-step decoding."""
        return StackCache([Cache() for _ in self.layers], [ContextState() for _ in self._shared])

    def forward(
        self,
        x: Float[Tensor, "batch tokens d"],
        padding: Tensor | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "batch tokens d"]:
        """Run all blocks; with a cache, x holds the new tokens only."""
        if padding is not None:
            x = x.masked_fill(padding[..., None], 0)
        given: dict[str, Metric] = {}
        generators, standard = self._shared, self.config.residual == "standard"
        sources = [x]
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Block)
            if generators:
                group, place = divmod(i * len(generators), len(self.layers))
                if not place:
                    state = None if cache is None else cache.contexts[group]
                    read = x if standard or not group else layer.read1(sources)
                    shared = generators[group](
                        read, padding, causal=self.config.causal, state=state, shared=True
                    )
                given["metric"] = generators[group].for_layer(shared, i)
            seen = None if cache is None else cache.layers[i]
            if standard:
                x = layer(x, padding, seen, **given)
            else:
                layer.extend(sources, padding, seen, **given)
        return self.norm(x if standard else self.read(sources))


def patchify(images: Float[Tensor, "batch c height width"], patch: int) -> Tensor:
    """[B, C, H, W] → [B, n, patch·patch·C], row by row, each in (row, column, channel) order."""
    b, c, height, width = images.shape
    x = images.reshape(b, c, height // patch, patch, width // patch, patch)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(b, -1, patch * patch * c)


def unpatchify(patches: Float[Tensor, "batch n p"], patch: int, channels: int) -> Tensor:
    """The inverse of :func:`patchify` for square images."""
    b, n, _ = patches.shape
    side = round(n**0.5)
    x = patches.reshape(b, side, side, patch, patch, channels)
    return x.permute(0, 5, 1, 3, 2, 4).reshape(b, channels, side * patch, side * patch)


class TaskModel(nn.Module):
    """A stack with what its task needs around it."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self.config = config
        self.stack = Stack(config.model)
        self.positions = Positions(config.model.positions, config.seq_len, config.model.d_model)

    def score(self, inputs: Tensor, targets: Tensor) -> dict[str, Float[Tensor, " batch"]]:
        """The task's loss of each example, under "loss", and other per-example measures."""
        raise NotImplementedError

    def loss(self, inputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
        """The mean loss of a batch and any auxiliary losses: what training minimises."""
        with auxiliary_losses() as terms:
            loss = self.score(inputs, targets)["loss"].mean()
        return loss + sum(terms.values())

    def set_progress(self, progress: float) -> None:
        """Tell every attention layer the share of the training that is done."""
        for module in self.stack.modules():
            if isinstance(module, Attention):
                module.set_progress(progress)


class _ImageModel(TaskModel):
    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.embed = nn.Linear(config.data.patch_dim, config.model.d_model)

    def patches(self, images: Float[Tensor, "batch c height width"]) -> Tensor:
        """Cut into patches [B, n, patch_dim].

        Raises
        ------
        InputError
            If the images are not [B, C, size, size] of this model's configuration.
        """
        data = self.config.data
        expected = (data.channels, data.image_size, data.image_size)
        if images.dim() != 4 or images.shape[1:] != expected:
            raise InputError(
                f"images have shape {tuple(images.shape)}; this model takes (batch, "
                f"{', '.join(map(str, expected))})"
            )
        return patchify(images.to(self.embed.weight.device), data.patch_size)


def _pixel_head(config: RunConfig) -> nn.Sequential:
    d = config.model.d_model
    return nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, config.data.patch_dim))


class ImageAutoregressor(_ImageModel):
    """Predicts each patch from those before it; a learned start token stands before the first."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.start = nn.Parameter(torch.randn(config.model.d_model) * 0.1)
        self.head = _pixel_head(config)

    def forward(self, images: Float[Tensor, "batch c height width"]) -> Tensor:
        """Predictions of all patches under teacher forcing, [B, n, patch_dim]."""
        patches = self.patches(images)
        start = self.start.expand(patches.shape[0], 1, -1)
        x = torch.cat((start, self.embed(patches[:, :-1])), dim=1)
        return self.head(self.stack(self.positions(x)))

    def score(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Mean squared error over all patches, pixels in [-1, 1]."""
        error = (self(inputs) - self.patches(inputs)) ** 2
        return {"loss": error.flatten(1).mean(1)}

    @torch.no_grad()
    def generate(self, prompt: Float[Tensor, "batch k p"], n: int | None = None) -> Tensor:
        """Continue a prompt of k ≥ 0 patches by n patches (default: to the end), with the cache.

        Returns [B, k + n, patch_dim]: the prompt, then each patch as predicted from all before it.
        """
        total = self.config.data.n_patches
        known = prompt.shape[1]
        n = total - known if n is None else n
        if n < 0 or known + n > total:
            raise InputError(f"{known} patches and {n} more do not fit an image of {total} patches")
        cache, patches = self.stack.new_cache(), prompt
        x = torch.cat((self.start.expand(prompt.shape[0], 1, -1), self.embed(prompt)), dim=1)
        offset = 0
        for _ in range(n):
            y = self.stack(self.positions(x, offset), cache=cache)
            offset += x.shape[1]
            new = self.head(y[:, -1:])
            patches = torch.cat((patches, new), dim=1)
            x = self.embed(new)
        return patches


class ImageReconstructor(_ImageModel):
    """Fills in hidden rows of patches: embeddings of hidden patches are set to zero."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.head = _pixel_head(config)

    @property
    def _side(self) -> int:
        return self.config.data.image_size // self.config.data.patch_size

    def default_mask(self, batch: int, device: torch.device) -> Tensor:
        """The lower half of the rows hidden, [B, n], True at hidden patches."""
        rows = torch.arange(self._side, device=device) >= (self._side + 1) // 2
        return rows.repeat_interleave(self._side).expand(batch, -1)

    def forward(
        self, images: Float[Tensor, "batch c height width"], hidden: Tensor | None = None
    ) -> Tensor:
        """Predictions of all patches, [B, n, patch_dim]; `hidden` defaults to the lower half."""
        x = self.embed(self.patches(images))
        if hidden is None:
            hidden = self.default_mask(x.shape[0], x.device)
        x = x.masked_fill(hidden[..., None], 0)
        return self.head(self.stack(self.positions(x)))

    def score(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Mean squared error over hidden patches; in training half of the rows, at random."""
        hidden = self.default_mask(inputs.shape[0], inputs.device)
        if self.training:
            order = torch.rand(inputs.shape[0], self._side, device=inputs.device).argsort(1)
            hidden = (order >= (self._side + 1) // 2).repeat_interleave(self._side, dim=1)
        error = ((self(inputs, hidden) - self.patches(inputs)) ** 2).mean(-1)
        return {"loss": (error * hidden).sum(1) / hidden.sum(1).clamp(min=1)}


class ImageClassifier(_ImageModel):
    """A ViT: patches, stack, mean over tokens, class logits."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.head = nn.Linear(config.model.d_model, config.data.n_classes)

    def forward(self, images: Float[Tensor, "batch c height width"]) -> Tensor:
        """Class logits, [B, n_classes]."""
        x = self.stack(self.positions(self.embed(self.patches(images))))
        return self.head(x.mean(1))

    def score(self, inputs: Tensor, targets: Int[Tensor, " batch"]) -> dict[str, Tensor]:
        """Cross-entropy in nats, and whether the likeliest class is right."""
        logits = self(inputs)
        return {
            "loss": F.cross_entropy(logits, targets, reduction="none"),
            "accuracy": (logits.argmax(1) == targets).to(logits.dtype),
        }


class ByteLM(TaskModel):
    """Predicts each byte from those before it; symbol 256 stands before the first.

    An imported model may have other symbols than bytes: those of its authors' tokenizer, of which
    ``first_symbol`` stands before the first.
    """

    START = 256

    def __init__(self, config: RunConfig, marks: Marks | None = None) -> None:
        super().__init__(config)
        if marks is not None:
            self.n_symbols, self.start = marks.n_symbols, marks.pad
        else:
            first = config.data.first_symbol
            self.n_symbols = config.data.vocabulary
            self.start = self.START if first is None else first
        self.unit = f"{config.symbol}s"
        in_bytes = config.data.vocabulary == Bytes.size and config.data.first_symbol is None
        self.tokenizer: Tokenizer | None = Bytes() if in_bytes else None
        """What the symbols spell; None where nobody has said yet."""
        rows = max(self.n_symbols, self.start + 1)
        self.embed = nn.Embedding(rows, config.model.d_model)
        self.head = nn.Linear(config.model.d_model, self.n_symbols)

    def forward(self, inputs: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length symbols"]:
        """Logits of every symbol given the symbols before it.

        Raises
        ------
        InputError
            If the text is empty, longer than `seq_len`, or not of this model's symbols.
        """
        limit = self.config.seq_len
        if inputs.dim() != 2 or not 1 <= inputs.shape[1] <= limit:
            raise InputError(
                f"text has shape {tuple(inputs.shape)}; this model takes (batch, 1 to {limit})"
            )
        if inputs.dtype != torch.int64:
            raise InputError(f"text must be int64 {self.unit}, not {inputs.dtype}; use .long()")
        if bool(((inputs < 0) | (inputs >= self.n_symbols)).any()):
            raise InputError(
                f"text holds numbers from {int(inputs.min())} to {int(inputs.max())}; "
                f"{self.unit} are 0 to {self.n_symbols - 1}"
            )
        inputs = inputs.to(self.embed.weight.device)
        x = self.embed(torch.cat((self._first(inputs), inputs[:, :-1]), dim=1))
        return self.head(self.stack(self.positions(x)))

    def counted(self, inputs: Int[Tensor, "batch length"]) -> Bool[Tensor, "batch length"]:
        """Which symbols the loss counts."""
        return torch.ones_like(inputs, dtype=torch.bool)

    def score(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Mean negative log-likelihood of a counted symbol, in nats."""
        loss = F.cross_entropy(self(inputs).transpose(1, 2), inputs, reduction="none")
        counted = self.counted(inputs)
        return {"loss": (loss * counted).sum(1) / counted.sum(1).clamp(min=1)}

    def next_logits(self, prompt: Int[Tensor, "batch k"]) -> Float[Tensor, "batch symbols"]:
        """Logits of the symbol that follows a prompt of k ≥ 0 symbols.

        Raises
        ------
        InputError
            If the prompt leaves no place for another symbol.
        """
        self._check_room(prompt, 1)
        x = self.positions(self.embed(torch.cat((self._first(prompt), prompt), dim=1)))
        return self.head(self.stack(x)[:, -1])

    @torch.no_grad()
    def generate(
        self,
        prompt: Int[Tensor, "batch k"],
        n: int,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch total"]:
        """Continue k ≥ 0 symbols by n more: the likeliest each, or sampled at a temperature > 0."""
        self._check_room(prompt, n)
        cache, text, offset = self.stack.new_cache(), prompt, 0
        x = torch.cat((self._first(prompt), prompt), dim=1)
        for _ in range(n):
            y = self.stack(self.positions(self.embed(x), offset), cache=cache)
            offset += x.shape[1]
            logits = self.head(y[:, -1])
            if temperature > 0:
                p = (logits / temperature).softmax(-1)
                x = torch.multinomial(p, 1, generator=generator)
            else:
                x = logits.argmax(-1, keepdim=True)
            text = torch.cat((text, x), dim=1)
        return text

    def prompt_length(self, inputs: Int[Tensor, "batch length"]) -> int:
        """How many symbols stand before what the model writes by itself."""
        return inputs.shape[1]

    def spelled(self, symbols: Iterable[int]) -> str:
        """What symbols spell, up to an end; marks are left out.

        Raises
        ------
        ConfigError
            If they are subwords and the tokenizer is not there.
        """
        if self.tokenizer is None:
            raise ConfigError("tokenizer: this model's symbols are subwords; load it with its run")
        return self.tokenizer.decode(symbols)

    def _first(self, like: Tensor) -> Tensor:
        return like.new_full((like.shape[0], 1), self.start)

    def _check_room(self, prompt: Tensor, n: int) -> None:
        known, limit, unit = prompt.shape[1], self.config.seq_len, self.unit
        if n < 0 or known + n > limit:
            raise InputError(f"{known} {unit} and {n} more exceed this model's {limit} {unit}")


class PairLM(ByteLM):
    """Reads a source and writes its target: source, SEPARATOR, target, END, PAD … in one row.

    A language model of such rows (:class:`Marks`; PAD also stands before the first symbol), whose
    loss counts the target and its END alone. Pads come last, where a causal stack sees them not.
    """

    def __init__(self, config: RunConfig) -> None:
        marks = Marks(config.data.vocabulary)
        super().__init__(config, marks)
        self.marks = marks

    def counted(self, inputs: Int[Tensor, "batch length"]) -> Bool[Tensor, "batch length"]:
        """True at the target and its END."""
        separator = inputs == self.marks.separator
        written = separator.cumsum(1) > 0
        return written & ~separator & (inputs != self.marks.pad)

    def score(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Mean negative log-likelihood of a symbol of the target, in nats.

        Raises
        ------
        InputError
            If a row has no SEPARATOR: it is no pair, and its loss would be 0.
        """
        if not bool((inputs == self.marks.separator).any(1).all()):
            raise InputError("these symbols are no pairs: a row has no mark after its source")
        return super().score(inputs, targets)

    def prompt_length(self, inputs: Int[Tensor, "batch length"]) -> int:
        """Symbols of the first example's source and its SEPARATOR; all where there is none."""
        found = (inputs[0] == self.marks.separator).nonzero()
        return int(found[0, 0]) + 1 if len(found) else inputs.shape[1]

    def spelled(self, symbols: Iterable[int]) -> str:
        """What symbols spell, up to an END; marks are left out."""
        return super().spelled(takewhile(lambda symbol: symbol != self.marks.end, symbols))

    @torch.no_grad()
    def answer(
        self,
        prompt: Int[Tensor, "batch k"],
        n: int | None = None,
        beams: int = 1,
        length_penalty: float = 0.6,
    ) -> Int[Tensor, "batch total"]:
        """Write the targets of sources of one length, SEPARATOR included: greedily, or by beam.

        Each example ends by itself. A beam keeps the `beams` likeliest beginnings, ended ones
        among them, and returns the one with the highest log-probability over lengthᵖ, p the
        `length_penalty` (as in Wu et al. 2016 without its offset).

        Returns
        -------
        [B, k + m]
            m ≤ n new symbols (by default until the row is full): target, END, PAD …; no END
            where there was no room for it.

        Raises
        ------
        InputError
            If n symbols do not fit, or `beams` is not 1 to 64.
        """
        known, marks = prompt.shape[1], self.marks
        n = self.config.seq_len - known if n is None else n
        self._check_room(prompt, n)
        if not 1 <= beams <= 64:
            raise InputError(f"beams: {beams}; use 1 (greedy) to 64")
        cache, text, offset, batch = self.stack.new_cache(), prompt, 0, len(prompt)
        x = torch.cat((self._first(prompt), prompt), dim=1)
        scores = torch.zeros(batch, 1, dtype=torch.float64, device=prompt.device)
        ended = torch.zeros(batch, 1, dtype=torch.bool, device=prompt.device)
        for _ in range(n):
            y = self.stack(self.positions(self.embed(x), offset), cache=cache)
            offset += x.shape[1]
            log_p = self.head(y[:, -1]).to(scores).log_softmax(-1).unflatten(0, (batch, -1))
            log_p[..., [marks.separator, marks.pad]] = float("-inf")  # a target has no such marks
            after_end = torch.full_like(log_p, float("-inf"))
            after_end[..., marks.pad] = 0
            log_p = torch.where(ended[..., None], after_end, log_p)
            scores, best = (scores[..., None] + log_p).flatten(1).topk(beams)
            origin, symbol = best // self.n_symbols, best % self.n_symbols
            x = symbol.reshape(-1, 1)
            if beams > 1:
                first = torch.arange(batch, device=origin.device)[:, None] * ended.shape[1]
                rows = (first + origin).flatten()
                text = text[rows]
                cache.select(rows)
            text = torch.cat((text, x), dim=1)
            ended = ended.gather(1, origin) | (symbol == marks.end)
            if ended.all():
                break
        lengths = (text[:, known:] != marks.pad).sum(1).clamp(min=1).view(batch, -1)
        best = (scores / lengths**length_penalty).argmax(1)
        return text.view(batch, lengths.shape[1], -1)[torch.arange(batch), best]


MODELS: dict[str, type[TaskModel]] = {
    "image_autoregression": ImageAutoregressor,
    "image_reconstruction": ImageReconstructor,
    "language_modelling": ByteLM,
    "sequence_to_sequence": PairLM,
    "image_classification": ImageClassifier,
}


def build_model(config: RunConfig) -> TaskModel:
    """Build the model of a run with fresh weights (seed torch first for a given start)."""
    return MODELS[config.task](config)
