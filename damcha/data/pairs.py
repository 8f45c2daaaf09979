"""Pairs of a source and a target text, for a model that reads the one and writes the other.

========================= ==================================================================
wmt14                     English → German; Parquet with a column ``translation`` {de, en}
en_de                     English → German; SPLIT.tsv with the columns en, de
common_gen                concepts → sentence; Parquet with ``concept_set_idx``, ``concepts``,
                          ``target``
concepts                  the same columns, a JSON object a line, SPLIT.jsonl
========================= ==================================================================

Text files may be plain, .gz, .xz, .bz2. An example becomes one row of symbols

    source, SEPARATOR, target, END, PAD, PAD, …

and the loss counts the target and its END alone: they are what the model has to write.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from damcha.config import DataConfig
from damcha.data.archives import unpack
from damcha.data.published import Split, check_count
from damcha.data.tables import find_rows, is_hub
from damcha.data.text import symbol_label
from damcha.errors import InputError
from damcha.symbols import Marks, Tokenizer

MAX_TEXT = 4 * 2**30
"""Bytes of text that the pairs of one part may have; WMT14 has 1.3 GB."""
MAX_LINE = 2**20
"""Bytes of a source or a target."""

Pair = tuple[str, str, int]
"""Source, target, group: equal groups share a source and are references of each other."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Many short texts in one array."""

    bytes: NDArray[np.uint8]
    """Their UTF-8, one after another."""
    stops: NDArray[np.int64]
    """[N]: where each ends."""

    def __len__(self) -> int:
        return len(self.stops)

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self.stops[index - 1] if index else 0
        return bytes(self.bytes[start : self.stops[index]]).decode("utf-8", "replace")


@dataclass(frozen=True, eq=False)
class PairData:
    """One part of a set of pairs."""

    sources: Texts
    targets: Texts
    """Empty where a part is published without (CommonGen's test)."""
    groups: NDArray[np.int64]
    """[N]: examples of one group have one source, and their targets are its references."""
    source: str
    licence: str

    def __len__(self) -> int:
        return len(self.groups)


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Examples as rows of symbols, [B, L]."""

    symbols: NDArray[np.int64]
    """[B, L]: source, SEPARATOR, target, END, PAD, …"""
    loss_mask: NDArray[np.bool_]
    """[B, L]: True at the target and its END."""
    prompt_lengths: NDArray[np.int64]
    """[B]: symbols up to and with SEPARATOR; what generation starts from."""
    lengths: NDArray[np.int64]
    """[B]: symbols without PAD."""
    cut: NDArray[np.bool_]
    """[B]: whether the source or the target did not fit."""


def pair_batch(
    data: PairData, index: Sequence[int] | NDArray[np.int64], tokenizer: Tokenizer, length: int
) -> PairBatch:
    """Return the examples of an index as rows of `length` symbols.

    A pair that does not fit gives up the end of its source first, down to half of the row, then
    the end of its target; a target that was cut has no END, so that nobody learns to stop there.

    Raises
    ------
    InputError
        If `length` leaves no room for a symbol of source, SEPARATOR, a symbol of target, END.
    """
    if length < 4:
        raise InputError(f"seq_len={length}: a pair needs 4 symbols or more; raise it")
    marks = Marks(tokenizer.size)
    symbols = np.full((len(index), length), marks.pad, np.int64)
    loss_mask = np.zeros((len(index), length), bool)
    prompts, lengths = np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
    cut = np.zeros(len(index), bool)
    for row, k in enumerate(index):
        source = tokenizer.encode(data.sources[int(k)])
        target = [*tokenizer.encode(data.targets[int(k)]), marks.end]
        room = max(length - 1 - len(target), length // 2 - 1)
        prompt = [*source[:room], marks.separator]
        found = [*prompt, *target[: length - len(prompt)]]
        symbols[row, : len(found)] = found
        loss_mask[row, len(prompt) : len(found)] = True
        prompts[row], lengths[row] = len(prompt), len(found)
        cut[row] = len(found) < len(source) + 1 + len(target)
    return PairBatch(symbols, loss_mask, prompts, lengths, cut)


@dataclass(frozen=True, eq=False)
class PairExamples:
    """Pairs as a model reads them: rows of `length` symbols."""

    data: PairData
    tokenizer: Tokenizer
    length: int

    def __len__(self) -> int:
        return len(self.data)

    @property
    def source(self) -> str:
        """Where the pairs come from."""
        return self.data.source

    @property
    def licence(self) -> str:
        """Under which licence."""
        return self.data.licence

    def rows(self, index: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the symbols of some pairs, [n, length]."""
        return pair_batch(self.data, index, self.tokenizer, self.length).symbols


def symbol_labels(tokenizer: Tokenizer, symbols: Iterable[int]) -> tuple[str, ...]:
    """Return one label a symbol; marks are ``⟨to⟩`` (SEPARATOR), ``⟨end⟩``, ``⟨pad⟩``."""
    marks = Marks(tokenizer.size)
    named = {marks.separator: "⟨to⟩", marks.end: "⟨end⟩", marks.pad: "⟨pad⟩"}
    return tuple(
        named[k] if k in named else symbol_label(tokenizer.spell(k)) for k in map(int, symbols)
    )


def one_pair(text: str, tokenizer: Tokenizer, length: int) -> tuple[NDArray[np.int64], bool]:
    """Return what a person wrote, as symbols [n], and whether something was cut.

    The source stands before a tab, its target after it. Without a tab there is no target, and the
    symbols end with SEPARATOR.
    """
    source, tab, target = text.strip("\n").partition("\t")
    sides = _gather([(source, target, 0)], "text")
    batch = pair_batch(PairData(*sides, "", ""), [0], tokenizer, length)
    stop = batch.lengths[0] if tab else batch.prompt_lengths[0]
    return batch.symbols[0, :stop], bool(batch.cut[0])


# Reading ----------------------------------------------------------------------------------------

_ABOUT = {
    "wmt14": (
        "WMT14 English–German (Bojar et al., 2014, doi:10.3115/v1/W14-3302): sentence pairs.",
        "None stated for the whole; see the sources at the workshop's page.",
    ),
    "en_de": (
        "en_de: English–German sentence pairs from manuals, games and phrase books; "
        "stands in for WMT14 and is not it.",
        "GPL-2.0-or-later, LGPL, GFDL, MPL-2.0 and CC-BY-SA-3.0, by source.",
    ),
    "common_gen": (
        "CommonGen (Lin et al., 2020, doi:10.18653/v1/2020.findings-emnlp.165): concept sets and "
        "sentences that use them.",
        "MIT.",
    ),
    "concepts": (
        "concepts: concept sets and sentences from WordNet and the Ding dictionary; "
        "stands in for CommonGen and is not it.",
        "WordNet 3.0 licence and GPL-2.0-or-later.",
    ),
}

WANTED = {
    "wmt14": "put the Parquet files of the Hugging Face set wmt/wmt14, configuration de-en, there "
    "(train-*.parquet, validation-*.parquet, test-*.parquet), or give hf: as the folder",
    "common_gen": "put the Parquet files of the Hugging Face set allenai/common_gen there "
    "(train-*.parquet, validation-*.parquet, test-*.parquet), or give hf: as the folder",
    "en_de": "put train.tsv, valid.tsv and test.tsv (.xz, .gz or .bz2 too) there, "
    "with the columns en and de",
    "concepts": "put train.jsonl, validation.jsonl and test.jsonl (.xz, .gz or .bz2 too) there",
}
"""What to do when a set is not where it should be."""

_HUB = {"wmt14": ("wmt/wmt14", "de-en"), "common_gen": ("allenai/common_gen", None)}
_FILES = {"train": ("train",), "valid": ("valid", "validation"), "test": ("test",)}


def load_pairs(config: DataConfig, root: Path | str, split: Split) -> PairData:
    """Return one part of the set of pairs that a configuration names.

    Raises
    ------
    InputError
        If the set has no pairs, files are missing (the message says which to get and where to put
        them), damaged, too large, or hold something else.
    """
    root, name = Path(root), config.dataset
    if name not in _ABOUT:
        raise InputError(f"dataset={name}: not a set of pairs; choose from {', '.join(_ABOUT)}")
    if not is_hub(root) and not root.exists():
        raise InputError(f"{root}: no such file or folder; {WANTED[name]}")
    if name in _HUB:
        pairs = _from_tables(name, root, split)
    elif is_hub(root):
        raise InputError(f"{root}: {name} is not at Hugging Face; {WANTED[name]}")
    else:
        pairs = _from_lines(name, root, split)
    sources, targets, groups = _gather(pairs, f"{name}, {split}")
    source, licence = _ABOUT[name]
    note = check_count(name, split, len(groups), "pairs")
    return PairData(sources, targets, groups, source + note, licence)


def _from_tables(name: str, root: Path, split: Split) -> Iterator[Pair]:
    repository, configuration = _HUB[name]
    rows = find_rows(root, split, repository, configuration)
    if rows is None:
        raise InputError(f"{root}: no {split} part in it; {WANTED[name]}")
    if name == "wmt14":
        first = 0
        for batch in rows.batches(["translation"]):
            column = batch.column(0)
            if not pa.types.is_struct(column.type):
                raise InputError(f"{name}: row {first} holds no translation; download it again")
            # Side by side: a Python object for each row would take three times as long.
            sides = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
            missing = [None] * len(column)
            english, german = (
                sides[side].to_pylist() if side in sides else missing for side in ("en", "de")
            )
            for k, (source, target) in enumerate(zip(english, german, strict=True), first):
                yield _checked(name, k, source, target, k)
            first += len(column)
    else:
        columns = ["concepts", "target", "concept_set_idx"]
        for batch in rows.batches(columns):
            for row in batch.to_pylist():
                yield _from_concepts(name, row)


def _from_lines(name: str, root: Path, split: Split) -> Iterator[Pair]:
    ending = "tsv" if name == "en_de" else "jsonl"
    names = [
        f"{part}.{ending}{packed}"
        for part in _FILES[split]
        for packed in ("", ".xz", ".gz", ".bz2")
    ]
    path = next((root / file for file in names if (root / file).is_file()), None)
    if path is None:
        raise InputError(f"{root}: no {names[0]} in it; {WANTED[name]}")
    # split, not splitlines: the latter also cuts at characters that stand inside a sentence.
    lines = unpack(path).decode("utf-8", "replace").removesuffix("\n").split("\n")
    if name == "en_de":
        header, *lines = lines
        columns = header.rstrip("\r").split("\t")
        if not {"en", "de"} <= set(columns):
            raise InputError(f"{path.name}: no columns en and de in its first line; {WANTED[name]}")
        for k, line in enumerate(lines):
            row = dict(zip(columns, line.rstrip("\r").split("\t"), strict=False))
            yield _checked(path.name, k, row.get("en"), row.get("de"), k)
        return
    for k, line in enumerate(lines):
        try:
            yield _from_concepts(path.name, json.loads(line))
        except (json.JSONDecodeError, RecursionError):
            raise InputError(f"{path.name}: line {k + 1} is not JSON; download it again") from None


def _from_concepts(name: str, row: object) -> Pair:
    if not isinstance(row, dict):
        row = {}
    group, concepts = row.get("concept_set_idx"), row.get("concepts")
    if not isinstance(group, int) or not 0 <= group < 2**31:
        raise InputError(f"{name}: {group!r:.40} for a concept_set_idx; download it again")
    if not isinstance(concepts, list) or not all(isinstance(word, str) for word in concepts):
        raise InputError(f"{name}: concept set {group} has no list of words; download it again")
    return _checked(name, group, " ".join(concepts), row.get("target"), group)


def _checked(name: str, k: int, source: object, target: object, group: int) -> Pair:
    if not (isinstance(source, str) and isinstance(target, str)):
        raise InputError(f"{name}: row {k} lacks its source or target; download it again")
    return source, target, group


def _gather(pairs: Iterable[Pair], name: str) -> tuple[Texts, Texts, NDArray[np.int64]]:
    """Pack pairs into arrays: millions of Python strings would need several times the memory."""
    texts = (bytearray(), bytearray())
    stops, groups = (array("q"), array("q")), array("q")
    for *sides, group in pairs:
        for text, stop, side in zip(texts, stops, sides, strict=True):
            encoded = str(side).encode("utf-8", "replace")
            if len(encoded) > MAX_LINE or len(text) + len(encoded) > MAX_TEXT:
                raise InputError(
                    f"{name}: a text of {len(encoded):,} bytes after {len(text):,}; at most "
                    f"{MAX_LINE:,} are read, and {MAX_TEXT:,} in all"
                )
            text += encoded
            stop.append(len(text))
        groups.append(group)
    if not groups:
        raise InputError(f"{name}: no pairs in it; download it again")
    sources, targets = (
        Texts(np.frombuffer(bytes(text), np.uint8), np.frombuffer(bytes(stop), np.int64))
        for text, stop in zip(texts, stops, strict=True)
    )  # over bytes, so read-only
    return sources, targets, np.frombuffer(bytes(groups), np.int64)
