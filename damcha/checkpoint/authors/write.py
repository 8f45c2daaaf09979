"""Their files as a run folder of ours."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch

from damcha.checkpoint.authors.read import Checkpoint, read_checkpoint
from damcha.checkpoint.authors.settings import CODE, DROPOUT
from damcha.checkpoint.card import unit_of, what_it_does
from damcha.checkpoint.files import atomic_write
from damcha.checkpoint.run import Run, open_run
from damcha.checkpoint.weights import write_weights
from damcha.config import RunConfig
from damcha.data.pieces import from_hugging_face
from damcha.errors import CheckpointError, InputError
from damcha.symbols import TOKENIZER


def import_run(
    path: str | Path,
    out: str | Path,
    tokenizer: str | Path | None = None,
    first_symbol: int | None = None,
) -> Run:
    """Turn a ``.pt`` file, or a folder of ``checkpoint_epoch_*.pt``, into a run folder.

    The folder appears under its name when it is whole, and has been opened and loaded once.

    Parameters
    ----------
    path, out
        What to read, and the folder to make.
    tokenizer
        Of a model of text: the ``tokenizer.json`` of its tokenizer, which is not in the files. The
        run reads and writes the numbers of its symbols where there is none.
    first_symbol
        The symbol that begins every text, where the tokenizer does not tell.

    Raises
    ------
    CheckpointError
        As `read_checkpoint`; if `out` exists; if the files of a folder are not of one run.
    InputError
        If the tokenizer cannot be read, or is another's.
    """
    path, out = Path(path), Path(out)
    if out.exists() or out.is_symlink():
        raise CheckpointError(f"'{out}' already exists; name a new run folder")
    files, left = _files(path)
    name = re.sub(r"[^A-Za-z0-9._-]", "-", out.name).lstrip("._-")[:100] or "imported"
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    pieces = None
    if tokenizer is not None:
        pieces, begin = from_hugging_face(Path(tokenizer))
        first_symbol = begin if first_symbol is None else first_symbol
    draft.mkdir()
    try:
        first: Checkpoint | None = None
        lines, rows = [], []
        for number, file in files:
            made = read_checkpoint(file, name, first_symbol)
            if number not in (None, made.epoch + 1):
                raise CheckpointError(
                    f"{file.name} says that it holds epoch {made.epoch + 1}: it was renamed"
                )
            first = first or made
            _check_same(first, made)
            write_weights(
                draft / f"epoch-{made.epoch:04d}.safetensors",
                made.state,
                torch.float32,
                {"epoch": str(made.epoch), "source_sha256": made.digest},
            )
            lines.append(json.dumps(made.record))
            rows.append((made.name, made.epoch, made.record.get("valid_loss"), made.digest))
        assert first is not None  # there is at least one file
        epochs = tuple(epoch for _, epoch, _, _ in rows)
        train = first.config.train.model_copy(
            update={"snapshots": epochs, "epochs": max(first.config.train.epochs, max(epochs) + 1)}
        )
        config = first.config.model_copy(update={"train": train})
        atomic_write(draft / "config.json", config.to_json())
        notes = first.notes
        if pieces is not None:
            if config.data.first_symbol is None or pieces.size != config.data.vocabulary:
                raise InputError(
                    f"{Path(tokenizer or '').name}: a tokenizer of {pieces.size:,} symbols, and "
                    + (
                        f"the model has {config.data.vocabulary:,}"
                        if config.is_text
                        else "this is no model of text"
                    )
                )
            atomic_write(draft / TOKENIZER, pieces.to_json())
            notes += (f"its symbols are those of {_quoted(Path(tokenizer or '').name)}",)
        elif config.is_text:
            notes += (
                "the tokenizer is not in the file, so a text is the numbers of its symbols; import "
                "it with --tokenizer to write words",
            )
        atomic_write(draft / "metrics.jsonl", "\n".join(lines) + "\n")
        atomic_write(draft / "README.md", _card(config, rows, notes, left))
        open_run(draft).load(device="cpu")
        os.replace(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return open_run(out)


def _files(path: Path) -> tuple[list[tuple[int | None, Path]], list[str]]:
    """Files to import with the epochs in their names, and the .pt files left out."""
    if not path.is_dir():
        return [(None, path.resolve())], []  # a user's own file may be a link to anywhere
    names = sorted(entry.name for entry in path.iterdir() if entry.suffix == ".pt")
    found: dict[int, Path] = {}
    for name in names:
        match = re.fullmatch(r"checkpoint_epoch_(\d{1,6})\.pt", name)
        if match and found.setdefault(int(match[1]), path / name).name != name:
            raise CheckpointError(
                f"{found[int(match[1])].name} and {name} in {path} are both epoch {int(match[1])}"
            )
    if not found:
        raise CheckpointError(f"the folder '{path}' has no checkpoint_epoch_N.pt")
    taken = {file.name for file in found.values()}
    return sorted(found.items()), [name for name in names if name not in taken]


def _check_same(first: Checkpoint, other: Checkpoint) -> None:
    def architecture(made: Checkpoint) -> dict[str, Any]:
        return made.config.model_dump(exclude={"train"})

    if architecture(first) != architecture(other):
        raise CheckpointError(
            f"{other.name} is not of the run of {first.name}: their configurations differ"
        )


def _quoted(name: str) -> str:
    """A name of a file as Markdown code, whatever it holds."""
    return "`" + "".join(c if c.isprintable() and c not in "`|" else "?" for c in name) + "`"


def _card(
    config: RunConfig,
    rows: list[tuple[str, int, float | None, str]],
    notes: tuple[str, ...],
    left: list[str],
) -> str:
    table = "\n".join(
        f"| {epoch} | {epoch + 1} | {'-' if loss is None else f'{loss:.6f}'} | {_quoted(name)} "
        f"| {digest} |"
        for name, epoch, loss, digest in rows
    )
    said = list(notes)
    if config.model.positions == "learned":
        said.append("the table of positions stored as it was, as 'learned' positions: exact")
    if config.task == "image_reconstruction":
        said.append(
            "their losses hide one to three rows of patches at random, while damcha's own "
            "validation hides the lower half: do not compare the two"
        )
    if left:
        said.append(f"left out in the same folder: {', '.join(map(_quoted, left[:20]))}")
    translated = "\n".join(f"- {note}" for note in said)
    return f"""# {config.name}

A transformer that {what_it_does(config)}, trained with the DAMCHA authors' own code
({CODE}, MIT) and imported by `damcha import`. Weights are float32, unchanged but for what is listed
below; outputs equal theirs to rounding.

Loss, as their files give it, is {unit_of(config)}. Epochs count from 0 here and from 1 there.

| epoch | theirs | validation loss | file | SHA-256 |
|---|---|---|---|---|
{table}

## Translated or left out

{translated or "- nothing"}
- optimiser, scheduler and random states left out: an imported run is for looking at, and is not
  trained further
- dropout {DROPOUT}, the constant of their code, which their files do not hold
"""
