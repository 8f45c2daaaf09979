"""Symbols of somebody else's tokenizer: word pieces as BERT has them, byte pairs as BART and GPT-2.

A ``tokenizer.json`` of the Hugging Face library can ask for regular expressions and other
machinery, so it is read once, by who imports a run and names the file, and only its lists are kept:

    {"format_version": 2, "kind": "word_pieces", "symbols": ["[PAD]", …], "marks": [0, …],
     "merges": [], "unknown": 100, "lowercase": false, "strip_accents": null, "chinese": true,
     "clean": true, "longest": 100, "prefix_space": false}

Symbol k is spelled ``symbols[k]``, ``marks`` are the symbols that are no text, ``merges`` (byte
pairs alone) says which two symbols join. What the library ``tokenizers`` is given is built from
these lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer as _Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

from damcha.config import MAX_SYMBOLS
from damcha.data.subwords import SHOWN, with_bytes
from damcha.errors import InputError

MAX_FILE_BYTES = 40_000_000
CONTINUES = "##"
"""How a word piece begins that is not the first of its word."""

Symbol = Annotated[int, Field(ge=0, lt=MAX_SYMBOLS)]
_FORMS = "word pieces as BERT's, or byte pairs as BART's and GPT-2's"


class PiecesFile(BaseModel):
    """What a tokenizer's file holds."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format_version: Literal[2] = 2
    kind: Literal["word_pieces", "byte_pairs"]
    symbols: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...],
        Field(min_length=2, max_length=MAX_SYMBOLS),
    ]
    marks: Annotated[tuple[Symbol, ...], Field(max_length=MAX_SYMBOLS)] = ()
    merges: Annotated[tuple[tuple[Symbol, Symbol], ...], Field(max_length=MAX_SYMBOLS)] = ()
    unknown: Symbol | None = None
    """Stands for a word that no pieces spell."""
    lowercase: bool = False
    strip_accents: bool | None = None
    chinese: bool = True
    """Whether each Chinese character is a word."""
    clean: bool = True
    """Whether control characters are dropped and all spaces are one kind."""
    longest: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Characters of a word above which it is unknown."""
    prefix_space: bool = False
    """Whether a text begins as if a space stood before it."""


class Pieces:
    """A tokenizer that was learnt elsewhere."""

    def __init__(self, file: PiecesFile) -> None:
        self.file = file
        symbols, n = file.symbols, len(file.symbols)
        places = {symbol: k for k, symbol in enumerate(symbols)}
        if len(places) < n:
            raise InputError("a tokenizer spells two of its symbols alike")
        used = [*file.marks, *(side for pair in file.merges for side in pair)]
        if max([*used, file.unknown or 0]) >= n:
            raise InputError(f"a tokenizer of {n:,} symbols uses others than 0 to {n - 1:,}")
        self._marks = frozenset(file.marks)
        if file.kind == "word_pieces":
            if file.unknown is None:
                raise InputError("a tokenizer of word pieces has no symbol for unknown words")
            self._tokenizer = _Tokenizer(
                models.WordPiece(
                    vocab=places, unk_token=symbols[file.unknown],
                    max_input_chars_per_word=file.longest,
                )
            )  # fmt: skip
            self._tokenizer.normalizer = normalizers.BertNormalizer(
                clean_text=file.clean, handle_chinese_chars=file.chinese,
                strip_accents=file.strip_accents, lowercase=file.lowercase,
            )  # fmt: skip
            self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            self._tokenizer.decoder = decoders.WordPiece(prefix=CONTINUES)
        else:
            if not places.keys() >= set(SHOWN):
                raise InputError("a tokenizer of byte pairs lacks some of the 256 bytes")
            rules = [(symbols[left], symbols[right]) for left, right in file.merges]
            for left, right in rules:
                if left + right not in places:
                    raise InputError(f"a merge of a tokenizer makes {left + right!r}, no symbol")
            model = models.BPE(vocab=places, merges=rules)
            self._tokenizer = with_bytes(_Tokenizer(model), file.prefix_space)
            self._bytes = {shown: byte for byte, shown in enumerate(SHOWN)}

    @property
    def size(self) -> int:
        """How many symbols there are, marks among them."""
        return len(self.file.symbols)

    def encode(self, text: str) -> list[int]:
        """Text → symbols, without a mark."""
        # A lone surrogate is no text; the library would refuse it.
        return self._tokenizer.encode(text.encode("utf-8", "replace").decode()).ids

    def decode(self, symbols: Iterable[int]) -> str:
        """Symbols → text; marks are left out."""
        kept = [symbol for symbol in symbols if symbol < self.size and symbol not in self._marks]
        if self.file.kind == "byte_pairs":
            return b"".join(map(self.spell, kept)).decode("utf-8", "replace")
        return self._tokenizer.decode(kept)

    def spell(self, symbol: int) -> bytes:
        """The bytes of one symbol; of a word piece and of a mark, its name."""
        written = self.file.symbols[symbol]
        if self.file.kind == "word_pieces" or symbol in self._marks:
            return written.encode()
        return bytes(self._bytes[c] for c in written if c in self._bytes)

    def to_json(self) -> str:
        """Return the file's content."""
        return self.file.model_dump_json()


def read_pieces(path: Path) -> Pieces:
    """Read a tokenizer's file in a run folder, which may come from anybody.

    Raises
    ------
    InputError
        If it cannot be read, is too large, or is not such a file.
    """
    try:
        return Pieces(PiecesFile.model_validate_json(_read(path)))
    except ValidationError:
        raise InputError(
            f"{path.name}: not a tokenizer that damcha wrote; import the run again"
        ) from None


def from_hugging_face(path: Path) -> tuple[Pieces, int | None]:
    """Read the lists of a ``tokenizer.json``, and the symbol that begins its texts, if it says.

    Raises
    ------
    InputError
        If it is not such a file, or neither word pieces nor byte pairs.
    """
    try:
        found = json.loads(_read(path))
        pieces = Pieces(_lists(found))
        first = _first(found.get("post_processor"), found["model"]["vocab"])
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError):
        # A ValidationError is a ValueError.
        raise InputError(
            f"{path.name}: not a tokenizer.json of the Hugging Face library with {_FORMS}"
        ) from None
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    return pieces, first


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read ({error.strerror or error})") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"{path.name}: more than {MAX_FILE_BYTES:,} bytes; not a tokenizer")
    return content


def _lists(found: Any) -> PiecesFile:
    model, before = found["model"], found["pre_tokenizer"]["type"]
    vocabulary = dict(model["vocab"])
    marks = []
    for added in found.get("added_tokens") or ():
        name = added["content"]
        known = vocabulary.setdefault(name, added["id"])
        if known != added["id"] or not (name in model["vocab"] or added["special"]):
            raise InputError(f"it has a symbol added later, {name[:40]!r}")
        if added["special"]:
            marks.append(known)
    order = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[symbol] for symbol in order] != list(range(len(order))):
        raise InputError("its symbols are not numbered from 0 without gaps")
    common: dict[str, Any] = {"symbols": tuple(order), "marks": tuple(marks)}
    kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
    normal = found.get("normalizer")
    if kind == "WordPiece" and before == "BertPreTokenizer":
        if normal["type"] != "BertNormalizer" or model["continuing_subword_prefix"] != CONTINUES:
            raise ValueError
        return PiecesFile(
            kind="word_pieces", unknown=vocabulary[model["unk_token"]],
            longest=model["max_input_chars_per_word"], lowercase=normal["lowercase"],
            strip_accents=normal["strip_accents"], chinese=normal["handle_chinese_chars"],
            clean=normal["clean_text"], **common,
        )  # fmt: skip
    plain = not any(
        model.get(key)
        for key in (
            "dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
            "ignore_merges",
        )
    )  # fmt: skip
    if kind != "BPE" or before != "ByteLevel" or normal is not None or not plain:
        raise ValueError
    if not found["pre_tokenizer"].get("use_regex", True):
        raise ValueError
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    return PiecesFile(
        kind="byte_pairs",
        merges=tuple((vocabulary[left], vocabulary[right]) for left, right in pairs),
        prefix_space=found["pre_tokenizer"]["add_prefix_space"],
        **common,
    )


def _first(processor: Any, vocabulary: dict[str, int]) -> int | None:
    """The symbol that a tokenizer puts before every text."""
    kind = processor["type"] if processor else None
    if kind in ("BertProcessing", "RobertaProcessing"):
        return int(processor["cls"][1])
    if kind == "TemplateProcessing" and "SpecialToken" in processor["single"][0]:
        name = processor["single"][0]["SpecialToken"]["id"]
        return int(processor["special_tokens"][name]["ids"][0])
    return None
