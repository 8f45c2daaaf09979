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
from damcha.data.pairs import PairExamples, load_pairs
from damcha.errors import InputError
from damcha.symbols import Tokenizer

Examples = ImageData | TextData | PairExamples
"""One part of a data set, as a task takes it."""


def check_known(config: DataConfig) -> None:
    """Refuse the data of an imported model of text, whose tokenizer cut nobody knows what.

    Raises
    ------
    InputError
        If it is one.
    """
    if config.first_symbol is not None:
        raise InputError(
            "this run was imported, and the texts that its tokenizer cut are not known here; it "
            "can be shown what you write, but not evaluated on a set"
        )


def load_examples(
    config: DataConfig, root: str | Path, split: Split, tokenizer: Tokenizer | None = None
) -> Examples:
    """Open one part of a data set; with a tokenizer, as pairs of a source and a target.

    Raises
    ------
    InputError
        As :func:`load_dataset` and :func:`load_pairs`.
    """
    check_known(config)
    if tokenizer is None:
        return load_dataset(config, root, split)
    return PairExamples(load_pairs(config, root, split), tokenizer, config.seq_len)


def image_tensor(images: UInt8[np.ndarray, "batch height width c"]) -> Float[Tensor, "batch c h w"]:
    """uint8 [B, H, W, C] in 0..255 → float32 [B, C, H, W] in [-1, 1], as the models take it."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def windows(
    data: TextData, starts: NDArray[np.int64], length: int
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, " batch"]]:
    """Pieces of a text, [B, length] int64, and zeros: text has no labels."""
    found = data.bytes[starts[:, None] + np.arange(length)].astype(np.int64)
    return torch.from_numpy(found), torch.zeros(len(starts), dtype=torch.long)


def batch_of(
    data: Examples, places: NDArray[np.int64], seq_len: int
) -> tuple[Tensor, Int[Tensor, " batch"]]:
    """Examples as models take them and labels (zeros for text): see :func:`spread` for places."""
    if isinstance(data, TextData):
        return windows(data, places, seq_len)
    if isinstance(data, PairExamples):
        return torch.from_numpy(data.rows(places)), torch.zeros(len(places), dtype=torch.long)
    return image_tensor(data.images[places]), torch.from_numpy(data.labels[places])


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Examples spread evenly over one part of a data set: equal arguments, equal examples."""

    name: str
    """What it is, e.g. "fashion_mnist, test: 512 of 10,000"."""
    data: Examples
    places: NDArray[np.int64]
    """[N]: index of each picture or pair, or where each piece of text begins."""
    seq_len: int
    """Symbols of a piece of text."""
    digest: str
    """SHA-256 of the examples and their labels."""
    root: str = ""
    """Where the data lie."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Class of each example, [N]; None for text."""
        return self.data.labels[self.places] if isinstance(self.data, ImageData) else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; () where there are none."""
        return self.data.class_names if isinstance(self.data, ImageData) else ()

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
            yield batch_of(self.data, self.places[first : first + size], self.seq_len)

    def original(self, k: int) -> UInt8[np.ndarray, "height width c"] | bytes:
        """Return example k as a person would give it: pixels, or the bytes of a text.

        A pair is its source, a tab, and its target.
        """
        place = self.places[k : k + 1]
        if isinstance(self.data, PairExamples):
            pairs = self.data.data
            return f"{pairs.sources[int(place[0])]}\t{pairs.targets[int(place[0])]}".encode()
        if isinstance(self.data, TextData):
            return bytes(self.data.bytes[place[0] : place[0] + self.seq_len])
        picture: NDArray[np.uint8] = self.data.images[place][0]
        return picture


def spread(data: Examples, seq_len: int, n: int) -> NDArray[np.int64]:
    """Places of at most `n` examples, evenly over the data; pieces of text do not overlap."""
    if isinstance(data, TextData):
        n = min(n, len(data.bytes) // seq_len)
        return np.linspace(0, len(data.bytes) - seq_len, n).astype(np.int64)
    count = len(data) if isinstance(data, PairExamples) else len(data.labels)
    return np.linspace(0, count - 1, min(n, count)).astype(np.int64)


def evaluation_set(
    config: DataConfig,
    root: str | Path,
    n: int = 512,
    split: Split = "test",
    tokenizer: Tokenizer | None = None,
) -> EvaluationSet:
    """Open `n` examples, or as many as there are, of a part of a data set.

    With a tokenizer they are pairs of a source and a target.

    Raises
    ------
    InputError
        If n is not positive, or as :func:`load_examples`.
    """
    if n < 1:
        raise InputError(f"n: {n} examples cannot be evaluated; use 1 or more")
    data = load_examples(config, root, split, tokenizer)
    places = spread(data, config.seq_len, n)
    digest = hashlib.sha256(places.tobytes())
    if isinstance(data, TextData):
        total, unit = len(data.bytes), f" pieces of {config.seq_len} bytes"
        for first in places:
            digest.update(data.bytes[first : first + config.seq_len].tobytes())
    elif isinstance(data, PairExamples):
        total, unit = len(data), ""
        digest.update(data.rows(places).tobytes())
    else:
        total, unit = len(data.labels), ""
        digest.update(data.labels[places].tobytes())
        for first in range(0, len(places), 256):  # a folder's pictures are decoded on demand
            digest.update(data.images[places[first : first + 256]].tobytes())
    of = f"{total:,} bytes" if unit else f"{total:,}"
    return EvaluationSet(
        name=f"{config.dataset}, {split}: {len(places):,}{unit} of {of}"
        + " pairs" * isinstance(data, PairExamples),
        data=data,
        places=places,
        seq_len=config.seq_len,
        digest=digest.hexdigest(),
        root=str(root),
    )
