"""The state from which an interrupted training continues: ``resume.pt`` in the run's folder."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from damcha.checkpoint.files import atomic_write, regular_file
from damcha.checkpoint.weights import MAX_FILE_BYTES
from damcha.errors import CheckpointError

NAME = "resume.pt"


def save_resume(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's resume state, atomically."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    atomic_write(folder / NAME, buffer.getvalue())


def load_resume(folder: Path) -> dict[str, Any] | None:
    """The folder's resume state on the CPU, or None where there is none; never unpickles code.

    Raises
    ------
    CheckpointError
        If the file is damaged.
    """
    if not (folder / NAME).exists():
        return None
    path = regular_file(folder / NAME, 4 * MAX_FILE_BYTES)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
    except Exception as error:  # torch's reader raises OSError, RuntimeError, KeyError and more
        reason = str(error).split("\n")[0][:80]
        raise CheckpointError(
            f"{NAME} is damaged ({reason}); delete it to start this run again from epoch 0"
        ) from None
    if not isinstance(state, dict) or not {"epoch", "model", "optimizer", "scaler"} <= set(state):
        raise CheckpointError(f"{NAME} is not a training state; delete it to start again")
    return state
