"""Every setting of a run, and all checking of settings.

RunConfig
├── task       what is trained: one of TASKS
├── data       DataConfig    which data, cut how
├── model      ModelConfig   the transformer stack …
│   ├── metric MetricConfig  … its cross-head metric (DAMCHA only)
│   └── mechanism MechanismConfig  … and options of the other attention mechanisms
└── train      TrainConfig   budget, optimiser, snapshots

A configuration is frozen and complete: it is saved as ``config.json`` in the run's folder and
rebuilds the model. Field names are unique over the whole tree, so that ``--set field=value``
needs no path. Sizes are bounded here, before anything is allocated.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from damcha.errors import ConfigError

Task = Literal[
    "image_autoregression", "image_reconstruction", "image_classification",
    "language_modelling", "sequence_to_sequence",
]  # fmt: skip
TASKS: tuple[str, ...] = get_args(Task)
TEXT_TASKS: tuple[Task, ...] = ("language_modelling", "sequence_to_sequence")
DatasetName = Literal[
    "fashion_mnist", "cifar10", "cifar100", "objects10", "imagenet", "image_folder",
    "text", "mix", "enwik8", "text8", "wmt14", "en_de", "common_gen", "concepts",
]  # fmt: skip
PAIRS: tuple[DatasetName, ...] = ("wmt14", "en_de", "common_gen", "concepts")
"""Sets of a source and a target text; to a language model (``language_modelling``) each pair is a
line of one text, ``sequence_to_sequence`` reads the source and writes the target."""
TEXTS: tuple[DatasetName, ...] = ("text", "mix", "enwik8", "text8", *PAIRS)

MAX_SYMBOLS = 262_144
"""The most symbols that a tokenizer may have."""
MAX_PARAMETERS = 2_000_000_000
"""The largest number of weights a configuration may ask for (8 GB in float32)."""

Width = Annotated[int, Field(ge=1, le=16384)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ConfigError(_sentence(error)) from None

    # Without this mark pydantic would call the method above for each section of a config.json,
    # which loses the strict mode (64.0 or "64" would pass for a width) and the section's name.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def check_size(n_weights: int, field: str, remedy: str) -> None:
    """Refuse a model of more than MAX_PARAMETERS weights, naming the field to lower."""
    if n_weights > MAX_PARAMETERS:
        raise ConfigError(
            f"{field}: this model would have about {n_weights:,} weights, more than the "
            f"{MAX_PARAMETERS:,} that damcha accepts; {remedy}"
        )


class MetricConfig(_Config):
    """The cross-head metric M of DAMCHA (design.md §2-4)."""

    generator: Literal["mlp", "static"] = "mlp"
    """``mlp``: M = f_θ(context). ``static``: M is a learned constant ("w/o f(x)")."""
    hidden_dims: Annotated[tuple[Width, ...], Field(max_length=64)] = (256,)
    """Widths of the hidden layers of f_θ; an output layer follows. () is one affine map."""
    generator_dropout: Probability = 0.0
    sharing: Literal["stack", "groups", "parameters", "none"] = "stack"
    """``stack``: one metric for all layers. ``groups``: one for `group_layers` successive layers,
    from the input of the first of them, by a generator of the group's own. ``parameters``: one
    generator, run on each layer's input. ``none``: one generator per layer."""
    group_layers: Annotated[int, Field(ge=1, le=256)] | None = None
    """Layers of a group; it must divide `n_layers`."""
    context: Literal["full", "causal"] = "full"
    """What f_θ sees: the mean over all tokens, or the mean over the prefix."""
    context_stride: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """With a causal context, the metric is refreshed every so many queries."""
    context_decays: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(max_length=16)
    ] = ()
    """What f_θ sees beside the mean: for each λ, the mean of the prefix in which a token n tokens
    back has the weight λⁿ. () is the paper's form."""
    context_first: Annotated[int, Field(ge=0, le=64)] = 0
    """… and the first so many tokens themselves, each 0 where it is still to come."""
    aggregation: Literal["rowsum", "bilinear"] = "rowsum"
    """``rowsum``: S_a = X_a (Σ_b M_ab) X_aᵀ. ``bilinear``: S_a = Σ_b X_a M_ab X_bᵀ."""
    constraint: Literal["free", "symmetric", "psd", "low_rank"] = "free"
    rank: Annotated[int, Field(ge=1, le=16384)] | None = None
    """Rank r of ``psd`` (A Aᵀ/√r + εI) and ``low_rank`` (U Vᵀ/√r)."""
    psd_epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-3
    off_diagonal: Literal["direct", "linear_combination", "separate"] = "direct"
    """Where the blocks M_ab, a ≠ b, come from: the generator; a learned combination
    Σ_k α_abk M_kk of its diagonal blocks; a free parameter B."""
    layer_bias_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """Rank of a bias (U·s_ℓ) Vᵀ added to the metric in layer ℓ; 0 for none."""
    diagonal_scale: Annotated[float, Field(ge=-1e3, le=1e3)] = 1.0
    off_diagonal_scale: Annotated[float, Field(ge=-1e3, le=1e3)] = 1.0
    mixing: Literal["none", "shared", "layer"] = "none"
    """A learned d×d matrix P that mixes the channels of queries and keys before they are cut into
    heads, S_a = (XP)_a R_a (YP)_aᵀ: ``shared`` by all layers, or one for each ``layer``. Training
    starts at P = I. ``none`` is the paper's form: head a reads channels [a·e, (a+1)·e) alone."""
    query_norm: Literal["none", "rms"] = "none"
    """``rms``: q_a and k_a of every token are divided by their root mean square over the head's
    channels, and q is multiplied by a learned gain per layer and channel, which starts at 1."""
    metric_init: Literal["identity", "random"] = "identity"
    """``identity``: training starts at M ≈ I plus a small input-dependent part.
    ``random``: PyTorch's default initialisation of the last layer, as the authors do; a static
    constant starts as that layer's bias."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.constraint in ("psd", "low_rank"):
            if self.rank is None:
                raise ValueError(f"rank: constraint='{self.constraint}' needs a rank, e.g. rank=8")
            if self.off_diagonal != "direct":
                raise ValueError(
                    f"off_diagonal: '{self.off_diagonal}' builds blocks from blocks and cannot be "
                    f"combined with constraint='{self.constraint}'; use constraint='free'"
                )
        elif self.rank is not None:
            raise ValueError(
                f"rank: only constraint='psd' or 'low_rank' has a rank, not '{self.constraint}'"
            )
        if self.constraint == "symmetric" and self.off_diagonal != "direct":
            raise ValueError(
                f"off_diagonal: '{self.off_diagonal}' does not give a symmetric metric; "
                "use off_diagonal='direct' or constraint='free'"
            )
        if self.query_norm != "none" and self.aggregation == "bilinear":
            raise ValueError(
                "query_norm: with aggregation='bilinear' a head's query has the channels of all "
                "heads, so there is no norm of its own; use query_norm='none' or 'rowsum'"
            )
        if self.generator == "static" and self.context == "causal" and self.context_stride != 1:
            raise ValueError("context_stride: a static metric has no context; leave it at 1")
        if self.generator == "static" and self.context_parts > 1:
            raise ValueError(
                "context_decays, context_first: a static metric has no context; leave them at "
                "their defaults"
            )
        if self.context_decays and self.context == "full":
            raise ValueError(
                "context_decays: a running mean follows a prefix; use context='causal', or no "
                "decays with context='full'"
            )
        if (self.sharing == "groups") != (self.group_layers is not None):
            raise ValueError(
                f"group_layers: sharing='groups' needs it, e.g. group_layers=2, and no other has "
                f"it; got sharing='{self.sharing}' with group_layers={self.group_layers}"
            )
        return self

    @property
    def context_parts(self) -> int:
        """What f_θ sees, in vectors of width d: the mean, one for each decay, the first tokens."""
        return 1 + len(self.context_decays) + self.context_first

    @property
    def differs_by_layer(self) -> bool:
        """Whether layers have metrics that are not one and the same."""
        return self.sharing != "stack" or self.layer_bias_rank > 0

    def generators(self, n_layers: int) -> int:
        """How many generators (or constants) a stack has."""
        per_stack = {"stack": 1, "parameters": 1, "none": n_layers}
        return per_stack.get(self.sharing) or n_layers // (self.group_layers or 1)

    def weights(self, d: int, h: int) -> int:
        """A close count of the weights of one generator or constant, by formula."""
        out = d * d if self.off_diagonal == "direct" else d * (d // h)
        if self.rank is not None:
            out = (2 if self.constraint == "low_rank" else 1) * d * self.rank
        widths = (d * self.context_parts, *self.hidden_dims, out)
        layers = 0 if self.generator == "static" else sum(map(int.__mul__, widths, widths[1:]))
        others = {"direct": 0, "linear_combination": h**3, "separate": d * d}[self.off_diagonal]
        mixing = 0 if self.mixing == "none" else d * d
        return layers + out + others + mixing + 2 * d * self.layer_bias_rank


class MechanismConfig(_Config):
    """Options of the mechanisms beside DAMCHA; each reads its own and ignores the rest."""

    key_heads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """THA: heads of queries and keys before the first mixing; null for n_heads."""
    value_heads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """THA: heads of the values, after the second mixing; null for n_heads."""
    mix_bias: bool = False
    """THA: biases in both mixings, as in CaiT (never given to a key that is masked)."""
    qk_norm: bool = False
    """DCMHA: RMS-normalised queries and keys, as in DCFormer."""
    shared_width: Width | None = None
    """ColMHA: the width of the queries and keys that all heads share; null for d_model."""
    local_window: Annotated[int, Field(ge=1, le=65536)] = 8
    """MMA: a local head sees the keys less than so many tokens away."""
    n_experts: Annotated[int, Field(ge=1, le=4096)] | None = None
    """MoA: experts to choose from; null for 2·n_heads."""
    top_k: Annotated[int, Field(ge=1, le=1024)] | None = None
    """MoA: experts that a token uses; null for n_heads."""
    normalize_gates: bool = False
    """MoA: whether the gates of the chosen experts are made to sum to 1."""
    importance_loss: Annotated[float, Field(ge=0, le=100)] = 0.0
    switch_loss: Annotated[float, Field(ge=0, le=100)] = 0.01
    z_loss: Annotated[float, Field(ge=0, le=100)] = 0.001
    """MoA: coefficients of the auxiliary losses, as in arXiv 2210.05144 §4."""
    budget_hidden: Width = 16
    """BudgetFormer: hidden width of the network that sets the budget."""
    budget_loss: Annotated[float, Field(ge=0, le=100)] = 0.1
    """BudgetFormer: coefficient of the hinge that keeps the budget within [0.1, 0.9]."""
    entropy_loss: Annotated[float, Field(ge=0, le=100)] = 0.01
    """BudgetFormer: coefficient of the entropy of the heads' relevance."""
    pseudo_heads: Annotated[int, Field(ge=1, le=64)] = 2
    """IHA: pseudo-heads P of each head."""


class ModelConfig(_Config):
    """A transformer stack."""

    attention: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,49}$")] = "damcha"
    """A name in ``damcha.attention.ATTENTIONS``; checked when the stack is built."""
    d_model: Width = 64
    n_heads: Annotated[int, Field(ge=1, le=1024)] = 8
    n_layers: Annotated[int, Field(ge=1, le=256)] = 4
    d_ff: Annotated[int, Field(ge=1, le=65536)] = 128
    dropout: Probability = 0.0
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    norm: Literal["pre", "post"] = "pre"
    causal: bool = True
    residual: Literal["standard", "attention", "mhar"] = "standard"
    """``attention``: each sublayer reads a learned mixture of all earlier outputs instead of their
    sum; ``mhar``: with a mixture of its own in each of `residual_heads` slices of the width."""
    residual_heads: Annotated[int, Field(ge=1, le=1024)] = 8
    metric: MetricConfig = MetricConfig(context="causal")
    mechanism: MechanismConfig = MechanismConfig()

    @property
    def d_head(self) -> int:
        """Width e = d/h of a head."""
        return self.d_model // self.n_heads

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads: d_model={self.d_model} is not divisible by n_heads={self.n_heads}; "
                "each head takes an equal slice of the width"
            )
        if self.positions == "rotary" and self.d_head % 2:
            raise ValueError(
                f"positions: rotary positions turn pairs of channels, but d_head={self.d_head} "
                "is odd; use an even d_model/n_heads or other positions"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"positions: sinusoidal needs an even d_model, not {self.d_model}")
        if (
            self.attention == "damcha"
            and self.causal
            and self.metric.generator == "mlp"
            and self.metric.context == "full"
        ):
            raise ValueError(
                "context: a causal model whose metric pools the whole sequence (context='full') "
                "leaks the future into every score; use context='causal'"
            )
        if (
            self.attention == "damcha"
            and self.metric.group_layers is not None
            and self.n_layers % self.metric.group_layers
        ):
            raise ValueError(
                f"group_layers: n_layers={self.n_layers} is not divisible by "
                f"group_layers={self.metric.group_layers}; groups are of equal size"
            )
        if self.residual != "standard" and self.norm == "post":
            raise ValueError(
                f"residual: '{self.residual}' reads raw outputs of sublayers, which norm='post' "
                "would normalise in place; use norm='pre'"
            )
        if self.residual == "mhar" and self.d_model % self.residual_heads:
            raise ValueError(
                f"residual_heads: d_model={self.d_model} is not divisible by "
                f"residual_heads={self.residual_heads}"
            )
        check_size(
            self.parameter_bound(), "d_model", "lower d_model, hidden_dims, n_layers or d_ff"
        )
        return self

    def parameter_bound(self) -> int:
        """A close count of the stack's weights, by formula: nothing is allocated."""
        d, metric = self.d_model, self.metric
        feed_forward = 2 * d * self.d_ff
        if self.attention != "damcha":  # the mechanism's own count is checked when it is built
            return self.n_layers * (4 * d * d + feed_forward)
        copies = metric.generators(self.n_layers)
        generators = copies * metric.weights(d, self.n_heads)
        if metric.mixing == "layer":
            generators += (self.n_layers - copies) * d * d
        return self.n_layers * (2 * d * d + feed_forward) + generators


class DataConfig(_Config):
    """Which data a run is trained on, and how an example is cut."""

    dataset: DatasetName = "fashion_mnist"
    image_size: Annotated[int, Field(ge=1, le=1024)] = 28
    channels: Literal[1, 3] = 1
    patch_size: Annotated[int, Field(ge=1, le=1024)] = 4
    seq_len: Annotated[int, Field(ge=1, le=65536)] = 128
    """Bytes (symbols, for pairs) a text example has; images have one token a patch."""
    vocabulary: Annotated[int, Field(ge=2, le=MAX_SYMBOLS)] = 256
    """Symbols that spell the texts: 256 are bytes; of pairs, more are subwords learnt from the
    training part."""
    first_symbol: Annotated[int, Field(ge=0, lt=MAX_SYMBOLS)] | None = None
    """Of a language model with somebody else's tokenizer: the one of its symbols that begins every
    text. null: its symbols are bytes, and symbol 256 begins a text."""
    n_classes: Annotated[int, Field(ge=2, le=100_000)] = 10
    class_names: Annotated[
        tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=100_000)
    ] = ()
    """Names of the classes in label order, for a classifier; () where only numbers are known."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.class_names and len(self.class_names) != self.n_classes:
            raise ValueError(
                f"class_names: {len(self.class_names)} names for n_classes={self.n_classes}"
            )
        if self.image_size % self.patch_size:
            raise ValueError(
                f"patch_size: image_size={self.image_size} is not divisible by "
                f"patch_size={self.patch_size}"
            )
        return self

    @property
    def n_patches(self) -> int:
        """Patches of an image, row by row from the top left."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def patch_dim(self) -> int:
        """Numbers in a patch: channels · patch_size²."""
        return self.channels * self.patch_size**2


class TrainConfig(_Config):
    """Budget, optimiser and snapshots of a run."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 50
    steps_per_epoch: Annotated[int, Field(ge=1, le=10_000_000)] = 60
    """Optimiser steps that make an epoch (it need not be one pass over the data)."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 128
    """Examples in a step, over all processes together."""
    lr: Annotated[float, Field(gt=0, le=10)] = 3e-4
    generator_lr: Annotated[float, Field(gt=0, le=100)] = 1.0
    """The learning rate of M's own weights (f_θ or the constant), as a factor of `lr`. Under RowSum
    h blocks add up to R_a, and Adam moves each of them by `lr`: 1/h makes R_a move by `lr`."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.01
    warmup_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 100
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Largest global gradient norm."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Half precisions are used on CUDA only."""
    snapshots: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=100_000)] = (
        0, 1, 12, 24, 36, 49,
    )  # fmt: skip
    """Epochs, counted from 0, at whose end the weights are kept. The last is always kept."""
    snapshot_dtype: Literal["float32", "float16"] = "float16"
    validation_examples: Annotated[int, Field(ge=1, le=10_000_000)] = 1024


class RunConfig(_Config):
    """Everything that defines a run."""

    format_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "run"
    task: Task = "image_autoregression"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        autoregressive = self.is_text or self.task == "image_autoregression"
        if autoregressive and not self.model.causal:
            raise ValueError(
                f"causal: task='{self.task}' predicts the next token from the past, so "
                "causal=false would let it read the answer; use causal=true"
            )
        fitting = PAIRS if self.task == "sequence_to_sequence" else TEXTS
        if self.is_text != (self.data.dataset in fitting):
            raise ValueError(
                f"dataset: task='{self.task}' cannot be trained on dataset='{self.data.dataset}'"
            )
        if self.task == "sequence_to_sequence" and self.data.seq_len < 4:
            raise ValueError(
                f"seq_len: a pair needs room for 4 symbols or more, not {self.data.seq_len}"
            )
        first, size = self.data.first_symbol, self.data.vocabulary
        if first is not None and (self.task != "language_modelling" or first >= size):
            raise ValueError(
                f"first_symbol: only a language model has one, and of its own {size:,} symbols; "
                f"got first_symbol={first} with task='{self.task}'"
            )
        if self.task == "sequence_to_sequence" and size < 256:
            raise ValueError(f"vocabulary: texts of pairs need 256 symbols or more, not {size}")
        if self.task != "sequence_to_sequence" and first is None and size != 256:
            raise ValueError(
                f"vocabulary: task='{self.task}' has no tokenizer, so it must stay 256, not "
                f"{size}; only imported models have another (first_symbol)"
            )
        check_size(
            self.parameter_bound(), "patch_size", "lower patch_size, n_classes, seq_len or d_model"
        )
        return self

    def parameter_bound(self) -> int:
        """A close count of all weights: the stack, its embedding, positions and head."""
        d, data, task = self.model.d_model, self.data, self.task
        if self.is_text:
            ends = 2 * (data.vocabulary + 3) * d
        elif task == "image_classification":
            ends = (data.patch_dim + data.n_classes) * d
        else:
            ends = data.patch_dim * d + 2 * d * (d + data.patch_dim)
        positions = self.seq_len * d if self.model.positions == "learned" else 0
        return self.model.parameter_bound() + ends + positions

    @property
    def is_text(self) -> bool:
        """Whether the inputs are texts; otherwise they are pictures."""
        return self.task in TEXT_TASKS

    @property
    def symbol(self) -> Literal["byte", "symbol"]:
        """What a token of a text is called."""
        in_bytes = self.task == "language_modelling" and self.data.first_symbol is None
        return "byte" if in_bytes else "symbol"

    @property
    def seq_len(self) -> int:
        """Tokens that the stack sees."""
        return self.data.seq_len if self.is_text else self.data.n_patches

    def to_json(self) -> str:
        """Return the configuration as indented JSON, every field written out."""
        return self.model_dump_json(indent=2) + "\n"

    def flat(self) -> dict[str, Any]:
        """Every setting by its name, without the sections."""
        return {name: section[name] for name, section in _leaves(self.model_dump())}

    @classmethod
    def from_json(cls, text: str | bytes) -> RunConfig:
        """Read a configuration strictly: a wrong or unknown field is a ConfigError naming it."""
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise ConfigError(_sentence(error)) from None

    def override(self, settings: dict[str, Any]) -> RunConfig:
        """Return a copy with fields set by name, e.g. ``{"d_model": 128, "generator": "static"}``.

        Values may be strings, as they come from a shell: ``256,512`` or ``[256, 512]`` for
        ``hidden_dims``, ``null`` for no ``rank``.

        Raises
        ------
        ConfigError
            If a field is unknown, or a value is not allowed there.
        """
        tree = self.model_dump()
        places = dict(_leaves(tree))
        for name, value in settings.items():
            if name not in places:
                raise ConfigError(
                    f"{name}: no such setting; the settings are {', '.join(sorted(places))}"
                )
            places[name][name] = _parse(value, places[name][name])
        try:
            return type(self).model_validate(tree)
        except ValidationError as error:
            raise ConfigError(_sentence(error)) from None


def _leaves(tree: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every field name that is not a section, with the section that holds it."""
    found = []
    for name, value in tree.items():
        found += _leaves(value) if isinstance(value, dict) else [(name, tree)]
    return found


def _parse(value: Any, present: Any) -> Any:
    if not isinstance(value, str):
        return value
    if isinstance(present, tuple):
        text = value.strip().strip("[]()")
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return None if value == "null" else value


def _sentence(error: ValidationError) -> str:
    """One line for all that is wrong: field, rule, value."""
    parts = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "config"
        where = " ".join(where[:80].split())  # an unknown field may have any name
        if item["type"] == "value_error":
            parts.append(str(item["ctx"]["error"]))
            continue
        message = item["msg"][0].lower() + item["msg"][1:]
        if item["type"] == "extra_forbidden":
            message = "no such setting"
        elif item["type"] == "json_invalid":
            parts.append(f"config is not valid JSON: {message}")
            continue
        value = json.dumps(item.get("input"), default=str)
        shown = "" if item["type"] == "missing" else f" (got {value[:80]})"
        parts.append(f"{where}: {message}{shown}")
    return "; ".join(parts)
