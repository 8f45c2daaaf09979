"""Weights on disk: safetensors written whole and checked before they are read; pickles never run.

A safetensors file is 8 bytes (the header's length, little endian), the header (JSON: name →
dtype, shape, byte range; and ``__metadata__``, strings only), then the numbers. The header is
checked here, against the size of the file, before anything is allocated or mapped, because the
library's own messages do not say what happened to the file.
"""

from __future__ import annotations

import json
import math
import pathlib
import pickle
import re
import struct
import threading
import types
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from damcha.checkpoint.files import atomic_write, regular_file
from damcha.config import MAX_PARAMETERS
from damcha.errors import CheckpointError

MAX_FILE_BYTES = 8 * MAX_PARAMETERS
"""Largest weights file that is opened: every weight that a config may ask for, in float64."""
MAX_HEADER_BYTES = 16_000_000
FORMAT_VERSION = "1"

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one number, for the dtypes that a file may hold."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True)
class Header:
    """What a safetensors file says about itself."""

    dtypes: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    metadata: dict[str, str]

    @property
    def tied(self) -> dict[str, str]:
        """Names that are not stored, each with the stored name whose tensor it shares."""
        try:
            tied = json.loads(self.metadata.get("tied", "{}"))
        except (ValueError, RecursionError):
            tied = None
        if (
            not isinstance(tied, dict)
            or not all(kept in self.shapes for kept in tied.values() if isinstance(kept, str))
            or not all(isinstance(kept, str) for kept in tied.values())
            or tied.keys() & self.shapes.keys()
        ):
            raise CheckpointError("the ties in the metadata do not agree with the stored tensors")
        return tied


def write_weights(
    path: str | Path,
    state: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a state dict as safetensors, atomically; a tensor with several names is stored once.

    Parameters
    ----------
    path
        Where to; an existing file is replaced in one step.
    state
        Name → tensor, on any device.
    dtype
        Floating-point tensors are rounded to it; None keeps theirs. Integers stay as they are.
    metadata
        Strings to keep in the header. ``format``, ``damcha_format``, ``dtype`` and ``tied`` (JSON:
        name left out → name stored) are added.

    Raises
    ------
    CheckpointError
        If a finite weight is too large for `dtype`.
    """
    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        same = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and same in first_name:
            tied[name] = first_name[same]
            continue
        first_name[same] = name
        # A clone, because safetensors refuses views that share memory (slices of one tensor).
        stored[name] = _rounded(name, tensor.detach().cpu(), dtype).clone(
            memory_format=torch.contiguous_format
        )
    notes = {**(metadata or {}), "format": "pt", "damcha_format": FORMAT_VERSION}
    if dtype is not None:
        notes["dtype"] = str(dtype).removeprefix("torch.")
    if tied:
        notes["tied"] = json.dumps(tied, sort_keys=True)
    atomic_write(path, _ordered(safetensors.torch.save(stored, notes)))


def _ordered(data: bytes) -> bytes:
    """Sort the metadata, which the library writes in random order: equal weights, equal bytes."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers stay aligned
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def _rounded(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or not tensor.is_floating_point():
        return tensor
    rounded = tensor.to(dtype)
    if not torch.equal(rounded.isfinite(), tensor.isfinite()):
        largest = tensor[tensor.isfinite()].abs().max().item()
        raise CheckpointError(
            f"'{name}' has a weight of magnitude {largest:g}, too large for {dtype}; "
            "set snapshot_dtype=float32"
        )
    return rounded


def read_weights(path: str | Path, folder: str | Path | None = None) -> dict[str, Tensor]:
    """Read the tensors of a ``.safetensors`` or ``.pt`` file to the CPU, in the stored dtype.

    Tied names come back as one tensor. A ``.pt`` is opened by torch's restricted reader, which
    builds tensors and plain containers and runs nothing; its state dict may be the whole file or
    lie under ``state_dict``, ``model_state_dict`` or ``model``.

    Parameters
    ----------
    path
        The file.
    folder
        The folder it must really lie in (see `regular_file`).

    Raises
    ------
    CheckpointError
        If the file is missing, cut, not what its name says, or would need a pickle to be run.
    """
    if Path(path).suffix in (".pt", ".pth", ".ckpt", ".bin"):
        return _find_state(read_pt(path, folder), Path(path).name)
    header = read_header(path, folder)
    try:
        state: dict[str, Tensor] = safetensors.torch.load_file(Path(path).resolve(), device="cpu")
    except Exception as error:  # whatever the library finds beyond our own check
        raise CheckpointError(f"{Path(path).name} cannot be read: {_line(error)}") from None
    return state | {name: state[kept] for name, kept in header.tied.items()}


def read_header(path: str | Path, folder: str | Path | None = None) -> Header:
    """Read and check the header of a safetensors file; the numbers are not touched.

    Raises
    ------
    CheckpointError
        If the file is cut ("cut: N of M bytes"), a Git LFS pointer, a pickle, or its header is
        not valid or does not describe the bytes that follow it.
    """
    real, name = regular_file(path, MAX_FILE_BYTES, folder), Path(path).name
    try:
        size = real.stat().st_size
        with real.open("rb") as handle:
            start = handle.read(64)
            length = struct.unpack("<Q", start[:8])[0] if size >= 8 else 0
            _check_kind(name, start, size, length)
            handle.seek(8)
            text = handle.read(length)
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror}") from None
    try:
        return _parse_header(text, size - 8 - length)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from None


def _check_kind(name: str, start: bytes, size: int, length: int) -> None:
    """Refuse what is not safetensors, from its first bytes and the length they announce."""
    if start.startswith(LFS_POINTER):
        raise CheckpointError(
            f"{name}: this is a Git LFS pointer, not the weights; fetch them with 'git lfs pull'"
        )
    if size < 9:
        raise CheckpointError(f"{name} is cut: {size} bytes are not even a header; copy it again")
    if start[8:9] == b"{":
        if length > MAX_HEADER_BYTES:
            raise CheckpointError(
                f"{name}: the header claims {length:,} bytes, more than {MAX_HEADER_BYTES:,}; "
                "the file is damaged"
            )
        if 8 + length > size:
            raise CheckpointError(
                f"{name} is cut: {size:,} of at least {8 + length:,} bytes; copy it again"
            )
        return
    if start.startswith(b"PK\x03\x04") or start[:1] == b"\x80":
        raise CheckpointError(
            f"{name} is a pickle (a PyTorch .pt file?), not safetensors; a pickle can run code "
            "when opened, so damcha does not; save the weights with damcha.checkpoint.write_weights"
        )
    raise CheckpointError(f"{name} is not a safetensors file: it starts with {start[:16]!r}")


def _parse_header(text: bytes, data_bytes: int) -> Header:
    """Check a header against the number of data bytes that follow it."""
    try:
        entries = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the header is not valid JSON ({_line(error)})") from None
    if not isinstance(entries, dict):
        raise CheckpointError("the header is not a table of tensors")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError("the header's __metadata__ is not a table of strings")
    ranges, dtypes, shapes = [], {}, {}
    for name, entry in entries.items():
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if (
                len(entry) == 3
                and len(shape) <= 8
                and all(type(n) is int and 0 <= n < 2**63 for n in (*shape, begin, end))
            ):
                pass
            case _:
                raise CheckpointError(f"the header's entry for {name[:80]!r} is malformed")
        if dtype not in ITEM_BYTES:
            raise CheckpointError(
                f"{name[:80]!r} has dtype {dtype[:20]}; readable are {', '.join(ITEM_BYTES)}"
            )
        if end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
            raise CheckpointError(
                f"the header gives {name[:80]!r} {end - begin:,} bytes, but its shape "
                f"{shape} in {dtype} needs {math.prod(shape) * ITEM_BYTES[dtype]:,}"
            )
        ranges.append((begin, end))
        dtypes[name], shapes[name] = dtype, tuple(shape)
    place = 0
    for begin, end in sorted(ranges):
        if begin != place:
            raise CheckpointError(f"the header's byte ranges overlap or leave a gap at {place:,}")
        place = end
    whole = 8 + len(text) + place
    if place > data_bytes:
        raise CheckpointError(
            f"cut: {8 + len(text) + data_bytes:,} of {whole:,} bytes; copy it again"
        )
    if place < data_bytes:
        raise CheckpointError(
            f"{data_bytes - place:,} bytes follow the last tensor, which no tensor owns"
        )
    return Header(dtypes, shapes, metadata)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name appears twice")
    return table


# Types that people keep beside their weights. The stand-ins hold the values and do nothing else;
# a path from another system would not even construct under its own class.
_HARMLESS: list[Any] = [
    (types.SimpleNamespace, "argparse.Namespace"),
    (types.SimpleNamespace, "types.SimpleNamespace"),
    *(
        (pure, f"{module}.{name}")
        for pure, names in (
            (pathlib.PurePosixPath, ("PosixPath", "PurePosixPath")),
            (pathlib.PureWindowsPath, ("WindowsPath", "PureWindowsPath")),
        )
        for name in names
        for module in ("pathlib", "pathlib._local")
    ),
]

# torch keeps the list of allowed types for the whole process: two readers would undo each other's.
_reading_pt = threading.Lock()


def read_pt(path: str | Path, folder: str | Path | None = None) -> Any:
    """Read a ``torch.save`` file to the CPU with torch's restricted reader, which runs nothing.

    Returns
    -------
    Any
        What was saved: tensors, numbers, strings, and containers of them.

    Raises
    ------
    CheckpointError
        If the file is missing, cut, compressed, or holds anything that would run code.
    """
    real, name = regular_file(path, MAX_FILE_BYTES, folder), Path(path).name
    _check_archive(real, name)
    try:
        with _reading_pt, torch.serialization.safe_globals(_HARMLESS):
            content = torch.load(real, map_location="cpu", weights_only=True)  # noqa: TID251
    except pickle.UnpicklingError as error:
        # Not the library's own message: it advises to turn the protection off.
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        culprit = f"it needs '{found[1]}'" if found else "it is not plain tensors"
        raise CheckpointError(
            f"{name} holds more than weights ({culprit}), and building that could run code, "
            "so it is not opened; save model.state_dict() instead of the object"
        ) from None
    except Exception as error:
        raise CheckpointError(f"{name} cannot be read: {_line(error)}") from None
    return content


def _check_archive(real: Path, name: str) -> None:
    """Refuse what torch.save does not write: bare pickles, compressed (bomb) or lying archives."""
    try:
        with zipfile.ZipFile(real) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError):
        with real.open("rb") as handle:
            start = handle.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            raise CheckpointError(
                f"{name}: this is a Git LFS pointer, not the weights; "
                "fetch them with 'git lfs pull'"
            ) from None
        raise CheckpointError(
            f"{name} is not a whole torch.save archive: it is cut, or a bare pickle, which could "
            "run code and is not opened; save the weights with damcha.checkpoint.write_weights"
        ) from None
    stored = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
    if not stored or sum(part.file_size for part in parts) > real.stat().st_size:
        raise CheckpointError(f"{name} is compressed, which torch.save never does; not opened")


def _find_state(content: Any, name: str) -> dict[str, Tensor]:
    if isinstance(content, Mapping):
        for candidate in (content, *map(content.get, ("state_dict", "model_state_dict", "model"))):
            if (
                isinstance(candidate, Mapping)
                and candidate
                and all(
                    isinstance(key, str) and isinstance(value, Tensor)
                    for key, value in candidate.items()
                )
            ):
                return dict(candidate)
        inside = ", ".join(repr(key)[:40] for key in list(content)[:8]) or "nothing"
    else:
        inside = f"a {type(content).__name__}"
    raise CheckpointError(
        f"{name} has no state dict, neither itself nor under 'state_dict', 'model_state_dict' or "
        f"'model'; it holds {inside}"
    )


def clean_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state without the prefixes that wrappers put before names, however nested.

    ``module.`` (DataParallel and DDP) is dropped in front; ``_orig_mod.`` (torch.compile)
    anywhere, because parts of a model can be compiled alone.

    Raises
    ------
    CheckpointError
        If two weights would get one name.
    """
    cleaned: dict[str, Tensor] = {}
    for name, tensor in state.items():
        short = re.sub(r"(?<![^.])_orig_mod\.", "", name)
        while short.startswith("module."):
            short = short.removeprefix("module.")
        if short in cleaned:
            raise CheckpointError(
                f"two weights are both called '{short}' once 'module.' and '_orig_mod.' are "
                "dropped; save the state dict of the unwrapped model"
            )
        cleaned[short] = tensor
    return cleaned


def check_fit(model: nn.Module, state: Mapping[str, Tensor], what: str = "the file") -> None:
    """Refuse a state whose names and shapes are not exactly the model's; nothing is computed.

    Works on a model on the meta device too, so that a wrong file costs no memory.

    Raises
    ------
    CheckpointError
        If a weight is missing or unknown, or has another shape.
    """
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    if missing or unknown:
        parts = [
            f"{label} {_some(names)}"
            for label, names in (("it lacks", missing), ("the model does not know", unknown))
            if names
        ]
        raise CheckpointError(
            f"{what} does not hold the weights of this configuration: {'; '.join(parts)}"
        )
    for name, weight in wanted.items():
        if state[name].shape != weight.shape:
            raise CheckpointError(
                f"{what} does not fit the configuration: '{name}' has shape "
                f"{list(state[name].shape)} in the file and {list(weight.shape)} in the model"
            )


def load_strictly(model: nn.Module, state: Mapping[str, Tensor], what: str = "the file") -> None:
    """Copy weights into a model, in the model's dtype; all of them fit and are finite, or none.

    Parameters
    ----------
    model
        Changed in place.
    state
        Name → tensor of any floating dtype.
    what
        What the weights are, for the messages: "epoch 12".

    Raises
    ------
    CheckpointError
        As `check_fit`, or if a weight is NaN or infinite.
    """
    check_fit(model, state, what)
    cast = {name: state[name].to(weight.dtype) for name, weight in model.state_dict().items()}
    for name, tensor in cast.items():
        bad = int((~tensor.isfinite()).sum())
        if bad:
            raise CheckpointError(
                f"{what} has non-finite weights: {bad:,} of the {tensor.numel():,} numbers of "
                f"'{name}' are NaN or infinite; choose another epoch"
            )
    model.load_state_dict(cast, strict=True)


def _some(names: list[str]) -> str:
    shown = ", ".join(f"{name[:80]!r}" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _line(error: Exception) -> str:
    """Return the first line of a message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
