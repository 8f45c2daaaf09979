"""The model card (README.md) and the sample inputs of a run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from damcha.attention import ATTENTIONS
from damcha.checkpoint.files import atomic_write, remove_drafts
from damcha.config import RunConfig
from damcha.data.datasets import TextData
from damcha.data.evaluation import Examples
from damcha.data.pairs import PairExamples
from damcha.symbols import Bytes

N_SAMPLES = 8

_WHAT = {
    "image_autoregression": "predicts each patch of an image from the patches before it",
    "image_reconstruction": "fills in hidden rows of patches of an image",
    "language_modelling": "predicts each {symbol} of a text from the {symbol}s before it",
    "sequence_to_sequence": "reads a source text and writes its target, symbol by symbol",
    "image_classification": "says which class an image belongs to",
}
_UNITS = {
    "image_autoregression": "mean squared error, pixels in [-1, 1]",
    "image_reconstruction": "mean squared error over hidden patches, pixels in [-1, 1]",
    "language_modelling": "nats a {symbol}",
    "sequence_to_sequence": "nats a symbol of the target, its end among them",
    "image_classification": "cross-entropy, nats",
}


def what_it_does(config: RunConfig) -> str:
    """Say what a model does: "A transformer that …"."""
    return _WHAT[config.task].format(symbol=config.symbol)


def unit_of(config: RunConfig) -> str:
    """Name the unit of a run's losses."""
    return _UNITS[config.task].format(symbol=config.symbol)


def model_card(
    config: RunConfig,
    records: list[dict[str, Any]],
    stored: dict[str, float],
    *,
    n_parameters: int,
    n_valid: int,
    source: str,
    licence: str,
    command: str,
    versions: str,
) -> str:
    """Return the card as Markdown.

    Parameters
    ----------
    config, records
        The run's configuration and its metrics, one record an epoch.
    stored
        Validation scores of the last snapshot as it was read back from disk.
    n_parameters, n_valid
        Weights of the model; held-out examples behind each validation number.
    source, licence
        Of the data.
    command, versions
        What made this run, and with what.
    """
    model, settings, last = config.model, config.train, records[-1]
    if model.attention == "mha":
        mechanism = "multi-head attention"
    elif model.attention != "damcha":
        kind = ATTENTIONS[model.attention]
        options = [f"{name} {getattr(model.mechanism, name)}" for name in kind.OPTIONS]
        mechanism = ", ".join([f"{kind.__name__} (`damcha.attention.{kind.__name__}`)", *options])
    else:
        metric = model.metric
        made = "a learned constant" if metric.generator == "static" else "f_θ of the context"
        where = {
            "stack": "one metric for all layers",
            "groups": f"one metric for every {metric.group_layers} layers",
            "parameters": "one generator run in each layer",
            "none": "a generator per layer",
        }[metric.sharing]
        mechanism = f"DAMCHA; M is {made}, {where}, aggregation {metric.aggregation}"
        more = [f"a running mean at decay {decay}" for decay in metric.context_decays]
        more += [f"the first {metric.context_first} tokens"] * (metric.context_first > 0)
        if more:
            mechanism += f"; the context has beside the mean {', '.join(more)}"
    if model.residual != "standard":
        heads = f" in {model.residual_heads} slices" if model.residual == "mhar" else ""
        mechanism += f"; each sublayer reads a learned mixture of all earlier outputs{heads}"
    symbols = ""
    if config.task == "sequence_to_sequence":
        symbols = f"\n- Texts: {config.data.vocabulary:,} " + (
            "bytes as symbols." if config.data.vocabulary == Bytes.size
            else "symbols, learnt from the training part (`tokenizer.json`)."
        ) + f" A row has {config.data.seq_len}: source, mark, target, end."  # fmt: skip
    chosen = sorted({*settings.snapshots, 0, settings.epochs - 1} & {r["epoch"] for r in records})
    names = [k for k in last if k.startswith(("train_", "valid_"))]
    rows = "\n".join(
        f"| {e} | " + " | ".join(f"{records[e][k]:.4f}" for k in names) + " |" for e in chosen
    )
    effect = "; ".join(
        f"{k} {last[f'valid_{k}']:.6f} in training, {v:.6f} from the file"
        for k, v in stored.items()
    )
    return f"""# {config.name}

A transformer that {what_it_does(config)}.

- Attention: {mechanism}.
- Size: d_model {model.d_model}, {model.n_heads} heads, {model.n_layers} layers, d_ff {model.d_ff};
  {n_parameters:,} weights.{symbols}
- Data: {source} Licence: {licence}
- Budget: {settings.epochs} epochs of {settings.steps_per_epoch} steps of {settings.batch_size}
  examples, seed {settings.seed}; {sum(r["seconds"] for r in records) / 60:.0f} minutes in all.
- Made with: `{command or "damcha.training.train"}` ({versions}).

## Results

Loss is {unit_of(config)}. Validation: {n_valid:,} held-out examples. Epochs count from 0;
`epoch-NNNN.safetensors` holds the weights at the end of epoch NNNN.

| epoch | {" | ".join(n.replace("_", " ") for n in names)} |
|---|{"---|" * len(names)}
{rows}

Weights are stored as {settings.snapshot_dtype}. Effect on the last epoch's validation: {effect}.
`mean-metric.safetensors`, where present, holds the metric's mean over held-out inputs for each
snapshot, [metrics, positions, d, d]; there is one metric where the stack shares it, else one a
layer. One run, one seed: differences to other runs of the order of a seed's effect mean nothing.
"""


def write_samples(folder: Path, config: RunConfig, data: Examples) -> None:
    """Write a few held-out inputs of the run's own domain, as PNG or text files.

    A pair is a file of its source, a tab, and its target.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_drafts(folder)
    if isinstance(data, PairExamples):
        pairs = data.data
        for i, k in enumerate(np.linspace(0, len(pairs) - 1, min(N_SAMPLES, len(pairs)))):
            pair = f"{pairs.sources[int(k)]}\t{pairs.targets[int(k)]}\n"
            atomic_write(folder / f"pair-{i}.txt", pair)
        return
    if isinstance(data, TextData):
        length = config.data.seq_len
        for i, start in enumerate(np.linspace(0, len(data.bytes) - length, N_SAMPLES)):
            piece = data.bytes[int(start) : int(start) + length].tobytes()
            atomic_write(folder / f"text-{i}.txt", piece.decode(errors="ignore"))
        return
    labels, first = np.unique(data.labels, return_index=True)
    for label, index in list(zip(labels, first, strict=True))[:N_SAMPLES]:
        image = data.images[int(index)]
        name = "".join(c if c.isalnum() else "-" for c in data.class_names[int(label)].lower())
        png = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(png, "PNG")
        atomic_write(folder / f"{name[:40]}.png", png.getvalue())
