"""Files of a run: written whole or not at all, and looked at before they are opened."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from damcha.errors import CheckpointError


def atomic_write(path: str | Path, data: bytes | str) -> None:
    """Write a file so that a reader, or a kill at any moment, sees the old one or the new one.

    The bytes go to a hidden file beside it, reach the disk, and take the name in one step.
    Text is written as UTF-8.

    Raises
    ------
    OSError
        If the folder is missing or not writable, or the disk is full; nothing is left behind.
    """
    path = Path(path)
    # Not tempfile: its files are private (0600), and a shared checkpoint must stay readable.
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(draft, "xb") as handle:
            handle.write(data.encode() if isinstance(data, str) else data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(path.parent)


def remove_drafts(folder: str | Path) -> None:
    """Delete what writers that were killed left in a folder; none may be writing there now."""
    for draft in Path(folder).glob(".*.tmp"):
        draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut (Windows cannot open folders, and needs no such step)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def regular_file(path: str | Path, limit: int, folder: str | Path | None = None) -> Path:
    """Return the resolved path of a file that is safe to open.

    A name alone can be a pipe that never answers, a device, or a link to a file elsewhere, so the
    kind and the place are checked before anything is opened.

    Parameters
    ----------
    path
        The file.
    limit
        Largest size accepted, in bytes.
    folder
        The folder that the file must really lie in; that of `path` by default.

    Raises
    ------
    CheckpointError
        If the file is missing, not a regular file, too large, or a link out of `folder`.
    """
    path = Path(path)
    try:
        home = Path(path.parent if folder is None else folder).resolve()
        real = path.resolve(strict=True)
        status = real.stat()
    except FileNotFoundError:
        what = "is a link to nothing" if path.is_symlink() else "is missing"
        raise CheckpointError(f"{path.name} {what} in {path.parent}") from None
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a null byte, no rights
        raise CheckpointError(f"{path.name!r} cannot be opened: {error}") from None
    if not real.is_relative_to(home):
        raise CheckpointError(
            f"{path.name} is a link out of its folder, to {real}, and is not followed; "
            "put the file itself there"
        )
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise CheckpointError(f"{path.name} is {kind}, not a file")
    if status.st_size > limit:
        raise CheckpointError(
            f"{path.name} has {status.st_size:,} bytes, more than the {limit:,} that are read"
        )
    return real


def read_text(path: str | Path, limit: int, folder: str | Path | None = None) -> str:
    """Return the text of a regular file of at most `limit` bytes, a bad byte shown as U+FFFD.

    Raises
    ------
    CheckpointError
        As `regular_file`, or if the file cannot be read.
    """
    real = regular_file(path, limit, folder)
    try:
        return real.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise CheckpointError(f"{Path(path).name} cannot be read: {error.strerror}") from None
