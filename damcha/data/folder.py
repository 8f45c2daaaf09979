"""A folder of labelled pictures, as ImageNet is: train/CLASS/* and val/CLASS/*.

Pictures are decoded when they are asked for; a folder may hold far more than fits in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from damcha.data.images import fit_image, read_image
from damcha.errors import InputError

MAX_PIXELS = 100_000_000
"""Pictures in a data folder may be larger than uploads: ImageNet has some of 60 megapixels."""

_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"}
_FOLDERS = {"train": ("train",), "valid": ("val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True, eq=False)
class FolderImages:
    """Files that look like an array [N, size, size, channels] of bytes when indexed."""

    paths: Sequence[Path]
    size: int
    channels: Literal[1, 3]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, C), as of an array."""
        return len(self.paths), self.size, self.size, self.channels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int | slice | NDArray[np.integer | np.bool_]) -> NDArray[np.uint8]:
        """Decode the pictures of an index, a slice, or an array of indices or of bools."""
        chosen = np.asarray(np.arange(len(self))[index])
        if chosen.ndim == 0:
            return self._decode(self.paths[int(chosen)])
        images = np.empty((len(chosen), *self.shape[1:]), np.uint8)
        for image, place in zip(images, chosen, strict=True):
            image[:] = self._decode(self.paths[place])
        return images

    def _decode(self, path: Path) -> NDArray[np.uint8]:
        try:
            picture = read_image(path, max_pixels=MAX_PIXELS)
        except InputError as error:
            raise InputError(f"in {path.parent.name}: {error}, or remove the file") from None
        return fit_image(picture, self.size, self.channels)[0]


def find_images(
    root: Path, split: Literal["train", "valid", "test"]
) -> tuple[list[Path], NDArray[np.int64], tuple[str, ...]]:
    """Return the files of one part, their labels and the names of the classes.

    Classes are the folders of train/ in the order of their names; ImageNet's own names for them
    are taken from LOC_synset_mapping.txt where it lies beside. Without a val/, every tenth
    training picture is held out.

    Raises
    ------
    InputError
        If a part, or pictures in it, are missing, or a part has a class that train/ lacks.
    """
    train = _folder(root, "train")
    if train is None:
        raise InputError(f"{root}: no folder train/ in it; make folders train/CLASS and val/CLASS")
    classes = _classes(train)
    folder = _folder(root, split)
    if folder is None and split == "test":
        raise InputError(f"{root}: no folder test/ in it; use the validation part")
    held_out = _folder(root, "valid") is None
    folder = folder or train
    labels = {name: label for label, name in enumerate(classes)}
    unknown = [name for name in _classes(folder) if name not in labels]
    if unknown:
        raise InputError(
            f"{root.name}/{folder.name}: class folder {unknown[0]} is not in train/; "
            "both parts need the same class names"
        )
    found = [(path, labels[name]) for name in _classes(folder) for path in _images(folder / name)]
    if held_out and split != "test":
        found = [
            item for place, item in enumerate(found) if (place % 10 == 9) == (split == "valid")
        ]
    if not found:
        raise InputError(
            f"{root.name}/{folder.name}: too few pictures for the {split} part; "
            f"put files ending in {', '.join(sorted(_SUFFIXES))} into its class folders"
        )
    return (
        [path for path, _ in found],
        np.array([label for _, label in found], np.int64),
        _readable(root, classes),
    )


def _folder(root: Path, split: str) -> Path | None:
    return next((root / name for name in _FOLDERS[split] if (root / name).is_dir()), None)


def _classes(folder: Path) -> list[str]:
    classes = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if not classes:
        raise InputError(
            f"{folder.parent.name}/{folder.name}: no class folders in it; "
            "sort the pictures into one folder a class"
        )
    return classes


def _images(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")
    )


def _readable(root: Path, classes: list[str]) -> tuple[str, ...]:
    """Replace WordNet ids by names: each line of the mapping is an id, a space, the name."""
    mapping = root / "LOC_synset_mapping.txt"
    names: dict[str, str] = {}
    if mapping.is_file():
        for line in mapping.read_text("utf-8", "replace").splitlines():
            key, _, name = line.partition(" ")
            names[key] = name.strip()
    return tuple(names.get(name) or name for name in classes)
