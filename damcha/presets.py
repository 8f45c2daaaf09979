"""Named configurations, and the runs that ship in ``checkpoints/``.

A preset is a :class:`RunConfig`; a variant of it is a preset and a few settings, exactly as they
are given to ``damcha train PRESET --set field=value``.
"""

from __future__ import annotations

from damcha.config import DataConfig, MetricConfig, ModelConfig, RunConfig, TrainConfig


def _fashion() -> RunConfig:
    """Fashion-MNIST, 49 patches of 4x4; the metric is refreshed once a row of patches."""
    return RunConfig(
        name="fashion",
        task="image_autoregression",
        data=DataConfig(dataset="fashion_mnist"),
        model=ModelConfig(
            metric=MetricConfig(hidden_dims=(32, 32), context="causal", context_stride=7)
        ),
        train=TrainConfig(steps_per_epoch=40, batch_size=64, lr=2e-3, validation_examples=512),
    )


def _objects() -> RunConfig:
    """32x32 colour images in CIFAR-10's format, 64 patches of 4x4."""
    return RunConfig(
        name="objects",
        task="image_autoregression",
        data=DataConfig(dataset="objects10", image_size=32, channels=3),
        model=ModelConfig(
            metric=MetricConfig(hidden_dims=(32, 32), context="causal", context_stride=8)
        ),
        train=TrainConfig(steps_per_epoch=40, batch_size=64, lr=2e-3, validation_examples=500),
    )


def _text() -> RunConfig:
    """Bytes of English, 128 at a time; the metric is refreshed every 16 bytes."""
    return RunConfig(
        name="text",
        task="language_modelling",
        data=DataConfig(dataset="text"),
        model=ModelConfig(
            d_ff=256,
            positions="rotary",
            metric=MetricConfig(hidden_dims=(32, 32), context="causal", context_stride=16),
        ),
        train=TrainConfig(steps_per_epoch=40, batch_size=16, lr=3e-3, validation_examples=256),
    )


def _pairs(name: str, dataset: str, vocabulary: int, seq_len: int) -> RunConfig:
    """Reads a source and writes its target, in subwords."""
    return _text().override(
        {"name": name, "task": "sequence_to_sequence", "dataset": dataset}
        | {"vocabulary": vocabulary, "seq_len": seq_len, "batch_size": 32}
    )


FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def _classifier() -> RunConfig:
    """A small ViT on Fashion-MNIST: no causality, one metric from the whole image."""
    return RunConfig(
        name="fashion-classifier",
        task="image_classification",
        data=DataConfig(dataset="fashion_mnist", class_names=FASHION_CLASSES),
        model=ModelConfig(causal=False, metric=MetricConfig(hidden_dims=(32, 32))),
        train=TrainConfig(steps_per_epoch=40, batch_size=64, lr=2e-3, validation_examples=512),
    )


def _masked() -> RunConfig:
    """Hidden rows of patches are filled in, as the authors train (d=128, hidden 256, 512)."""
    return RunConfig(
        name="cifar10-masked",
        task="image_reconstruction",
        data=DataConfig(dataset="cifar10", image_size=32, channels=3),
        model=ModelConfig(
            d_model=128,
            d_ff=256,
            positions="sinusoidal",
            norm="post",
            metric=MetricConfig(hidden_dims=(256, 512), context="causal"),
        ),
        train=TrainConfig(steps_per_epoch=390, batch_size=128, lr=3e-4),
    )


PRESETS: dict[str, RunConfig] = {
    "fashion": _fashion(),
    "fashion-classifier": _classifier(),
    "objects": _objects(),
    "text": _text(),
    "text-paper": _text().override({"name": "text-paper"}),  # stays the paper's form
    "cifar10": _objects().override({"name": "cifar10", "dataset": "cifar10"}),
    "cifar100": _objects().override({"name": "cifar100", "dataset": "cifar100"}),
    "cifar10-masked": _masked(),
    "image-folder": _objects().override(
        {"name": "image-folder", "dataset": "image_folder", "image_size": 64, "patch_size": 8}
    ),
    "imagenet": _objects().override(
        {"name": "imagenet", "dataset": "imagenet", "image_size": 64, "patch_size": 8}
    ),
    "imagenet-classifier": _classifier().override(
        {"name": "imagenet-classifier", "dataset": "imagenet", "n_classes": 1000, "class_names": ()}
        | {"image_size": 64, "patch_size": 8, "channels": 3}
    ),
    **{
        name: _text().override({"name": name, "dataset": name.replace("-", "_")})
        for name in ("mix", "enwik8", "text8", "wmt14", "en-de", "common-gen", "concepts")
    },
    "translate-wmt14": _pairs("translate-wmt14", "wmt14", 32000, 128),
    "translate": _pairs("translate", "en_de", 2048, 96),
    "write-common-gen": _pairs("write-common-gen", "common_gen", 8192, 64),
    "write": _pairs("write", "concepts", 2048, 48),
}

STATIC = {"generator": "static", "context_stride": "1"}
SHIPPED: dict[str, tuple[str, dict[str, str]]] = {
    "fashion-damcha": ("fashion", {}),
    "fashion-static": ("fashion", STATIC),
    "fashion-unshared": ("fashion", {"sharing": "none"}),
    "fashion-mha": ("fashion", {"attention": "mha"}),
    "fashion-bilinear": ("fashion", {"aggregation": "bilinear"}),
    "text-damcha": ("text", {}),
    "text-static": ("text", STATIC),
    "text-unshared": ("text", {"sharing": "none"}),
    "text-mha": ("text", {"attention": "mha"}),
    "text-bilinear": ("text", {"aggregation": "bilinear"}),
    "objects-damcha": ("objects", {}),
    "objects-static": ("objects", STATIC),
    "fashion-classifier": ("fashion-classifier", {}),
    **{
        f"{task}-{attention}": (task, {"attention": attention, "snapshots": "0,12,49"})
        for task in ("translate", "write")
        for attention in ("damcha", "mha")
    },
}
"""Name of a shipped run → its preset and settings."""

LAST = {"snapshots": "49"}
"""Runs to compare results with keep their last epoch only, to stay small."""
for _family in ("fashion", "text"):
    for _name in ("tha", "dcmha", "colmha", "mma", "moa", "budgetformer", "iha"):
        SHIPPED[f"{_family}-{_name}"] = (_family, {"attention": _name, **LAST})
    for _name, _residual in (("mhar", "mhar"), ("attnres", "attention")):
        settings = {"attention": "mha", "residual": _residual, **LAST}
        SHIPPED[f"{_family}-{_name}"] = (_family, settings)
