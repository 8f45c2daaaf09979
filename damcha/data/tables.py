"""Sets as tables: Parquet or Arrow files of Hugging Face's layout, or its ``datasets`` library.

==================================  ============================================================
FOLDER/{,data/,CONFIG/}             SPLIT-*.parquet, as the sets are published
FOLDER/SPLIT/*.arrow                as ``datasets`` saves them (``save_to_disk``)
``hf:`` or ``hf:NAME``              ``datasets.load_dataset``: downloaded, or from its cache
==================================  ============================================================

SPLIT is train, validation (valid, val) or test. Arrow files are mapped, not read. Parquet is read
a row group at a time: enough for text, but pictures drawn in random order from a large set, as
ImageNet, want Arrow, which ``hf:`` makes of them.

Parquet and Arrow files hold no code. Their offsets are checked before anything follows them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from damcha.data.folder import MAX_PIXELS
from damcha.data.images import fit_image, read_image
from damcha.data.published import Split
from damcha.errors import InputError

MAX_GROUP_BYTES = 2**30
"""The most that a row group of a Parquet file may unpack to (usual: 10 to 300 MB)."""
MAX_ROWS = 100_000_000
MAX_NAMES = 100_000

HUB = "hf:"
_SPLITS = {"train": ("train",), "valid": ("validation", "valid", "val"), "test": ("test",)}


class Rows(Protocol):
    """The rows of one part of a set; columns are read when they are asked for."""

    schema: pa.Schema

    def __len__(self) -> int: ...

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return the rows in order, some columns of them, a bounded number at a time."""

    def cell(self, column: str, row: int) -> Any:
        """Return one value."""


def is_hub(root: Path) -> bool:
    """Whether the place of the data is the ``datasets`` library and not a folder."""
    return str(root).startswith(HUB)


def find_rows(root: Path, split: Split, repository: str, config: str | None = None) -> Rows | None:
    """Return the table of one part, or None if a folder has no such files.

    Parameters
    ----------
    root
        A folder, or ``hf:`` with the name of a set or without (then `repository`).
    repository, config
        The set's name and configuration at Hugging Face.

    Raises
    ------
    InputError
        If files are damaged or too large, or the library is missing or cannot load the set.
    """
    if is_hub(root):
        return _from_hub(str(root).removeprefix(HUB) or repository, config, split)
    if not root.is_dir():
        return None
    for folder in (root, root / "data", *([root / config] if config else [])):
        for name in _SPLITS[split]:
            if files := sorted(folder.glob(f"{name}-*.parquet")):
                return _Parquet(files)
            if files := sorted(folder.glob(f"{name}/*.arrow")):
                return _Arrow.open(files)
    return None


def class_names(rows: Rows, column: str) -> tuple[str, ...]:
    """Names of a column of labels, as Hugging Face writes them beside the table; () if it did not.

    Raises
    ------
    InputError
        If the description is damaged.
    """
    try:
        about = json.loads((rows.schema.metadata or {}).get(b"huggingface", b"{}"))
        names = about.get("info", {}).get("features", {}).get(column, {}).get("names", [])
        if not isinstance(names, list) or len(names) > MAX_NAMES:
            raise ValueError
        return tuple(str(name)[:200] for name in names)
    except (ValueError, AttributeError, RecursionError):
        raise InputError(f"the names of column {column} are damaged; download it again") from None


def labels(rows: Rows, column: str) -> NDArray[np.int64]:
    """A column of integers, [N].

    Raises
    ------
    InputError
        If it is missing, or has something else in it.
    """
    parts = [batch.column(0) for batch in rows.batches([column])]
    if not all(pa.types.is_integer(part.type) and not part.null_count for part in parts):
        raise InputError(f"column {column} has values that are not integers; download it again")
    return np.concatenate([np.zeros(0, np.int64), *(np.asarray(part) for part in parts)]).astype(
        np.int64
    )


@dataclass(frozen=True, eq=False)
class TableImages:
    """A column of picture files that looks like an array [N, size, size, channels] of bytes."""

    rows: Rows
    column: str
    places: NDArray[np.int64]
    """[N]: rows of the table."""
    size: int
    channels: Literal[1, 3]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, C), as of an array."""
        return len(self.places), self.size, self.size, self.channels

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int | slice | NDArray[np.integer | np.bool_]) -> NDArray[np.uint8]:
        """Decode the pictures of an index, a slice, or an array of indices or of bools."""
        chosen = np.asarray(self.places[index])
        if chosen.ndim == 0:
            return self._decode(int(chosen))
        images = np.empty((len(chosen), *self.shape[1:]), np.uint8)
        for image, place in zip(images, chosen, strict=True):
            image[:] = self._decode(int(place))
        return images

    def _decode(self, row: int) -> NDArray[np.uint8]:
        value = self.rows.cell(self.column, row)
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes):
            raise InputError(f"row {row} of column {self.column} holds no picture file")
        picture = read_image(content, name=f"row {row}", max_pixels=MAX_PIXELS)
        return fit_image(picture, self.size, self.channels)[0]


# Parquet ----------------------------------------------------------------------------------------


class _Parquet:
    def __init__(self, files: Sequence[Path]) -> None:
        opened = [_checked(lambda path=path: pq.ParquetFile(path), path) for path in files]
        self.schema: pa.Schema = opened[0].schema_arrow
        self._groups: list[tuple[Path, int]] = []
        stops = [0]
        for path, file in zip(files, opened, strict=True):
            if not file.schema_arrow.equals(self.schema):
                raise InputError(f"{path.name}: other columns than {files[0].name}")
            for group in range(file.metadata.num_row_groups):
                about = file.metadata.row_group(group)
                if about.total_byte_size > MAX_GROUP_BYTES or about.num_rows > MAX_ROWS:
                    raise InputError(
                        f"{path.name}: row group {group} unpacks to {about.total_byte_size:,} "
                        f"bytes and {about.num_rows:,} rows, more than {MAX_GROUP_BYTES:,} and "
                        f"{MAX_ROWS:,}; write it with smaller row groups"
                    )
                self._groups.append((path, group))
                stops.append(stops[-1] + about.num_rows)
            file.close()
        self._stops = np.array(stops)
        # Its own, so that files that were replaced since are read again.
        self._recent = functools.lru_cache(maxsize=2)(_row_group)
        _check_rows(files[0].name, len(self))

    def __len__(self) -> int:
        return int(self._stops[-1])

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        _check_columns(self.schema, columns)
        for path, group in self._groups:
            yield from _row_group(path, group, tuple(columns)).to_batches(max_chunksize=10_000)

    def cell(self, column: str, row: int) -> Any:
        place = int(np.searchsorted(self._stops, row, side="right")) - 1
        path, group = self._groups[place]
        _check_columns(self.schema, [column])
        return self._recent(path, group, (column,)).column(0)[row - int(self._stops[place])].as_py()


def _row_group(path: Path, group: int, columns: tuple[str, ...]) -> pa.Table:
    def read() -> pa.Table:
        with pq.ParquetFile(path) as file:
            table = file.read_row_group(group, columns=list(columns)).select(list(columns))
        table.validate(full=True)
        return table

    return _checked(read, path)


# Arrow ------------------------------------------------------------------------------------------


class _Arrow:
    def __init__(self, table: pa.Table, name: str) -> None:
        self.schema, self._table = table.schema, table
        _check_rows(name, len(self))

    @classmethod
    def open(cls, files: Sequence[Path]) -> _Arrow:
        def read(path: Path) -> pa.Table:
            table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
            table.validate(full=True)
            return table

        tables = [_checked(lambda path=path: read(path), path) for path in files]
        return cls(_checked(lambda: pa.concat_tables(tables), files[0]), files[0].name)

    def __len__(self) -> int:
        return self._table.num_rows

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        _check_columns(self.schema, columns)
        yield from self._table.select(list(columns)).to_batches(max_chunksize=10_000)

    def cell(self, column: str, row: int) -> Any:
        _check_columns(self.schema, [column])
        return self._table.column(column)[row].as_py()


def _from_hub(name: str, config: str | None, split: Split) -> Rows:
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"{HUB}{name} needs the datasets library; pip install 'damcha[data]', "
            "or give a folder of the set's files"
        ) from None
    wanted = _SPLITS[split][0]
    try:
        # From version 4 on the library runs no code that a set brings along.
        if Path(name).is_dir():
            found = datasets.load_dataset(name, split=wanted)
        else:
            found = datasets.load_dataset(name, config, split=wanted)
        return _Arrow(found.with_format("arrow")[:], name)
    except InputError:
        raise
    except Exception as error:  # the library's, the network's, the file system's: all end here
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{HUB}{name}: the datasets library could not load its {wanted} part ({reason}); "
            "check the name and the network, or give a folder of the set's files"
        ) from None


# Both -------------------------------------------------------------------------------------------


def _checked(read: Any, path: Path) -> Any:
    try:
        return read()
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path.name}: damaged ({reason}); download it again") from None


def _check_rows(name: str, count: int) -> None:
    if not 0 < count <= MAX_ROWS:
        raise InputError(f"{name}: {count:,} rows; a part has 1 to {MAX_ROWS:,}")


def _check_columns(schema: pa.Schema, columns: Sequence[str]) -> None:
    for column in columns:
        if len(schema.get_all_field_indices(column)) != 1:
            found = ", ".join(schema.names[:8])
            raise InputError(f"no column {column} in the table (it has {found[:200]})")
