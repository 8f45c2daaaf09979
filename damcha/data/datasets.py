"""Data sets in the formats in which they are published: where they lie → arrays of bytes.

========================= ==================================================================
fashion_mnist             four IDX files (also MNIST's), gzipped or not, or in pieces
cifar10, objects10        CIFAR's binary version, as a folder or a tar.gz
cifar100                  the same, with a coarse and a fine label
image_folder              train/CLASS/* and val/CLASS/* (test/ where there is one), as ImageNet
text                      one file, or a folder of NAME.train.txt, NAME.valid.txt, NAME.test.txt;
                          each plain, .gz, .xz, .bz2 or a .zip of one file
========================= ==================================================================

A set that has no validation part of its own holds out the last tenth of its training part, at
most 5,000 images, always the same ones. A single text file is cut 90 / 5 / 5 %.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from damcha.config import DataConfig
from damcha.data.archives import is_packed, read_tar, unpack
from damcha.data.folder import FolderImages, find_images
from damcha.errors import ConfigError, InputError

Split = Literal["train", "valid", "test"]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, eq=False)
class ImageData:
    """One part of a labelled image set."""

    images: NDArray[np.uint8] | FolderImages
    """[N, H, W, C]; a FolderImages decodes what it is indexed with."""
    labels: NDArray[np.int64]
    """[N]"""
    class_names: tuple[str, ...]
    source: str
    licence: str


@dataclass(frozen=True, eq=False)
class TextData:
    """One part of a text corpus, as bytes."""

    bytes: NDArray[np.uint8]
    """[N]"""
    parts: dict[str, tuple[int, int]]
    """Sub-corpus → its half-open range in ``bytes``."""
    source: str
    licence: str


def load_dataset(config: DataConfig, root: Path | str, split: Split) -> ImageData | TextData:
    """Return one part of the data set that a configuration names, as read-only arrays.

    Raises
    ------
    InputError
        If files are missing (the message says which to get and where to put them), damaged, or
        hold something else.
    ConfigError
        If the configured image size or number of channels is not that of the set.
    """
    root = Path(root)
    if not root.exists():
        raise InputError(f"{root}: no such file or folder; {_WANTED[config.dataset]}")
    if config.dataset == "text":
        return _text(config, root, split)
    if config.dataset == "image_folder":
        return _image_folder(config, root, split)
    if config.dataset == "fashion_mnist":
        return _fashion_mnist(config, root, split)
    return _cifar(config, root, split)


_WANTED = {
    "fashion_mnist": "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
    "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz of "
    "https://github.com/zalandoresearch/fashion-mnist there",
    "cifar10": "put cifar-10-binary.tar.gz (the binary version) of "
    "https://www.cs.toronto.edu/~kriz/cifar.html there",
    "cifar100": "put cifar-100-binary.tar.gz (the binary version) of "
    "https://www.cs.toronto.edu/~kriz/cifar.html there",
    "objects10": "put objects10-binary.tar.gz there",
    "image_folder": "make folders train/CLASS and val/CLASS of image files there",
    "text": "give a text file, or a folder with NAME.train.txt, NAME.valid.txt and NAME.test.txt "
    "(.xz, .gz or .bz2 too)",
}
"""What to do when a set is not where it should be."""


# Fashion-MNIST ----------------------------------------------------------------------------------

_FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def _fashion_mnist(config: DataConfig, root: Path, split: Split) -> ImageData:
    prefix = "t10k" if split == "test" else "train"
    images = _idx(root, f"{prefix}-images-idx3-ubyte", n_axes=3)
    labels = _idx(root, f"{prefix}-labels-idx1-ubyte", n_axes=1).astype(np.int64)
    if len(images) != len(labels):
        raise InputError(
            f"{prefix}-images-idx3-ubyte has {len(images):,} images but its label file has "
            f"{len(labels):,} labels; take both from the same download"
        )
    return _part(
        config, images[..., None], labels, _FASHION_CLASSES, split,
        source="Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017, arXiv:1708.07747): "
        "70,000 grey pictures of clothing, 28×28.",
        licence="MIT, Copyright 2017 Zalando SE.",
    )  # fmt: skip


def _idx(root: Path, name: str, n_axes: int) -> NDArray[np.uint8]:
    """Read an IDX file of bytes: 0, 0, type 8, number of axes, the sizes as big-endian uint32."""
    content = unpack(*_pieces(root, name))
    if content[:4] != bytes((0, 0, 8, n_axes)):
        raise InputError(
            f"{name}: not an IDX file of bytes with {n_axes} axes "
            f"(it starts with {content[:4].hex() or 'nothing'}); {_WANTED['fashion_mnist']}"
        )
    start = 4 + 4 * n_axes
    shape = tuple(np.frombuffer(content[4:start].ljust(4 * n_axes, b"\0"), ">u4").tolist())
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise InputError(
            f"{name}: {len(content):,} bytes where its header promises {expected:,}; "
            "download it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _pieces(root: Path, name: str) -> list[Path]:
    """The file of that name, .gz or not, in the folder or its raw/, or its .part0, .part1, …."""
    for folder in (root, root / "raw", root / "FashionMNIST" / "raw"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return [path]
            pieces = sorted(
                folder.glob(f"{path.name}.part*"),
                key=lambda piece: int(re.sub(r"\D", "", piece.suffix) or -1),
            )
            if pieces:
                return pieces
    raise InputError(f"{root}: no {name} or {name}.gz; {_WANTED['fashion_mnist']}")


# CIFAR ------------------------------------------------------------------------------------------

_PIXELS = 3 * 32 * 32

_CIFAR_ABOUT = {
    "cifar10": (
        "CIFAR-10 (Krizhevsky, 2009): 60,000 colour images of 10 classes, 32×32.",
        "None stated by the authors; the images were collected from the web.",
    ),
    "cifar100": (
        "CIFAR-100 (Krizhevsky, 2009): 60,000 colour images of 100 classes, 32×32.",
        "None stated by the authors; the images were collected from the web.",
    ),
    "objects10": (
        "objects10: 6,000 colour images of 10 classes, 32×32, composed from photographs of Tux "
        "Paint's stamps and of free wallpapers.",
        "GPL-3.0-or-later as a whole.",
    ),
}


def _cifar(config: DataConfig, root: Path, split: Split) -> ImageData:
    fine = config.dataset == "cifar100"
    if fine:
        batches = ["test.bin"] if split == "test" else ["train.bin"]
        meta = "fine_label_names.txt"
    else:
        train = [f"data_batch_{number}.bin" for number in range(1, 6)]
        batches = ["test_batch.bin"] if split == "test" else train
        meta = "batches.meta.txt"
    files = _cifar_files(config, root, [*batches, meta])
    names = tuple(files[meta].decode("utf-8", "replace").split())
    # A record is the label (coarse and fine in CIFAR-100), then the red, green and blue planes.
    # The count comes from the length: other sets than CIFAR have other counts.
    n_labels = 2 if fine else 1
    records = []
    for batch in batches:
        if not files[batch] or len(files[batch]) % (n_labels + _PIXELS):
            raise InputError(
                f"{batch}: {len(files[batch]):,} bytes are not a whole number of records of "
                f"{n_labels + _PIXELS:,} bytes; download it again"
            )
        records.append(np.frombuffer(files[batch], np.uint8).reshape(-1, n_labels + _PIXELS))
    table = np.concatenate(records)
    labels = table[:, n_labels - 1].astype(np.int64)
    images = table[:, n_labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    source, licence = _CIFAR_ABOUT[config.dataset]
    return _part(config, images, labels, names, split, source, licence)


def _cifar_files(config: DataConfig, root: Path, names: list[str]) -> dict[str, bytes]:
    """The files of those names from a folder, a folder in it, or a tar archive in it."""
    inner = "cifar-100-binary" if config.dataset == "cifar100" else "cifar-10-batches-bin"
    archive = "cifar-100-binary" if config.dataset == "cifar100" else "*-binary"
    if root.is_dir():
        for folder in (root, root / inner):
            if (folder / names[0]).is_file():
                files = {name: unpack(folder / name) for name in names if (folder / name).is_file()}
                return _complete(config, folder, names, files)
        if any(root.glob("cifar-*-batches-py")) or any(root.glob("cifar-*-python*")):
            raise InputError(
                f"{root}: this is CIFAR's Python version, a pickle that could run code; "
                f"{_WANTED[config.dataset]}"
            )
        archives = [
            path for ending in (".tar.gz", ".tgz", ".tar") for path in root.glob(archive + ending)
        ]
        if not archives:
            raise InputError(f"{root}: no {names[0]}; {_WANTED[config.dataset]}")
        root = archives[0]
    return _complete(config, root, names, read_tar(root, names))


def _complete(
    config: DataConfig, where: Path, names: list[str], files: dict[str, bytes]
) -> dict[str, bytes]:
    missing = [name for name in names if name not in files]
    if missing:
        raise InputError(f"{where}: no {', '.join(missing)} in it; {_WANTED[config.dataset]}")
    return files


# Both -------------------------------------------------------------------------------------------


def _part(
    config: DataConfig,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    names: tuple[str, ...],
    split: Split,
    source: str,
    licence: str,
) -> ImageData:
    """Check a whole training or test part, and hold out validation from the former."""
    if not len(images):
        raise InputError(f"{config.dataset}: the {split} part is empty; download it again")
    if labels.max() >= len(names):
        raise InputError(
            f"{config.dataset}: label {labels.max()} in the {split} part, but there are only "
            f"{len(names)} classes; download it again"
        )
    height, width, channels = images.shape[1:]
    if (height, width) != (config.image_size,) * 2 or channels != config.channels:
        raise ConfigError(
            f"image_size, channels: {config.dataset} has images of {height}×{width} with "
            f"{channels} channel{'s' * (channels > 1)}, not {config.image_size}×"
            f"{config.image_size} with {config.channels}; set image_size={height} "
            f"channels={channels}"
        )
    if split != "test":
        kept = len(images) - max(1, min(len(images) // 10, 5000))
        keep = slice(kept) if split == "train" else slice(kept, None)
        images, labels = images[keep], labels[keep]
    return ImageData(_frozen(images), _frozen(labels), names, source, licence)


def _frozen(array: NDArray[T]) -> NDArray[T]:
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def _image_folder(config: DataConfig, root: Path, split: Split) -> ImageData:
    if not root.is_dir():
        raise InputError(f"{root}: not a folder; {_WANTED['image_folder']}")
    paths, labels, names = find_images(root, split)
    return ImageData(
        FolderImages(paths, config.image_size, config.channels), _frozen(labels), names,
        f"The pictures of the folder {root.name}, {len(names)} classes.",
        "As stated by whoever published them.",
    )  # fmt: skip


# Text -------------------------------------------------------------------------------------------

_TEXT_NAME = re.compile(r"(?:(.+)\.)?(train|valid|validation|test)\.txt(?:\.(?:xz|gz|bz2|zip))?")


def _text(config: DataConfig, root: Path, split: Split) -> TextData:
    if root.is_dir():
        data = _text_folder(root, split)
    else:
        content = _content(root)
        start, stop = _cuts(content)[split]
        data = TextData(
            _frozen(content[start:stop]), {root.name: (0, stop - start)},
            f"{root.name}: its first 90 % to train, 5 % to validate, 5 % to test.",
            "As stated by whoever published the file.",
        )  # fmt: skip
    if len(data.bytes) < config.seq_len:
        raise InputError(
            f"{root.name}: the {split} part has {len(data.bytes):,} bytes, fewer than "
            f"seq_len={config.seq_len}; give more text or lower seq_len"
        )
    return data


def _text_folder(root: Path, split: Split) -> TextData:
    files: dict[str, Path] = {}
    for path in sorted(root.iterdir()):
        match = _TEXT_NAME.fullmatch(path.name)
        if match and match[2].removesuffix("ation") == split and path.is_file():
            name = match[1] or "text"
            if name in files:
                raise InputError(
                    f"{root.name}: both {files[name].name} and {path.name}; remove one of them"
                )
            files[name] = path
    if not files:
        raise InputError(f"{root}: no file NAME.{split}.txt; {_WANTED['text']}")
    contents = [_content(path) for path in files.values()]
    stops = np.cumsum([len(content) for content in contents]).tolist()
    parts = dict(zip(files, zip([0, *stops], stops, strict=False), strict=True))
    source, licence = _about(root, tuple(files))
    return TextData(_frozen(np.concatenate(contents)), parts, source, licence)


def _content(path: Path) -> NDArray[np.uint8]:
    try:
        if path.stat().st_size == 0:
            return np.zeros(0, np.uint8)
        if is_packed(path):
            return np.frombuffer(unpack(path), np.uint8)
        return np.memmap(path, np.uint8, mode="r")  # so that a corpus may exceed the memory
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read ({error.strerror or error})") from None


def _cuts(content: NDArray[np.uint8]) -> dict[Split, tuple[int, int]]:
    """Ranges of 90, 5 and 5 % of a text, cut between UTF-8 characters."""
    first, second = (_character_start(content, len(content) * part // 20) for part in (18, 19))
    return {"train": (0, first), "valid": (first, second), "test": (second, len(content))}


def _character_start(content: NDArray[np.uint8], index: int) -> int:
    while index < len(content) and content[index] & 0xC0 == 0x80:
        index += 1
    return index


_ENGLISH = {
    "sotu": ("State of the Union addresses", "public domain"),
    "moby_dick": ("Moby-Dick", "public domain"),
    "kjv_bible": ("King James Bible", "public domain"),
    "wordnet": ("WordNet glosses", "WordNet 3.0 licence"),
    "foldoc": ("Free On-line Dictionary of Computing", "GFDL 1.1 or later"),
    "jargon_file": ("Jargon File", "public domain"),
    "devils_dictionary": ("The Devil's Dictionary", "public domain"),
    "fortunes": ("fortune cookies", "BSD for the collection"),
    "software_docs": (
        "Debian, GNOME and GIMP manuals",
        "GPL-2.0-or-later, CC-BY-SA-3.0, GFDL 1.2 or later",
    ),
}
"""The sub-corpora of the English set that the shipped text models learn."""


def _about(root: Path, names: tuple[str, ...]) -> tuple[str, str]:
    if not set(names) <= set(_ENGLISH):
        return (
            f"The text files {', '.join(names)} of {root.name}.",
            "As stated by whoever published them.",
        )
    return (
        "English text: " + ", ".join(_ENGLISH[name][0] for name in names) + ".",
        "; ".join(f"{_ENGLISH[name][0]}: {_ENGLISH[name][1]}" for name in names) + ".",
    )
