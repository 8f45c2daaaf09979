"""Data sets in the formats in which they are published: where they lie → arrays of bytes.

========================= ==================================================================
fashion_mnist             four IDX files (also MNIST's), gzipped or not, or in pieces
cifar10, objects10        CIFAR's binary version, as a folder or a tar.gz
cifar100                  the same, with a coarse and a fine label
image_folder              train/CLASS/* and val/CLASS/* (test/ where there is one), as ImageNet
imagenet                  the same, or a table
text                      one file, or a folder of NAME.train.txt, NAME.valid.txt, NAME.test.txt;
                          each plain, .gz, .xz, .bz2 or a .zip of one file
mix                       the same folder with nine sub-corpora of English, whole
enwik8, text8             the file of that name, plain or .zip
wmt14, en_de,             pairs (see pairs.py) as lines: source, tab, target
common_gen, concepts
========================= ==================================================================

Fashion-MNIST, CIFAR, ImageNet, WMT14 and CommonGen are also read as tables (see tables.py): the
Parquet or Arrow files of Hugging Face, or its ``datasets`` library with ``hf:`` for the folder.

A set that has no validation part of its own holds out the last tenth of its training part, at
most 5,000 images, always the same ones. A single text file is cut 90 / 5 / 5 %; of enwik8 and text8
that is the usual 90, 5 and 5 million bytes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from damcha.config import PAIRS, DataConfig
from damcha.data import pairs, tables
from damcha.data.archives import is_packed, read_tar, unpack
from damcha.data.folder import FolderImages, find_images
from damcha.data.published import MD5, check_count, check_sum
from damcha.data.published import Split as Split
from damcha.data.tables import TableImages
from damcha.errors import ConfigError, InputError

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, eq=False)
class ImageData:
    """One part of a labelled image set."""

    images: NDArray[np.uint8] | FolderImages | TableImages
    """[N, H, W, C]; those of a folder or a table are decoded when indexed."""
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
    if config.dataset in PAIRS:
        return _long_enough(_lines(pairs.load_pairs(config, root, split)), config, split)
    if config.dataset in _TABLES and (data := _image_table(config, root, split)):
        return data
    if tables.is_hub(root):
        raise InputError(
            f"{root}: {config.dataset} is not read from there; {_WANTED[config.dataset]}"
        )
    if not root.exists():
        raise InputError(f"{root}: no such file or folder; {_WANTED[config.dataset]}")
    if config.dataset in ("text", "mix"):
        return _text(config, root, split)
    if config.dataset in ("enwik8", "text8"):
        return _long_enough(_wikipedia(config, root, split), config, split)
    if config.dataset in ("image_folder", "imagenet"):
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
    "imagenet": "put ImageNet's folders train/WNID and val/WNID (the pictures of ILSVRC2012, one "
    "folder a class) with LOC_synset_mapping.txt there, or the Parquet files of Hugging Face's "
    "ILSVRC/imagenet-1k, or give hf: as the folder",
    "enwik8": "put enwik8.zip of https://mattmahoney.net/dc/ there",
    "text8": "put text8.zip of https://mattmahoney.net/dc/ there",
    "mix": "put NAME.train.txt, NAME.valid.txt and NAME.test.txt (.xz, .gz or .bz2 too) of nine "
    "sub-corpora there: sotu, moby_dick, kjv_bible, wordnet, foldoc, jargon_file, "
    "devils_dictionary, fortunes, software_docs",
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
    about = _IMAGES_ABOUT["fashion_mnist"]
    return _part(config, images[..., None], labels, _FASHION_CLASSES, split, *about)


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

_IMAGES_ABOUT = {
    "fashion_mnist": (
        "Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017, arXiv:1708.07747): 70,000 grey pictures of "
        "clothing, 28×28.",
        "MIT, Copyright 2017 Zalando SE.",
    ),
    "imagenet": (
        "ImageNet-1K (Russakovsky et al., 2015, doi:10.1007/s11263-015-0816-y): photographs of "
        "1,000 classes.",
        "For non-commercial research, by ImageNet's terms of access.",
    ),
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
    source, licence = _IMAGES_ABOUT[config.dataset]
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
    check_sum(root.name, root.stat().st_size, root.read_bytes)
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
    _check_shape(config, *images.shape[1:])
    source += check_count(config.dataset, split, len(images), "images")
    if split != "test":
        keep = _held_out(len(images), split)
        images, labels = images[keep], labels[keep]
    return ImageData(_frozen(images), _frozen(labels), names, source, licence)


def _check_shape(config: DataConfig, height: int, width: int, channels: int) -> None:
    if (height, width) != (config.image_size,) * 2 or channels != config.channels:
        raise ConfigError(
            f"image_size, channels: {config.dataset} has images of {height}×{width} with "
            f"{channels} channel{'s' * (channels > 1)}, not {config.image_size}×"
            f"{config.image_size} with {config.channels}; set image_size={height} "
            f"channels={channels}"
        )


def _held_out(count: int, split: Split) -> slice:
    """Which of a training part's examples are trained on, and which are held out."""
    kept = count - max(1, min(count // 10, 5000))
    return slice(kept) if split == "train" else slice(kept, None)


def _frozen(array: NDArray[T]) -> NDArray[T]:
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def _image_folder(config: DataConfig, root: Path, split: Split) -> ImageData:
    if not root.is_dir():
        raise InputError(f"{root}: not a folder; {_WANTED[config.dataset]}")
    if config.dataset == "imagenet" and not (root / "train").is_dir():
        raise InputError(f"{root}: no folder train/ in it; {_WANTED['imagenet']}")
    paths, labels, names = find_images(root, split)
    source, licence = (
        f"The pictures of the folder {root.name}, {len(names)} classes.",
        "As stated by whoever published them.",
    )
    if config.dataset == "imagenet":
        source, licence = _IMAGES_ABOUT["imagenet"]
        source += check_count("imagenet", split, len(paths), "images")
    images = FolderImages(paths, config.image_size, config.channels)
    return ImageData(images, _frozen(labels), names, source, licence)


# Tables of pictures -----------------------------------------------------------------------------

_TABLES = {
    "fashion_mnist": ("zalando-datasets/fashion_mnist", "image", "label"),
    "cifar10": ("uoft-cs/cifar10", "img", "label"),
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label"),
    "imagenet": ("ILSVRC/imagenet-1k", "image", "label"),
}
"""Set → its name at Hugging Face, and the columns of pictures and labels."""


def _image_table(config: DataConfig, root: Path, split: Split) -> ImageData | None:
    """The part as a table; None where the folder has none."""
    repository, column, label_column = _TABLES[config.dataset]
    own_valid = config.dataset == "imagenet"  # the others hold theirs out from train
    rows = tables.find_rows(
        root, "train" if split == "valid" and not own_valid else split, repository
    )
    if rows is None:
        return None
    if not own_valid:
        _check_shape(config, *((28, 28, 1) if config.dataset == "fashion_mnist" else (32, 32, 3)))
    labels = tables.labels(rows, label_column)
    names = tables.class_names(rows, label_column)
    names = names or tuple(map(str, range(int(labels.max()) + 1)))
    if labels.min() < 0:
        raise InputError(
            f"{config.dataset}: the {split} part is published without labels; "
            "use the validation part"
        )
    if labels.max() >= len(names):
        raise InputError(
            f"{config.dataset}: label {labels.max()} in the {split} part, but there are only "
            f"{len(names)} classes; download it again"
        )
    source, licence = _IMAGES_ABOUT[config.dataset]
    source += check_count(config.dataset, split, len(labels), "images")
    held_out = split != "test" and not own_valid
    places = np.arange(len(labels))[_held_out(len(labels), split) if held_out else slice(None)]
    images, labels = (
        TableImages(rows, column, places, config.image_size, config.channels),
        labels[places],
    )
    return ImageData(images, _frozen(labels), names, source, licence)


# Text -------------------------------------------------------------------------------------------

_TEXT_NAME = re.compile(r"(?:(.+)\.)?(train|valid|validation|test)\.txt(?:\.(?:xz|gz|bz2|zip))?")


def _text(config: DataConfig, root: Path, split: Split) -> TextData:
    if config.dataset == "mix":
        data = _mix(root, split)
    elif root.is_dir():
        data = _text_folder(root, split)
    else:
        content = _content(root)
        start, stop = _cuts(content)[split]
        data = TextData(
            _frozen(content[start:stop]), {root.name: (0, stop - start)},
            f"{root.name}: its first 90 % to train, 5 % to validate, 5 % to test.",
            "As stated by whoever published the file.",
        )  # fmt: skip
    return _long_enough(data, config, split, root.name)


def _long_enough(data: TextData, config: DataConfig, split: Split, name: str = "") -> TextData:
    if len(data.bytes) < config.seq_len:
        raise InputError(
            f"{name or config.dataset}: the {split} part has {len(data.bytes):,} bytes, fewer than "
            f"seq_len={config.seq_len}; give more text or lower seq_len"
        )
    return data


def _text_folder(root: Path, split: Split, dataset: str = "text") -> TextData:
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
        raise InputError(f"{root}: no file NAME.{split}.txt; {_WANTED[dataset]}")
    contents = [_content(path) for path in files.values()]
    stops = np.cumsum([len(content) for content in contents]).tolist()
    parts = dict(zip(files, zip([0, *stops], stops, strict=False), strict=True))
    source, licence = _about(root, tuple(files))
    return TextData(_frozen(np.concatenate(contents)), parts, source, licence)


def _mix(root: Path, split: Split) -> TextData:
    if not root.is_dir():
        raise InputError(f"{root}: not a folder; {_WANTED['mix']}")
    data = _text_folder(root, split, "mix")
    missing = sorted(set(_ENGLISH) - set(data.parts))
    others = sorted(set(data.parts) - set(_ENGLISH))
    if missing or others:
        what = f"no {', '.join(missing)}" if missing else f"also {', '.join(others)[:200]}"
        raise InputError(f"{root}: {what} in its {split} part; {_WANTED['mix']}")
    note = check_count("mix", split, len(data.bytes), "bytes")
    source = f"{data.source} Ours: stands in for the paper's Mix, whose content is not published."
    return replace(data, source=source + note)


def _wikipedia(config: DataConfig, root: Path, split: Split) -> TextData:
    """enwik8 or text8: bytes, cut at 90 and 95 % whatever stands there, as everyone does."""
    name = config.dataset
    files = (root,) if root.is_file() else (root / name, root / f"{name}.zip")
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        raise InputError(f"{root}: no {name} or {name}.zip in it; {_WANTED[name]}")
    content = _content(path)
    check_sum(name, len(content), lambda: content.data)
    if name == "text8" and not np.isin(content[:100_000], _TEXT8).all():
        raise InputError(f"{path.name}: not text8, which has a to z and spaces alone")
    if len(content) > MD5[name][0]:
        raise InputError(
            f"{path.name}: {len(content):,} bytes, more than the {MD5[name][0]:,} of {name}; "
            "cut it there, or read it as dataset=text"
        )
    first, second = len(content) * 18 // 20, len(content) * 19 // 20
    start, stop = {"train": (0, first), "valid": (first, second), "test": (second, None)}[split]
    part = content[start:stop]
    source, licence = (
        "text8 (Mahoney, 2006): 100 MB of English Wikipedia, 2006, cleaned to a–z and spaces."
        if name == "text8"
        else "enwik8 (Mahoney, 2006): the first 100 MB of English Wikipedia's dump, 2006.",
        "CC-BY-SA-3.0 and GFDL, Wikipedia contributors.",
    )
    note = check_count(name, split, len(part), "bytes")
    return TextData(_frozen(part), {name: (0, len(part))}, source + note, licence)


_TEXT8 = np.frombuffer(b" abcdefghijklmnopqrstuvwxyz", np.uint8)


def _lines(data: pairs.PairData) -> TextData:
    """Pairs as one text: a line each, source, tab, target."""
    lines, starts = bytearray(), [0, 0]
    sides = (data.sources, b"\t"), (data.targets, b"\n")
    texts = [(text.bytes.tobytes(), text.stops.tolist(), end) for text, end in sides]
    for k in range(len(data)):
        for side, (text, stops, end) in enumerate(texts):
            lines += text[starts[side] : stops[k]] + end
            starts[side] = stops[k]
    found = np.frombuffer(bytes(lines), np.uint8)
    return TextData(found, {"pairs": (0, len(found))}, data.source, data.licence)


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
