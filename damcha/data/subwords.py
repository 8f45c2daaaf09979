"""Symbols that spell text: subwords learnt from a text (byte-level BPE).

Subwords (Sennrich et al., 2016, doi:10.18653/v1/P16-1162) begin with the 256 bytes and add, one at
a time, the most frequent neighbours joined; so every text can be spelled, and no text is lost.
The library ``tokenizers`` learns and applies them.

The file says nothing but which two symbols each new one joins:

    {"format_version": 1, "merges": [[116, 104], [256, 101], …]}

Symbols 0 … 255 are the bytes, and the k-th merge makes symbol 256 + k. What the library is given is
built from these numbers alone, never from a file that somebody sent: its own format can ask for
regular expressions and other machinery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as _Tokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from damcha.config import MAX_SYMBOLS
from damcha.errors import ConfigError, InputError

MAX_SYMBOL_BYTES = 256
MAX_FILE_BYTES = 4_000_000


class Subwords:
    """Byte-level BPE, given the two symbols that each of its merges joins."""

    def __init__(self, merges: Iterable[tuple[int, int]]) -> None:
        self.merges = tuple((left, right) for left, right in merges)
        self.spelled = [bytes([byte]) for byte in range(256)]
        """The bytes of each symbol."""
        if len(self.merges) > MAX_SYMBOLS - 256:
            raise InputError(
                f"a tokenizer of {256 + len(self.merges):,} symbols; at most {MAX_SYMBOLS:,}"
            )
        for k, pair in enumerate(self.merges):
            if not all(type(side) is int and 0 <= side < 256 + k for side in pair):
                raise InputError(
                    f"merge {k} of a tokenizer joins {str(pair)[:60]}, which are not two symbols "
                    f"from 0 to {255 + k}"
                )
            joined = self.spelled[pair[0]] + self.spelled[pair[1]]
            if len(joined) > MAX_SYMBOL_BYTES:
                raise InputError(
                    f"merge {k} of a tokenizer spells {len(joined):,} bytes; at most "
                    f"{MAX_SYMBOL_BYTES}"
                )
            self.spelled.append(joined)
        written = ["".join(SHOWN[byte] for byte in symbol) for symbol in self.spelled]
        vocabulary = {symbol: k for k, symbol in enumerate(written)}
        if len(vocabulary) < len(written):
            raise InputError("two merges of a tokenizer spell the same bytes; train it again")
        rules = [(written[left], written[right]) for left, right in self.merges]
        self._tokenizer = with_bytes(_Tokenizer(models.BPE(vocab=vocabulary, merges=rules)))

    @property
    def size(self) -> int:
        """How many symbols spell text: 256 bytes and the merges."""
        return len(self.spelled)

    def encode(self, text: str) -> list[int]:
        """Text → symbols."""
        # A lone surrogate is no text; the library would refuse it.
        return self._tokenizer.encode(text.encode("utf-8", "replace").decode()).ids

    def decode(self, symbols: Iterable[int]) -> str:
        """Symbols → text; the marks of pairs are left out, what is no UTF-8 becomes �."""
        found = b"".join(self.spelled[symbol] for symbol in symbols if symbol < self.size)
        return found.decode("utf-8", "replace")

    def spell(self, symbol: int) -> bytes:
        """The bytes of one symbol, which may be part of a character."""
        return self.spelled[symbol]

    def to_json(self) -> str:
        """Return the file's content."""
        return json.dumps({"format_version": 1, "merges": self.merges}, separators=(",", ":"))


def train_subwords(texts: Iterable[str], size: int) -> Subwords:
    """Learn `size` symbols from texts; equal texts give equal symbols, in whatever order they come.

    There are fewer where the texts have too few neighbours that occur twice.

    Raises
    ------
    ConfigError
        If `size` is below 256, the bytes, or above MAX_SYMBOLS.
    """
    if not 256 <= size <= MAX_SYMBOLS:
        raise ConfigError(f"vocabulary={size}: a tokenizer has 256 to {MAX_SYMBOLS:,} symbols")
    learner = with_bytes(_Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, show_progress=False,
        initial_alphabet=sorted(SHOWN), max_token_length=MAX_SYMBOL_BYTES,
    )  # fmt: skip
    learner.train_from_iterator(texts, trainer)
    places = {shown: byte for byte, shown in enumerate(SHOWN)}
    merges = []
    for left, right in json.loads(learner.to_str())["model"]["merges"]:
        merges.append((places[left], places[right]))
        places.setdefault(left + right, 255 + len(merges))
    return Subwords(merges)


def read_subwords(path: Path) -> Subwords:
    """Read a tokenizer's file, which may come from anybody.

    Raises
    ------
    InputError
        If it cannot be read, is too large, or is not a tokenizer of this library.
    """
    try:
        if not path.is_file():
            raise InputError(f"{path.name}: no such file; this run has no tokenizer")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read ({error.strerror or error})") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"{path.name}: more than {MAX_FILE_BYTES:,} bytes; not a tokenizer")
    try:
        found = json.loads(content)
        if found.keys() != {"format_version", "merges"} or found["format_version"] != 1:
            raise ValueError
        merges = [(left, right) for left, right in found["merges"]]
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{path.name}: not a tokenizer that damcha wrote; train it again"
        ) from None
    return Subwords(merges)


def with_bytes(tokenizer: _Tokenizer, prefix_space: bool = False) -> _Tokenizer:
    """Words are cut as GPT-2 does (a space belongs to what follows), each spelled in bytes."""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _shown() -> list[str]:
    """How the library writes each byte: as itself where it has a shape, else from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


SHOWN = _shown()
"""The character that stands for each byte in the library's own vocabularies."""
