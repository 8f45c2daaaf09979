"""One of their files of format version 2, translated."""

from __future__ import annotations

import hashlib
import math
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from damcha.attention.positions import sinusoidal
from damcha.checkpoint.authors.settings import CODE, Settings
from damcha.checkpoint.authors.stack import Tensors, stack_state
from damcha.checkpoint.files import regular_file
from damcha.checkpoint.weights import MAX_FILE_BYTES, clean_names, read_pt
from damcha.config import ModelConfig, RunConfig
from damcha.errors import CheckpointError, ConfigError
from damcha.model import Stack

TABLE_AGREES = 4e-6
"""Their table is computed in float32, ours in float64: the gap grows with the position, to 3·10⁻⁶
at 64 tokens (their images) and 6·10⁻⁵ at 1024, whatever the width above 128."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """One of the authors' files, translated."""

    name: str
    digest: str
    """SHA-256 of the file."""
    config: RunConfig
    epoch: int
    """From 0, as everywhere here; theirs counts from 1."""
    state: dict[str, Tensor]
    """Float32 weights under the names of the run's model."""
    record: dict[str, Any]
    """A line of metrics.jsonl."""
    notes: tuple[str, ...]
    """A sentence for everything that was translated or left out."""


def read_checkpoint(
    path: str | Path, name: str = "imported", first_symbol: int | None = None
) -> Checkpoint:
    """Read one of the authors' ``.pt`` files of format version 2 and translate it.

    Parameters
    ----------
    path
        The file.
    name
        What to call the run.
    first_symbol
        Of a model of text: the symbol that begins every text of its tokenizer, which is not in the
        file; by default that of the tokenizer that their code takes for the data set.

    Raises
    ------
    CheckpointError
        If it is not such a file, would run code, is of version 1, does not fit its own config, or
        holds what damcha has no model for.
    """
    content, file = open_file(path)
    theirs, tensors = parts_of(content, file)
    parts = {key: checked(file, f"components.{key}", value) for key, value in theirs.items()}
    settings = Settings(file, section(file, content, "config"))
    is_text = "embedding" in parts
    if "head" not in parts or (not is_text and "patcher" not in parts):
        raise CheckpointError(
            f"{file} lacks the {'head' if 'head' not in parts else 'patch or token embedding'}: "
            f"its components are {', '.join(map(repr, parts)) or 'none'}"
        )
    epoch = content.get("epoch")
    if type(epoch) is not int or not 1 <= epoch <= 100_000:
        raise CheckpointError(f"{file}: its epoch is {str(epoch)[:40]!r}; they count from 1")
    with _explained(file):
        data = settings.data(_n_symbols(parts, file) if is_text else None, first_symbol)
        length = data.seq_len if is_text else data.n_patches
        kind, table = _positions(settings.get("d_model", int), tensors, length)
        model = settings.model(kind)
        config = RunConfig(
            name=name,
            task="language_modelling" if is_text else "image_reconstruction",
            data=data,
            model=model,
            train=settings.train(epoch, _steps(content)),
        )
    stack = _stack(settings, tensors, model)
    state = {f"stack.{key}": value for key, value in stack.items()}
    if model.positions == "learned":
        state["positions.table"] = table
    state |= _text_ends(parts, config) if is_text else _image_ends(parts, config)
    for part in (tensors, *parts.values()):
        part.finish()
    if not is_text:
        settings.notes.append(
            "patches reordered from (channel, row, column) to (row, column, channel), in the "
            "embedding's columns and in the head's rows"
        )
    record: dict[str, Any] = {"epoch": epoch - 1}
    for old, new in (("loss", "valid_loss"), ("best_loss", "best_valid_loss")):
        value = content.get(old)
        if isinstance(value, int | float) and math.isfinite(value):
            record[new] = float(value)
    with regular_file(path, MAX_FILE_BYTES).open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return Checkpoint(
        name=file,
        digest=digest,
        config=config,
        epoch=epoch - 1,
        state={key: value.float() for key, value in state.items()},
        record=record,
        notes=tuple(settings.notes),
    )


def open_stack(path: str | Path) -> Stack:
    """Open the stack alone, without embedding and head.

    Give it embeddings to which ``damcha.attention.positions.sinusoidal`` was added.

    Raises
    ------
    CheckpointError
        As `read_checkpoint`.
    """
    content, file = open_file(path)
    _, tensors = parts_of(content, file)
    settings = Settings(file, section(file, content, "config"))
    with _explained(file):
        model = settings.model("none")
    tensors.drop("pe")
    state = _stack(settings, tensors, model)
    tensors.finish()
    with torch.random.fork_rng(devices=[]):
        stack = Stack(model)
    stack.load_state_dict({key: value.float() for key, value in state.items()})
    return stack.eval().requires_grad_(False)


def _stack(settings: Settings, tensors: Tensors, model: ModelConfig) -> dict[str, Tensor]:
    tensors.drop(*settings.unread)
    rank = settings.bias_rank if model.metric.layer_bias_rank else 0
    return stack_state(tensors, model, "decoder.", rank, settings.baseline)


def _positions(
    d_model: int, tensors: Tensors, length: int
) -> tuple[Literal["learned", "sinusoidal"], Tensor]:
    """How our model says what their table of positions says, and the table's rows."""
    name = "decoder.pe.pe"
    stored = tensors.left.get(name)
    rows = stored.shape[0] if stored is not None and stored.dim() else 0
    table = tensors.take(name, rows, d_model)[:length]
    if len(table) < length:
        raise CheckpointError(
            f"{tensors.name}: '{name}' has {rows} positions, fewer than the {length} tokens"
        )
    if d_model % 2 == 0:
        gap = table - sinusoidal(length, d_model, like=table)
        if float(gap.abs().max()) <= TABLE_AGREES:
            return "sinusoidal", table
    return "learned", table


def _image_ends(parts: dict[str, Tensors], config: RunConfig) -> dict[str, Tensor]:
    """Embedding and head, with pixels in our order."""
    d, data = config.model.d_model, config.data
    places = torch.arange(data.patch_dim).unflatten(0, (data.channels, data.patch_size**2))
    order = places.T.flatten()  # ours at (row, col, c) → theirs at (c, row, col)
    state = parts["patcher"].linear("proj", "embed", data.patch_dim, d)
    state["embed.weight"] = state["embed.weight"][:, order]
    state |= parts["head"].linear("proj.0", "head.0", d, 2 * d)
    last = parts["head"].linear("proj.2", "head.2", 2 * d, data.patch_dim)
    return state | {name: value[order] for name, value in last.items()}


def _n_symbols(parts: dict[str, Tensors], file: str) -> int:
    """The symbols of a text model's tokenizer: rows of its embedding."""
    found = parts["embedding"].left.get("weight")
    if found is None or found.dim() != 2:
        raise CheckpointError(f"{file} has no table of its symbols in its embedding")
    return found.shape[0]


def _text_ends(parts: dict[str, Tensors], config: RunConfig) -> dict[str, Tensor]:
    """Embedding and head, symbol by symbol."""
    d, symbols = config.model.d_model, config.data.vocabulary
    return {
        "embed.weight": parts["embedding"].take("weight", symbols, d),
        **parts["head"].linear("proj", "head", d, symbols),
    }


def open_file(path: str | Path) -> tuple[dict[str, Any], str]:
    """The dictionary of a version-2 file, and the file's name."""
    content, file = read_pt(path), Path(path).name
    if not isinstance(content, dict):
        what = "argparse.Namespace" if _is_namespace(content) else type(content).__name__
        raise CheckpointError(
            f"{file} holds a {what}, not the dictionary that the authors' code saves"
        )
    version = content.get("format_version")
    if version is None and "model_state_dict" in content:
        raise CheckpointError(
            f"{file}: {OLD}; its M can still be shown (--old-metrics FILE.npz, or "
            "damcha.checkpoint.authors.read_old_metrics)"
        )
    if version != 2 or type(version) is not int:
        inside = ", ".join(repr(key)[:40] for key in list(content)[:6]) or "nothing"
        raise CheckpointError(
            f"{file} is not a checkpoint of the authors' code ({CODE}), whose format_version is 2: "
            f"here it is {str(version)[:40]!r}, and the file holds {inside}"
        )
    return content, file


OLD = (
    "this is a version-1 checkpoint: it lacks the head and the embedding, and made M from a "
    "learned constant, so it cannot be run"
)


def _is_namespace(value: Any) -> bool:
    return isinstance(value, types.SimpleNamespace)  # what the restricted reader makes of one


def section(file: str, content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A part of the file that is a dictionary by name."""
    value = content.get(key)
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        if value is None:
            what = "is missing"
        elif _is_namespace(value):
            what = "is an argparse.Namespace, not a dictionary; save vars(args) instead"
        else:
            what = f"is a {type(value).__name__}, not a dictionary of names"
        raise CheckpointError(f"{file}: its '{key}' {what}")
    return value


def parts_of(content: Mapping[str, Any], file: str) -> tuple[dict[str, Any], Tensors]:
    """The other components, unchecked, and the decoder's tensors."""
    components = section(file, content, "components")
    return components, checked(file, "model_state_dict", content.get("model_state_dict"))


def checked(file: str, key: str, value: Any) -> Tensors:
    """Check that a state dict holds ordinary tensors that the file really stores."""
    state = section(file, {key: value}, key)
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise CheckpointError(f"{file}: '{name[:80]}' in '{key}' is not a plain tensor")
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{file}: '{name[:80]}' in '{key}' holds {tensor.dtype}, not floating-point weights"
            )
        # A view with stride 0 is small on disk and as large as it likes in memory.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(
                f"{file}: '{name[:80]}' claims {tensor.numel():,} numbers, more than are stored"
            )
    return Tensors(file, clean_names(state))


@contextmanager
def _explained(file: str) -> Iterator[None]:
    """What our configuration refuses becomes a refusal of the file."""
    try:
        yield
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from None


def _steps(content: Mapping[str, Any]) -> int:
    """Optimiser steps taken, as the optimiser counted them; 0 where it does not tell."""
    try:
        return int(next(iter(content["optimizer_state_dict"]["state"].values()))["step"])
    except (KeyError, TypeError, AttributeError, StopIteration, ValueError, RuntimeError):
        return 0
