"""What the published sets hold, by their publishers' own words: counts, sizes, MD5 sums.

A copy with fewer examples than were published is taken, and called an excerpt wherever the set is
named; one with more is another set. A file of exactly the published size must have the published
sum. Only what is certain is listed: Fashion-MNIST's published sums are of gzip files with other
time stamps than those that distributions ship, and Hugging Face publishes no sum of a whole set,
so these are checked by their counts alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Literal

from damcha.errors import InputError

Split = Literal["train", "valid", "test"]

COUNTS: dict[str, dict[Split, int]] = {
    # A set without a validation part of its own holds it out from the training part named here.
    "fashion_mnist": {"train": 60_000, "test": 10_000},
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "objects10": {"train": 5_000, "test": 1_000},
    "imagenet": {"train": 1_281_167, "valid": 50_000, "test": 100_000},
    "wmt14": {"train": 4_508_785, "valid": 3_000, "test": 3_003},
    "common_gen": {"train": 67_389, "valid": 4_018, "test": 1_497},
    "en_de": {"train": 93_037, "valid": 3_696, "test": 4_652},
    "concepts": {"train": 17_090, "valid": 690, "test": 791},
    # Bytes, not examples.
    "enwik8": {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000},
    "text8": {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000},
    "mix": {"train": 17_011_890, "valid": 998_424, "test": 957_727},
}
"""Set → examples (or bytes) of each part."""

MD5: dict[str, tuple[int, str]] = {
    "cifar-10-binary.tar.gz": (170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar-100-binary.tar.gz": (168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
    "enwik8": (100_000_000, "a1fa5ffddb56f4953e226637dabbb36a"),
    "text8": (100_000_000, "3bea1919949baf155f99411df5fada7e"),
}
"""File (unpacked, for the two texts) → its bytes and its MD5 sum."""


def check_count(dataset: str, split: Split, count: int, unit: str = "examples") -> str:
    """Return what to add to a set's description: "" if it is whole, else what part it is.

    Raises
    ------
    InputError
        If there are more examples than were published: it is another set.
    """
    published = COUNTS.get(dataset, {})
    # The training part is counted before validation is held out from it.
    whole = published.get(split, published.get("train", count))
    if count > whole:
        raise InputError(
            f"{dataset}: the {split} part has {count:,} {unit}, more than the {whole:,} that were "
            "published; name the data set that it is"
        )
    return "" if count == whole else f" Here an excerpt: {count:,} of {whole:,} {unit} ({split})."


def check_sum(name: str, n_bytes: int, content: Callable[[], bytes | memoryview]) -> None:
    """Check a file of the published size against the published sum; others have none.

    Raises
    ------
    InputError
        If the sum is another one.
    """
    size, wanted = MD5.get(name, (None, ""))
    if n_bytes != size:
        return
    found = hashlib.md5(content(), usedforsecurity=False).hexdigest()
    if found != wanted:
        raise InputError(
            f"{name}: its MD5 sum is {found}, not the published {wanted}; download it again"
        )
