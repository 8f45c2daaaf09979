"""Training: a configuration and data in, a run folder out, with a record of every step.

Nothing about the random numbers is carried along: the examples of step t and its dropout masks
follow from (seed, t) alone, and so does its learning rate. A run that was killed therefore
continues from the last finished epoch exactly as if it had never stopped.

Several processes share each global batch, so that the loss is that of one process up to rounding.
What a model draws while it trains (dropout, the rows that the reconstructor hides) is drawn by each
process for itself, and does depend on their number.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from damcha.attention import CrossHeadMetric
from damcha.checkpoint.card import model_card, write_samples
from damcha.checkpoint.files import atomic_write, read_text, remove_drafts
from damcha.checkpoint.resume import NAME as RESUME
from damcha.checkpoint.resume import load_resume, save_resume
from damcha.checkpoint.run import MAX_METRICS_BYTES, pick_device
from damcha.checkpoint.weights import load_strictly, read_weights, write_weights
from damcha.config import RunConfig, TrainConfig
from damcha.data.datasets import ImageData, TextData
from damcha.data.evaluation import Examples, batch_of, load_examples, spread
from damcha.data.pairs import PairExamples, load_pairs
from damcha.data.subwords import Subwords, read_subwords, train_subwords
from damcha.errors import CheckpointError, ConfigError
from damcha.model import TaskModel, build_model
from damcha.symbols import TOKENIZER, Bytes, Tokenizer
from damcha.tap import tap

DTYPES = {"float32": torch.float32, "float16": torch.float16}
MEAN_EXAMPLES = 256
"""Validation inputs over which a snapshot's data-set-mean metric is taken."""


@dataclass(frozen=True)
class Progress:
    """One optimiser step, and the epoch's record if the step ended an epoch."""

    step: int
    n_steps: int
    loss: float
    tokens: int
    """Tokens in the step, over all processes."""
    record: dict[str, Any] | None = None


# -------------------------------------------------------------------- data of a step


def _order(n: int, seed: int, first: int, count: int) -> NDArray[np.int64]:
    """Places first … first+count-1 of an endless sequence of shuffles of range(n)."""
    places = np.arange(first, first + count)
    return np.array([_shuffle(n, seed, int(place // n))[place % n] for place in places])


@functools.lru_cache(maxsize=2)
def _shuffle(n: int, seed: int, k: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, k]).permutation(n)


def _batch(
    data: Examples, config: RunConfig, step: int, rank: int, world: int
) -> tuple[Tensor, Tensor]:
    """One process's share of the global batch of a step: inputs and targets (labels)."""
    size, seed, length = config.train.batch_size, config.train.seed, config.data.seq_len
    if isinstance(data, TextData):
        rng = np.random.default_rng([seed, step])
        places = rng.integers(0, len(data.bytes) - length + 1, size)
    else:
        count = len(data) if isinstance(data, PairExamples) else len(data.labels)
        places = _order(count, seed, step * size, size)
    return batch_of(data, places[rank::world], length)


def held_out(data: Examples, config: RunConfig, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels of `count` examples spread evenly over a held-out part, always the same."""
    length = config.data.seq_len
    return batch_of(data, spread(data, length, count), length)


def _check_classes(data: Examples, config: RunConfig) -> None:
    if not isinstance(data, ImageData) or config.task != "image_classification":
        return
    wanted, names = config.data, data.class_names
    if len(names) > wanted.n_classes:
        raise ConfigError(
            f"n_classes: the data has {len(names)} classes, more than n_classes={wanted.n_classes}"
        )
    if wanted.class_names and wanted.class_names != names:
        shown = ",".join(names[:12]) + ",…" * (len(names) > 12)
        raise ConfigError(
            f"class_names: they are not those of the data, {shown}; give these, or none"
        )


def _tokenizer(config: RunConfig, data_root: Path, folder: Path) -> Tokenizer | None:
    """What spells a run on pairs: bytes, or subwords learnt once from all of its training texts."""
    size = config.data.vocabulary
    if config.data.first_symbol is not None:
        raise ConfigError(
            "first_symbol: this is an imported model, whose training data are not known here; "
            "training language models is done on bytes (first_symbol=null, vocabulary=256)"
        )
    if config.task != "sequence_to_sequence":
        return None
    if size == Bytes.size:
        return Bytes()
    if (folder / TOKENIZER).exists():
        return read_subwords(folder / TOKENIZER)
    pairs = load_pairs(config.data, data_root, "train")
    sides = (pairs.sources, pairs.targets)
    found = train_subwords((side[k] for side in sides for k in range(len(side))), size)
    if found.size != size:
        raise ConfigError(
            f"vocabulary: the training texts give {found.size} symbols, not {size}; use "
            f"vocabulary={found.size}"
        )
    return found


# -------------------------------------------------------------------- optimisation


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then a cosine to a tenth of lr, or constant."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    total = max(config.epochs * config.steps_per_epoch - config.warmup_steps, 1)
    part = (step - config.warmup_steps) / total
    return config.lr * (0.55 + 0.45 * math.cos(math.pi * min(part, 1.0)))


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW; biases and other vectors are not decayed.

    M's own weights form groups of their own where their learning rate is another.
    """
    own = {
        id(p)
        for source in model.modules()
        if isinstance(source, CrossHeadMetric) and config.generator_lr != 1
        for name, p in source.named_parameters()
        if name not in ("mixing", "gain")
    }
    groups = []
    for factor in (1.0, config.generator_lr)[: 1 + bool(own)]:
        part = [p for p in model.parameters() if (id(p) in own) == (factor != 1)]
        groups += [
            {"params": [p for p in part if p.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in part if p.dim() <= 1], "weight_decay": 0.0},
        ]
        for group in groups[-2:]:
            group["factor"] = factor
    return torch.optim.AdamW(groups, lr=config.lr)


@torch.no_grad()
def evaluate(
    model: TaskModel, inputs: Tensor, targets: Tensor, batch_size: int = 256
) -> dict[str, float]:
    """Means of the model's per-example scores, in eval mode; the mode is put back afterwards."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    sums: dict[str, float] = {}
    for x, y in zip(inputs.split(batch_size), targets.split(batch_size), strict=True):
        for name, values in model.score(x.to(device), y.to(device)).items():
            sums[name] = sums.get(name, 0.0) + float(values.cpu().double().sum())
    model.train(was_training)
    return {name: total / len(inputs) for name, total in sums.items()}


@torch.no_grad()
def mean_metric(model: TaskModel, inputs: Tensor, batch_size: int = 64) -> Tensor | None:
    """Mean of the metric over inputs, [metrics, positions, d, d]; None where there is none.

    There is one metric where the stack shares it, otherwise one per layer.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    total: Tensor | None = None
    for x in inputs.split(batch_size):
        with tap(model) as capture:
            model(x.to(device))
        if not capture.records:
            break
        # A static metric has one row for any batch: weigh it as if each example had its own.
        batch = [r.metric.expand(len(x), -1, -1, -1).sum(0) for r in capture.records]
        part = torch.stack(batch).cpu().double()  # on the CPU, as some GPUs have no float64
        total = part if total is None else total + part
    model.train(was_training)
    return None if total is None else (total / len(inputs)).float()


# -------------------------------------------------------------------- the loop


def train(
    config: RunConfig,
    folder: str | Path,
    data_root: str | Path,
    *,
    command: str = "",
    device: Literal["auto", "cpu"] = "auto",
    tensorboard: str | Path | None = None,
) -> Iterator[Progress]:
    """Train a run in `folder`, from where it stands, yielding every step.

    Under ``torchrun`` or ``accelerate launch`` each process takes its share of the global batch;
    the first one writes.

    Parameters
    ----------
    config
        The run. If the folder holds a run already, it must be this one.
    folder
        Where config.json, metrics.jsonl, snapshots, README.md and samples/ go.
    data_root
        Where the data set lies (see :mod:`damcha.data.datasets`).
    command
        The command line to be stated in the model card.
    device
        ``"auto"`` or ``"cpu"``.
    tensorboard
        Folder for TensorBoard logs, if wanted.

    Raises
    ------
    ConfigError
        If the folder holds another run, the batch does not divide over the processes, or the loss
        stops being a number.
    CheckpointError
        If what an interrupted run left in the folder is damaged.
    InputError
        If the data is not there or not what it should be.
    """
    folder = Path(folder)
    settings = config.train
    mixed = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[settings.precision]
    kind = pick_device(device).type
    # Told of the CPU only by its absence of GPUs, Accelerate would run each process on its own.
    accelerator = Accelerator(cpu=kind == "cpu", mixed_precision=mixed if kind == "cuda" else "no")
    rank, world = accelerator.process_index, accelerator.num_processes
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != world:  # they would all write to one folder
        raise ConfigError(
            f"device: {started} processes were started, but on {kind} they cannot work together; "
            "start one, or use --cpu"
        )
    if settings.batch_size % world:
        raise ConfigError(
            f"batch_size: {settings.batch_size} examples do not divide over {world} processes"
        )
    tokenizer = _tokenizer(config, Path(data_root), folder)
    train_data = load_examples(config.data, data_root, "train", tokenizer)
    valid_data = load_examples(config.data, data_root, "valid", tokenizer)
    _check_classes(train_data, config)
    _check_classes(valid_data, config)
    valid = held_out(valid_data, config, settings.validation_examples)

    main = accelerator.is_main_process
    if main:
        _claim(folder, config)
        if isinstance(tokenizer, Subwords) and not (folder / TOKENIZER).exists():
            atomic_write(folder / TOKENIZER, tokenizer.to_json())
    accelerator.wait_for_everyone()
    records = _read_records(folder)
    state = load_resume(folder)
    if state is None and len(records) == settings.epochs:
        return
    first_epoch = 0 if state is None else state["epoch"] + 1
    if len(records) < first_epoch:
        raise CheckpointError(
            f"metrics.jsonl has {len(records)} epochs, but {RESUME} is from the end of epoch "
            f"{first_epoch - 1}; put the right file back, or start again in another folder"
        )
    del records[first_epoch:]

    torch.manual_seed(settings.seed)
    plain = build_model(config)
    if state is not None:
        load_strictly(plain, state["model"], RESUME)
    objective, optimizer = accelerator.prepare(_Loss(plain), make_optimizer(plain, settings))
    scaler = accelerator.scaler
    if state is not None:
        optimizer.load_state_dict(state["optimizer"])
        if scaler is not None and state["scaler"]:
            scaler.load_state_dict(state["scaler"])

    per_epoch = settings.steps_per_epoch
    n_steps = settings.epochs * per_epoch
    tokens = settings.batch_size * config.seq_len
    with _tensorboard(tensorboard if main else None, first_epoch * per_epoch) as writer:
        for epoch in range(first_epoch, settings.epochs):
            began, losses = time.perf_counter(), []
            plain.train()
            for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
                torch.manual_seed(settings.seed * 1_000_003 + step * world + rank)
                inputs, targets = _batch(train_data, config, step, rank, world)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(settings, step) * group.get("factor", 1.0)
                plain.set_progress(step / n_steps)
                loss = objective(inputs.to(accelerator.device), targets.to(accelerator.device))
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(plain.parameters(), settings.clip)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(accelerator.reduce(loss.detach(), "mean")))
                _check_finite(losses[-1], "loss", step + 1)
                if step + 1 < (epoch + 1) * per_epoch:
                    yield Progress(step + 1, n_steps, losses[-1], tokens)
            record: dict[str, Any] = {
                "epoch": epoch,
                "step": (epoch + 1) * per_epoch,
                "train_loss": sum(losses) / per_epoch,
                **{f"valid_{k}": v for k, v in evaluate(plain, *valid).items()},
                "learning_rate": learning_rate(settings, (epoch + 1) * per_epoch - 1),
                "seconds": round(time.perf_counter() - began, 3),
            }
            # The epoch's last step may have ruined the weights after its loss was taken.
            _check_finite(record["valid_loss"], "validation loss", record["step"])
            records.append(record)
            if main:
                if epoch in settings.snapshots or epoch == settings.epochs - 1:
                    _snapshot(folder, plain, epoch, config, valid[0])
                lines = "".join(json.dumps(item) + "\n" for item in records)
                atomic_write(folder / "metrics.jsonl", lines)
                if writer is not None:
                    for name, number in record.items():
                        if name not in ("epoch", "step"):
                            writer.add_scalar(name, number, record["step"])
                saved = {
                    "epoch": epoch,
                    "model": plain.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": None if scaler is None else scaler.state_dict(),
                }
                save_resume(folder, saved)
            yield Progress((epoch + 1) * per_epoch, n_steps, losses[-1], tokens, record)
    if main:
        where = f"{world} process{'es' * (world > 1)} on {accelerator.device.type}"
        _finish(folder, config, records, valid, train_data, valid_data, command, where)


def _check_finite(value: float, what: str, step: int) -> None:
    if not math.isfinite(value):
        raise ConfigError(
            f"lr: the {what} became {value} at step {step}; what earlier epochs saved is kept. "
            "Train again in another folder with a lower lr or a longer warmup_steps"
        )


class _Loss(nn.Module):
    """The loss as a forward pass, since that is what DistributedDataParallel synchronises."""

    def __init__(self, model: TaskModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.model.loss(inputs, targets)


# -------------------------------------------------------------------- the folder


def _claim(folder: Path, config: RunConfig) -> None:
    """Make the folder this run's, or refuse one that is another's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made a run folder ({error.strerror}); choose another (--out)"
        ) from None
    remove_drafts(folder)
    path = folder / "config.json"
    if not path.exists():
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty and holds no run; choose another folder")
        atomic_write(path, config.to_json())
        return
    present = RunConfig.from_json(path.read_bytes()).flat()
    for name, value in config.flat().items():
        if present[name] != value:
            raise ConfigError(
                f"{folder} holds another run: {name} is {present[name]} there and {value} here; "
                "choose another folder (--out) or the same settings"
            )


def _read_records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = read_text(path, MAX_METRICS_BYTES).splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise CheckpointError(
            f"metrics.jsonl is damaged ({error}); repair it, or start again in another folder"
        ) from None


def _snapshot(
    folder: Path, model: TaskModel, epoch: int, config: RunConfig, inputs: Tensor
) -> None:
    """Write an epoch's weights, and the metric's mean over held-out inputs beside them."""
    dtype = DTYPES[config.train.snapshot_dtype]
    about = {"epoch": str(epoch), "run": config.name}
    write_weights(folder / f"epoch-{epoch:04d}.safetensors", model.state_dict(), dtype, about)
    mean = mean_metric(model, inputs[:: max(1, len(inputs) // MEAN_EXAMPLES)][:MEAN_EXAMPLES])
    if mean is not None:
        means = folder / "mean-metric.safetensors"
        kept = read_weights(means) if means.exists() else {}
        kept[f"epoch-{epoch:04d}"] = mean
        write_weights(means, kept, dtype)


def _finish(
    folder: Path,
    config: RunConfig,
    records: list[dict[str, Any]],
    valid: tuple[Tensor, Tensor],
    train_data: Examples,
    valid_data: Examples,
    command: str,
    where: str,
) -> None:
    """Write the samples and the card; the results in the card are those of the stored weights.

    A run is complete when its resume state is gone.
    """
    stored = build_model(config)
    last = folder / f"epoch-{config.train.epochs - 1:04d}.safetensors"
    weights = {name: w.float() for name, w in read_weights(last).items()}
    load_strictly(stored, weights, f"epoch {config.train.epochs - 1}")
    card = model_card(
        config,
        records,
        evaluate(stored, *valid),
        n_parameters=sum(p.numel() for p in stored.parameters()),
        n_valid=len(valid[0]),
        source=train_data.source,
        licence=train_data.licence,
        command=command,
        versions=f"torch {torch.__version__}, Python {platform.python_version()}; {where}",
    )
    write_samples(folder / "samples", config, valid_data)
    atomic_write(folder / "README.md", card)
    (folder / RESUME).unlink(missing_ok=True)


def _tensorboard(folder: str | Path | None, step: int) -> Any:
    """A context that gives a writer, or None; what the folder has after `step` is dropped."""
    if folder is None:
        return nullcontext()
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "tensorboard: not installed; `pip install tensorboard`, or train without it"
        ) from None
    return SummaryWriter(str(folder), purge_step=step + 1)
