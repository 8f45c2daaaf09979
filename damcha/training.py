"""Training: a configuration and data in, a run folder out, with a record of every step.

Nothing about the random numbers is carried along: the examples of step t and its dropout masks
follow from (seed, t) alone, and so does its learning rate. A run that was killed therefore
continues from the last finished epoch exactly as if it had never stopped.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from damcha.checkpoint.card import model_card, write_samples
from damcha.checkpoint.files import atomic_write
from damcha.checkpoint.resume import NAME as RESUME
from damcha.checkpoint.resume import load_resume, save_resume
from damcha.checkpoint.weights import load_strictly, read_weights, write_weights
from damcha.config import RunConfig, TrainConfig
from damcha.data.datasets import ImageData, TextData, load_dataset
from damcha.errors import ConfigError
from damcha.model import TaskModel, build_model
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


def image_tensor(images: UInt8[np.ndarray, "batch height width c"]) -> Tensor:
    """uint8 [B, H, W, C] in 0..255 → float32 [B, C, H, W] in [-1, 1], as the models take it."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def _order(n: int, seed: int, first: int, count: int) -> NDArray[np.int64]:
    """Places first … first+count-1 of an endless sequence of shuffles of range(n)."""
    places = np.arange(first, first + count)
    shuffles = {k: np.random.default_rng([seed, k]).permutation(n) for k in set(places // n)}
    return np.array([shuffles[place // n][place % n] for place in places])


def _batch(
    data: ImageData | TextData, config: RunConfig, step: int, rank: int, world: int
) -> tuple[Tensor, Tensor]:
    """This process's share of the global batch of a step: inputs and targets (labels)."""
    size, seed = config.train.batch_size, config.train.seed
    if isinstance(data, TextData):
        length = config.data.seq_len
        rng = np.random.default_rng([seed, step])
        starts = rng.integers(0, len(data.bytes) - length + 1, size)[rank::world]
        return _windows(data, starts, length)
    index = _order(len(data.labels), seed, step * size, size)[rank::world]
    return image_tensor(data.images[index]), torch.from_numpy(data.labels[index])


def _windows(data: TextData, starts: NDArray[np.int64], length: int) -> tuple[Tensor, Tensor]:
    windows = data.bytes[starts[:, None] + np.arange(length)].astype(np.int64)
    return torch.from_numpy(windows), torch.zeros(len(starts), dtype=torch.long)


def held_out(data: ImageData | TextData, config: RunConfig, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels of `count` examples spread evenly over a held-out part, always the same."""
    if isinstance(data, TextData):
        length = config.data.seq_len
        count = min(count, len(data.bytes) // length)
        starts = np.linspace(0, len(data.bytes) - length, count).astype(np.int64)
        return _windows(data, starts, length)
    index = np.linspace(0, len(data.labels) - 1, min(count, len(data.labels))).astype(np.int64)
    return image_tensor(data.images[index]), torch.from_numpy(data.labels[index])


def _check_data(data: ImageData | TextData, config: RunConfig) -> None:
    if isinstance(data, TextData):
        if len(data.bytes) < config.data.seq_len:
            raise ConfigError(
                f"seq_len: the text has {len(data.bytes)} bytes, fewer than seq_len="
                f"{config.data.seq_len}; give more text or a smaller seq_len"
            )
    elif config.task == "image_classification" and len(data.class_names) > config.data.n_classes:
        raise ConfigError(
            f"n_classes: the data has {len(data.class_names)} classes, more than n_classes="
            f"{config.data.n_classes}"
        )


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
    """AdamW; gains, biases and other vectors are not decayed."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
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
            sums[name] = sums.get(name, 0.0) + float(values.double().sum())
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
        batch = [r.metric.expand(len(x), -1, -1, -1).double().sum(0) for r in capture.records]
        total = torch.stack(batch) if total is None else total + torch.stack(batch)
    model.train(was_training)
    return None if total is None else (total / len(inputs)).float().cpu()


# -------------------------------------------------------------------- the loop


def train(
    config: RunConfig,
    folder: str | Path,
    data_root: str | Path,
    *,
    command: str = "",
    device: str = "auto",
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
        If the folder holds another run, or the batch does not divide over the processes.
    InputError
        If the data is not there or not what it should be.
    """
    folder = Path(folder)
    settings = config.train
    mixed = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[settings.precision]
    on_cuda = torch.cuda.is_available() and device != "cpu"
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision=mixed if on_cuda else "no")
    rank, world = accelerator.process_index, accelerator.num_processes
    if settings.batch_size % world:
        raise ConfigError(
            f"batch_size: {settings.batch_size} examples do not divide over {world} processes"
        )
    main = accelerator.is_main_process
    if main:
        _claim(folder, config)
    accelerator.wait_for_everyone()

    train_data = load_dataset(config.data, Path(data_root), "train")
    valid_data = load_dataset(config.data, Path(data_root), "valid")
    _check_data(train_data, config)
    _check_data(valid_data, config)
    valid = held_out(valid_data, config, settings.validation_examples)

    torch.manual_seed(settings.seed)
    plain = build_model(config)
    state = load_resume(folder)
    if state is not None:
        plain.load_state_dict(state["model"])
    objective, optimizer = accelerator.prepare(_Loss(plain), make_optimizer(plain, settings))
    first_epoch, records = 0, []
    if state is not None:
        first_epoch = state["epoch"] + 1
        optimizer.load_state_dict(state["optimizer"])
        if accelerator.scaler is not None and state["scaler"]:
            accelerator.scaler.load_state_dict(state["scaler"])
        records = _read_records(folder)[:first_epoch]
    elif (folder / "metrics.jsonl").exists():
        done = _read_records(folder)
        if len(done) == settings.epochs:
            return
    writer = _tensorboard(tensorboard) if main and tensorboard else None

    per_epoch = settings.steps_per_epoch
    n_steps = settings.epochs * per_epoch
    tokens = settings.batch_size * config.seq_len
    for epoch in range(first_epoch, settings.epochs):
        began, losses = time.perf_counter(), []
        plain.train()
        for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
            torch.manual_seed(settings.seed * 1_000_003 + step * world + rank)
            inputs, targets = _batch(train_data, config, step, rank, world)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(settings, step)
            loss = objective(inputs.to(accelerator.device), targets.to(accelerator.device))
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(plain.parameters(), settings.clip)
            optimizer.step()
            optimizer.zero_grad()
            value = float(accelerator.reduce(loss.detach(), "mean"))
            if not math.isfinite(value):
                raise ConfigError(
                    f"lr: the loss became {value} at step {step + 1}; epochs before {epoch} are "
                    "kept. Train again in another folder with a lower lr or a longer warmup_steps"
                )
            losses.append(value)
            if step + 1 < (epoch + 1) * per_epoch:
                yield Progress(step + 1, n_steps, value, tokens)
        record: dict[str, Any] = {
            "epoch": epoch,
            "step": (epoch + 1) * per_epoch,
            "train_loss": sum(losses) / per_epoch,
            **{f"valid_{k}": v for k, v in evaluate(plain, *valid).items()},
            "learning_rate": learning_rate(settings, (epoch + 1) * per_epoch - 1),
            "seconds": round(time.perf_counter() - began, 3),
        }
        records.append(record)
        if main:
            last = epoch == settings.epochs - 1
            if last or epoch in settings.snapshots:
                _snapshot(folder, plain, epoch, config, valid[0])
            lines = "".join(json.dumps(item) + "\n" for item in records)
            atomic_write(folder / "metrics.jsonl", lines)
            if writer is not None:
                for name, number in record.items():
                    if name not in ("epoch", "step"):
                        writer.add_scalar(name, number, record["step"])
            if last:
                _finish(folder, config, records, valid, train_data, valid_data, command)
            else:
                scaler = accelerator.scaler
                saved = {
                    "epoch": epoch,
                    "model": plain.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": None if scaler is None else scaler.state_dict(),
                }
                save_resume(folder, saved)
        yield Progress((epoch + 1) * per_epoch, n_steps, losses[-1], tokens, record)
    if writer is not None:
        writer.close()


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
    folder.mkdir(parents=True, exist_ok=True)
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
    return [json.loads(line) for line in path.read_text().splitlines()]


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
    train_data: ImageData | TextData,
    valid_data: ImageData | TextData,
    command: str,
) -> None:
    """Write the card and the samples; the results in the card are those of the stored weights."""
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
        versions=f"torch {torch.__version__}, Python {platform.python_version()}",
    )
    if not (folder / "samples").exists():
        write_samples(folder / "samples", config, valid_data)
    atomic_write(folder / "README.md", card)
    (folder / RESUME).unlink(missing_ok=True)


def _tensorboard(folder: str | Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "tensorboard: not installed; `pip install tensorboard`, or train without it"
        ) from None
    return SummaryWriter(str(folder))
