"""Checkpoints of the DAMCHA authors' own code, uploaded: each becomes a run of the server's."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from damcha.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from streamlit.runtime.uploaded_file_manager import UploadedFile

    from damcha.checkpoint.authors import OldMetrics
    from damcha.checkpoint.run import Run

MOST_MEGABYTES = 2000
"""Of one uploaded file; a checkpoint holds its optimiser's state, too."""
MOST_FILES = 200
SPARED_BYTES = 2_000_000_000
"""Of the disk, which an import leaves free."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def folder() -> Path:
    """Where imported runs go: the last folder of DAMCHA_RUNS, or runs/ of the project."""
    listed = [part for part in os.environ.get("DAMCHA_RUNS", "").split(os.pathsep) if part]
    return Path(listed[-1]) if listed else Path(__file__).resolve().parent.parent / "runs"


def take(
    files: Sequence[UploadedFile],
    name: str,
    tokenizer: UploadedFile | None = None,
    first_symbol: int | None = None,
) -> Run | OldMetrics:
    """Make a run of uploaded files, or return the metrics of a version-1 file, which cannot run.

    Raises
    ------
    CheckpointError
        As :func:`damcha.checkpoint.authors.import_run`; if the name is taken.
    InputError
        If the name or the files' names cannot be used, or the tokenizer does not fit.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:40]!r} cannot name a run; use letters, digits, '.', '_' and '-', a letter or "
            "digit first"
        )
    if len(files) > MOST_FILES:
        raise InputError(f"{len(files)} files at once; at most {MOST_FILES}")
    out = folder() / name
    if out.exists():
        raise InputError(f"there is a run '{name}' already; choose another name")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        room = min(shutil.disk_usage(place).free for place in (out.parent, tempfile.gettempdir()))
        if 2 * sum(file.size for file in files) > room - SPARED_BYTES:
            raise InputError("the server's disk is nearly full; ask who runs it to make room")
        with tempfile.TemporaryDirectory(prefix="damcha-") as place:
            return _imported(Path(place), files, out, tokenizer, first_symbol)
    except OSError as error:
        raise InputError(
            f"the run cannot be written on this server ({error.strerror or error})"
        ) from None


def _imported(
    place: Path,
    files: Sequence[UploadedFile],
    out: Path,
    tokenizer: UploadedFile | None,
    first_symbol: int | None,
) -> Run | OldMetrics:
    from damcha.checkpoint import authors

    paths = [_written(file, place / "files") for file in files]
    for path in paths:
        if len(paths) > 1 and not re.fullmatch(r"checkpoint_epoch_\d{1,6}\.pt", path.name):
            raise InputError(
                f"{path.name!r}: several files are epochs of one run, and then each is called "
                "checkpoint_epoch_N.pt, as their code does"
            )
    words = None if tokenizer is None else _written(tokenizer, place / "tokenizer")
    path = paths[0] if len(paths) == 1 else paths[0].parent
    try:
        return authors.import_run(path, out, words, first_symbol)
    except CheckpointError:
        try:
            return authors.read_old_metrics(path)
        except (CheckpointError, OSError):
            pass
        raise


def _written(file: UploadedFile, place: Path) -> Path:
    place.mkdir(exist_ok=True)
    path = place / Path(file.name).name[-100:]
    if path.exists():
        raise InputError(f"{path.name!r} is there twice; give each file once")
    path.write_bytes(file.getbuffer())
    return path
