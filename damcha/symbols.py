"""What a model of text reads and writes: symbols, of which a few are marks and no text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from damcha.errors import InputError

TOKENIZER = "tokenizer.json"
"""The file in a run's folder that says what its subwords spell."""


class Tokenizer(Protocol):
    """Text ↔ symbols 0 … size-1; the three symbols after them mark the parts of a pair."""

    @property
    def size(self) -> int:
        """How many symbols spell text."""

    def encode(self, text: str) -> list[int]:
        """Text → symbols."""

    def decode(self, symbols: Iterable[int]) -> str:
        """Symbols → text; the marks are left out."""

    def spell(self, symbol: int) -> bytes:
        """The bytes of one symbol, which may be part of a character."""


class Bytes:
    """Each byte of UTF-8 is a symbol."""

    size = 256

    def encode(self, text: str) -> list[int]:
        """Text → its bytes."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, symbols: Iterable[int]) -> str:
        """Bytes → text; the marks of pairs are left out, what is no UTF-8 becomes �."""
        return bytes(symbol for symbol in symbols if symbol < 256).decode("utf-8", "replace")

    def spell(self, symbol: int) -> bytes:
        """The byte itself."""
        return bytes([symbol])


@dataclass(frozen=True)
class Numbers:
    """Symbols that nobody can spell: a text is their numbers, with spaces between them."""

    size: int

    def encode(self, text: str) -> list[int]:
        """Text → symbols.

        Raises
        ------
        InputError
            If it is not numbers of symbols.
        """
        words = text.replace(",", " ").split()
        for word in words:
            known = word.isascii() and word.isdigit() and len(word) < 10 and int(word) < self.size
            if not known:
                raise InputError(
                    f"{word[:40]!r} is no symbol: this run has no tokenizer, so write its symbols "
                    f"as numbers from 0 to {self.size - 1:,}, with spaces between them"
                )
        return [int(word) for word in words]

    def decode(self, symbols: Iterable[int]) -> str:
        """Symbols → their numbers."""
        return " ".join(map(str, symbols))

    def spell(self, symbol: int) -> bytes:
        """The number of one symbol."""
        return str(symbol).encode()


@dataclass(frozen=True)
class Marks:
    """The symbols that are no text, after the `size` of a tokenizer that are."""

    size: int

    @property
    def separator(self) -> int:
        """Stands between source and target: after it, the model writes."""
        return self.size

    @property
    def end(self) -> int:
        """Ends a target."""
        return self.size + 1

    @property
    def pad(self) -> int:
        """Fills a row; the loss never counts it."""
        return self.size + 2

    @property
    def n_symbols(self) -> int:
        """All symbols, text and marks."""
        return self.size + 3
