"""Their settings as ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from damcha.config import DataConfig, DatasetName, MetricConfig, ModelConfig, TrainConfig
from damcha.errors import CheckpointError

CODE = "github.com/erwinmsmith/DAMCHA"
MODES = {
    "mlp": "direct",
    "linear_comb": "linear_combination",
    "bayesian": "linear_combination",
    "separate_B": "separate",
}
BASELINES = {
    "tha": "tha",
    "mma": "mma",
    "dcmha": "authors-dcmha",
    "colmha": "authors-colmha",
    "moa": "authors-moa",
}
FIRST = {
    "wmt": ("bert-base-multilingual-cased", 101),
    "cnn_dailymail": ("facebook/bart-base", 0),
    "commongen": ("facebook/bart-base", 0),
}
"""Data set → the tokenizer that their code takes for it, and the symbol that begins its texts
(data/datasets_nlp.py)."""
DROPOUT = 0.1
"""A constant of their code."""
TEXT_LENGTH = 512
"""Tokens a text may have: not in their files, and less than the 4096 of their positions."""


@dataclass
class Settings:
    """Their settings, each checked for its type as it is read."""

    name: str
    values: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Parameters of a generator that its mode never reads outside training."""

    def get(self, key: str, kind: type, *default: Any) -> Any:
        """A setting of exactly this type; the default, if there is one, where it is absent."""
        if key not in self.values:
            if default:
                return default[0]
            raise CheckpointError(f"{self.name}: its config lacks '{key}'")
        value = self.values[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise CheckpointError(
                f"{self.name}: its config has {key}={str(value)[:60]!r}, which is not of type "
                f"{kind.__name__}"
            )
        return value

    @property
    def baseline(self) -> str | None:
        """Which of the other mechanisms it is; None for DAMCHA and for standard attention."""
        value = self.values.get("baseline")
        if value is None:
            return None
        if not isinstance(value, str) or value not in BASELINES:
            raise CheckpointError(
                f"{self.name}: its baseline {str(value)[:60]!r} is not known; known are "
                f"{', '.join(BASELINES)}"
            )
        return value

    @property
    def bias_rank(self) -> int:
        """Their rank of the layer bias; 0 for none."""
        used = self.get("use_layer_bias", bool, False)
        rank: int = self.get("layer_bias_rank", int, 16) if used else 0
        if used and not 1 <= rank <= 1024:
            raise CheckpointError(f"{self.name}: its config has layer_bias_rank={rank}")
        return rank

    def metric(self, n_heads: int) -> MetricConfig:
        """The metric; what it changes or leaves out is noted."""
        common: dict[str, Any] = {"context": "causal", "metric_init": "random"}
        on = self.get("diag_scale", float, 1.0)
        off = self.get("off_diag_scale", float, 1.0)
        if not self.get("use_mlp", bool, False):
            if (on, off) != (1, 1):
                self.notes.append(
                    f"block scales {on:g} and {off:g} left out: their code ignores them for a "
                    "constant metric"
                )
            return MetricConfig(generator="static", sharing="none", **common)
        mode = self.get("off_diag_mode", str, "mlp")
        if mode not in MODES:
            raise CheckpointError(
                f"{self.name}: off_diag_mode={mode[:60]!r} is not known; known are "
                f"{', '.join(MODES)}"
            )
        rank = self.get("compact_rank", int, 0)
        if rank > 0:
            common |= {"constraint": "low_rank", "rank": rank}
        if (rank > 0 or self.get("free_M", bool, False)) and mode != "mlp":
            self.notes.append(
                f"off_diag_mode '{mode}' and its weights left out: compact_rank or free_M makes "
                "their code ignore them"
            )
            self.unread += ["off_diag_alpha", "off_diag_alpha_logvar", "B"]
        else:
            common["off_diagonal"] = MODES[mode]
            if mode == "bayesian":
                self.notes.append("the variance of α left out: outside training its mean is used")
                self.unread.append("off_diag_alpha_logvar")
        bias = self.bias_rank
        if bias and on != off:
            bias *= n_heads + 1
            self.notes.append(
                f"the layer bias of rank {self.bias_rank} stored with rank {bias}, because theirs "
                "is scaled block by block"
            )
        shared = self.get("share_mlp", bool, False)
        hidden = self.values.get("mlp_hidden", (256, 512))
        if not isinstance(hidden, tuple | list) or any(type(n) is not int for n in hidden):
            raise CheckpointError(
                f"{self.name}: its config has mlp_hidden={str(hidden)[:60]!r}, not a tuple of int"
            )
        return MetricConfig(
            hidden_dims=tuple(hidden),
            generator_dropout=DROPOUT,
            sharing=("parameters" if bias else "stack") if shared else "none",
            layer_bias_rank=bias,
            diagonal_scale=on,
            off_diagonal_scale=off,
            **common,
        )

    def model(self, positions: Literal["learned", "sinusoidal", "none"]) -> ModelConfig:
        """The stack, always causal and post-norm."""
        baseline, n_heads = self.baseline, self.get("n_heads", int)
        kind: dict[str, Any] = {"attention": BASELINES[baseline] if baseline else "mha"}
        if baseline is None and self.get("use_M", bool):
            kind = {"attention": "damcha", "metric": self.metric(n_heads)}
        return ModelConfig(
            d_model=self.get("d_model", int),
            n_heads=n_heads,
            n_layers=self.get("n_layers", int),
            d_ff=self.get("d_ff", int),
            dropout=DROPOUT,
            positions=positions,
            norm="post",
            causal=True,
            **kind,
        )

    def train(self, epoch: int, steps: int) -> TrainConfig:
        """How it was trained, as far as the file tells after so many epochs and steps."""
        return TrainConfig(
            epochs=max(self.get("epochs", int, epoch), epoch),
            steps_per_epoch=max(1, steps // epoch),
            batch_size=self.get("batch_size", int, 128),
            lr=self.get("lr", float, 3e-4),
            weight_decay=self.get("weight_decay", float, 0.0),
            warmup_steps=0,
            seed=self.get("seed", int, 0),
            snapshots=(),
            snapshot_dtype="float32",
        )

    def data(self, symbols: int | None, first: int | None = None) -> DataConfig:
        """What it was trained on, as far as damcha knows such data; texts have `symbols`."""
        if symbols is not None:
            if first is None:
                first = self._first_symbol()
            return DataConfig(
                dataset="text", seq_len=TEXT_LENGTH, vocabulary=symbols, first_symbol=first
            )
        name = self.get("dataset", str)
        if name not in get_args(DatasetName) or name == "text":
            self.notes.append(f"data set {name[:40]!r}: known here as 'image_folder'")
            name = "image_folder"
        channels = self.get("in_ch", int)
        if channels not in (1, 3):
            raise CheckpointError(f"{self.name}: its config has in_ch={channels}, not 1 or 3")
        return DataConfig(
            dataset=name,
            image_size=self.get("img_size", int),
            channels=channels,
            patch_size=self.get("patch_size", int),
            n_classes=100 if name == "cifar100" else 10,
        )

    def _first_symbol(self) -> int:
        name = self.get("dataset", str)
        if name not in FIRST:
            raise CheckpointError(
                f"{self.name}: the file does not tell which symbol begins a text of its data "
                f"{name[:40]!r}; name its tokenizer.json (--tokenizer FILE) or the symbol "
                "(--first-symbol N)"
            )
        tokenizer, first = FIRST[name]
        self.notes.append(
            f"a text begins with symbol {first}, as with the tokenizer {tokenizer} that their code "
            f"takes for {name}"
        )
        return first
