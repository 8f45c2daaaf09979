"""Held-out examples for analyses: a fixed, even selection from a data set, batch by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from damcha.config import DataConfig
from damcha.data.datasets import ImageData, Split, TextData, load_dataset
from damcha.errors import InputError


def image_tensor(images: UInt8[np.ndarray, "batch height width c"]) -> Float[Tensor, "batch c h w"]:
    """uint8 [B, H, W, C] in 0..255 → float32 [B, C, H, W] in [-1, 1], as the models take it."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def windows(
    data: TextData, starts: NDArray[np.int64], length: int
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, " batch"]]:
    """Pieces of a text, [B, length] int64, and zeros: text has no labels."""
    found = data.bytes[starts[:, None] + np.arange(length)].astype(np.int64)
    return torch.from_numpy(found), torch.zeros(len(starts), dtype=torch.long)


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Examples spread evenly over one part of a data set: equal arguments, equal examples."""

    name: str
    """What it is, e.g. "fashion_mnist, test: 512 of 10,000"."""
    data: ImageData | TextData
    places: NDArray[np.int64]
    """[N]: index of each picture, or where each piece of text begins."""
    seq_len: int
    """Bytes of a piece of text."""
    digest: str
    """SHA-256 of the examples and their labels."""
    root: str = ""
    """Where the data lie."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Class of each example, [N]; None for text."""
        return None if isinstance(self.data, TextData) else self.data.labels[self.places]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; () where there are none."""
        return () if isinstance(self.data, TextData) else self.data.class_names

    @property
    def parts(self) -> tuple[str, ...]:
        """The sub-corpus that each piece of text begins in, [N]; () for pictures."""
        if not isinstance(self.data, TextData):
            return ()
        names, ends = list(self.data.parts), [stop for _, stop in self.data.parts.values()]
        return tuple(names[k] for k in np.searchsorted(ends, self.places, side="right"))

    def batches(self, size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs as models take them and labels (zeros for text), `size` examples at a time."""
        for first in range(0, len(self), size):
            yield self._batch(self.places[first : first + size])

    def original(self, k: int) -> UInt8[np.ndarray, "height width c"] | bytes:
        """Return example k as a person would give it: pixels, or the bytes of a text."""
        place = self.places[k : k + 1]
        if isinstance(self.data, TextData):
            return bytes(self.data.bytes[place[0] : place[0] + self.seq_len])
        picture: NDArray[np.uint8] = self.data.images[place][0]
        return picture

    def _batch(self, places: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        if isinstance(self.data, TextData):
            return windows(self.data, places, self.seq_len)
        images = image_tensor(self.data.images[places])
        return images, torch.from_numpy(self.data.labels[places])


def spread(data: ImageData | TextData, seq_len: int, n: int) -> NDArray[np.int64]:
    """Places of at most `n` examples, evenly over the data; pieces of text do not overlap."""
    if isinstance(data, TextData):
        n = min(n, len(data.bytes) // seq_len)
        return np.linspace(0, len(data.bytes) - seq_len, n).astype(np.int64)
    return np.linspace(0, len(data.labels) - 1, min(n, len(data.labels))).astype(np.int64)


def evaluation_set(
    config: DataConfig, root: str | Path, n: int = 512, split: Split = "test"
) -> EvaluationSet:
    """Open `n` examples, or as many as there are, of a part of a data set.

    Raises
    ------
    InputError
        If n is not positive, or as :func:`load_dataset`.
    """
    if n < 1:
        raise InputError(f"n: {n} examples cannot be evaluated; use 1 or more")
    data = load_dataset(config, root, split)
    places = spread(data, config.seq_len, n)
    digest = hashlib.sha256(places.tobytes())
    if isinstance(data, TextData):
        total, unit = len(data.bytes), f" pieces of {config.seq_len} bytes"
        for first in places:
            digest.update(data.bytes[first : first + config.seq_len].tobytes())
    else:
        total, unit = len(data.labels), ""
        digest.update(data.labels[places].tobytes())
        for first in range(0, len(places), 256):  # a folder's pictures are decoded on demand
            digest.update(data.images[places[first : first + 256]].tobytes())
    of = f"{total:,} bytes" if unit else f"{total:,}"
    return EvaluationSet(
        name=f"{config.dataset}, {split}: {len(places):,}{unit} of {of}",
        data=data,
        places=places,
        seq_len=config.seq_len,
        digest=digest.hexdigest(),
        root=str(root),
    )
